// Between the files of the tokenizers only; everything for others is in tokenizer.h.
#pragma once

#include "core/data/tokenizer.h"

namespace het {

std::unique_ptr<Tokenizer> sentencepiece_from_base64(std::string_view model, std::string_view what);
std::unique_ptr<Tokenizer> bpe_from_json(const Json& json, std::string_view what);
std::unique_ptr<Tokenizer> huggingface_from_json(const Json& json, std::string_view what);

// Whether a token is one that hides others, by the texts that RoBERTa and BERT have for it.
bool names_mask(std::string_view token);
// Of tokens by id: those that GPT-2, RoBERTa or BERT has for special ones.
SpecialTokens special_tokens_among(std::span<const std::string> tokens);

// The id as an index; throws Error(usage) when it is outside the vocabulary.
size_t checked_id(int32_t id, const Tokenizer& tokenizer);
[[noreturn]] void fail_not_utf8(std::string_view what, std::string_view text, size_t position);

}  // namespace het
