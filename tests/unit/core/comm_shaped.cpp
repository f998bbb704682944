#include <catch2/catch.hpp>
#include <thread>

#include "core/comm/loopback.h"
#include "core/comm/shaped.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;

namespace {

// 1 MB/s, 100 kB/s from rank 2 to rank 3; 10 ms each.
Link slow(int from, int to) { return {0.01, from == 2 && to == 3 ? 1e5 : 1e6}; }

CollectiveRequest request_of(Kind kind, std::vector<int64_t> counts, int peer = -1) {
  return {kind, DType::f32, std::move(counts), peer, 0, Reduction::sum, "x"};
}

}  // namespace

TEST_CASE("shaped links take the time that the collectives' steps take on them", "[comm]") {
  const auto seconds = [](const CollectiveRequest& request, const std::vector<int>& ranks, int rank) {
    const auto links = make_shaped_links(slow);
    const auto now = CommClock::now();
    return std::chrono::duration<double>(links->release(request, ranks, rank, now) - now).count();
  };
  // 400 kB over 1 MB/s: half of it to the other's sum, and half of it back; a latency each.
  CHECK(seconds(request_of(Kind::all_reduce, {100'000}), {0, 1}, 0) == Approx(0.4 + 0.02));
  // A quarter in each step to each of three; from rank 2 to rank 3 at a tenth of the pace.
  CHECK(seconds(request_of(Kind::all_reduce, {100'000}), {0, 1, 2, 3}, 1) ==
        Approx(2 * (0.1 + 0.1 + 1) + 0.02));
  CHECK(seconds(request_of(Kind::all_reduce, {100'000}), {0, 3, 4, 1}, 1) == Approx(2 * 0.3 + 0.02));
  // Up to 4 KiB: all to all, in one step.
  CHECK(seconds(request_of(Kind::all_reduce, {1'000}), {0, 1, 4}, 2) == Approx(2 * 0.004 + 0.01));
  // The longer block decides; with three ranks it goes out twice.
  CHECK(seconds(request_of(Kind::all_gather, {100'000, 25'000}), {0, 1}, 0) == Approx(0.4 + 0.01));
  CHECK(seconds(request_of(Kind::all_gather, {50'000, 0, 0}), {0, 1, 4}, 1) == Approx(2 * 0.2 + 0.01));
  CHECK(seconds(request_of(Kind::reduce_scatter, {0, 25'000, 50'000}), {0, 1, 4}, 0) ==
        Approx(2 * 0.2 + 0.01));
  CHECK(seconds(request_of(Kind::broadcast, {100'000}, 0), {0, 1, 4}, 2) == Approx(0.4 + 0.02));
  CHECK(seconds(request_of(Kind::send, {100'000}, 1), {2, 3}, 0) == Approx(4.0 + 0.01));
  CHECK(seconds(request_of(Kind::receive, {100'000}, 0), {2, 3}, 1) == Approx(4.0 + 0.01));
  CHECK(seconds(request_of(Kind::send, {100'000}, 0), {2, 3}, 1) == Approx(0.4 + 0.01));
  CHECK(seconds(request_of(Kind::all_to_all, {9, 100, 200, 0}), {0, 1}, 0) == Approx(8e-4 + 0.01));
  CHECK(seconds(request_of(Kind::barrier, {}), {0, 1, 4}, 0) == Approx(0.01));
  CHECK(seconds(request_of(Kind::all_reduce, {100'000}), {0}, 0) == 0);
}

TEST_CASE("operations that share a way follow each other; the two directions do not wait", "[comm]") {
  const auto links = make_shaped_links(slow);
  const CommClock::time_point now = CommClock::now();
  const auto after = [&](const CollectiveRequest& request, const std::vector<int>& ranks, int rank) {
    return std::chrono::duration<double>(links->release(request, ranks, rank, now) - now).count();
  };
  CHECK(after(request_of(Kind::send, {100'000}, 1), {0, 1}, 0) == Approx(0.41));
  CHECK(after(request_of(Kind::receive, {50'000}, 1), {0, 1}, 0) == Approx(0.21));
  CHECK(after(request_of(Kind::send, {100'000}, 1), {0, 4}, 0) == Approx(0.81));
  CHECK(after(request_of(Kind::all_reduce, {100'000}), {0, 1}, 0) == Approx(1.22));
}

TEST_CASE("a shaped operation is held back, computes the same, and can be aborted meanwhile", "[comm]") {
  const FabricMaker maker = [](int size, const Timeouts& timeouts) {
    std::vector<std::function<std::shared_ptr<Fabric>()>> makers;
    // All ranks have equal links. A pacer does not record whose it is, but each rank needs its own.
    for (const auto& fabric : make_loopback(size, {timeouts, [] { return make_shaped_links(slow); }}))
      makers.emplace_back([fabric] { return fabric; });
    return makers;
  };
  const auto errors = on_ranks(maker, 2, {}, [](Fabric& fabric) {
    const auto group = fabric.group("all", {0, 1});
    const CommClock::time_point begin = CommClock::now();
    const std::string problem = try_collective(*group, request_of(Kind::all_reduce, {10'000}));  // twice
    HET_REQUIRE(problem.empty(), problem);
    const double seconds = std::chrono::duration<double>(CommClock::now() - begin).count();
    HET_REQUIRE(seconds >= 2 * 0.06, seconds);  // 2 * 1/2 * 40 kB at 1 MB/s, and 20 ms
    std::vector<float> data(100'000'000 / 4);   // 100 s
    const auto sum = group->prepare(request_of(Kind::all_reduce, {static_cast<int64_t>(data.size())}));
    sum->start(reinterpret_cast<std::byte*>(data.data()), reinterpret_cast<std::byte*>(data.data()));
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      group->abort("enough");
    });
    std::string text;
    try {
      sum->wait();
    } catch (const Error& error) {
      text = error.what();
    }
    other.join();
    HET_REQUIRE(text.find("enough") != std::string::npos, text);
  });
  for (const std::string& text : errors) CHECK(text == "");
}
