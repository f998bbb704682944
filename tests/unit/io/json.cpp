#include "core/io/json.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/io/file.h"
#include "tests/fuzz/json.h"
#include "tests/fuzz/mutated.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

TEST_CASE("JSON keeps the order of keys, and integers apart from doubles") {
  const std::string text = R"({"z":1,"a":[true,null,-2,2.0,1e-05],"m":{"text":"a\"b\\\né\u0001"}})";
  const Json json = parse_json(text, "text");
  CHECK(*as_integer(find_member(json, "z")) == 1);
  CHECK(json["a"][3].is_number_float());
  CHECK(*as_string(find_member(find_member(json, "m"), "text")) == "a\"b\\\né\x01");
  CHECK(dump(json) == text);
  CHECK(parse_json(dump(json, true), "indented") == json);
  CHECK(find_member(json, "q") == nullptr);
}

TEST_CASE("numbers survive being written and read") {
  for (const double value : {0.1, 1.0, -0.0, 1e300, 3.0e-310, 123456789.0, 5e-324}) {
    const Json back = parse_json(dump(Json(value)), "number");
    CHECK((back.is_number_float() && back == value));
  }
  for (const int64_t value :
       {int64_t{0}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()})
    CHECK(*as_integer(parse_json(dump(Json(value)), "number")) == value);
  const Json large = parse_json("18446744073709551615", "number");
  CHECK((large.is_number_float() && large == 18446744073709551615.0));
  CHECK(dump(Json(NAN)) == "null");
}

TEST_CASE("bytes that are not UTF-8 are written as the replacement character") {
  CHECK(dump(Json("a\xff"
                  "b\xc3")) ==
        "\"a\xef\xbf\xbd"
        "b\xef\xbf\xbd\"");
}

TEST_CASE("invalid JSON is refused with its name and the reason") {
  const auto error = [](std::string_view text, int depth = kJsonDepth) {
    return error_of([&] { parse_json(text, "'config.json'", depth); });
  };
  CHECK_THAT(error("{\"a\": 1,}"),
             StartsWith("usage: 'config.json' is not valid JSON: parse error at column 9"));
  CHECK_THAT(error("{\n\"a\": 1,}"), Contains("parse error at line 2, column 8"));
  CHECK_THAT(error(""), Contains("not valid JSON"));
  CHECK_THAT(error("{} {}"), Contains("not valid JSON"));
  CHECK_THAT(error("\"\xff\""), Contains("UTF-8"));
  CHECK_THAT(error("1e999"), Contains("number overflow"));
  CHECK_THAT(error(R"({"a": {"b": 1, "c": 2, "b": 3}})"), Contains("the key 'b' stands twice"));
  CHECK_THAT(error("[[[]]]", 2), Contains("nested more than 2 deep"));
  CHECK(error("[[]]", 2) == "none");
  CHECK_THAT(error(std::string(1000000, '[')), Contains("nested more than 64 deep"));
}

TEST_CASE("a JSON file is written and read") {
  const Scratch scratch;
  const Json json = Json::object_t{{"model_type", "gpt2"}, {"n_layer", 12}};
  write_json(scratch.path("config.json"), json);
  CHECK(read_json(scratch.path("config.json")) == json);
  CHECK(read_file(scratch.path("config.json")) == "{\n  \"model_type\": \"gpt2\",\n  \"n_layer\": 12\n}\n");
  CHECK_THAT(error_of([&] { read_json(scratch.put("bad.json", "{")); }),
             Contains("bad.json' is not valid JSON"));
}

TEST_CASE("mutated JSON is refused, or the same after it was written and read") {
  const std::string whole =
      R"({"type":"gpt2","eps":1e-05,"n":[0,-0.0,9007199254740993,true,null],"t":"\u00e9\n\\"})";
  REQUIRE(fuzz::json(whole));
  std::mt19937 random(20240521);
  const int accepted = fuzz::accepted(20000, whole, random, "0123456789{}[],:\"\\-.eu", fuzz::json);
  CHECK(accepted > 1000);
  CHECK(accepted < 15000);
}
