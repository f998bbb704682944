// Flows that share interfaces, and collectives over them, against figures worked out by hand.
#include "planner/simulate/sharing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <utility>

#include "planner/profile/profile.h"
#include "planner/simulate/ring.h"

using namespace het;
using namespace het::planner;

namespace {

// Flows, each in a stream of its own.
struct Flows {
  std::vector<std::vector<int>> interfaces;
  std::vector<std::vector<int>> streams;
  std::vector<SharedFlow> flows;
  std::vector<double> capacity = std::vector<double>(8, 1);

  Flows(std::vector<std::vector<int>> of, const std::vector<double>& wire) : interfaces(std::move(of)) {
    for (size_t f = 0; f < wire.size(); ++f) streams.push_back({static_cast<int>(f)});
    for (size_t f = 0; f < wire.size(); ++f) {
      SharedFlow flow;
      flow.wire = wire[f];
      flow.streams = streams[f].data();
      flow.count = streams[f].size();
      flow.interfaces = &interfaces[f];
      flows.push_back(flow);
    }
  }
  std::vector<double> ends() {
    Sharing().run(flows, 8, capacity);
    std::vector<double> ends;
    for (const SharedFlow& flow : flows) ends.push_back(flow.end);
    return ends;
  }
};

void check_ends(Flows&& flows, const std::vector<double>& expected) {
  const std::vector<double> ends = flows.ends();
  for (size_t f = 0; f < expected.size(); ++f) {
    INFO(f);
    CHECK(ends[f] == Approx(expected[f]));
  }
}

}  // namespace

TEST_CASE("flows through one interface end together, and the longer goes on alone") {
  check_ends({{{0}, {0}}, {1, 1}}, {2, 2});
  check_ends({{{0}, {0}}, {1, 3}}, {2, 4});
  check_ends({{{0}, {1}}, {1, 3}}, {1, 3});
  check_ends({{{}, {0}, {0}}, {5, 1, 1}}, {5, 2, 2});
}

TEST_CASE("flows in a chain of interfaces all go at half pace, not one after the other") {
  check_ends({{{0, 1}, {1, 2}, {2, 3}}, {1, 1, 1}}, {2, 2, 2});
}

TEST_CASE("paces are max-min fair") {
  // Interface 1 has three flows; what its third leaves of interface 0 goes to the first flow.
  check_ends({{{0}, {0, 1}, {1}, {1}}, {2, 1, 1, 1}}, {3, 3, 3, 3});
}

TEST_CASE("a flow that cannot fill an interface leaves the rest to others") {
  // The first flow's link carries a tenth of interface 0; the second takes nine tenths.
  Flows flows({{0, 1}, {0, 2}}, {2, 0.9});
  flows.flows[0].rate = flows.flows[0].link = 0.1;
  check_ends(std::move(flows), {2, 1});
  // Two of such links are shared by four flows; those of other links go on.
  Flows more({{0}, {0}, {0}, {0}, {0}}, {1, 1, 2, 2, 0.6});
  for (size_t f = 0; f < 4; ++f) more.flows[f].rate = more.flows[f].link = f < 2 ? 0.1 : 0.3;
  check_ends(std::move(more), {2, 2, 4, 4, 1});
  // One of a quarter of the interface beside two that could fill it: 0.25, then 0.375 each. Then those
  // halves.
  Flows three({{0}, {0}, {0}}, {1, 0.375, 0.375});
  three.flows[0].rate = three.flows[0].link = 0.25;
  check_ends(std::move(three), {1, 1, 1});
}

TEST_CASE("a flow starts when it may and all its streams are free, and latencies take no interface") {
  Flows flows({{0}, {0}, {1}}, {1, 1, 1});
  flows.flows[0].fixed = 0.5;
  flows.flows[1].earliest = 0.25;
  flows.streams[2] = {0, 1};
  flows.flows[2].streams = flows.streams[2].data();
  flows.flows[2].count = 2;
  flows.flows[2].earliest = 0.1;
  // The second is alone from 0.25 to 0.5, then both share; the third waits for both.
  const std::vector<double> ends = flows.ends();
  CHECK(ends[1] == Approx(0.5 + 2 * 0.75));
  CHECK(ends[0] == Approx(2.25));
  CHECK(flows.flows[2].start == Approx(2.25));
  CHECK(ends[2] == Approx(3.25));
}

TEST_CASE("whatever flows there are, interfaces carry all bytes and none idles while its flows could go") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int count = 1 + below(12), streams = 1 + below(6);
    std::vector<std::vector<int>> interfaces;
    std::vector<double> wire;
    for (int f = 0; f < count; ++f) {
      std::vector<int> own;
      for (int i = 0; i < 4; ++i)
        if (below(3) == 0) own.push_back(i);
      interfaces.push_back(own);
      wire.push_back(1 + below(5));
    }
    Flows flows(interfaces, wire);
    double most = 0, all = 0;
    for (int f = 0; f < count; ++f) {
      const auto i = static_cast<size_t>(f);
      flows.streams[i] = {below(streams)};
      flows.flows[i].streams = flows.streams[i].data();
      flows.flows[i].fixed = below(2);
      flows.flows[i].earliest = below(4);
      all += wire[i] + 1;
    }
    const std::vector<double> ends = flows.ends();
    for (int i = 0; i < 4; ++i) {
      double load = 0;
      for (int f = 0; f < count; ++f)
        for (const int own : interfaces[static_cast<size_t>(f)])
          load += own == i ? wire[static_cast<size_t>(f)] : 0;
      most = std::max(most, load);
    }
    const double last = *std::max_element(ends.begin(), ends.end());
    INFO("trial " << trial);
    CHECK(last >= most * (1 - 1e-9));
    CHECK(last <= (all + 4) * (1 + 1e-9));
    for (size_t f = 0; f < ends.size(); ++f) {
      CHECK(flows.flows[f].start >= flows.flows[f].earliest);
      CHECK(ends[f] - flows.flows[f].start >= (flows.flows[f].fixed + wire[f]) * (1 - 1e-9));
      for (size_t other = 0; other < f; ++other)
        if (flows.streams[f] == flows.streams[other]) CHECK(flows.flows[f].start >= ends[other] * (1 - 1e-9));
    }
  }
}

TEST_CASE("a ring or a tree over hosts of one rank each, or within one, takes what NCCL's steps take") {
  const Link link{1e-5, 1e9};
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather})
    for (const int n : {3, 5, 16})
      for (const double bytes : {1e3, 1e9}) {
        const double expected = collective_seconds(kind, false, link, n, bytes);
        // Small sums go by a tree; what is gathered goes by the ring, whatever its size.
        if (kind == CollectiveKind::all_gather && bytes < 1e9) continue;
        const RingSeconds apart = ring_seconds(kind, {n, n, 1, 1, link, {0, 1e12}, {}}, 1, bytes);
        CHECK(apart.fixed + apart.wire == Approx(expected));
        const RingSeconds together = ring_seconds(kind, {n, 1, n, 1, {}, link, {}}, 1, bytes);
        CHECK(together.wire == 0);
        if (bytes == 1e9 || n == 3) CHECK(together.fixed == Approx(expected));
      }
  CHECK(ring_seconds(CollectiveKind::all_reduce, {1, 1, 1, 1, {}, {}, {}}, 1, 1e9).fixed == 0);
}

TEST_CASE("a ring enters and leaves each host once, over as many interfaces as its ranks have there") {
  // Three hosts of four ranks: 2 x 11 / 12 of the bytes through each interface.
  const RingGroup group{12, 3, 4, 1, {0, 1e9}, {0, 1e11}, {}};
  const auto wire = [](const RingGroup& of, int communicators) {
    return ring_seconds(CollectiveKind::all_reduce, of, communicators, 1e9).wire;
  };
  CHECK(wire(group, 1) == Approx(2 * 11.0 / 12));
  RingGroup four = group;
  four.lanes = 4;
  CHECK(wire(four, 1) == Approx(2 * 11.0 / 12 / 4));
  CHECK(wire(four, 4) == Approx(2 * 11.0 / 12));
  // Between two hosts a tree carries the bytes once, a ring 2 x 7 / 8; and 8 hops of a tree are fewer than 14
  // of a ring, of which 4 leave a host.
  const RingGroup two{8, 2, 4, 1, {1e-3, 1e9}, {1e-6, 1e11}, {}};
  CHECK(wire(two, 1) == Approx(1));
  for (const double bytes : {1e3, 1e9}) {
    const RingSeconds sum = ring_seconds(CollectiveKind::all_reduce, two, 1, bytes);
    CHECK(sum.wire == Approx(bytes / 1e9));
    CHECK(sum.fixed == Approx(2 * 1e-3 + 2 * 3 * 1e-6));
  }
  // Of one rank each both carry the bytes once. Slow inside links carry a tree's bytes twice: 2 / 1.05
  // > 1.75.
  CHECK(wire({2, 2, 1, 1, {0, 1e9}, {0, 1e11}, {}}, 1) == Approx(1));
  CHECK(wire({8, 2, 4, 1, {0, 1e9}, {0, 1.05e9}, {}}, 1) == Approx(1.75));
  // Inside links carry their part at the same time: the slower of both counts.
  CHECK(wire({12, 3, 4, 4, {0, 1e9}, {0, 1e9}, {}}, 1) == Approx(2 * 11.0 / 12));
}

TEST_CASE("a sum takes no longer over links that are faster or closer") {
  for (const int hosts : {1, 2, 3, 8})
    for (const int in_host : {1, 2, 8})
      for (const double bytes : {1e4, 1e6, 1e8}) {
        if (hosts * in_host == 1) continue;
        const auto seconds = [&](double latency, double bandwidth) {
          const RingGroup group{hosts * in_host, hosts, in_host, 1, {latency, bandwidth}, {1e-6, 1e11}, {}};
          const RingSeconds sum = ring_seconds(CollectiveKind::all_reduce, group, 1, bytes);
          return sum.fixed + sum.wire;
        };
        CAPTURE(hosts, in_host, bytes);
        for (double scale = 1; scale < 300; scale *= 1.1) {
          CHECK(seconds(1e-6 * scale, 1e9) <= seconds(1.1e-6 * scale, 1e9));
          CHECK(seconds(1e-5, 1e10 / scale) <= seconds(1e-5, 1e10 / 1.1 / scale));
        }
      }
}
