// Text to token ids and back. A tokenizer is immutable after it is made and may be used from any thread.
// Its vocabulary is saved with a model as JSON and read back without the text it was made from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "core/io/utf8.h"

namespace het {

// Tokens that are no text, such as [CLS].
struct SpecialTokens {
  std::optional<int32_t> mask;  // hides another token, as [MASK] does
  std::vector<int32_t> all;     // ascending, with the mask
  std::string lost_mask;        // named as the mask, but not in the vocabulary

  // Throws Error(usage) where a mask is named that is not in the vocabulary.
  std::optional<int32_t> known_mask() const;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;  // "char", "byte", "sentencepiece", "bpe", "huggingface"
  virtual int64_t vocabulary_size() const = 0;
  // Throws Error(usage) naming the first character that the vocabulary lacks and where it stands.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Throws Error(usage) for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual Json to_json() const = 0;
  // What stands before a text that a model is to continue, such as a token for its beginning.
  virtual std::vector<int32_t> prefix() const { return {}; }
  // What stands behind a text that has ended, such as [SEP].
  virtual std::vector<int32_t> suffix() const { return {}; }
  // Texts that are one token wherever they stand, such as "<|im_end|>".
  virtual std::vector<std::string> added_tokens() const { return {}; }
  virtual SpecialTokens special_tokens() const { return {}; }
  // Files that belong to it in its folder, such as tokenizer_config.json: text by name; null: none.
  virtual const Json& files() const {
    static const Json none;
    return none;
  }
  // True when encode(a + b) is encode(a) followed by encode(b) wherever a code point ends.
  virtual bool splits_anywhere() const { return false; }
};

// Every Unicode code point of `text`, in ascending order: what nanoGPT's character data sets do. Text that is
// not UTF-8 is refused with the position of the first wrong byte.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
// The 256 bytes: takes anything, loses nothing.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// A trained SentencePiece model file; its bytes are kept and saved in the JSON.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const Path& model);
// GPT-2's byte-level BPE from a folder with vocab.json and merges.txt.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Path& folder);

// A folder with a tokenizer.json of Hugging Face's tokenizers, or that file.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const Path& model);

// By kind: "char" (from `text`), "byte", "sentencepiece", "bpe" or "huggingface" (from the file or folder
// `model`). Throws Error(usage) naming the nearest kind.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view kind, std::string_view text, const Path& model);
// What to_json() gave. `what` names the source in errors.
std::unique_ptr<Tokenizer> tokenizer_from_json(const Json& json, std::string_view what);

// Code points of UTF-8 text. `what` names the text in the error for the first byte that is not UTF-8.
std::u32string code_points_of(std::string_view text, std::string_view what);

}  // namespace het
