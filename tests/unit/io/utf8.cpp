#include "core/io/utf8.h"

#include <catch2/catch.hpp>

#include "tests/fuzz/mutated.h"
#include "tests/fuzz/text.h"

using namespace het;

TEST_CASE("every code point goes through UTF-8 and back") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Decoded decoded = decode_utf8(text, 0);
    if (decoded.code_point != c || decoded.bytes != static_cast<int>(text.size()))
      FAIL("U+" << std::hex << static_cast<uint32_t>(c));
  }
}

TEST_CASE("what is not UTF-8 is found where it stands") {
  using namespace std::string_view_literals;
  CHECK(find_invalid_utf8("plain, é, €, 😀") == std::string_view::npos);
  for (const std::string_view bad :
       {"\x80"sv, "\xc3"sv, "\xc0\x80"sv, "\xe0\x80\x80"sv, "\xed\xa0\x80"sv, "\xf4\x90\x80\x80"sv,
        "\xf0\x80\x80\x80"sv, "\xff"sv, "\xe2\x82"sv, "\xe2\x82z"sv})
    CHECK(find_invalid_utf8("ab" + std::string(bad)) == 2);
}

TEST_CASE("code points are shown with their number, and as themselves where they print") {
  CHECK(show_code_point(U'é') == "'é' (U+00E9)");
  CHECK(show_code_point(U'\n') == "U+000A");
}

TEST_CASE("mutated text is read where it is UTF-8, and encoded and decoded to the same bytes") {
  const std::string whole = "The quick  fox's 12\r\n größer 大きい 😀 \u00a0\u2003 x²Ⅷ\u0301 aaaaa\n";
  REQUIRE(fuzz::text(whole));
  std::mt19937 random(20240522);
  const int sound = fuzz::accepted(300, whole, random, "\x80\xBF\xC2\xE0\xF0\xFF 'a\n", fuzz::text);
  CHECK(sound > 10);
  CHECK(sound < 290);
}
