// The only file that sees SentencePiece's header.
#include <sentencepiece_processor.h>

#include "core/base/error.h"
#include "core/data/tokenizer_kinds.h"
#include "core/io/file.h"

namespace het {
namespace {

// Text is encoded in pieces of about this size, cut after a line: the time and memory that SentencePiece
// takes grow faster than its input.
constexpr size_t kPieceBytes = 64 << 10;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j)
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string from_base64(std::string_view text, std::string_view what) {
  std::string bytes;
  uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) fail_usage("{}: the SentencePiece model is not base64", what);
    word = word << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(word >> bits & 0xFF));
  }
  return bytes;
}

// Characters that the model does not know become its unknown token, as the model was trained to expect.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, std::string_view what) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) fail_usage("{} is not a SentencePiece model: {}", what, status.ToString());
  }

  std::string_view kind() const override { return "sentencepiece"; }
  int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    std::vector<int> part;
    while (!text.empty()) {
      size_t end = text.size() <= kPieceBytes ? text.size() : text.find('\n', kPieceBytes);
      end = end >= text.size() ? text.size() : end + (text[end] == '\n' ? 1 : 0);
      const auto status = processor_.Encode({text.data(), end}, &part);
      if (!status.ok()) fail_usage("SentencePiece cannot encode the text: {}", status.ToString());
      ids.insert(ids.end(), part.begin(), part.end());
      text.remove_prefix(end);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> pieces;
    for (const int32_t id : ids) pieces.push_back(static_cast<int>(checked_id(id, *this)));
    std::string text;
    const auto status = processor_.Decode(pieces, &text);
    if (!status.ok()) fail_usage("SentencePiece cannot decode the tokens: {}", status.ToString());
    return text;
  }

  Json to_json() const override {
    return Json::Object{{"kind", "sentencepiece"}, {"model", to_base64(model_)}};
  }

 private:
  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const Path& model) {
  return std::make_unique<SentencePieceTokenizer>(read_file(model), fmt::format("'{}'", model.text));
}

std::unique_ptr<Tokenizer> sentencepiece_from_base64(std::string_view model, std::string_view what) {
  return std::make_unique<SentencePieceTokenizer>(from_base64(model, what),
                                                  fmt::format("the model in {}", what));
}

}  // namespace het
