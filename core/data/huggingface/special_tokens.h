// Which tokens of a tokenizer.json are no text.
#pragma once

#include <functional>
#include <string>

#include "core/data/tokenizer.h"

namespace het::huggingface {

// Calls visit(member, text) for each "..._token" of a special_tokens_map.json or tokenizer_config.json that
// names a token.
void each_named_token(const Json& file,
                      const std::function<void(const std::string& member, const std::string& text)>& visit);

// Those that special_tokens_map.json and tokenizer_config.json in `files` (text by name, or null) name, and
// those that `tokenizer`, the text of tokenizer.json, marks. Throws Error(usage) for files that are not
// JSON.
SpecialTokens special_tokens_in(const std::string& tokenizer, const Json& files);

}  // namespace het::huggingface
