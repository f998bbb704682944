// Which tokens of a tokenizer.json are no text.
#pragma once

#include <string>

#include "core/data/tokenizer.h"

namespace het::huggingface {

// Those that special_tokens_map.json and tokenizer_config.json in `files` (text by name, or null) name, and
// those that `tokenizer`, the text of tokenizer.json, marks. Throws Error(usage) for a mask that is named and
// not in the vocabulary, and for files that are not JSON.
SpecialTokens special_tokens_in(const std::string& tokenizer, const Json& files);

}  // namespace het::huggingface
