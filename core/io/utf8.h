// UTF-8 to code points and back. Overlong forms, surrogates and values past U+10FFFF are not UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace het {

// The code point that begins at byte `at`, and the bytes it takes; bytes 0 when it is not UTF-8.
struct Decoded {
  char32_t code_point = 0;
  int bytes = 0;
};
Decoded decode_utf8(std::string_view text, size_t at);

// The position of the first byte that is not UTF-8; npos when all is.
size_t find_invalid_utf8(std::string_view text);

void append_utf8(std::string& to, char32_t code_point);

// For messages: 'é' (U+00E9); U+000A for what does not print.
std::string show_code_point(char32_t code_point);

}  // namespace het
