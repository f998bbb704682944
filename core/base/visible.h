// Text from outside (recipes, files, names, other processes) on its way to a terminal. A terminal obeys
// control characters: they move the cursor, rewrite what was printed, set the clipboard. So all that is
// printed goes through visible(); what moves the cursor on purpose is written apart.
#pragma once

#include <string>
#include <string_view>

namespace het {

// A character that a terminal obeys instead of showing it: C0, DEL and C1 control characters, and those that
// override the direction of text (U+202A to U+202E, U+2066 to U+2069).
bool is_control(char32_t code_point);

// The text with control characters but newline and tab, and bytes that are not UTF-8, written out: \x1b,
// \u202e, \xff.
std::string visible(std::string_view text);

}  // namespace het
