#include "planner/simulate/simulate.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/base/error.h"
#include "core/comm/steps.h"
#include "planner/autohet/stages.h"
#include "planner/lower/schedule.h"
#include "planner/simulate/sensitivity.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

constexpr double kLayer =
    2e-3 + kLaunchSeconds;  // a forward, or half a backward, of a plain layer at 1 TFLOP/s

struct Bench {
  Cluster cluster;
  Model model;
  explicit Bench(std::vector<Machine> nodes, int layers, Link between = {0, 1e15})
      : model(plain_model(layers, 1, 1e6)) {
    cluster.types = {plain_type("unit", 1, 16), plain_type("half", 0.5, 16)};
    cluster.nodes = std::move(nodes);
    cluster.between = between;
  }
  Simulation run(const PlanLayout& layout, SimulateOptions options = {}) const {
    options.details = true;
    const CostTable costs = make_costs(cluster, model, {}, layout.tensor, layout.microbatch);
    Simulator simulator(costs, cluster);
    return simulator.run(layout, options);
  }
};

// Stages of one layer each, in one host.
PlanLayout pipeline_of(int stages, int microbatches, int layers_each = 1) {
  PlanLayout layout;
  layout.pipelines = {{microbatches, {}}};
  for (int s = 0; s < stages; ++s) layout.pipelines[0].stages.push_back({0, 0, s * layers_each, layers_each});
  return layout;
}

double nccl_all_reduce(const Link& link, int members, double bytes) {
  return collective_seconds(CollectiveKind::all_reduce, false, link, members, bytes);
}

}  // namespace

TEST_CASE("equal stages without transfers take (m + S - 1) times a stage, in 1F1B as in GPipe") {
  const Bench bench({plain_machine("a", "unit", 4)}, 4);
  PlanLayout layout = pipeline_of(4, 6);
  const double expected = (6 + 4 - 1) * 3 * kLayer;
  const Simulation one = bench.run(layout);
  CHECK(one.seconds == Approx(expected).epsilon(1e-6));
  CHECK(one.bubble == Approx(3.0 / 9));
  CHECK(one.exposed_seconds == 0);
  layout.schedule = Schedule::gpipe;
  const Simulation all = bench.run(layout);
  CHECK(all.seconds == Approx(expected).epsilon(1e-6));
  // 1F1B holds S - s micro-batches, GPipe all of them.
  for (int s = 0; s < 4; ++s) {
    CHECK(one.stages[static_cast<size_t>(s)].in_flight == 4 - s);
    CHECK(all.stages[static_cast<size_t>(s)].in_flight == 6);
  }
  CHECK(all.stages[0].memory_bytes - one.stages[0].memory_bytes == Approx(2e6));
}

TEST_CASE(
    "with the slowest stage last the pipeline takes the time of the others once and of that one m times") {
  const Bench bench({plain_machine("a", "unit", 4)}, 6);
  PlanLayout layout = pipeline_of(3, 8);
  layout.pipelines[0].stages[2].layers = 4;
  CHECK(bench.run(layout).seconds == Approx((2 + 8 * 4) * 3 * kLayer).epsilon(1e-6));
}

TEST_CASE("recomputing adds a forward to each backward and keeps only what layers begin with") {
  const Bench bench({plain_machine("a", "unit", 1)}, 4);
  PlanLayout layout = pipeline_of(1, 3, 4);
  const Simulation kept = bench.run(layout);
  layout.pipelines[0].stages[0].recompute = true;
  const Simulation again = bench.run(layout);
  CHECK(kept.seconds == Approx(3 * 4 * 3 * kLayer).epsilon(1e-6));
  CHECK(again.seconds == Approx(3 * 4 * 4 * kLayer).epsilon(1e-6));
  // Of four layers what they begin with, and the rest of the one that is computed again.
  CHECK(kept.stages[0].memory_bytes - again.stages[0].memory_bytes == Approx(4e6 - (4e5 + 9e5)));
}

TEST_CASE("a split backward fills bubbles: faster than 1F1B, at most the first stage's activations") {
  const Bench bench({plain_machine("a", "unit", 4)}, 4);
  PlanLayout layout = pipeline_of(4, 8);
  const double whole = bench.run(layout).seconds;
  layout.schedule = Schedule::split_backward;
  const Simulation split = bench.run(layout);
  CHECK(split.seconds < whole);
  // Qi et al. 2023: the bubble of ZB-H1 is (S - 1)(F + B - W), a third of 1F1B's when the three are equal.
  CHECK(split.seconds == Approx((8 * 3 + 3) * kLayer).epsilon(0.08));
  for (const StageUse& use : split.stages) CHECK(use.in_flight <= 4);
  CHECK(split.stages[0].busy_seconds == Approx(8 * 3 * kLayer));
}

TEST_CASE(
    "a split backward is lowered in the order in which it is simulated, holding what the planner counts on") {
  const Bench bench({plain_machine("a", "unit", 4)}, 4, {1e-4, 1e9});
  for (const int microbatches : {1, 2, 3, 9})
    for (const int warmup : {0, 1, 2}) {
      PlanLayout layout = pipeline_of(4, microbatches);
      layout.schedule = Schedule::split_backward;
      layout.warmup = warmup;
      SimulateOptions options;
      options.events = true;
      const Simulation simulation = bench.run(layout, options);
      const Plan plan = to_plan(layout, bench.cluster);
      StageRules rules;
      rules.schedule = layout.schedule;
      rules.warmup = warmup;
      for (int s = 0; s < 4; ++s) {
        std::vector<WorkUnit> units;
        for (const SimEvent& event : simulation.events) {
          if (event.stage != s) continue;
          if (event.kind == SimEvent::Kind::forward)
            units.push_back({WorkUnit::Kind::forward, s, event.item});
          else if (event.kind == SimEvent::Kind::backward)
            units.push_back({WorkUnit::Kind::backward, s, event.item});
          else if (event.kind == SimEvent::Kind::weight)
            units.push_back({WorkUnit::Kind::weight_gradient, s, event.item});
        }
        INFO("stage " << s << ", " << microbatches << " micro-batches, warm-up " << warmup);
        CHECK(units == units_of(plan, 0, s));
        CHECK(simulation.stages[static_cast<size_t>(s)].in_flight <= in_flight(rules, 4, s, microbatches));
      }
    }
}

TEST_CASE(
    "without contention pipelines that share no port take as long as with, and others as long as alone") {
  const Bench bench({plain_machine("a", "unit", 3, 2), plain_machine("b", "half", 3, 2)}, 6, {1e-3, 1e12});
  SimulateOptions apart;
  apart.contention = false;
  const CostTable costs = make_costs(bench.cluster, bench.model, {}, 1, 1);
  Simulator again(costs, bench.cluster);  // it remembers pipelines
  for (const Schedule schedule :
       {Schedule::one_f_one_b, Schedule::gpipe, Schedule::split_backward, Schedule::interleaved})
    for (const int warmup : {0, 2})
      for (const int microbatches : {1, 2, 3, 8}) {
        PlanLayout layout;
        layout.schedule = schedule;
        layout.warmup =
            schedule == Schedule::one_f_one_b || schedule == Schedule::split_backward ? warmup : 0;
        layout.sharded_optimizer = warmup > 0;
        layout.chunks = schedule == Schedule::interleaved ? 2 : 1;
        layout.pipelines = {{microbatches, {{0, 0, 0, 2}, {0, 0, 2, 1}, {0, 0, 3, 3}}},
                            {microbatches, {{1, 0, 0, 2}, {1, 0, 2, 1, true}, {1, 0, 3, 3}}},
                            {2 * microbatches, {{0, 1, 0, 2}, {1, 1, 2, 2}, {1, 1, 4, 2}}}};
        if (layout.chunks > 1)
          for (PipelineLayout& pipeline : layout.pipelines) {
            const StageLayout group = pipeline.stages[0];
            pipeline.stages = {group, group, group, group};
            pipeline.stages[1].node = pipeline.stages[3].node = pipeline.stages[2].node;
            for (int s = 0; s < 4; ++s) {
              pipeline.stages[static_cast<size_t>(s)].first = s < 2 ? s : 2 * s - 2;
              pipeline.stages[static_cast<size_t>(s)].layers = s < 2 ? 1 : 2;
            }
            pipeline.microbatches *= 2;
          }
        INFO(static_cast<int>(schedule) << ", warm-up " << warmup << ", micro-batches " << microbatches);
        const Simulation exact = bench.run(layout);
        apart.details = true;
        for (const Simulation& quick : {again.run(layout, apart), again.run(layout, apart)}) {
          CHECK(quick.seconds == Approx(exact.seconds).epsilon(1e-6));
          CHECK(quick.pipeline_seconds == Approx(exact.pipeline_seconds).epsilon(1e-6));
          CHECK(quick.bubble == Approx(exact.bubble).epsilon(1e-6).margin(1e-9));
          REQUIRE(quick.stages.size() == exact.stages.size());
          for (size_t i = 0; i < exact.stages.size(); ++i) {
            CHECK(quick.stages[i].memory_bytes == exact.stages[i].memory_bytes);
            CHECK(quick.stages[i].in_flight == exact.stages[i].in_flight);
            CHECK(quick.stages[i].idle_start == Approx(exact.stages[i].idle_start).epsilon(1e-6));
          }
        }
      }
  const Bench narrow({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1, 2)}, 2, {0, 1e7});
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  const double alone = narrow.run(layout, apart).pipeline_seconds;
  layout.pipelines.push_back({4, {{0, 0, 0, 1}, {1, 1, 1, 1}}});
  CHECK(narrow.run(layout, apart).pipeline_seconds == alone);
  CHECK(narrow.run(layout).pipeline_seconds > 1.3 * alone);
}

TEST_CASE("interleaving divides the bubble by the chunks") {
  const Bench bench({plain_machine("a", "unit", 4)}, 8);
  PlanLayout layout = pipeline_of(4, 8, 2);
  const Simulation plain = bench.run(layout);
  layout = pipeline_of(8, 8);
  layout.schedule = Schedule::interleaved;
  layout.chunks = 2;
  const Simulation chunked = bench.run(layout);
  const double busy = 8 * 2 * 3 * kLayer;
  CHECK(plain.seconds - busy == Approx(3 * 2 * 3 * kLayer).epsilon(1e-6));
  CHECK(chunked.seconds - busy == Approx(3 * 3 * kLayer).epsilon(1e-6));
  CHECK(chunked.stages.size() == 4);
}

TEST_CASE("slow links are hidden by a deeper warm-up") {
  const Bench bench({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)}, 2, {6e-3, 1e12});
  PlanLayout layout = pipeline_of(2, 16);
  layout.pipelines[0].stages[1].node = 1;
  const double plain = bench.run(layout).seconds;
  layout.warmup = 2;
  const Simulation deep = bench.run(layout);
  CHECK(deep.seconds < 0.8 * plain);
  CHECK(deep.stages[0].in_flight == 4);
}

TEST_CASE("blocking transfers hold up both ends") {
  const Bench bench({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)}, 2, {1e-3, 1e12});
  PlanLayout layout = pipeline_of(2, 16);
  layout.pipelines[0].stages[1].node = 1;
  SimulateOptions options;
  options.runtime.blocking = true;
  // Nothing is computed while one of the 16 messages in each direction is on its way: a millisecond, and 1e5
  // bytes.
  CHECK(bench.run(layout, options).seconds == Approx(17 * 3 * kLayer + 32 * (1e-3 + 1e-7)).epsilon(1e-6));
}

TEST_CASE("pipelines that leave a host together share its port") {
  const Bench bench({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1, 2)}, 2, {0, 1e7});
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  const double alone = bench.run(layout).seconds;
  layout.pipelines.push_back({4, {{0, 0, 0, 1}, {1, 1, 1, 1}}});
  const Simulation both = bench.run(layout);
  CHECK(both.pipeline_seconds > 1.3 * alone);
  SimulateOptions merge;
  merge.merge_above = 0;
  // Dividing the port evenly forgoes that one transfer may go first: never less, here a fifth more.
  const double even = bench.run(layout, merge).pipeline_seconds;
  CHECK(even >= both.pipeline_seconds);
  CHECK(even < 1.3 * both.pipeline_seconds);
}

TEST_CASE("a transfer that cannot fill a port leaves the rest to others") {
  // a and b are joined by 1e9 bytes per second, c by 1e7: its pipeline takes a hundredth of a's port.
  Bench bench({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1), plain_machine("c", "unit", 1)},
              2, {0, 1e7});
  bench.cluster.nodes[0].zone = bench.cluster.nodes[1].zone = "near";
  bench.cluster.zone_links = {{"near", "near", {0, 1e9}}};
  const PipelineLayout fast{32, {{0, 0, 0, 1}, {1, 0, 1, 1}}}, slow{8, {{0, 0, 0, 1}, {2, 0, 1, 1}}};
  PlanLayout layout;
  const auto seconds = [&](std::vector<PipelineLayout> pipelines) {
    layout.pipelines = std::move(pipelines);
    return bench.run(layout).pipeline_seconds;
  };
  const double one = seconds({fast}), other = seconds({slow});
  for (const bool slow_first : {false, true})
    CHECK(seconds(slow_first ? std::vector{slow, fast} : std::vector{fast, slow}) ==
          Approx(std::max(one, other)).epsilon(0.01));
  // So do gradients: of a's two exchanges, one is held up by c's link alone.
  bench.model = plain_model(2, 1e7, 1);
  bench.cluster.between.bytes_per_second = 1e8;
  layout.pipelines = {{1, {{0, 0, 0, 1}, {0, 0, 1, 1}}}, {1, {{1, 0, 0, 1}, {2, 0, 1, 1}}}};
  for (const double bandwidth : {2e8, 4e8, 1e10}) {
    bench.cluster.zone_links[0].link.bytes_per_second = bandwidth;
    SimulateOptions options;
    options.events = true;
    const Simulation both = bench.run(layout, options);
    const auto last = std::find_if(both.events.begin(), both.events.end(), [](const SimEvent& event) {
      return event.kind == SimEvent::Kind::reduce && event.item == 1;
    });
    REQUIRE(last != both.events.end());
    CHECK(last->end - last->start == Approx(1e7 * bench.model.gradient_bytes / 1e8));
  }
}

TEST_CASE("the order of pipelines in a plan changes nothing") {
  // A chain of hosts: each port has two flows, and transfers that wait for one end hold none of the other.
  constexpr int kPipelines = 8;
  Bench bench({plain_machine("h", "unit", 2, kPipelines + 1)}, 2, {0, 1e7});
  for (const int microbatches : {1, 2, 4, 16})
    for (const bool blocking : {false, true}) {
      std::vector<PipelineLayout> chain;
      for (int p = 0; p < kPipelines; ++p) {
        const int from = p + p % 2, to = p + 1 - p % 2;
        chain.push_back({microbatches, {{0, from, 0, 1}, {0, to, 1, 1}}});
      }
      SimulateOptions options;
      options.runtime.blocking = blocking;
      std::mt19937 random(7);
      double known = 0;
      for (int trial = 0; trial < 6; ++trial) {
        PlanLayout layout;
        layout.pipelines = chain;
        const double seconds = bench.run(layout, options).pipeline_seconds;
        if (known == 0) known = seconds;
        CAPTURE(microbatches, blocking, trial);
        CHECK(seconds == Approx(known).epsilon(1e-9));
        std::shuffle(chain.begin(), chain.end(), random);
      }
      // In one direction at a time a port carries two flows of 1e5 bytes at 1e7 per second. One micro-batch
      // crosses forth, and back, in two rounds.
      if (microbatches == 1) CHECK(known == Approx(4 * 1e-2 + 2 * 3 * kLayer).epsilon(1e-6));
      CHECK(known >= 2 * microbatches * 1e-2);
    }
}

TEST_CASE("a host with several interfaces divides them among its devices") {
  Bench bench({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1, 2)}, 2, {0, 1e7});
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  const double alone = bench.run(layout).pipeline_seconds;
  PlanLayout both = layout;
  both.pipelines.push_back({4, {{0, 0, 0, 1}, {1, 1, 1, 1}}});
  const double shared = bench.run(both).pipeline_seconds;
  // One for each device: pipelines do not meet. Two for each: what leaves a device takes both.
  bench.cluster.nodes[0].interfaces = 2;
  CHECK(bench.run(both).pipeline_seconds == Approx(alone));
  CHECK(shared > 1.2 * alone);
  for (Machine& node : bench.cluster.nodes) node.interfaces = 2 * node.devices;
  const double wide = bench.run(both).pipeline_seconds;
  bench.cluster.between.bytes_per_second *= 2;
  for (Machine& node : bench.cluster.nodes) node.interfaces = node.devices;
  CHECK(wide == Approx(bench.run(both).pipeline_seconds));
  // A stage of two devices has the interfaces of both.
  Bench group({plain_machine("a", "unit", 2, 2)}, 2, {0, 1e7});
  PlanLayout pair;
  pair.tensor = 2;
  pair.pipelines = {{4, {{0, 0, 0, 1}, {0, 1, 1, 1}}}};
  const double one = group.run(pair).pipeline_seconds;
  group.cluster.nodes[0].interfaces = 2;
  const double two = group.run(pair).pipeline_seconds;
  CHECK(two < one);
  group.cluster.nodes[0].interfaces = 1;
  group.cluster.between.bytes_per_second *= 2;
  CHECK(two == Approx(group.run(pair).pipeline_seconds));
}

TEST_CASE("a boundary goes to another host once, divided over its devices, and is gathered there") {
  Bench bench({plain_machine("a", "unit", 1, 4), plain_machine("b", "unit", 1, 2)}, 2, {0, 1e7});
  PlanLayout layout;
  layout.tensor = 2;
  layout.pipelines = {{1, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  const CostTable costs = make_costs(bench.cluster, bench.model, {}, 2, layout.microbatch);
  const double bytes = costs.boundary[0];
  const Link& inside = costs.nodes[1].inside;
  // One micro-batch crosses forward and backward.
  const auto crossing = [&] {
    SimulateOptions without;
    without.transfers = false;
    return bench.run(layout).pipeline_seconds - bench.run(layout, without).pipeline_seconds;
  };
  CHECK(crossing() == Approx(2 * (bench.cluster.between.seconds(bytes) + inside.seconds(bytes / 2))));
  layout.pipelines[0].stages[1] = {0, 0, 1, 1};
  CHECK(crossing() == Approx(2 * inside.seconds(bytes)));
}

TEST_CASE("gradients that stages of one host exchange at the same time share its interface") {
  // Two pipelines, each in a host: both stages are summed between the same two interfaces.
  Bench bench({plain_machine("a", "unit", 2, 2)}, 2, {0, 1e8});
  bench.model = plain_model(2, 1e6);
  bench.model.gradient_bytes = 4;
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 1}, {0, 0, 1, 1}}}, {1, {{0, 1, 0, 1}, {0, 1, 1, 1}}}};
  SimulateOptions options;
  options.events = true;
  options.runtime.late_reduction = true;
  const double each = 4e6 / 1e8;  // 2 (n - 1) / n of 4 MB
  const Simulation shared = bench.run(layout, options);
  double last = 0;
  for (const SimEvent& event : shared.events)
    if (event.kind == SimEvent::Kind::reduce) last = std::max(last, event.end);
  // The last stage is ready a layer's backward before the first.
  CHECK(last == Approx(shared.pipeline_seconds - 2 * kLayer + 2 * each).epsilon(1e-6));
  bench.cluster.nodes[0].interfaces = 2;
  const Simulation apart = bench.run(layout, options);
  CHECK(apart.exposed_seconds == Approx(each).epsilon(1e-6));
}

TEST_CASE("merging alike pipelines that share no port changes nothing") {
  const Bench bench({plain_machine("a", "unit", 2, 3), plain_machine("b", "half", 2, 2)}, 4, {1e-4, 1e9});
  PlanLayout layout;
  for (int i = 0; i < 3; ++i) layout.pipelines.push_back({4, {{0, i, 0, 2}, {0, i, 2, 2}}});
  for (int i = 0; i < 2; ++i) layout.pipelines.push_back({2, {{1, i, 0, 1}, {1, i, 1, 3}}});
  SimulateOptions apart;
  apart.events = true;
  const Simulation merged = bench.run(layout), each = bench.run(layout, apart);
  CHECK(merged.seconds == each.seconds);
  CHECK(merged.bubble == Approx(each.bubble));
  CHECK(merged.stages.size() == each.stages.size());
}

TEST_CASE("gradients of asymmetric pipelines synchronise layer by layer and overlap with the backward") {
  Bench bench({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1)}, 4, {0, 1e9});
  bench.model = plain_model(4, 1e6);
  bench.model.gradient_bytes = 4;
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 2}, {0, 0, 2, 2}}}, {2, {{1, 0, 0, 4}}}};
  SimulateOptions options;
  options.events = true;
  const Simulation overlapped = bench.run(layout, options);
  int reductions = 0;
  for (const SimEvent& event : overlapped.events) reductions += event.kind == SimEvent::Kind::reduce;
  CHECK(reductions == 8);  // four layers, two holders each
  // Each takes 2 (n - 1) / n x 4 MB / 1 GB/s = 4 ms; a layer's backward 4 ms: only the first layer's is
  // exposed.
  CHECK(overlapped.exposed_seconds == Approx(4e-3).epsilon(0.05));
  CHECK(overlapped.seconds >= overlapped.pipeline_seconds + overlapped.exposed_seconds);
}

TEST_CASE("optimizer state follows its shares, and sharded weights are gathered after the update") {
  Bench bench({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)}, 2, {0, 1e9});
  bench.model = plain_model(2, 1e8, 1);
  bench.model.optimizer_bytes = 8;
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}}}, {1, {{1, 0, 0, 2}}}};
  const Simulation whole = bench.run(layout);
  layout.sharded_optimizer = true;
  layout.pipelines[0].stages[0].share = 3;
  const Simulation placed = bench.run(layout);
  CHECK(whole.stages[0].memory_bytes - placed.stages[0].memory_bytes == Approx(2e8 * 8 * 0.25));
  CHECK(whole.stages[1].memory_bytes - placed.stages[1].memory_bytes == Approx(2e8 * 8 * 0.75));
  CHECK(placed.update_seconds == Approx(0.75 * whole.update_seconds));
  CHECK(placed.exposed_seconds > 0);
}

TEST_CASE("of sharded weights what is updated is gathered, not the copies that are made from it") {
  Bench bench({plain_machine("a", "unit", 1, 2)}, 2, {0, 1e9});
  bench.model = plain_model(2, 1e8, 1);
  bench.model.weight_bytes = 6;  // f32, and a copy in bf16
  bench.model.made_bytes = 2;
  PlanLayout layout;
  layout.sharded_optimizer = true;
  layout.pipelines = {{1, {{0, 0, 0, 2}}}, {1, {{0, 1, 0, 2}}}};
  SimulateOptions options;
  options.runtime.late_reduction = true;
  // Half of the f32 gradients each way, then half of the f32 weights.
  CHECK(bench.run(layout, options).exposed_seconds == Approx((4 + 4) * 2e8 / 2 / 1e9));
  // Where a quarter is trained, the rest has no gradients and stays as it is.
  bench.model.trained_share = 0.25;
  bench.model.gradient_bytes = 1;
  CHECK(bench.run(layout, options).exposed_seconds == Approx((4 + 4) * 0.5e8 / 2 / 1e9));
}

TEST_CASE("nodes that take no part change nothing, however many there are") {
  Bench bench({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)}, 2, {0, 1e8});
  bench.model = plain_model(2, 1e7, 1);
  bench.cluster.nodes[0].zone = bench.cluster.nodes[1].zone = "near";
  bench.cluster.zone_links = {{"near", "near", {0, 1e10}}};
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}}}, {1, {{1, 0, 0, 2}}}};
  const double alone = bench.run(layout).seconds;
  for (int n = 2; n < 70; ++n) {
    bench.cluster.nodes.push_back(plain_machine("n" + std::to_string(n), "unit", 1));
    CHECK(bench.run(layout).seconds == Approx(alone));
  }
}

namespace {

// Four layers of 1e6 parameters; the first and the last share 4e5 of them. Hosts of one device.
Bench shared_bench(int hosts) {
  // Fast enough that one layer's gradients are summed before the next layer's are ready.
  Bench bench({plain_machine("a", "unit", 1, hosts)}, 4, {0, 2e9});
  bench.model = plain_model(4, 1e6);
  bench.model.optimizer_bytes = 8;
  bench.cluster.types[0].memory_bytes_per_second = 1e12;
  bench.model.shared = {{{0, 3}, 4e5}};
  return bench;
}

}  // namespace

TEST_CASE("a parameter that the first and the last stage share is summed by all of them at the end") {
  const Bench bench = shared_bench(4);
  const int pipelines = GENERATE(1, 2);
  PlanLayout layout;
  for (int p = 0; p < pipelines; ++p)
    layout.pipelines.push_back({3, {{0, 2 * p, 0, 2}, {0, 2 * p + 1, 2, 2}}});
  SimulateOptions options;
  options.runtime.late_reduction = GENERATE(false, true);
  const Simulation simulation = bench.run(layout, options);
  const double table = nccl_all_reduce(bench.cluster.between, 2 * pipelines, 4e5 * 4);
  CHECK(simulation.seconds ==
        Approx(simulation.pipeline_seconds + simulation.exposed_seconds + simulation.update_seconds));
  if (pipelines == 1) {
    CHECK(simulation.exposed_seconds == Approx(table).epsilon(1e-9));
  } else {
    // Beside it the first layers' other parameters, one layer after the other, or both together: interfaces
    // of the first stage carry all of that.
    const double others = options.runtime.late_reduction
                              ? nccl_all_reduce(bench.cluster.between, 2, 1.6e6 * 4)
                              : nccl_all_reduce(bench.cluster.between, 2, 6e5 * 4);
    CHECK(simulation.exposed_seconds == Approx(table + others).epsilon(1e-9));
  }
  // Both stages keep and update their copy.
  for (const StageUse& use : simulation.stages)
    CHECK(use.update_seconds == Approx(simulation.update_seconds));
  Bench apart = bench;
  apart.model.shared.clear();
  const Simulation two = apart.run(layout, options);
  for (size_t s = 0; s < two.stages.size(); ++s) {
    CHECK(simulation.stages[s].memory_bytes == Approx(two.stages[s].memory_bytes));
    CHECK(simulation.stages[s].update_seconds == Approx(two.stages[s].update_seconds));
  }
}

TEST_CASE("a parameter that two layers of a stage share is kept, summed and updated once") {
  const Bench bench = shared_bench(2);
  Bench apart = bench;
  apart.model.shared.clear();
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 4}}}, {1, {{0, 1, 0, 4}}}};
  SimulateOptions options;
  options.runtime.late_reduction = true;
  const Simulation once = bench.run(layout, options), twice = apart.run(layout, options);
  const double state = bench.model.weight_bytes + bench.model.gradient_bytes + bench.model.optimizer_bytes;
  CHECK(twice.stages[0].memory_bytes - once.stages[0].memory_bytes == Approx(4e5 * state));
  CHECK(once.exposed_seconds == Approx(nccl_all_reduce(bench.cluster.between, 2, 3.6e6 * 4)).epsilon(1e-9));
  CHECK(once.update_seconds == Approx(twice.update_seconds * 3.6 / 4));
  CHECK(total_parameters(bench.model) == 3.6e6);
}

TEST_CASE("optimizer state of a shared parameter is divided among all stages that hold it") {
  const Bench bench = shared_bench(2);
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}, {0, 1, 2, 2}}}};
  const Simulation whole = bench.run(layout);
  layout.sharded_optimizer = true;
  layout.pipelines[0].stages[0].share = 3;
  const Simulation placed = bench.run(layout);
  CHECK(whole.stages[0].memory_bytes - placed.stages[0].memory_bytes == Approx(4e5 * 8 * 0.25));
  CHECK(whole.stages[1].memory_bytes - placed.stages[1].memory_bytes == Approx(4e5 * 8 * 0.75));
  CHECK(placed.stages[1].update_seconds == Approx(whole.stages[1].update_seconds * (1.6 + 0.4 * 0.25) / 2));
  CHECK(placed.exposed_seconds > 0);
}

TEST_CASE("a shared parameter that is not trained is not summed") {
  Bench bench = shared_bench(2);
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}, {0, 1, 2, 2}}}};
  CHECK(bench.run(layout).exposed_seconds > 0);
  bench.model.shared[0].trained = false;
  CHECK(bench.run(layout).exposed_seconds == 0);
}

TEST_CASE("the sum of a shared parameter goes beside the sums of layers that stay in a host") {
  Bench bench = shared_bench(2);
  bench.cluster.nodes[0].devices = 2;
  bench.cluster.types[0].inside = {0, 1e8};
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}, {0, 1, 2, 2}}}, {1, {{0, 0, 0, 2}, {0, 1, 2, 2}}}};
  SimulateOptions options;
  options.runtime.late_reduction = true;
  const double layers = nccl_all_reduce({0, 1e8}, 2, 1.6e6 * 4);
  bench.model.shared[0].trained = false;  // then it goes with the first layer
  CHECK(bench.run(layout, options).exposed_seconds ==
        Approx(nccl_all_reduce({0, 1e8}, 2, 2e6 * 4)).epsilon(1e-9));
  bench.model.shared[0].trained = true;
  CHECK(bench.run(layout, options).exposed_seconds == Approx(layers).epsilon(1e-9));
}

TEST_CASE("the whole gradient of a shared parameter is summed where other parameters are frozen") {
  Bench bench = shared_bench(2);
  PlanLayout layout;
  layout.pipelines = {{1, {{0, 0, 0, 2}, {0, 1, 2, 2}}}};
  const double all = bench.run(layout).exposed_seconds;
  bench.model.trained_share = 0.25;
  bench.model.gradient_bytes /= 4;
  CHECK(bench.run(layout).exposed_seconds == Approx(all));
}

TEST_CASE("a plan that does not fit says by how much") {
  Bench bench({plain_machine("a", "unit", 1)}, 2);
  bench.model = plain_model(2, 1e9);
  const Simulation result = bench.run(pipeline_of(1, 1, 2));
  CHECK_FALSE(result.fits);
  CHECK(result.over_bytes == Approx(result.stages[0].memory_bytes - 16 * 1073741824.0 * kUsableMemory));
}

TEST_CASE("layouts and plans are two forms of one thing") {
  const Cluster cluster = cluster_of({{"A100-80", 4}, {"H20", 4, 2}});
  PlanLayout layout;
  layout.tensor = 2;
  layout.microbatch = 2;
  layout.sharded_optimizer = true;
  layout.pipelines = {{3, {{0, 0, 0, 20, true, 3}, {1, 1, 20, 14}}},
                      {2, {{1, 0, 0, 16}, {1, 0, 16, 18, false, 2}}}};
  const Plan plan = to_plan(layout, cluster);
  CHECK(validate(plan, {34, 10}).empty());
  CHECK(plan.pipelines[1].stages[1].devices == std::vector<std::string>{"b1:2", "b1:3"});
  CHECK(to_layout(plan, cluster) == layout);
  Plan wrong = plan;
  wrong.pipelines[0].stages[1].devices = {"z:0", "b2:1"};
  CHECK_THROWS_WITH(to_layout(wrong, cluster), Catch::Contains("the cluster has no device z:0"));
  CHECK(simulate(plan, cluster, known_model("llama2-7b"), {}).seconds > 0);
}

TEST_CASE("blocking transfers of pipelines that share a port follow each other, and then miss each other") {
  Bench bench({plain_machine("a", "unit", 2), plain_machine("b", "unit", 1), plain_machine("c", "unit", 1)},
              2, {1e-3, 1e9});
  bench.model.kinds[0].boundary_bytes = 1e6;  // 1 ms
  SimulateOptions options;
  options.runtime.blocking = true;
  PlanLayout layout;
  layout.pipelines = {{3, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  const double alone = bench.run(layout, options).pipeline_seconds;
  CHECK(alone == Approx(4 * 3 * kLayer + 6 * (1e-3 + 1e-3)).epsilon(1e-6));
  layout.pipelines.push_back({3, {{0, 0, 0, 1}, {2, 0, 1, 1}}});
  const double together = bench.run(layout, options).pipeline_seconds;
  // The second pipeline's first message waits for the port; from then on it is that much behind.
  CHECK(together == Approx(alone + 1e-3).epsilon(1e-6));
  // With nothing to compute the port is all that counts: both directions at once, four messages a turn.
  for (LayerKind& kind : bench.model.kinds) kind.forward_flops = kind.input_flops = kind.weight_flops = 0;
  layout.pipelines.pop_back();
  const double idle = bench.run(layout, options).pipeline_seconds;
  layout.pipelines.push_back({3, {{0, 0, 0, 1}, {2, 0, 1, 1}}});
  CHECK(bench.run(layout, options).pipeline_seconds < 2 * idle);
  CHECK(bench.run(layout, options).pipeline_seconds >= idle + 1e-3);
}

TEST_CASE("late reductions wait for all backwards and go stage by stage in one piece") {
  Bench bench({plain_machine("a", "unit", 1, 4)}, 4, {1e-3, 1e9});
  for (LayerKind& kind : bench.model.kinds) kind.parameters = 1e6;
  bench.model.kinds[0].boundary_bytes = 0;
  bench.model.optimizer_bytes = 0;
  PlanLayout layout;
  for (int r = 0; r < 2; ++r) layout.pipelines.push_back({3, {{0, 2 * r, 0, 3}, {0, 2 * r + 1, 3, 1}}});
  SimulateOptions options;
  const Simulation beside = bench.run(layout, options);
  options.runtime.late_reduction = true;
  const Simulation late = bench.run(layout, options);
  CHECK(late.pipeline_seconds == beside.pipeline_seconds);
  // Two hosts exchange 3 layers in the first stage, 1 in the second, at the same time: the first decides.
  const double gradients = 3 * 1e6 * bench.model.gradient_bytes;
  CHECK(late.exposed_seconds == Approx(nccl_all_reduce(bench.cluster.between, 2, gradients)).epsilon(1e-9));
  CHECK(late.seconds == Approx(late.pipeline_seconds + late.exposed_seconds + late.update_seconds));
  // Layer by layer, the first stage's last two layers have gone before its backward ends.
  CHECK(beside.exposed_seconds < late.exposed_seconds);
}

TEST_CASE("sums travel by the ring or tree of NCCL, or by a mesh of all where the cluster says so") {
  Bench bench({plain_machine("a", "unit", 3), plain_machine("b", "unit", 2)}, 4, {1e-3, 1e8});
  for (LayerKind& kind : bench.model.kinds) kind.parameters = 1e6;
  bench.model.optimizer_bytes = 0;
  PlanLayout layout;
  for (int r = 0; r < 5; ++r) layout.pipelines.push_back({2, {{r < 3 ? 0 : 1, 0, 0, 4}}});
  SimulateOptions options;
  options.runtime.late_reduction = true;
  const double gradients = 4 * 1e6 * bench.model.gradient_bytes;
  // A tree carries the bytes once between two hosts, up and down, a hop each. A ring would carry 2 x 4 / 5.
  CHECK(bench.run(layout, options).exposed_seconds == Approx(2 * 1e-3 + gradients / 1e8).epsilon(1e-6));
  // Between three a ring: 2 x 4 / 5, and of the four hops of a block, in each of two rounds, three leave a
  // host.
  Bench three({plain_machine("a", "unit", 2), plain_machine("b", "unit", 2), plain_machine("c", "unit", 1)},
              4, {1e-3, 1e8});
  three.model = bench.model;
  PlanLayout apart;
  for (int r = 0; r < 5; ++r) apart.pipelines.push_back({2, {{r / 2, 0, 0, 4}}});
  CHECK(three.run(apart, options).exposed_seconds ==
        Approx(2 * 3 * 1e-3 + 2 * 4.0 / 5 * gradients / 1e8).epsilon(1e-6));
  bench.cluster.mesh = true;
  const double norms = 1e-3;  // of all ranks' gradients, from each to each, before anybody updates
  // Each sends a fifth in each of two steps to each other; a rank of b has one of those beside it.
  const Link inside = inside_link(bench.cluster, 1);
  REQUIRE(inside.bytes_per_second > 1e8);
  const auto all = [&](double bytes) {
    return 2 * 1e-3 + 2 * bytes / 5 * (3 / 1e8 + 1 / inside.bytes_per_second);
  };
  CHECK(bench.run(layout, options).exposed_seconds == Approx(all(gradients) + norms).epsilon(1e-6));
  // Layer by layer the next sum begins when the one before has arrived: a group has one at a time.
  options.runtime.late_reduction = false;
  const double each = all(gradients / 4);  // longer than a layer's backward
  CHECK(bench.run(layout, options).exposed_seconds ==
        Approx(4 * each - 3 * 2 * kLayer + norms).epsilon(1e-6));
}

TEST_CASE("uneven optimizer shares are exchanged in the time that the transport's uneven blocks take") {
  const Link link{1e-3, 1e8};
  Bench bench({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1), plain_machine("c", "unit", 1)},
              1, link);
  const int64_t parameters = 1'390'000;
  bench.model = plain_model(1, static_cast<double>(parameters));
  bench.model.gradient_bytes = bench.model.weight_bytes = 4;
  bench.cluster.mesh = true;
  PlanLayout layout;
  layout.sharded_optimizer = true;
  for (int p = 0; p < 3; ++p) layout.pipelines.push_back({1, {{p, 0, 0, 1}}});
  for (const std::vector<int>& shares : {std::vector<int>{100, 20, 19}, {1, 1, 1}, {70, 69, 0}}) {
    CollectiveRequest request;
    request.dtype = DType::f32;
    const int all = shares[0] + shares[1] + shares[2];
    for (int p = 0; p < 3; ++p) {
      layout.pipelines[static_cast<size_t>(p)].stages[0].share = shares[static_cast<size_t>(p)];
      request.counts.push_back(parameters * shares[static_cast<size_t>(p)] / all);
    }
    double expected = 1e-3;  // the norms
    for (const CollectiveKind kind : {CollectiveKind::reduce_scatter, CollectiveKind::all_gather}) {
      request.kind = kind;
      const WireTime time = wire_time(mesh_steps(request, 0, 3), 3, [&](int, int) { return link; });
      expected += time.busy + time.latency;
    }
    SimulateOptions options;
    options.runtime.late_reduction = true;
    INFO(shares[0] << " " << shares[1] << " " << shares[2]);
    CHECK(bench.run(layout, options).exposed_seconds == Approx(expected).epsilon(1e-4));
  }
}

TEST_CASE("the spread over links names a step that jumps beside the stated bandwidth", "[planner]") {
  Cluster cluster;
  cluster.between = {1e-5, 1e9};
  const auto in_proportion = [](const Cluster& other) { return 1e9 / other.between.bytes_per_second; };
  const LinkSpread smooth = link_spread(cluster, 1, in_proportion);
  CHECK(to_text(smooth).find("but") == std::string::npos);
  // Transfers that meet in another order: a little faster links, and a longer step.
  const LinkSpread jumps = link_spread(cluster, 1, [&](const Cluster& other) {
    const double faster = other.between.bytes_per_second / 1e9;
    return faster > 1 && faster < 1.1 ? 1.14 : in_proportion(other);
  });
  CHECK(jumps.most == Approx(1 / kSlowLinks));
  CHECK(to_text(jumps).find("; but bandwidth x 1.03 +14.0 %, because transfers meet in another order") !=
        std::string::npos);
}
