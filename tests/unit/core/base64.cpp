#include "core/base/base64.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace het;

TEST_CASE("base64 is that of RFC 4648") {
  const std::vector<std::pair<std::string, std::string>> cases = {{"", ""},
                                                                  {"f", "Zg=="},
                                                                  {"fo", "Zm8="},
                                                                  {"foo", "Zm9v"},
                                                                  {"foob", "Zm9vYg=="},
                                                                  {"fooba", "Zm9vYmE="},
                                                                  {"foobar", "Zm9vYmFy"},
                                                                  {std::string("\0\xff\xfe", 3), "AP/+"}};
  for (const auto& [bytes, text] : cases) {
    CHECK(to_base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  for (const char* text :
       {"Z", "Zg", "Zg=", "Z===", "====", "Zg-=", "----", "Zg==\n", " Zg=", "Zg==Zg==", "Z g=", "Zm9*"})
    CHECK_FALSE(from_base64(text));
}
