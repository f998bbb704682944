#include "core/base/error.h"

#include <catch2/catch.hpp>

using namespace het;

TEST_CASE("an error gathers context from the inside out") {
  try {
    with_context(
        [] { return std::string("layer blocks.3"); },
        [] { with_context([] { return std::string("linear"); }, [] { fail_usage("width {} is odd", 7); }); });
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(error.sentence() == "width 7 is odd");
    CHECK(std::string(error.what()) == "width 7 is odd\n  in linear\n  in layer blocks.3");
  }
}

TEST_CASE("a failed requirement prints the expression and the values") {
  const int rows = 3, columns = 4;
  try {
    HET_REQUIRE(rows == columns, rows, columns);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bug);
    const std::string text = error.what();
    CHECK(text.find("rows == columns") != std::string::npos);
    CHECK(text.find("3 4") != std::string::npos);
    CHECK(text.find("error.cpp") != std::string::npos);
  }
}
