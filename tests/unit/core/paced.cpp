// When work on a slowed device is done. Time is whatever the tests say.
#include "core/device/paced.h"

#include <catch2/catch.hpp>

#include "core/graph/graph.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::testing;

TEST_CASE("work takes what the pace says, whichever of its sides is longer", "[paced]") {
  const Pace pace{100, 10, 0};
  CHECK(seconds_at(pace, {200, 5}) == 2);
  CHECK(seconds_at(pace, {200, 50}) == 5);
  CHECK(seconds_at({}, {200, 50}) == 0);
}

TEST_CASE("pieces that follow each other take the sum of their times", "[paced]") {
  PaceClock clock;
  double now = 10;
  for (int piece = 1; piece <= 5; ++piece) {
    clock.begin(now);
    now += 0.001;  // what the machine needs
    const double due = clock.end(now, 0.01);
    CHECK(due == Approx(10 + 0.01 * piece));
    now = due + 30e-6;  // woken a little late
    clock.waited(now);
  }
}

TEST_CASE("what the machine is too slow for is caught up", "[paced]") {
  PaceClock clock;
  clock.begin(0);
  CHECK(clock.end(0.03, 0.01) == Approx(0.01));  // late already
  clock.begin(0.03);
  CHECK(clock.end(0.031, 0.01) == Approx(0.02));
  clock.begin(0.031);
  CHECK(clock.end(0.032, 0.05) == Approx(0.07));  // as if nothing had been late
}

TEST_CASE("time without work passes, also on a clock that is behind", "[paced]") {
  PaceClock clock;
  clock.begin(0);
  clock.end(0.005, 0.01);
  clock.waited(0.01);
  clock.begin(0.5);  // waited for others
  CHECK(clock.end(0.501, 0.01) == Approx(0.51));
  PaceClock late;
  late.begin(0);
  late.end(0.03, 0.01);  // 0.02 behind
  late.begin(0.13);      // 0.1 idle
  CHECK(late.end(0.131, 0.05) == Approx(0.01 + 0.1 + 0.05));
}

TEST_CASE("a machine that cannot keep up does not run on without pacing", "[paced]") {
  PaceClock clock;
  clock.begin(0);
  clock.end(5, 0.01);
  clock.begin(5);
  CHECK(clock.end(5.001, 0.3) == Approx(5 - PaceClock::kBehind + 0.3));
  CHECK(clock.lost() > 0);
}

TEST_CASE("a paced device computes the same, with no more memory than it says", "[paced]") {
  Graph graph;
  GraphBuilder b(graph);
  b.output("y", b.call("scale", {b.input("x", {DType::f32, {4}})}, {{"factor", 2.0}}));
  const auto device = make_paced(make_reference_device(), {0, 0, 4096});
  CHECK(device->available_bytes() <= 4096);
  const auto some = device->allocate(1024);
  CHECK(device->available_bytes() <= 3072);
  Executor executor(lower_single(graph), std::make_shared<StateStore>(device, 1));
  executor.write("x", Tensor::of<float>({1, 2, 3, 4}, {4}));
  executor.run();
  CHECK(values_of(executor.read("y")) == std::vector<double>{2, 4, 6, 8});
}
