#include "planner/request.h"

#include <catch2/catch.hpp>
#include <random>

#include "planner/explain.h"
#include "tests/unit/planner/random_plan.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

// Layers so small that each pass takes about as long as its launch: the larger the micro-batch the better.
Model small_layers(int layers) {
  Model model = plain_model(layers, 1e4, 1e5);
  LayerKind& kind = model.kinds[0];
  kind.forward_flops = kind.input_flops = kind.weight_flops = 1e6;
  return model;
}

}  // namespace

TEST_CASE("no plan takes less than the bound, whatever divisor of the batch its micro-batch is") {
  constexpr int kLayers = 6;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const int samples = 1 + static_cast<int>(random() % 24);
    const Plan plan = random_plan(random, kLayers, samples);
    Request request;
    request.model = small_layers(kLayers);
    request.cluster.types = {plain_type("unit", 1, 64)};
    request.cluster.types[0].memory_bytes_per_second = 3e11;
    request.cluster.types[0].inside = {1e-6, 1e11};
    request.cluster.nodes = {plain_node("d", "unit", 12)};
    request.cluster.between = {1e-5, 1e10};
    request.batch = 0;
    for (const Pipeline& pipeline : plan.pipelines) request.batch += pipeline.microbatches * samples;
    // A size that does better than those beside it.
    const int best = samples > 1 ? samples - 1 : 1;
    for (const int size : {best, samples}) {
      const double seconds = size == best ? 1e-5 : 2e-4;
      request.profile.points.push_back({"layer", "unit", 1, size, seconds, seconds, seconds, 1e-6});
    }
    if (seed % 2 == 0) request.profile.points.clear();
    Judge judge(request);
    const Candidate candidate = judge.judge(to_layout(plan, request.cluster), "given");
    INFO("seed " << seed << ", batch " << request.batch << "\n" << to_lua(plan));
    CHECK(lower_bound_seconds(request, judge) <= candidate.simulation.seconds);
    CHECK(judge.least_seconds(plan.tensor, plan.microbatch) <= candidate.simulation.seconds);
    CHECK(lower_bound_seconds(request, judge) <= judge.least_seconds(plan.tensor, plan.microbatch));
  }
}

TEST_CASE("a small model on one device takes its whole batch at once, and nothing beats the bound") {
  Request request;
  request.model = small_layers(8);
  request.cluster = cluster_of({{"A100-80", 1}});
  request.batch = 12;
  const Planned found = plan_with(request, "auto");
  REQUIRE(found.feasible);
  CHECK(found.plan.microbatch == 12);
  Judge judge(request);
  for (const int size : {1, 2, 3, 4, 6, 12}) {
    Layout layout;
    layout.microbatch = size;
    layout.pipelines = {{12 / size, {{0, 0, 0, 8}}}};
    Planned given;
    given.plan = to_plan(layout, request.cluster);
    given.best = judge.judge(layout, "given");
    SimulateOptions details;
    details.details = true;
    given.best.simulation = simulate(given.plan, request.cluster, request.model, request.profile, details);
    given.lower_bound_seconds = lower_bound_seconds(request, judge);
    given.feasible = true;
    INFO("micro-batch " << size);
    CHECK(explain(request, given).gap >= 0);
    CHECK(given.best.simulation.seconds >= found.best.simulation.seconds);
  }
}

TEST_CASE("micro-batch sizes are small divisors, powers of two, equal parts and what was measured") {
  Request request;
  request.model = plain_model(4);
  request.cluster = cluster_of({{"A100-80", 3}});
  request.batch = 720;
  CHECK(microbatch_sizes(request) == std::vector<int>{1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 240, 360, 720});
  request.profile.points.push_back({"layer", "A100-80", 1, 48});
  request.profile.points.push_back({"layer", "A100-80", 1, 7});
  CHECK(microbatch_sizes(request) ==
        std::vector<int>{1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 48, 240, 360, 720});
  request.batch = 1024;
  CHECK(microbatch_sizes(request) == std::vector<int>{1, 2, 4, 8, 16, 32, 64, 512, 1024});
  request.batch = 13;
  CHECK(microbatch_sizes(request) == std::vector<int>{1, 13});
  request.microbatches = {13};
  CHECK(microbatch_sizes(request) == std::vector<int>{13});
}

TEST_CASE("sizes that cannot beat the best are not looked at, unless they may come near it") {
  Request request;
  request.model = plain_model(4);
  request.cluster.types = {plain_type("unit", 1, 64)};
  request.cluster.nodes = {plain_node("a", "unit", 4)};
  request.cluster.between = {1e-5, 1e10};
  request.batch = 16;
  request.tensors = {1};
  Judge judge(request);
  CHECK_FALSE(judge.is_hopeless(1, 16));  // nothing to beat yet
  Layout even;
  even.microbatch = 4;
  for (int p = 0; p < 4; ++p) even.pipelines.push_back({1, {{0, 0, 0, 4}}});
  judge.offer(judge.judge(even, "even"));
  CHECK(judge.is_hopeless(1, 8));  // forward and back to the input takes longer by itself
  CHECK_FALSE(judge.is_hopeless(1, 4));
  request.old = to_plan(even, request.cluster);
  request.near = 1;
  Judge old(request);
  old.offer(old.judge(even, "even"));
  CHECK_FALSE(old.is_hopeless(1, 8));
  request.old.reset();
  request.objective = Objective::cost;  // money has another unit
  CHECK_FALSE(judge.is_hopeless(1, 8));
}
