#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "core/comm/reduce.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;

namespace {

const std::vector<DType> kTypes = {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8};

void require_none(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE(errors[rank] == "");
  }
}

// Every kind, dtype and size on one group, with random counts drawn alike on all ranks.
void try_all(const FabricMaker& maker, int size, uint32_t seed, int64_t most, int repeats) {
  INFO("seed " << seed << ", " << size << " ranks");
  require_none(on_ranks(maker, size, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("all", all_ranks(size));
    std::mt19937 random(seed);
    for (int repeat = 0; repeat < repeats; ++repeat)
      for (const Kind kind : kKinds)
        for (const DType dtype : kTypes) {
          const std::string problem = try_collective(*group, random_request(random, kind, dtype, size, most));
          if (!problem.empty()) fail(ErrorKind::bug, "{}", problem);
        }
  }));
}

void try_exchange(const FabricMaker& maker) {
  // Both ends send before they receive, far more than a socket buffers, twice over on two channels.
  const auto errors = on_ranks(maker, 3, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("all", all_ranks(3));
    const int64_t count = 3'000'000;
    std::vector<std::unique_ptr<Collective>> pending;
    std::vector<std::vector<int32_t>> data;
    data.reserve(16);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == group->rank()) continue;
      for (const int tag : {0, 7}) {
        auto& out = data.emplace_back(count, group->rank() * 100 + peer * 10 + tag);
        pending.push_back(
            group->prepare({Kind::send, DType::i32, {count}, peer, tag, Reduction::sum, "there"}));
        pending.back()->start(reinterpret_cast<std::byte*>(out.data()), nullptr);
      }
    }
    const size_t sends = pending.size();
    std::vector<int32_t> expected;
    for (int peer = 2; peer >= 0; --peer) {
      if (peer == group->rank()) continue;
      for (const int tag : {7, 0}) {  // not the order in which they were sent
        auto& in = data.emplace_back(count, -1);
        expected.push_back(peer * 100 + group->rank() * 10 + tag);
        pending.push_back(
            group->prepare({Kind::receive, DType::i32, {count}, peer, tag, Reduction::sum, "back"}));
        pending.back()->start(nullptr, reinterpret_cast<std::byte*>(in.data()));
      }
    }
    for (const auto& collective : pending) collective->wait();
    for (size_t i = 0; i < expected.size(); ++i)
      HET_REQUIRE(data[sends + i] == std::vector<int32_t>(count, expected[i]), i);
  });
  require_none(errors);
}

void try_overlap(const FabricMaker& maker) {
  // An all-reduce that lacks a rank holds up neither messages nor another group.
  const auto errors = on_ranks(maker, 3, {}, [&](Fabric& fabric) {
    const auto all = fabric.group("all", all_ranks(3));
    std::vector<float> sum(100'000, 1.0F);
    auto* const bytes = reinterpret_cast<std::byte*>(sum.data());
    const auto reduce = all->prepare({Kind::all_reduce, DType::f32, {100'000}, -1, 0, Reduction::sum, "sum"});
    float value = static_cast<float>(fabric.rank());
    auto* const one = reinterpret_cast<std::byte*>(&value);
    if (fabric.rank() < 2) {
      const auto pair = fabric.group("pair", {0, 1});
      reduce->start(bytes, bytes);
      const auto both = pair->prepare({Kind::all_reduce, DType::f32, {1}, -1, 0, Reduction::max, "max"});
      both->start(one, one);
      both->wait();
      HET_REQUIRE(value == 1.0F, value);
      HET_REQUIRE(!reduce->done());
      // Only now may rank 2 join in.
      const auto go = all->prepare({Kind::send, DType::f32, {1}, 2, fabric.rank(), Reduction::sum, "go"});
      go->start(one, nullptr);
      go->wait();
    } else {
      for (const int peer : {0, 1}) {
        const auto go = all->prepare({Kind::receive, DType::f32, {1}, peer, peer, Reduction::sum, "go"});
        go->start(nullptr, one);
        go->wait();
      }
      reduce->start(bytes, bytes);
    }
    reduce->wait();
    HET_REQUIRE(sum == std::vector<float>(100'000, 3.0F));
  });
  require_none(errors);
}

void try_queueing(const FabricMaker& maker) {
  // Many operations under way at once come out right, in whichever order they are waited for, and start
  // again.
  const auto errors = on_ranks(maker, 4, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("all", {3, 1, 0, 2});  // any order of ranks
    std::vector<std::unique_ptr<Collective>> pending;
    std::vector<std::vector<int64_t>> data(20);
    for (int i = 0; i < 20; ++i)
      pending.push_back(
          group->prepare({Kind::all_reduce, DType::i64, {i * 997}, -1, 0, Reduction::sum, "many"}));
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 20; ++i) {
        data[i].assign(i * 997, fabric.rank() + i + round);
        auto* const bytes = reinterpret_cast<std::byte*>(data[i].data());
        pending[i]->start(bytes, bytes);
      }
      for (int i = 19; i >= 0; --i) pending[i]->wait();
      for (int i = 0; i < 20; ++i)
        HET_REQUIRE(data[i] == std::vector<int64_t>(i * 997, 6 + 4 * (i + round)), i, round);
    }
    HET_REQUIRE(group->bytes_sent() > 0);
  });
  require_none(errors);
}

}  // namespace

TEST_CASE("collectives in one process equal plain sums and copies, bit by bit", "[comm]") {
  for (int size = 1; size <= 5; ++size) try_all(loopback_maker(), size, 11 + size, 5'000, 3);
}

TEST_CASE("collectives of several segments equal plain sums and copies", "[comm]") {
  try_all(loopback_maker(), 2, 21, 1'500'000, 1);
  try_all(loopback_maker(), 5, 22, 1'000'000, 1);
}

TEST_CASE("messages cross without deadlock in one process", "[comm]") { try_exchange(loopback_maker()); }
TEST_CASE("groups and messages do not wait for each other in one process", "[comm]") {
  try_overlap(loopback_maker());
}
TEST_CASE("operations queue and repeat in one process", "[comm]") { try_queueing(loopback_maker()); }

TEST_CASE("collectives over TCP equal plain sums and copies, bit by bit", "[comm]") {
  for (int size = 1; size <= 5; ++size) try_all(tcp_maker(), size, 31 + size, 5'000, 1);
}

TEST_CASE("collectives of several segments over TCP equal plain sums and copies", "[comm]") {
  try_all(tcp_maker(), 2, 41, 1'500'000, 1);
  try_all(tcp_maker(), 4, 42, 1'000'000, 1);
}

TEST_CASE("messages cross without deadlock over TCP", "[comm]") { try_exchange(tcp_maker()); }
TEST_CASE("groups and messages do not wait for each other over TCP", "[comm]") { try_overlap(tcp_maker()); }
TEST_CASE("operations queue and repeat over TCP", "[comm]") { try_queueing(tcp_maker()); }

TEST_CASE("requests that make no sense are refused by name", "[comm]") {
  const auto problem = [](const CollectiveRequest& request) {
    const auto problems = problems_of(request, 1, 3);
    return problems.empty() ? std::string() : problems.front();
  };
  CollectiveRequest request{Kind::all_gather, DType::f32, {1, 2}, -1, 0, Reduction::sum, "w"};
  CHECK(problem(request) == "all-gather of w: 2 counts given for 3 ranks; it takes 3");
  request.counts = {1, -2, 3};
  CHECK(problem(request) == "all-gather of w: a count is -2; counts are at least 0");
  request.counts = {1, 0, 3};
  CHECK(problem(request) == "");
  CHECK(problem({Kind::send, DType::f32, {1}, 1, 0, Reduction::sum, "w"}) ==
        "send of w: rank 1 would talk to itself");
  CHECK(problem({Kind::broadcast, DType::f32, {1}, 3, 0, Reduction::sum, "w"}) ==
        "broadcast of w: peer 3 is no rank of the group; it has ranks 0 to 2");
  CHECK(problem({Kind::all_reduce, DType::boolean, {1}, -1, 0, Reduction::max, "w"}) ==
        "all-reduce of w: booleans cannot be reduced; use u8");
}

TEST_CASE("a maximum keeps NaN, and integer sums wrap", "[comm]") {
  const float a[] = {1.0F, NAN, 3.0F}, b[] = {NAN, 2.0F, 4.0F};
  const std::byte* floats[] = {reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b)};
  float most[3];
  reduce_blocks(DType::f32, Reduction::max, reinterpret_cast<std::byte*>(most), floats, 2, 3);
  CHECK(std::isnan(most[0]));
  CHECK(std::isnan(most[1]));
  CHECK(most[2] == 4.0F);
  const int32_t big[] = {INT32_MAX}, one[] = {1};
  const std::byte* ints[] = {reinterpret_cast<const std::byte*>(big),
                             reinterpret_cast<const std::byte*>(one)};
  int32_t sum[1];
  reduce_blocks(DType::i32, Reduction::sum, reinterpret_cast<std::byte*>(sum), ints, 2, 1);
  CHECK(sum[0] == INT32_MIN);
}
