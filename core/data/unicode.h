// The three classes of characters by which GPT-2's tokenizer cuts text into words.
#pragma once

namespace het {

bool is_letter(char32_t c);  // general category L*
bool is_number(char32_t c);  // general category N*
bool is_space(char32_t c);   // property White_Space

}  // namespace het
