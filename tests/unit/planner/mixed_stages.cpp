// Stages that share their layers unevenly, over several hosts, or over other numbers of devices than others.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "planner/explain.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

constexpr double kForward = 2e-3;  // of a plain layer at 1 TFLOP/s, without the launch

// Two devices of 1 TFLOP/s in "a", two of a third of that in "b".
struct Bench {
  Cluster cluster;
  Model model;
  explicit Bench(int layers, Link between = {0, 1e15}, double parameters = 1) {
    cluster.types = {plain_type("unit", 1, 16), plain_type("third", 1.0 / 3, 16)};
    cluster.nodes = {plain_machine("a", "unit", 2), plain_machine("b", "third", 2)};
    cluster.between = between;
    model = plain_model(layers, parameters, 1e6);
  }
  Simulation run(const Plan& plan, SimulateOptions options = {}) const {
    options.details = true;
    return simulate(plan, cluster, model, {}, options);
  }
};

Stage stage_on(std::vector<std::string> devices, int first, int layers, Shares shares = {}) {
  Stage stage;
  stage.devices = std::move(devices);
  stage.first_layer = first;
  stage.layers = layers;
  stage.shares = std::move(shares);
  return stage;
}

Plan plan_of(std::vector<Pipeline> pipelines) {
  Plan plan;
  plan.pipelines = std::move(pipelines);
  return plan;
}

double all_reduce(const Link& link, int members, double bytes) {
  return collective_seconds(CollectiveKind::all_reduce, false, link, members, bytes);
}

// Stages over the devices of two hosts of three, in up to three pipelines, shared at random.
Plan random_mixed_plan(std::mt19937& random, int layers) {
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution(from, to)(random); };
  std::vector<std::string> free;
  for (const char* host : {"a", "b"})
    for (int d = 0; d < 3; ++d) free.push_back(std::string(host) + ":" + std::to_string(d));
  std::shuffle(free.begin(), free.end(), random);
  Plan plan;
  plan.tensor = draw(1, 2);
  plan.sharded_optimizer = draw(0, 1) == 1;
  for (int p = 0; p < 3 && !free.empty(); ++p) {
    Pipeline pipeline{draw(1, 4), {}};
    const int stages = std::min<int>(draw(1, 2), static_cast<int>(free.size()));
    for (int s = 0, first = 0; s < stages; ++s) {
      const int degree = std::min<int>(draw(1, 3), static_cast<int>(free.size()) - (stages - 1 - s));
      Stage stage = stage_on({free.end() - degree, free.end()}, first, s + 1 < stages ? 1 : layers - first);
      for (int r = 0; r < degree; ++r) stage.shares.push_back(draw(1, 4));
      free.erase(free.end() - degree, free.end());
      stage.recompute = draw(0, 2) == 0;
      first += stage.layers;
      pipeline.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

}  // namespace

TEST_CASE("equal shares of one host's devices are tensor = 2, exactly") {
  const Bench bench(3, {1e-5, 1e9}, 1e6);
  Plan plan = plan_of({{4, {stage_on({"a:0", "a:1"}, 0, 3)}}, {2, {stage_on({"b:0", "b:1"}, 0, 3)}}});
  plan.tensor = 2;
  const PlanLayout layout = to_layout(plan, bench.cluster);
  const Simulation simulation = bench.run(plan);
  Plan shared = plan;
  shared.shares = {5, 5};
  Plan by_stage = plan;
  by_stage.tensor = 1;
  for (Pipeline& pipeline : by_stage.pipelines) pipeline.stages[0].shares = {1, 1};
  for (const Plan& same : {shared, by_stage}) {
    CHECK(to_layout(same, bench.cluster) == layout);
    CHECK(bench.run(same).seconds == simulation.seconds);
  }
}

TEST_CASE("a stage of another degree than the plan's costs what the table of its degree says") {
  Bench bench(2);
  bench.model.kinds[0].tensor_reductions = 2;
  bench.cluster.types[0].inside = {1e-5, 1e9};
  const Plan plan = plan_of({{3, {stage_on({"a:0", "a:1"}, 0, 1, {1, 1}), stage_on({"b:0"}, 1, 1)}}});
  const CostTable two = make_costs(bench.cluster, bench.model, {}, 2, 1);
  const Simulation simulation = bench.run(plan);
  REQUIRE(simulation.stages.size() == 2);
  CHECK(simulation.stages[0].busy_seconds ==
        Approx(3 * (two.forward_seconds(0, 0, 1) + two.backward_seconds(0, 0, 1, false))));
  CHECK(simulation.stages[0].memory_bytes == Approx(two.stage_bytes(0, 1, 2, false, 1)));
  REQUIRE(simulation.stages[0].devices.size() == 2);
  CHECK(simulation.stages[0].devices[1].busy_seconds == Approx(simulation.stages[0].busy_seconds));
  CHECK(simulation.stages[1].devices.empty());
}

TEST_CASE("with shares like the speeds of its devices a stage is faster than with equal ones") {
  Bench bench(2, {1e-4, 1e9});
  const auto seconds = [&](const Shares& shares) {
    return bench.run(plan_of({{1, {stage_on({"a:0", "b:0"}, 0, 2, shares)}}})).seconds;
  };
  // What is divided scales with the share, the launch does not; the slower device sets the pace.
  CHECK(seconds({1, 1}) == Approx(2 * 3 * (kForward * 3 / 2 + kLaunchSeconds)).epsilon(1e-6));
  CHECK(seconds({3, 1}) == Approx(2 * 3 * (kForward * 3 / 4 + kLaunchSeconds)).epsilon(1e-6));
  CHECK(seconds({4, 1}) == Approx(2 * 3 * (kForward * 4 / 5 + kLaunchSeconds)).epsilon(1e-6));
  const double alone = seconds({3, 1});
  bench.model.kinds[0].tensor_reductions = 2;
  // Forward and the gradient of the input are summed over the link between the hosts, twice a layer.
  CHECK(seconds({3, 1}) == Approx(alone + 2 * 2 * 2 * all_reduce({1e-4, 1e9}, 2, 1e5)).epsilon(1e-6));
}

TEST_CASE("memory follows the share, device by device") {
  Bench bench(1, {0, 1e15}, 1e6);
  bench.model.kinds[0].whole_parameters = 2e5;
  const Simulation simulation = bench.run(plan_of({{1, {stage_on({"a:0", "b:0"}, 0, 1, {3, 1})}}}));
  const StageUse& use = simulation.stages[0];
  REQUIRE(use.devices.size() == 2);
  const double state = bench.model.weight_bytes + bench.model.gradient_bytes + bench.model.optimizer_bytes;
  CHECK(use.devices[0].memory_bytes == Approx((2e5 + 0.75 * 8e5) * state + 0.75 * 1e6));
  CHECK(use.devices[1].memory_bytes == Approx((2e5 + 0.25 * 8e5) * state + 0.25 * 1e6));
  CHECK(use.memory_bytes == use.devices[0].memory_bytes);  // the tightest
}

TEST_CASE("gradients of layers that pipelines divide differently are exchanged in pieces, by hand") {
  const Link link{1e-3, 1e9};
  Bench bench(1, link, 1e6);
  bench.model.kinds[0].whole_parameters = 2e5;
  for (DeviceType& type : bench.cluster.types) type.memory_bytes_per_second = 1e11;
  const Plan plan = plan_of({{1, {stage_on({"a:0", "a:1"}, 0, 1, {3, 1})}}, {1, {stage_on({"b:0"}, 0, 1)}}});
  const Simulation simulation = bench.run(plan);
  const double backward_end = 3 * (3 * kForward + kLaunchSeconds);  // of the slower pipeline
  // b:0 sums three quarters of the 3.2 MB that are divided with a:0, a quarter with a:1, and the 0.8 MB that
  // are not with both: each in two latencies, and with k = 2 hosts its bytes once.
  const double exchange = 3 * 2 * link.latency_seconds + 4e6 / link.bytes_per_second;
  const double packing = 4 * 4e6 / 1e11;
  const double update =
      1e6 * (2 * bench.model.optimizer_bytes + bench.model.gradient_bytes + bench.model.weight_bytes) / 1e11;
  CHECK(simulation.pieces == 3);
  CHECK(simulation.packing_seconds == Approx(packing));
  CHECK(simulation.exposed_seconds == Approx(exchange + packing).epsilon(1e-6));
  CHECK(simulation.seconds == Approx(backward_end + exchange + packing + update).epsilon(1e-6));

  // Cut alike, rank by rank: no packing, and each host's port carries all.
  const Simulation alike = bench.run(plan_of(
      {{1, {stage_on({"a:0", "a:1"}, 0, 1, {3, 1})}}, {1, {stage_on({"b:0", "b:1"}, 0, 1, {3, 1})}}}));
  CHECK(alike.pieces == 0);
  CHECK(alike.packing_seconds == 0);
  CHECK(alike.exposed_seconds == Approx(2 * link.latency_seconds + (3.2e6 + 2 * 8e5) / 1e9).epsilon(1e-6));
}

TEST_CASE("stages that divide a shared parameter exchange it rank by rank, or in pieces") {
  const Link link{1e-3, 1e9};
  Bench bench(2, link, 1e6);
  for (DeviceType& type : bench.cluster.types) type.memory_bytes_per_second = 1e11;
  bench.model.shared = {{{0, 1}, 1e6, 2e5}};
  bench.model.kinds[0].whole_parameters = 2e5;
  const auto run = [&](Shares first, Shares second) {
    return bench.run(plan_of({{1,
                               {stage_on({"a:0", "a:1"}, 0, 1, std::move(first)),
                                stage_on({"b:0", "b:1"}, 1, 1, std::move(second))}}}));
  };
  const Simulation alike = run({3, 1}, {3, 1});
  CHECK(alike.pieces == 0);
  CHECK(alike.exposed_seconds == Approx(2 * link.latency_seconds + (3.2e6 + 2 * 8e5) / 1e9).epsilon(1e-6));
  // Cut after a half and after three quarters: pieces of a half and two quarters, and what is not divided,
  // which all sum. No device takes part in more than three.
  const Simulation pieces = run({1, 1}, {3, 1});
  CHECK(pieces.pieces == 3);
  CHECK(pieces.packing_seconds > 0);
  CHECK(pieces.exposed_seconds > alike.exposed_seconds);
  // Half of what is divided, activations too, is the first device's more than the second's.
  const double state = bench.model.weight_bytes + bench.model.gradient_bytes + bench.model.optimizer_bytes;
  CHECK(alike.stages[1].devices[0].memory_bytes - alike.stages[1].devices[1].memory_bytes ==
        Approx(0.5 * (8e5 * state + 1e6)));
}

TEST_CASE("each receiver of a stage with another degree takes the whole boundary") {
  const Link link{1e-3, 1e8};
  const Bench bench(2, link);
  const Plan plan = plan_of({{1, {stage_on({"a:0", "a:1"}, 0, 1, {1, 1}), stage_on({"b:0"}, 1, 1)}}});
  const double slow = 3 * kForward + kLaunchSeconds, half = kForward / 2 + kLaunchSeconds;
  CHECK(bench.run(plan).pipeline_seconds ==
        Approx(3 * half + 3 * slow + link.seconds(1e5) + link.seconds(2e5)).epsilon(1e-6));
}

TEST_CASE("mixed plans without contention take as long as with, where no port is shared") {
  const Bench bench(4, {1e-3, 1e9}, 1e6);
  Plan plan = plan_of({{5, {stage_on({"a:0", "b:0"}, 0, 3, {3, 1}), stage_on({"a:1"}, 3, 1)}}});
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::gpipe, Schedule::split_backward}) {
    plan.schedule = schedule;
    SimulateOptions apart;
    apart.contention = false;
    CHECK(bench.run(plan, apart).seconds == Approx(bench.run(plan).seconds).epsilon(1e-6));
  }
}

TEST_CASE("a sharded optimizer is divided by shares of stages, also where they cut layers differently") {
  const Bench bench(1, {0, 1e15}, 1e6);
  const auto state = [&](const Shares& shares, bool sharded) {
    Plan plan = plan_of(
        {{1, {stage_on({"a:0", "a:1"}, 0, 1, shares)}}, {1, {stage_on({"b:0", "b:1"}, 0, 1, {3, 1})}}});
    plan.sharded_optimizer = sharded;
    return bench.run(plan).stages[0].memory_bytes;
  };
  CHECK(state({1, 1}, false) - state({1, 1}, true) == Approx(0.5 * 1e6 / 2 * bench.model.optimizer_bytes));
  CHECK(state({3, 1}, false) - state({3, 1}, true) == Approx(0.75 * 1e6 / 2 * bench.model.optimizer_bytes));
}

TEST_CASE("mixed plans are layouts and plans again, and none beats the bound") {
  std::mt19937 random(7);
  Bench bench(3, {1e-5, 1e10}, 1e6);
  bench.model.kinds[0].tensor_reductions = 2;
  for (Machine& node : bench.cluster.nodes) node.devices = 3;
  Request request;
  request.cluster = bench.cluster;
  request.model = bench.model;
  for (int i = 0; i < 200; ++i) {
    const Plan plan = random_mixed_plan(random, 3);
    request.batch = 0;
    for (const Pipeline& pipeline : plan.pipelines) request.batch += pipeline.microbatches;
    INFO("plan " << i << ": " << to_lua(plan));
    REQUIRE(validate(plan, {3, request.batch}).empty());
    const PlanLayout layout = to_layout(plan, request.cluster);
    const Plan again = to_plan(layout, request.cluster);
    CHECK(to_layout(again, request.cluster) == layout);
    REQUIRE(validate(again, {3, request.batch}).empty());
    for (size_t p = 0; p < plan.pipelines.size(); ++p)
      for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s)
        CHECK(tensor_shares(again, again.pipelines[p].stages[s]) ==
              tensor_shares(plan, plan.pipelines[p].stages[s]));
    Evaluator evaluator(request);
    const Candidate candidate = evaluator.simulate(layout, "given");
    CHECK(std::isfinite(candidate.simulation.seconds));
    CHECK(candidate.simulation.seconds == bench.run(plan).seconds);
    CHECK(candidate.simulation.seconds >= lower_bound_seconds(request, evaluator, &layout));
  }
}

TEST_CASE("the explanation names shares, and what it costs that stages divide layers differently") {
  Bench bench(2, {1e-5, 1e10}, 1e6);
  Request request;
  request.cluster = bench.cluster;
  request.model = bench.model;
  request.batch = 2;
  Planned planned;
  planned.plan = plan_of({{1, {stage_on({"a:0", "b:0"}, 0, 2, {3, 1})}}, {1, {stage_on({"a:1"}, 0, 2)}}});
  Evaluator evaluator(request);
  planned.best.layout = to_layout(planned.plan, request.cluster);
  planned.best.simulation = evaluator.details(planned.best.layout);
  planned.feasible = true;
  const PlanReport report = explain(request, planned);
  REQUIRE(report.devices.size() == 3);
  CHECK(report.devices[0].share == "3/4");
  CHECK(report.devices[1].type == "third");
  CHECK(report.devices[0].memory_bytes > report.devices[1].memory_bytes);
  CHECK(report.devices[2].share.empty());
  CHECK(report.idle == std::vector<std::string>{"b:1"});
  const std::string text = to_text(report);
  CHECK(text.find("1/4 of each layer") != std::string::npos);
  CHECK(text.find("gradients are exchanged in up to 2 pieces a layer") != std::string::npos);
  CHECK(to_lua(planned.plan).find("tensor = { 3, 1 }") != std::string::npos);
}

namespace {

// Two devices of a model with heads; one of them has no neighbour to share layers with evenly.
Request small_request(int devices, const char* type, int others, const char* other) {
  Request request;
  request.cluster = cluster_of({{type, devices}, {other, others}});
  request.model = known_model("gpt3-6.7b");
  request.batch = 8;
  request.microbatches = {1, 2};
  return request;
}

}  // namespace

TEST_CASE("the search gives single stages degrees of their own where that is faster, and never loses by it") {
  int faster = 0;
  for (const auto& [devices, others] : {std::pair(3, 1), std::pair(5, 2), std::pair(3, 3)}) {
    Request request = small_request(devices, "A100-80", others, "H800");
    const Planned mixed = plan_with(request, "search");
    request.extensions.mixed_stages = false;
    const Planned uniform = plan_with(request, "search");
    REQUIRE(mixed.feasible);
    INFO(to_lua(mixed.plan));
    CHECK(mixed.best.simulation.seconds <= uniform.best.simulation.seconds);
    CHECK(uniform.best.layout.groups.empty());
    CHECK(validate(mixed.plan, {request.model.count(), request.batch}).empty());
    CHECK(mixed.best.simulation.seconds >= mixed.lower_bound_seconds);
    CHECK(simulate(mixed.plan, request.cluster, request.model, {}).seconds ==
          Approx(mixed.best.simulation.seconds));
    faster += mixed.best.simulation.seconds < 0.999 * uniform.best.simulation.seconds;
  }
  CHECK(faster > 0);
}

TEST_CASE("shares that the model cannot be divided by are not tried") {
  Request request = small_request(3, "A100-80", 1, "H800");
  request.can_divide = [](const Shares& shares) { return shares.size() == 1; };
  const Planned planned = plan_with(request, "search");
  REQUIRE(planned.feasible);
  for (const TensorGroup& group : planned.best.layout.groups) CHECK(group.shares.size() == 1);
}
