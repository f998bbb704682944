"""Writes unicode.cpp: the letters and numbers of the Unicode version that this Python knows, as ranges."""

import unicodedata


def ranges(category):
    """Inclusive ranges of the code points whose general category begins with `category`."""
    found, first = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c))[0] == category
        if inside and first is None:
            first = c
        if not inside and first is not None:
            found.append((first, c - 1))
            first = None
    return found


def table(name, category):
    text, line = f"constexpr Range {name}[] = {{\n", "   "
    for first, last in ranges(category):
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(entry) > 110:
            text, line = text + line + "\n", "   "
        line += entry
    return text + line + "\n};\n"


print('''#include "core/data/unicode.h"

#include <algorithm>
#include <iterator>

namespace het {
namespace {

struct Range {
  char32_t first, last;
};

// General categories L* and N* of Unicode %s, ascending.
// clang-format off
%s
%s// clang-format on

template <size_t n>
bool among(const Range (&ranges)[n], char32_t c) {
  const Range* after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                        [](char32_t value, const Range& range) { return value < range.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

}  // namespace

bool is_letter(char32_t c) { return among(kLetters, c); }
bool is_number(char32_t c) { return among(kNumbers, c); }

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace het''' % (unicodedata.unidata_version, table("kLetters", "L"), table("kNumbers", "N")))
