// What tokenizers ask of characters: their general category and lower case, and the normalization forms of a
// text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace het {

// General categories, by their names in the standard; letters come first, unassigned is last.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co,
  Cn
};

Category category_of(char32_t c);
bool is_letter(char32_t c);  // general category L*
bool is_number(char32_t c);  // general category N*
bool is_space(char32_t c);   // property White_Space

// By Unicode 9, as the `tokenizers` package has them: marks, and Normalization Forms C, D, KC and KD. Bytes
// that are not UTF-8 stay as they are.
bool is_mark(char32_t c);
std::string nfc(std::string_view text);
std::string nfd(std::string_view text);
std::string nfkc(std::string_view text);
std::string nfkd(std::string_view text);
// Appends the lower case of a character, whatever stands beside it.
void append_lower(std::string& to, char32_t c);

}  // namespace het
