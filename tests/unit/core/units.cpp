#include "core/base/units.h"

#include <catch2/catch.hpp>
#include <limits>

#include "core/base/error.h"
#include "core/base/nearest.h"

using namespace het;

TEST_CASE("amounts read well") {
  CHECK(show_bytes(768) == "768 B");
  CHECK(show_bytes(1536) == "1.5 KiB");
  CHECK(show_bytes(2147483648.0) == "2 GiB");
  CHECK(show_count(124e6) == "124 M");
  CHECK(show_seconds(0.0351) == "35.1 ms");
  CHECK(show_seconds(125) == "2 min 05 s");
  CHECK(show_seconds(1e300) == "1e+300 s");
  CHECK(show_seconds(std::numeric_limits<double>::quiet_NaN()) == "nan s");
  CHECK(show_rate(412e9) == "412 GFLOP/s");
}

TEST_CASE("what recipes write is read back") {
  CHECK(parse_bytes("2 GiB") == 2147483648);
  CHECK(parse_bytes("512MB") == 512000000);
  CHECK(parse_bytes("64") == 64);
  CHECK(parse_rate("40 GF/s") == 40e9);
  CHECK(parse_rate("1.2 TFLOP/s") == 1.2e12);
  CHECK_THROWS_AS(parse_bytes("2 GiBs"), Error);
  CHECK_THROWS_AS(parse_bytes("lots"), Error);
  CHECK_THROWS_AS(parse_rate("40 G"), Error);
  CHECK(parse_seconds("2 ms") == 2e-3);
  for (const char* text : {"nans", "infs", "-1s", "1e999s"}) CHECK_THROWS_AS(parse_seconds(text), Error);
  for (const char* text : {"nan", "inf", "1e30 TB", "1e19"}) CHECK_THROWS_AS(parse_bytes(text), Error);
}

TEST_CASE("a misspelt name finds its neighbour, an unrelated one finds none") {
  const std::vector<std::string> names{"causal", "width", "heads"};
  CHECK(nearest_name("casual", names) == "causal");
  CHECK(nearest_name("widht", names) == "width");
  CHECK(nearest_name("zzzzzz", names).empty());
  CHECK(nearest_name("batch_size", {"steps", "batch"}) == "batch");
  CHECK(nearest_name("weight_decays", {"weight", "weight_decay"}) == "weight_decay");
  CHECK(nearest_name("nn", {"io", "os"}).empty());
  CHECK(nearest_name("a", {"u8"}).empty());
  CHECK(nearest_name("oi", {"u8", "io"}) == "io");
}
