#include "core/base/wall_time.h"

#include <catch2/catch.hpp>

using namespace het;

TEST_CASE("moments are read as ISO 8601 and HTTP write them", "[wall_time]") {
  CHECK(parse_utc("1970-01-01T00:00:00Z") == 0);
  CHECK(parse_utc("2017-09-18T08:22:00Z") == 1'505'722'920);
  CHECK(parse_utc("2017-09-18T08:22:00.25Z") == 1'505'722'920);
  CHECK(parse_utc("Mon, 18 Sep 2017 08:22:00 GMT") == 1'505'722'920);
  CHECK(parse_utc("2024-02-29T23:59:60Z") == 1'709'251'200);  // a leap second
}

TEST_CASE("what is no moment is none", "[wall_time]") {
  for (const char* text : {"",
                           "Z",
                           "soon",
                           "2017-09-18",
                           "2017-09-18T08:22:00",
                           "2017-09-18T08:22:00+01:00",
                           "2017-9-18T08:22:00Z",
                           "2017-09-18 08:22:00Z",
                           "2017-09-18T08:22:00.Z",
                           "2017-09-18T08:22:00.1x",
                           "2017-09-18T08:22:00Z ",
                           "2017-02-29T00:00:00Z",
                           "2017-13-01T00:00:00Z",
                           "2017-00-01T00:00:00Z",
                           "2017-01-01T24:00:00Z",
                           "2017-01-01T00:60:00Z",
                           "2017-01-01T00:00:61Z",
                           "-017-01-01T00:00:00Z",
                           "Mon, 18 Sep 2017 08:22:00",
                           "Mon, 18 Spt 2017 08:22:00 GMT",
                           "Mo, 18 Sep 2017 08:22:00 GMT",
                           "18 Sep 2017 08:22:00 GMT"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_utc(text));
  }
}

TEST_CASE("a moment of the past is before now, one of the far future after it", "[wall_time]") {
  CHECK(seconds_until(0) < 0);
  CHECK(seconds_until(parse_utc("9999-01-01T00:00:00Z").value()) > 0);
}
