// Byte-pair encoding over bytes, or over characters with byte fallback.
#include <algorithm>
#include <unordered_set>

#include "core/data/huggingface/model.h"
#include "core/data/merges.h"
#include "core/data/words.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

class BytePairs final : public Model {
 public:
  BytePairs(const Part& model, bool byte_level, Shown& shown) : byte_level_(byte_level) {
    if (model["dropout"].present() && *model["dropout"].json != Json(0.0)) model["dropout"].refuse("dropout");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!model[affix].text_or("").empty()) model[affix].refuse("a string");
    fuses_unknown_ = model["fuse_unk"].flag(false);
    whole_words_ = model["ignore_merges"].flag(false);
    const auto by_name = read_vocabulary(model["vocab"], shown);
    for (const auto& [token, id] : by_name) {
      std::string text = byte_level_ ? bytes_of_token(token, bytes_, model["vocab"].name) : token;
      if (byte_level_) shown.set(id, text);
      ids_.emplace(std::move(text), id);
    }
    const auto id_of = [&](const std::string& token) -> int32_t {
      const auto found = by_name.find(token);
      return found == by_name.end() ? -1 : found->second;
    };
    if (model["unk_token"].present()) unknown_ = id_of(model["unk_token"].text());
    if (byte_level_) {
      const std::vector<char32_t> characters = byte_characters();
      for (size_t b = 0; b < 256; ++b) {
        std::string character;
        append_utf8(character, characters[b]);
        byte_ids_[b] = id_of(character);
      }
    } else if (model["byte_fallback"].flag(false)) {
      falls_back_ = true;
      for (int b = 0; b < 256; ++b) byte_ids_[b] = id_of(byte_token(b));
    }
    read_merges(model["merges"], id_of);
  }

  // Appends the ids of a word.
  void encode(std::string_view word, Words& words, std::vector<int32_t>& ids) const override {
    if (word.size() > kMostWord)
      fail_usage("a word of the text has {} bytes; {} are the most", word.size(), kMostWord);
    if (whole_words_)
      if (const auto found = ids_.find(std::string(word)); found != ids_.end())
        return ids.push_back(found->second);
    if (byte_level_ || !cuts_) return encode_part(word, words, ids, false);
    // Where no token holds two neighbouring characters side by side, none reaches over them: the word is cut
    // there.
    size_t begin = 0;
    char32_t before = 0;
    bool first = true;
    for (size_t at = 0; at < word.size();) {
      const Decoded decoded = decode_utf8(word, at);
      if (at > begin && neighbours_.find(neighbours(before, decoded.code_point)) == neighbours_.end()) {
        encode_part(word.substr(begin, at - begin), words, ids, !first);
        first = false;
        begin = at;
      }
      before = decoded.code_point;
      at += static_cast<size_t>(std::max(decoded.bytes, 1));
    }
    encode_part(word.substr(begin), words, ids, !first);
  }

 private:
  template <typename IdOf>
  void read_merges(const Part& merges, const IdOf& id_of) {
    for (const Part& merge : merges.list()) {
      std::string first, second;
      if (merge.json->is_array()) {
        const std::vector<Part> both = merge.list();
        if (both.size() != 2) fail_usage("{}: two tokens are wanted", merge.name);
        first = both[0].text();
        second = both[1].text();
      } else {
        const std::string line = merge.text();
        const size_t space = line.find(' ');
        if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
          fail_usage("{}: it is '{}'; two tokens with a space between are wanted", merge.name, line);
        first = line.substr(0, space);
        second = line.substr(space + 1);
      }
      const std::string joined = first + second;
      const int32_t a = id_of(first), b = id_of(second), result = id_of(joined);
      if (a < 0 || b < 0 || result < 0)
        fail_usage("{}: the vocabulary lacks the token '{}'", merge.name,
                   a < 0   ? first
                   : b < 0 ? second
                           : joined);
      merges_.add(a, b, result);
      if (byte_level_) continue;
      note_neighbours(joined);
      // Symbols that stand for other characters than their names: words are not cut.
      if (a == unknown_ || b == unknown_ || is_byte(a) || is_byte(b)) cuts_ = false;
    }
  }

  bool is_byte(int32_t id) const {
    return falls_back_ && std::find(std::begin(byte_ids_), std::end(byte_ids_), id) != std::end(byte_ids_);
  }
  static uint64_t neighbours(char32_t a, char32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

  void note_neighbours(const std::string& token) {
    char32_t before = 0;
    for (size_t i = 0; i < token.size();) {
      const Decoded decoded = decode_utf8(token, i);
      if (i > 0) neighbours_.insert(neighbours(before, decoded.code_point));
      before = decoded.code_point;
      i += static_cast<size_t>(std::max(decoded.bytes, 1));
    }
  }

  // `follows`: what is before it belongs to the same word.
  void encode_part(std::string_view part, Words& words, std::vector<int32_t>& ids, bool follows) const {
    encode_once(
        part, words, [&](std::string_view symbols) { return symbols_of(symbols); },
        [&](const std::vector<int32_t>& made) {
          const bool fuses = follows && fuses_unknown_ && !made.empty() && !ids.empty() && unknown_ >= 0 &&
                             made.front() == unknown_ && ids.back() == unknown_;
          ids.insert(ids.end(), made.begin() + (fuses ? 1 : 0), made.end());
        });
  }

  std::vector<int32_t> symbols_of(std::string_view part) const {
    std::vector<int32_t> symbols;
    const auto byte = [&](char c) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) symbols.push_back(id);
      return id >= 0;
    };
    if (byte_level_) {
      for (const char c : part)
        if (!byte(c)) add_unknown(symbols);
    } else {
      for (size_t at = 0; at < part.size();) {
        const size_t size = static_cast<size_t>(std::max(decode_utf8(part, at).bytes, 1));
        const std::string character(part.substr(at, size));
        at += size;
        if (const auto found = ids_.find(character); found != ids_.end())
          symbols.push_back(found->second);
        else if (!falls_back_ || !std::all_of(character.begin(), character.end(), [&](char c) {
                   return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                 }))
          add_unknown(symbols);
        else
          for (const char c : character) byte(c);
      }
    }
    merges_.apply(symbols);
    return symbols;
  }

  void add_unknown(std::vector<int32_t>& symbols) const {
    if (unknown_ >= 0 && !(fuses_unknown_ && !symbols.empty() && symbols.back() == unknown_))
      symbols.push_back(unknown_);
  }

  const bool byte_level_;
  bool falls_back_ = false, fuses_unknown_ = false, whole_words_ = false, cuts_ = true;
  std::unordered_map<char32_t, char> bytes_ = bytes_of_characters();
  std::unordered_map<std::string, int32_t> ids_;  // by what tokens stand for
  int32_t byte_ids_[256] = {};
  int32_t unknown_ = -1;
  Merges merges_;
  std::unordered_set<uint64_t> neighbours_;  // pairs of characters that stand side by side in a token
};

}  // namespace

std::unique_ptr<Model> make_byte_pairs(const Part& model, bool byte_level, Shown& shown) {
  return std::make_unique<BytePairs>(model, byte_level, shown);
}

}  // namespace het::huggingface
