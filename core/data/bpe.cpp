// GPT-2's byte-level byte-pair encoding. Radford et al., "Language models are unsupervised multitask
// learners" (2019): text is cut into words, the bytes of a word are its first symbols, and the neighbouring
// pair that stands first in the list of merges is joined until none is left.
#include <algorithm>
#include <unordered_map>

#include "core/base/error.h"
#include "core/data/merges.h"
#include "core/data/tokenizer_kinds.h"
#include "core/data/words.h"
#include "core/io/file.h"

namespace het {
namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  // `tokens`: as vocab.json writes them, by id; `merges`: "first second", best first.
  BpeTokenizer(std::vector<std::string> tokens, std::vector<std::string> merges, std::string_view what)
      : tokens_(std::move(tokens)), merges_(std::move(merges)) {
    const std::vector<char32_t> characters = byte_characters();
    const std::unordered_map<char32_t, char> bytes = bytes_of_characters();
    std::unordered_map<std::string, int32_t> ids;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      ids[tokens_[i]] = static_cast<int32_t>(i);
      bytes_.push_back(bytes_of_token(tokens_[i], bytes, what));
    }
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) fail_usage("{}: the vocabulary lacks the token '{}'", what, token);
      return found->second;
    };
    for (size_t b = 0; b < 256; ++b) {
      std::string character;
      append_utf8(character, characters[b]);
      first_[b] = id_of(character);
    }
    for (size_t rank = 0; rank < merges_.size(); ++rank) {
      const std::string& line = merges_[rank];
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
        fail_usage("{}: merge {} is '{}'; two tokens with a space between are wanted", what, rank + 1, line);
      const std::string a = line.substr(0, space), b = line.substr(space + 1);
      pairs_.add(id_of(a), id_of(b), id_of(a + b));
    }
  }

  std::string_view kind() const override { return "bpe"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  SpecialTokens special_tokens() const override { return special_tokens_among(tokens_); }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    std::unordered_map<std::string_view, std::vector<int32_t>> known;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = word_end(text, begin);
      if (end - begin > kMostWord)
        fail_usage("the word that begins at byte {} of the text has {} bytes; {} are the most", begin,
                   end - begin, kMostWord);
      const auto [entry, fresh] = known.try_emplace(text.substr(begin, end - begin));
      if (fresh) entry->second = encode_word(entry->first);
      ids.insert(ids.end(), entry->second.begin(), entry->second.end());
      begin = end;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += bytes_[checked_id(id, *this)];
    return text;
  }

  Json to_json() const override {
    return Json::object_t{{"kind", "bpe"},
                          {"tokens", Json::array_t(tokens_.begin(), tokens_.end())},
                          {"merges", Json::array_t(merges_.begin(), merges_.end())}};
  }

 private:
  std::vector<int32_t> encode_word(std::string_view word) const {
    std::vector<int32_t> ids;
    for (const char byte : word) ids.push_back(first_[static_cast<unsigned char>(byte)]);
    pairs_.apply(ids);
    return ids;
  }

  std::vector<std::string> tokens_, merges_;
  std::vector<std::string> bytes_;  // of each token
  int32_t first_[256];              // the token of each byte
  Merges pairs_;
};

// Token texts by id from vocab.json's object; ids must be 0 .. n - 1, each once.
std::vector<std::string> tokens_by_id(const Json& json, std::string_view what) {
  if (!json.is_object()) fail_usage("{}: an object from tokens to ids is wanted", what);
  std::vector<std::string> tokens(as_object(json)->size());
  std::vector<bool> seen(tokens.size());
  for (const auto& [token, id] : *as_object(json)) {
    const int64_t* number = as_integer(id);
    if (number == nullptr || *number < 0 || *number >= static_cast<int64_t>(tokens.size()) ||
        seen[static_cast<size_t>(*number)])
      fail_usage("{}: token '{}' has the id {}; ids are 0 to {}, each once", what, token, dump(id),
                 tokens.size() - 1);
    seen[static_cast<size_t>(*number)] = true;
    tokens[static_cast<size_t>(*number)] = token;
  }
  return tokens;
}

std::vector<std::string> merge_lines(const std::string& text) {
  std::vector<std::string> merges;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool version = begin == 0 && line.rfind("#version", 0) == 0;
    if (!line.empty() && !version) merges.push_back(std::move(line));
    begin = end + 1;
  }
  return merges;
}

std::vector<std::string> texts_of(const Json& json, const char* name, std::string_view what) {
  const Json::array_t* list = as_array(find_member(json, name));
  if (list == nullptr) fail_usage("{}: a bpe vocabulary needs the list '{}'", what, name);
  std::vector<std::string> texts;
  for (const Json& text : *list) {
    if (!text.is_string())
      fail_usage("{}: the list '{}' holds {}; strings are wanted", what, name, dump(text));
    texts.push_back(*as_string(text));
  }
  return texts;
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Path& folder) {
  const Path vocabulary = folder.child("vocab.json");
  for (const char* name : {"vocab.json", "merges.txt"})
    if (kind_of(folder) == FileKind::folder && kind_of(folder.child(name)) == FileKind::none)
      fail_usage("BPE folder {} has no {}", folder.text, name);
  return std::make_unique<BpeTokenizer>(
      tokens_by_id(read_json(vocabulary), fmt::format("'{}'", vocabulary.text)),
      merge_lines(read_file(folder.child("merges.txt"))), fmt::format("'{}'", folder.text));
}

std::unique_ptr<Tokenizer> bpe_from_json(const Json& json, std::string_view what) {
  return std::make_unique<BpeTokenizer>(texts_of(json, "tokens", what), texts_of(json, "merges", what), what);
}

}  // namespace het
