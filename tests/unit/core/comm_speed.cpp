#include <catch2/catch.hpp>

#include "core/comm/link_rates.h"
#include "core/comm/loopback.h"
#include "core/comm/shaped.h"
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

TEST_CASE("hosts measure how fast each of them is, whatever the others are", "[comm]") {
  // Rank 3's host is slow, and so is whatever goes there; ranks 0 and 1 are on one host.
  const double slow = 20e6;
  const LinkOf link = [&](int from, int to) { return Link{1e-5, from == 3 || to == 3 ? slow : 100 * slow}; };
  const std::vector<std::string> hosts{"a", "a", "b", "c", "d"};
  const int size = static_cast<int>(hosts.size());
  std::vector<LinkRates> rates(hosts.size());
  const FabricMaker maker = [&](int count, Timeouts timeouts) {
    std::vector<std::function<std::shared_ptr<Fabric>()>> makers;
    for (auto& fabric : make_loopback(count, {timeouts, [&] { return make_shaped_links(link); }}))
      makers.push_back([fabric = std::shared_ptr<Fabric>(std::move(fabric))] { return fabric; });
    return makers;
  };
  const auto errors = on_ranks(maker, size, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("all", all_ranks(size));
    rates[static_cast<size_t>(fabric.rank())] = measure_link_rates(*group, hosts);
  });
  for (const std::string& error : errors) CHECK(error.empty());
  for (const LinkRates& each : rates) {
    CHECK(each.bytes_per_second == rates[0].bytes_per_second);
    CHECK(each.latency_seconds == rates[0].latency_seconds);
  }
  const std::vector<double>& found = rates[0].bytes_per_second;
  REQUIRE(found.size() == hosts.size());
  CHECK(found[0] == found[1]);
  CHECK(found[3] <= 1.5 * slow);  // bytes are held back as long as the link takes, less a measured latency
  for (const int fast : {0, 2, 4}) CHECK(found[static_cast<size_t>(fast)] > found[3]);
  CHECK(rates[0].latency_seconds > 0);
}

TEST_CASE("ranks of one host have no link to measure", "[comm]") {
  const auto errors = on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
    const auto rates = measure_link_rates(*fabric.group("all", all_ranks(2)), {"a", "a"});
    if (rates.bytes_per_second != std::vector<double>(2) || rates.latency_seconds != 0)
      fail_usage("something was measured");
  });
  for (const std::string& error : errors) CHECK(error.empty());
}
