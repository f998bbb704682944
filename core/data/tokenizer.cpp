#include "core/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/data/tokenizer_kinds.h"
#include "core/io/file.h"

namespace het {
namespace {

const std::vector<std::string> kKinds = {"char", "byte", "sentencepiece", "bpe", "huggingface"};

int line_of(std::string_view text, size_t position) {
  return 1 + static_cast<int>(
                 std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
}

}  // namespace

std::optional<int32_t> SpecialTokens::known_mask() const {
  if (!lost_mask.empty()) fail_usage("the tokenizer's mask_token '{}' is not in its vocabulary", lost_mask);
  return mask;
}

namespace {

class CharTokenizer final : public Tokenizer {
 public:
  explicit CharTokenizer(std::u32string characters) : characters_(std::move(characters)) {
    for (size_t i = 0; i < characters_.size(); ++i) {
      const char32_t c = characters_[i];
      if (c < ascii_.size())
        ascii_[c] = static_cast<int32_t>(i);
      else
        others_[c] = static_cast<int32_t>(i);
    }
  }

  std::string_view kind() const override { return "char"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(characters_.size()); }
  bool splits_anywhere() const override { return true; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      const Decoded decoded = decode_utf8(text, i);
      if (decoded.bytes == 0) fail_not_utf8("the text", text, i);
      const int32_t id = id_of(decoded.code_point);
      if (id < 0)
        fail_usage(
            "the character {} at character {} (line {}) is not in the vocabulary: it is a char-level "
            "vocabulary of "
            "{} characters, those of the text it was made from",
            show_code_point(decoded.code_point), ids.size() + 1, line_of(text, i), characters_.size());
      ids.push_back(id);
      i += static_cast<size_t>(decoded.bytes);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) append_utf8(text, characters_[checked_id(id, *this)]);
    return text;
  }

  Json to_json() const override {
    std::string characters;
    for (const char32_t c : characters_) append_utf8(characters, c);
    return Json::object_t{{"kind", "char"}, {"characters", characters}};
  }

 private:
  int32_t id_of(char32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto found = others_.find(c);
    return found == others_.end() ? -1 : found->second;
  }

  std::u32string characters_;  // ascending
  std::vector<int32_t> ascii_ = std::vector<int32_t>(128, -1);
  std::unordered_map<char32_t, int32_t> others_;
};

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view kind() const override { return "byte"; }
  int64_t vocabulary_size() const override { return 256; }
  bool splits_anywhere() const override { return true; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>(static_cast<unsigned char>(checked_id(id, *this)));
    return text;
  }
  Json to_json() const override { return Json::object_t{{"kind", "byte"}}; }
};

const std::string& text_member(const Json& json, const char* name, std::string_view what) {
  const std::string* text = as_string(find_member(json, name));
  if (text == nullptr) fail_usage("{}: a vocabulary needs the text '{}'", what, name);
  return *text;
}

[[noreturn]] void fail_kind(std::string_view kind) {
  const std::string nearest = nearest_name(kind, kKinds);
  fail_usage("there is no tokenizer '{}'; there are: {}{}", kind, fmt::join(kKinds, ", "),
             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

}  // namespace

bool names_mask(std::string_view token) { return token == "[MASK]" || token == "<mask>"; }

SpecialTokens special_tokens_among(std::span<const std::string> tokens) {
  constexpr std::array kSpecial = {"<|endoftext|>", "<s>",   "</s>",  "<pad>", "<unk>",
                                   "[PAD]",         "[UNK]", "[CLS]", "[SEP]"};
  SpecialTokens special;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool hides = names_mask(tokens[i]);
    if (hides) special.mask = static_cast<int32_t>(i);
    if (hides || std::find(kSpecial.begin(), kSpecial.end(), tokens[i]) != kSpecial.end())
      special.all.push_back(static_cast<int32_t>(i));
  }
  return special;
}

size_t checked_id(int32_t id, const Tokenizer& tokenizer) {
  if (id < 0 || id >= tokenizer.vocabulary_size())
    fail_usage("token id {} is outside the vocabulary of {} ({}-level)", id, tokenizer.vocabulary_size(),
               tokenizer.kind());
  return static_cast<size_t>(id);
}

void fail_not_utf8(std::string_view what, std::string_view text, size_t position) {
  fail_usage(
      "{} is not UTF-8: byte {} (line {}) is 0x{:02X}; convert it, or use the byte tokenizer, which takes "
      "any file",
      what, position + 1, line_of(text, position), static_cast<unsigned char>(text[position]));
}

std::u32string code_points_of(std::string_view text, std::string_view what) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (decoded.bytes == 0) fail_not_utf8(what, text, i);
    points += decoded.code_point;
    i += static_cast<size_t>(decoded.bytes);
  }
  return points;
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text) {
  std::vector<bool> seen(0x110000);
  char32_t greatest = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (decoded.bytes == 0) fail_not_utf8("the text", text, i);
    seen[decoded.code_point] = true;
    greatest = std::max(greatest, decoded.code_point);
    i += static_cast<size_t>(decoded.bytes);
  }
  std::u32string characters;
  for (char32_t c = 0; c <= greatest; ++c)
    if (seen[c]) characters += c;
  if (characters.empty()) fail_usage("a char-level vocabulary cannot be made from an empty text");
  return std::make_unique<CharTokenizer>(std::move(characters));
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view kind, std::string_view text, const Path& model) {
  if (kind == "char") return make_char_tokenizer(text);
  if (kind == "byte") return make_byte_tokenizer();
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) fail_kind(kind);
  if (model.empty())
    fail_usage("the {} tokenizer needs 'model': {}", kind,
               kind == "bpe"           ? "a folder with vocab.json and merges.txt"
               : kind == "huggingface" ? "a folder with tokenizer.json"
                                       : "the path of a trained .model file");
  if (kind == "huggingface") return make_huggingface_tokenizer(model);
  return kind == "bpe" ? make_bpe_tokenizer(model) : make_sentencepiece_tokenizer(model);
}

std::unique_ptr<Tokenizer> tokenizer_from_json(const Json& json, std::string_view what) {
  const std::string& kind = text_member(json, "kind", what);
  if (kind == "byte") return make_byte_tokenizer();
  if (kind == "sentencepiece") return sentencepiece_from_base64(text_member(json, "model", what), what);
  if (kind == "bpe") return bpe_from_json(json, what);
  if (kind == "huggingface") return huggingface_from_json(json, what);
  if (kind != "char") with_context([&] { return std::string(what); }, [&] { fail_kind(kind); });
  const std::u32string characters = code_points_of(text_member(json, "characters", what), what);
  if (characters.empty()) fail_usage("{}: the vocabulary is empty", what);
  for (size_t i = 1; i < characters.size(); ++i)
    if (characters[i] <= characters[i - 1])
      fail_usage("{}: the characters of a vocabulary must ascend, each once; {} follows {}", what,
                 show_code_point(characters[i]), show_code_point(characters[i - 1]));
  return std::make_unique<CharTokenizer>(characters);
}

}  // namespace het
