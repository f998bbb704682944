#include "core/base/visible.h"

#include <catch2/catch.hpp>

#include "core/io/json.h"
#include "core/io/utf8.h"

using namespace het;
using namespace std::string_view_literals;

TEST_CASE("text that a terminal only shows stays as it is") {
  for (const std::string_view text : {""sv, "plain, é, €, 😀\n\tthe next line"sv, "שלום"sv, "a\\x1b"sv})
    CHECK(visible(text) == text);
}

TEST_CASE("what a terminal obeys is written out") {
  CHECK(visible("\x1b]52;c;aGk=\x07"sv) == "\\x1b]52;c;aGk=\\x07");
  CHECK(visible("a\rb\0c\x7f"sv) == "a\\x0db\\x00c\\x7f");
  CHECK(visible("\u009b31m\u0085") == "\\u009b31m\\u0085");
  CHECK(visible("\u202eabc\u2066\u2069") == "\\u202eabc\\u2066\\u2069");
  CHECK(visible("\x9b\xff\xc3"sv) == "\\x9b\\xff\\xc3");
  CHECK(visible("é\xe2\x82é"sv) == "é\\xe2\\x82é");
}

TEST_CASE("no control character is left of any code point, nor in JSON") {
  for (char32_t c = 0; c < 0x3000; ++c) {
    std::string text;
    append_utf8(text, c);
    for (const std::string& shown : {visible(text), dump(Json(text))})
      for (size_t i = 0; i < shown.size();) {
        const Decoded decoded = decode_utf8(shown, i);
        REQUIRE(decoded.bytes > 0);
        const bool line = decoded.code_point == '\n' || decoded.code_point == '\t';
        if (is_control(decoded.code_point) && !line) FAIL("U+" << std::hex << static_cast<uint32_t>(c));
        i += static_cast<size_t>(decoded.bytes);
      }
    REQUIRE(*as_string(parse_json(dump(Json(text)), "text")) == text);
  }
}
