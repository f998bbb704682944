#include <catch2/catch.hpp>

#include "core/comm/speed.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;

TEST_CASE("two ranks time messages alike while a third stands by", "[comm]") {
  const std::vector<int64_t> sizes{1, 4096, 100'000};
  for (const FabricMaker& maker : {loopback_maker(), tcp_maker()}) {
    std::vector<std::vector<MessageTime>> times(3);
    const auto errors = on_ranks(maker, 3, {}, [&](Fabric& fabric) {
      const auto group = fabric.group("all", all_ranks(3));
      times[static_cast<size_t>(fabric.rank())] = time_messages(*group, 2, 0, sizes, 4);
    });
    for (const std::string& error : errors) CHECK(error.empty());
    CHECK(times[1].empty());
    REQUIRE(times[0].size() == 3);
    REQUIRE(times[2].size() == 3);
    for (size_t i = 0; i < sizes.size(); ++i) {
      CHECK(times[0][i].bytes == sizes[i]);
      CHECK(times[0][i].seconds > 0);
      CHECK(times[0][i].seconds == times[2][i].seconds);
    }
  }
}

TEST_CASE("a process alone times messages over the loopback interface", "[comm]") {
  const auto times = time_messages_here({64, 65'536}, 3);
  REQUIRE(times.size() == 2);
  CHECK(times[0].bytes == 64);
  CHECK(times[1].seconds > 0);
}
