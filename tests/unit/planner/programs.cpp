// What the programs of ranks take together, against figures worked out by hand and against shaped links.
#include "planner/simulate/programs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>

#include "core/base/random.h"
#include "core/ops/op.h"
#include "planner/hap/grids.h"
#include "planner/hap/stages.h"
#include "planner/lower/lower.h"
#include "planner/profile/profile.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/planner/distributed.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

// A program of one rank: products of n x n matrices, and collectives among all of `ranks`.
class Writer {
 public:
  explicit Writer(int ranks) : Writer(ranks_below(ranks)) {}
  explicit Writer(std::vector<int> ranks) {
    program_.groups = {{std::move(ranks)}};
    program_.buffers = {{"a", {DType::f32, {kSide, kSide}}}};
  }
  Writer& product() {
    Compute compute;
    compute.op = &op_named("matmul");
    const Operand operand{0, Layout::contiguous({DType::f32, {kSide, kSide}})};
    compute.inputs = {operand, operand};
    compute.outputs = {operand};
    program_.instructions.emplace_back(std::move(compute));
    return *this;
  }
  Writer& start(CollectiveKind kind, std::vector<int64_t> counts, int peer = -1) {
    Start start;
    start.request.kind = kind;
    start.request.counts = std::move(counts);
    start.request.peer = peer;
    last_ = static_cast<int>(program_.instructions.size());
    starts_.push_back(last_);
    program_.instructions.emplace_back(std::move(start));
    return *this;
  }
  Writer& await(size_t number) {
    program_.instructions.emplace_back(Await{starts_[number]});
    return *this;
  }
  const Program& program() const { return program_; }

  static constexpr int64_t kSide = 100;
  static constexpr double kFlops = 2.0 * kSide * kSide * kSide;

 private:
  static std::vector<int> ranks_below(int count) {
    std::vector<int> ranks(static_cast<size_t>(count));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  Program program_;
  std::vector<int> starts_;
  int last_ = -1;
};

// A byte takes a microsecond on every link, and a message a millisecond more.
WireTime slow_wire(const CollectiveRequest& request, const std::vector<int>& ranks) {
  if (request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive)
    return {static_cast<double>(request.counts[0]) * 4e-6, 1e-3};
  return wire_time(mesh_steps(request, 0, static_cast<int>(ranks.size())), static_cast<int>(ranks.size()),
                   [](int, int) {
                     return Link{1e-3, 1e6};
                   });
}

hap::Device takes(double seconds_of_a_product) {
  hap::Device device;
  device.f32_flops = Writer::kFlops / seconds_of_a_product;
  device.memory_bytes_per_second = 1e30;
  return device;
}

}  // namespace

TEST_CASE("a rank computes while its collective travels, and waits for the slowest member", "[programs]") {
  // 2,000 f32 among two: each sends half twice, 4 ms a way each, and two latencies.
  Writer one(2), other(2);
  one.product().start(CollectiveKind::all_reduce, {2000}).product().await(0).product();
  other.product().start(CollectiveKind::all_reduce, {2000}).product().await(0).product();
  const auto time =
      simulate_programs({&one.program(), &other.program()}, {takes(5e-3), takes(20e-3)}, slow_wire);
  // The slow one ends the first step after 60 ms, the fast one after 35. In the second the fast one has
  // computed by 45, when the slow one has not come; it comes at 80, and 10 ms later both have the sum, behind
  // a product.
  CHECK(time.seconds == Approx(60e-3));
  CHECK(time.ranks[0].compute_seconds == Approx(15e-3));
  CHECK(time.ranks[0].exposed_seconds == Approx(45e-3));
  CHECK(time.ranks[1].exposed_seconds == Approx(0).margin(1e-9));
}

TEST_CASE("collectives of one queue follow each other", "[programs]") {
  Writer one(2);
  one.start(CollectiveKind::all_gather, {1000, 1000})
      .start(CollectiveKind::all_gather, {1000, 1000})
      .await(0)
      .await(1);
  const auto time = simulate_programs({&one.program(), &one.program()}, {takes(1), takes(1)}, slow_wire);
  CHECK(time.seconds == Approx(2 * (4e-3 + 1e-3)));
}

TEST_CASE("messages of two channels share the sender's way out", "[programs]") {
  Writer first(3), second(3), third(3);
  first.start(CollectiveKind::send, {1000}, 1).start(CollectiveKind::send, {1000}, 2).await(0).await(1);
  second.start(CollectiveKind::receive, {1000}, 0).await(0);
  third.start(CollectiveKind::receive, {1000}, 0).await(0);
  const auto time = simulate_programs({&first.program(), &second.program(), &third.program()},
                                      {takes(1), takes(1), takes(1)}, slow_wire);
  CHECK(time.ranks[0].exposed_seconds == Approx(9e-3));  // 4 ms and 4 ms, and the latency
  CHECK(time.seconds == Approx(9e-3));
}

TEST_CASE("what devices of a machine send to others at once passes its network interface in turn",
          "[programs]") {
  // Two machines of two: the first devices sum among them, and the second ones.
  Writer first({0, 2}), second({1, 3});
  for (Writer* each : {&first, &second}) each->start(CollectiveKind::all_reduce, {2000}).await(0);
  std::vector<hap::Device> devices(4, takes(1));
  for (size_t d = 0; d < 4; ++d) devices[d].node = static_cast<int>(d / 2);
  const std::vector<const Program*> programs{&first.program(), &second.program(), &first.program(),
                                             &second.program()};
  const double own = simulate_programs(programs, devices, slow_wire).seconds,
               shared = simulate_programs(programs, devices, slow_wire, false, true).seconds;
  CHECK(own == Approx(8e-3 + 2e-3));
  CHECK(shared == Approx(2 * 8e-3));  // the latencies pass beside the other's bytes
  for (hap::Device& device : devices) device.node = 0;
  CHECK(simulate_programs(programs, devices, slow_wire, false, true).seconds == Approx(own));
}

TEST_CASE("programs that wait for each other are refused", "[programs]") {
  Writer one(2), other(2);
  one.start(CollectiveKind::all_gather, {1, 1}).await(0);
  CHECK_THROWS(simulate_programs({&one.program(), &other.program()}, {takes(1), takes(1)}, slow_wire));
}

TEST_CASE("a plan's programs take what its devices and links allow", "[programs]") {
  const Graph graph = testing::distributed::small_model(false, DType::f32);
  Cluster cluster;
  cluster.types = {plain_type("fast", 3e-3, 16), plain_type("slow", 1e-3, 16)};
  cluster.nodes = {plain_machine("a", "fast", 1), plain_machine("b", "slow", 1)};
  cluster.between = {1e-5, 1e8};
  cluster.mesh = true;
  const hap::DeviceGroup group(cluster, Precision::f32);
  Plan plan;
  const int layers = static_cast<int>(graph.layers.size());
  plan.microbatch = testing::distributed::kSamples;
  Stage one, other;
  one.devices = {"a:0"};
  other.devices = {"b:0"};
  one.layers = other.layers = layers;
  plan.pipelines = {{3, {one}}, {1, {other}}};
  const auto seconds = [&](const Plan& each) { return simulate_plan(graph, each, group); };
  const ProgramsTime balanced = seconds(plan);
  // Three times the work on three times the rate: both are busy alike, but for the update that each does
  // whole.
  CHECK(balanced.ranks[0].compute_seconds == Approx(balanced.ranks[1].compute_seconds).epsilon(0.15));
  plan.pipelines = {{1, {one}}, {3, {other}}};
  const ProgramsTime lopsided = seconds(plan);
  CHECK(lopsided.seconds > 2 * balanced.seconds);
  CHECK(lopsided.ranks[0].exposed_seconds > 0.5 * lopsided.seconds);
}

TEST_CASE("each pass of a layer takes a launch, as simulations of layers count it", "[programs]") {
  const Graph graph = testing::distributed::small_model(false, DType::f32);
  Cluster cluster;
  cluster.types = {plain_type("fast", 1e9, 16)};  // computing takes no time beside launches
  cluster.nodes = {plain_machine("a", "fast", 1)};
  const hap::DeviceGroup group(cluster, Precision::f32);
  Plan plan;
  plan.microbatch = testing::distributed::kSamples;
  Stage one;
  one.devices = {"a:0"};
  const int layers = one.layers = static_cast<int>(graph.layers.size());
  for (const int microbatches : {1, 3})
    for (const bool recompute : {false, true}) {
      one.recompute = recompute;
      plan.pipelines = {{microbatches, {one}}};
      // Forward, both halves of the backward pass, and forward again where there is something to compute.
      const double most = (recompute ? 4 : 3) * layers * microbatches * kLaunchSeconds,
                   least = 3 * layers * microbatches * kLaunchSeconds;
      const double seconds = simulate_plan(graph, plan, group).ranks[0].compute_seconds;
      CAPTURE(microbatches, recompute);
      CHECK(seconds <= most * 1.01);
      CHECK(seconds >= (recompute ? least + kLaunchSeconds : least));
    }
  cluster.types[0].launch_seconds = 0;  // a paced device
  const hap::DeviceGroup paced(cluster, Precision::f32);
  CHECK(simulate_plan(graph, plan, paced).ranks[0].compute_seconds < 0.01 * kLaunchSeconds);
}

TEST_CASE("what ranks wait for is named: gradients, norms and losses, weights", "[programs]") {
  const Graph graph = testing::distributed::small_model(false, DType::f32);
  Cluster cluster;
  cluster.types = {plain_type("fast", 3e-3, 16)};
  cluster.types[0].inside = {1e-5, 1e6};
  cluster.nodes = {plain_machine("a", "fast", 2)};
  const hap::DeviceGroup group(cluster, Precision::f32);
  Plan plan;
  plan.microbatch = testing::distributed::kSamples;
  Stage one, other;
  one.devices = {"a:0"};
  other.devices = {"a:1"};
  one.layers = other.layers = static_cast<int>(graph.layers.size());
  plan.pipelines = {{1, {one}}, {1, {other}}};
  for (const bool sharded : {false, true}) {
    plan.sharded_optimizer = sharded;
    const ProgramsTime time = simulate_plan(graph, plan, group);
    for (const ProgramUse& rank : time.ranks) {
      CHECK(rank.parts.gradients > 0);
      CHECK(rank.parts.norms > 0);
      CHECK((rank.parts.gather > 0) == sharded);
      CHECK(rank.parts.tensor == 0);
    }
  }
}

TEST_CASE("the programs of all ranks are those of each", "[programs]") {
  const Graph graph = testing::distributed::small_model(false, DType::f32);
  Plan plan;
  plan.microbatch = testing::distributed::kSamples;
  Stage first, second;
  first.devices = {"a:0", "a:1"};
  first.shares = {3, 1};
  first.layers = 3;
  second.devices = {"b:0"};
  second.first_layer = 3;
  second.layers = static_cast<int>(graph.layers.size()) - 3;
  plan.pipelines = {{2, {first, second}}};
  const std::vector<Program> programs = lower_all(graph, plan, true);
  REQUIRE(programs.size() == 3);
  for (int rank = 0; rank < 3; ++rank)
    CHECK(to_string(programs[static_cast<size_t>(rank)]) == to_string(lower(graph, plan, rank, true)));
}

TEST_CASE("ranks of a mesh that have equal parts have programs that take as long", "[programs]") {
  const Graph graph = testing::distributed::small_model(true, DType::f32);
  const PlacementTable table(graph);
  Cluster cluster;
  cluster.types = {plain_type("fast", 3e-3, 16), plain_type("slow", 1e-3, 16)};
  cluster.nodes = {plain_machine("a", "fast", 2), plain_machine("b", "slow", 2),
                   plain_machine("c", "fast", 2)};
  cluster.between = {1e-5, 1e7};
  const hap::DeviceGroup group(cluster, Precision::f32);
  const hap::Request request{&table, &group, 1, {}, testing::distributed::kSamples};
  const std::vector<hap::Grid> grids = hap::grids_of(group);
  int compared = 0;
  for (const hap::GridProgram& each : hap::programs_for(request, grids, true)) {
    std::vector<Program> made;
    try {
      made = lower_all(graph, each.plan, true);
    } catch (const Error&) {
      continue;
    }
    std::vector<const Program*> programs;
    std::vector<hap::Device> devices;
    for (const Program& program : made) programs.push_back(&program);
    std::vector<int> places;
    for (const std::vector<int>& row : each.grid->rows)
      for (const int d : row) {
        places.push_back(d);
        devices.push_back(group.devices()[static_cast<size_t>(d)]);
      }
    const ProgramsTime whole = simulate_programs(
        programs, devices,
        [&](const CollectiveRequest& asked, const std::vector<int>& ranks) {
          std::vector<int> members;
          for (const int rank : ranks) members.push_back(places[static_cast<size_t>(rank)]);
          return group.wire_time(asked, members);
        },
        false, true);
    // Where units remain all are taken to have as many as the first.
    CHECK(simulate_plan(graph, each.plan, group).seconds == Approx(whole.seconds).epsilon(0.05));
    ++compared;
  }
  CHECK(compared >= 2);
}

TEST_CASE("stages get the layers whose longest stage is shortest", "[programs]") {
  const PhiloxKey key = philox_key(testing::distributed::first_seed(), hash_of("balanced layers"));
  uint64_t next = 0;
  const auto below = [&](uint64_t n) { return philox(key, next++)[0] % n; };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> flops, rates;
    const auto layers = 1 + below(7), stages = 1 + below(std::min<uint64_t>(layers, 4));
    for (uint64_t i = 0; i < layers; ++i) flops.push_back(static_cast<double>(below(10)));
    for (uint64_t i = 0; i < stages; ++i) rates.push_back(static_cast<double>(1 + below(5)));
    const auto longest = [&](const std::vector<int>& counts) {
      double most = 0;
      size_t at = 0;
      for (size_t s = 0; s < counts.size(); ++s) {
        double sum = 0;
        for (int i = 0; i < counts[s]; ++i) sum += flops[at++];
        most = std::max(most, sum / rates[s]);
      }
      return most;
    };
    double least = 1e30;
    const std::function<void(std::vector<int>, int)> try_all = [&](std::vector<int> counts, int left) {
      if (counts.size() + 1 == stages) {
        counts.push_back(left);
        least = std::min(least, longest(counts));
        return;
      }
      const int after = static_cast<int>(stages - counts.size()) - 1;
      for (int own = 1; own <= left - after; ++own) {
        std::vector<int> more = counts;
        more.push_back(own);
        try_all(more, left - own);
      }
    };
    try_all({}, static_cast<int>(layers));
    const std::vector<int> found = hap::balanced_layers(flops, rates);
    CHECK(found.size() == stages);
    CHECK(std::accumulate(found.begin(), found.end(), 0) == static_cast<int>(layers));
    CHECK(*std::min_element(found.begin(), found.end()) >= 1);
    CHECK(longest(found) == Approx(least));
  }
}
