#include <catch2/catch.hpp>

#include "core/comm/clock.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;

// Hosts whose clocks began hours apart. The error is at most half of the shortest round trip, which the clock
// itself can be asked for.
TEST_CASE("ranks learn how far their clocks are from the first one's", "[comm]") {
  for (const FabricMaker& maker : {loopback_maker(), tcp_maker()}) {
    constexpr int kRanks = 3;
    const double shift[kRanks] = {0, 7200.25, -86400.5};
    std::vector<double> found(kRanks, 1e9), took(kRanks, 0);
    const auto errors = on_ranks(maker, kRanks, {}, [&](Fabric& fabric) {
      const int rank = fabric.rank();
      const auto now = [&] {
        const auto since = CommClock::now().time_since_epoch();
        return std::chrono::duration<double>(since).count() + shift[rank];
      };
      const auto group = fabric.group("all", all_ranks(kRanks));
      const double begin = now();
      found[rank] = clock_offset(*group, now);
      took[rank] = now() - begin;
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK(errors[rank].empty());
      CHECK(std::abs(found[rank] + shift[rank]) <= took[rank]);
    }
  }
}
