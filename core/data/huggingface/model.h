// What makes ids of words: byte-pair encoding, WordPiece or Unigram.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/data/huggingface/part.h"

namespace het::huggingface {

// The token that stands for a byte: "<0x0A>".
inline std::string byte_token(int byte) { return fmt::format("<0x{:02X}>", byte); }

// What tokens are shown as, by id.
struct Shown {
  void set(int32_t id, std::string text) {
    if (static_cast<size_t>(id) >= texts.size()) texts.resize(static_cast<size_t>(id) + 1);
    texts[static_cast<size_t>(id)] = std::move(text);
  }
  std::vector<std::string> texts;
};

// Immutable once made.
class Model {
 public:
  using Words =
      std::unordered_map<std::string, std::vector<int32_t>>;  // of one text: what was encoded before

  virtual ~Model() = default;
  // Appends the ids of a word.
  virtual void encode(std::string_view word, Words& words, std::vector<int32_t>& ids) const = 0;

 protected:
  // Calls use(ids) with what encode(word) gives; it is kept in `words`, unless the word is long.
  template <typename Encode, typename Use>
  static void encode_once(std::string_view word, Words& words, const Encode& encode, const Use& use) {
    constexpr size_t kMostKept = 64, kMostWords = size_t{1} << 20;
    if (word.size() > kMostKept) return use(encode(word));
    if (words.size() >= kMostWords) words.clear();
    const auto [entry, fresh] = words.try_emplace(std::string(word));
    if (fresh) entry->second = encode(word);
    use(entry->second);
  }
};

// The part "model" of the file. Its tokens go to `shown`. `byte_level`: words come as bytes. Throws
// Error(usage) naming what is wrong or not supported.
std::unique_ptr<Model> make_model(const Part& model, bool byte_level, Shown& shown);

std::unique_ptr<Model> make_byte_pairs(const Part& model, bool byte_level, Shown& shown);
std::unique_ptr<Model> make_word_piece(const Part& model, Shown& shown);
std::unique_ptr<Model> make_unigram(const Part& model, Shown& shown);

// Between the models. Ids by token, from the object "vocab"; tokens go to `shown`, spelled as they are.
std::unordered_map<std::string, int32_t> read_vocabulary(const Part& vocabulary, Shown& shown);

}  // namespace het::huggingface
