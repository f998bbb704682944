// The only file that sees SentencePiece's header.
#include <sentencepiece_processor.h>

#include "core/base/base64.h"
#include "core/base/error.h"
#include "core/data/tokenizer_kinds.h"
#include "core/io/file.h"

namespace het {
namespace {

// Text is encoded in pieces of about this size, cut after a line: the time and memory that SentencePiece
// takes grow faster than its input.
constexpr size_t kPieceBytes = 64 << 10;

// Characters that the model does not know become its unknown token, as the model was trained to expect.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, std::string_view what) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) fail_usage("{} is not a SentencePiece model: {}", what, status.ToString());
  }

  std::string_view kind() const override { return "sentencepiece"; }
  int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }
  SpecialTokens special_tokens() const override {
    SpecialTokens special;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      const bool hides = names_mask(piece);
      if (hides) special.mask = id;
      if (hides || processor_.IsControl(id) || processor_.IsUnknown(id)) special.all.push_back(id);
    }
    return special;
  }

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
    return Json::object_t{{"kind", "sentencepiece"}, {"model", to_base64(model_)}};
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
  const std::optional<std::string> bytes = from_base64(model);
  if (!bytes) fail_usage("{}: the SentencePiece model is not base64", what);
  return std::make_unique<SentencePieceTokenizer>(*bytes, fmt::format("the model in {}", what));
}

}  // namespace het
