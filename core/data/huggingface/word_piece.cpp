// WordPiece, as BERT has it (Devlin et al. 2019): of a word the longest token that it begins with, then of
// the rest the longest of those that continue a word, and so on; a word that cannot be written so is unknown.
#include <algorithm>

#include "core/data/huggingface/model.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

class WordPiece final : public Model {
 public:
  WordPiece(const Part& model, Shown& shown)
      : prefix_(model["continuing_subword_prefix"].text_or("##")),
        ids_(read_vocabulary(model["vocab"], shown)) {
    const std::string unknown = model["unk_token"].text_or("[UNK]");
    const auto found = ids_.find(unknown);
    if (found == ids_.end()) fail_usage("{}: the vocabulary lacks the token '{}'", model.name, unknown);
    unknown_ = found->second;
    if (const Part most = model["max_input_chars_per_word"]; most.present()) most_characters_ = most.id();
    for (const auto& [token, id] : ids_) longest_ = std::max(longest_, token.size());
  }

  void encode(std::string_view word, Words& words, std::vector<int32_t>& ids) const override {
    encode_once(
        word, words, [&](std::string_view all) { return pieces_of(all); },
        [&](const std::vector<int32_t>& made) { ids.insert(ids.end(), made.begin(), made.end()); });
  }

 private:
  static bool begins_character(std::string_view text, size_t at) {
    return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
  }

  std::vector<int32_t> pieces_of(std::string_view word) const {
    int64_t characters = 0;
    for (size_t at = 0; at < word.size(); ++at) characters += begins_character(word, at) ? 1 : 0;
    if (characters > most_characters_) return {unknown_};
    std::vector<int32_t> pieces;
    for (size_t begin = 0; begin < word.size();) {
      std::string piece = begin == 0 ? "" : prefix_;
      const size_t before = piece.size();
      piece.append(word, begin, longest_);
      auto found = ids_.end();
      for (; piece.size() > before; piece.pop_back())
        if (begins_character(word, begin + piece.size() - before))
          if (found = ids_.find(piece); found != ids_.end()) break;
      if (found == ids_.end()) return {unknown_};
      pieces.push_back(found->second);
      begin += piece.size() - before;
    }
    return pieces;
  }

  const std::string prefix_;  // of tokens that continue a word
  const std::unordered_map<std::string, int32_t> ids_;
  int32_t unknown_ = 0;
  int64_t most_characters_ = 100;
  size_t longest_ = 0;  // token, in bytes
};

}  // namespace

std::unique_ptr<Model> make_word_piece(const Part& model, Shown& shown) {
  return std::make_unique<WordPiece>(model, shown);
}

}  // namespace het::huggingface
