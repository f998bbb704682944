#include "planner/request.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <random>

#include "planner/autohet/balance.h"
#include "planner/baseline/baseline.h"
#include "planner/explain.h"
#include "tests/unit/planner/random_case.h"
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
    request.cluster.nodes = {plain_machine("d", "unit", 12)};
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
    Evaluator evaluator(request);
    const Candidate candidate = evaluator.simulate(to_layout(plan, request.cluster), "given");
    INFO("seed " << seed << ", batch " << request.batch << "\n" << to_lua(plan));
    CHECK(lower_bound_seconds(request, evaluator) <= candidate.simulation.seconds);
    CHECK(evaluator.least_seconds(plan.tensor, plan.microbatch) <= candidate.simulation.seconds);
    CHECK(lower_bound_seconds(request, evaluator) <= evaluator.least_seconds(plan.tensor, plan.microbatch));
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
  Evaluator evaluator(request);
  for (const int size : {1, 2, 3, 4, 6, 12}) {
    PlanLayout layout;
    layout.microbatch = size;
    layout.pipelines = {{12 / size, {{0, 0, 0, 8}}}};
    Planned given;
    given.plan = to_plan(layout, request.cluster);
    given.best = evaluator.simulate(layout, "given");
    SimulateOptions details;
    details.details = true;
    given.best.simulation = simulate(given.plan, request.cluster, request.model, request.profile, details);
    given.lower_bound_seconds = lower_bound_seconds(request, evaluator);
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

TEST_CASE("sizes that cannot beat the best are not tried, unless they may come near it") {
  Request request;
  request.model = plain_model(4);
  request.cluster.types = {plain_type("unit", 1, 64)};
  request.cluster.nodes = {plain_machine("a", "unit", 4)};
  request.cluster.between = {1e-5, 1e10};
  request.batch = 16;
  request.tensors = {1};
  Evaluator evaluator(request);
  CHECK_FALSE(evaluator.can_prune(1, 16));  // nothing to beat yet
  PlanLayout even;
  even.microbatch = 4;
  for (int p = 0; p < 4; ++p) even.pipelines.push_back({1, {{0, 0, 0, 4}}});
  evaluator.submit(evaluator.simulate(even, "even"));
  CHECK(evaluator.can_prune(1, 8));  // forward and back to the input takes longer by itself
  CHECK_FALSE(evaluator.can_prune(1, 4));
  request.old = to_plan(even, request.cluster);
  request.near = 1;
  Evaluator old(request);
  old.submit(old.simulate(even, "even"));
  CHECK_FALSE(old.can_prune(1, 8));
  request.old.reset();
  request.objective = Objective::cost;  // money has another unit
  CHECK_FALSE(evaluator.can_prune(1, 8));
}

TEST_CASE("what an evaluator has simulated before it says again, of this layout alone") {
  Request request;
  request.model = small_layers(6);
  request.cluster.types = {plain_type("unit", 1, 64)};
  request.cluster.nodes = {plain_machine("a", "unit", 4), plain_machine("b", "unit", 4)};
  request.cluster.between = {1e-4, 1e8};
  request.batch = 16;
  Evaluator evaluator(request);
  PlanLayout layout;
  layout.sharded_optimizer = true;
  layout.pipelines.assign(2, {8, {{0, 0, 0, 3}, {1, 0, 3, 3}}});
  std::vector<PlanLayout> layouts{layout};
  const auto also = [&](const auto& change) {
    layouts.push_back(layout);
    change(layouts.back());
  };
  also([](PlanLayout& other) { other.pipelines[0].stages[0].share = 3; });
  also([](PlanLayout& other) { other.pipelines[0].stages[1].recompute = true; });
  also([](PlanLayout& other) { other.schedule = Schedule::split_backward; });
  also([](PlanLayout& other) { other.warmup = 1; });
  also([](PlanLayout& other) {
    std::swap(other.pipelines[1].stages[0].node, other.pipelines[1].stages[1].node);
  });
  also([](PlanLayout& other) {
    other.pipelines[0].microbatches = 9;
    other.pipelines[1].microbatches = 7;
  });
  for (const bool again : {false, true})
    for (const PlanLayout& each : layouts) {
      INFO("again " << again << ", layout " << &each - layouts.data());
      Evaluator fresh(request);
      CHECK(evaluator.simulate(each, {}).simulation.seconds == fresh.simulate(each, {}).simulation.seconds);
      CHECK(evaluator.estimate(each, {}).simulation.seconds == fresh.estimate(each, {}).simulation.seconds);
      CHECK(evaluator.simulate(each, {}).simulation.over_bytes ==
            Simulator(fresh.costs(1, 1), request.cluster).run(each).over_bytes);
    }
  CHECK(evaluator.simulations() == static_cast<int64_t>(4 * layouts.size()));
}

TEST_CASE("money needs prices, and without rates of preemptions progress is noted to be time") {
  Request request;
  request.cluster = cluster_of({{"A100-80", 1}, {"T4", 1}});
  request.model = plain_model(4);
  request.batch = 4;
  CHECK(validate(request).empty());
  CHECK(notes_of(request).empty());
  request.objective = Objective::cost;
  CHECK(mentions(validate(request), "no node has a price; give `price =`"));
  request.cluster.nodes[0].price_per_hour = 2;
  CHECK(mentions(validate(request), "beside nodes with a price these have none: b; give `price =`"));
  request.cluster.nodes[1].price_per_hour = 1;
  CHECK(validate(request).empty());
  request.objective = Objective::progress;
  CHECK(validate(request).empty());
  CHECK(mentions(notes_of(request), "no node has a rate of preemptions"));
  request.cluster.nodes[1].preemptions_per_hour = 0.1;
  CHECK(notes_of(request).empty());
}

TEST_CASE("of plans with equal scores the faster wins, then the one with more measured layers") {
  Request request;
  request.cluster.types = {plain_type("unit", 1, 64), plain_type("other", 1, 64)};
  request.cluster.nodes = {plain_machine("a", "unit", 1), plain_machine("b", "other", 1)};
  request.cluster.between = {1e-5, 1e10};
  request.model = plain_model(4);
  request.batch = 8;
  request.profile.model = request.model.name;
  request.profile.points = {{"layer", "unit", 1, 4, 0.01, 0.01, 0.01, 0.001}};
  const auto candidate = [](int node, int microbatch, double score, double seconds) {
    Candidate made;
    made.layout.microbatch = microbatch;
    made.layout.pipelines = {{8 / microbatch, {{node, 0, 0, 4}}}};
    made.score = score;
    made.simulation.seconds = seconds;
    return made;
  };
  const Candidate slow = candidate(0, 4, 1, 2), quick = candidate(0, 2, 1, 1),
                  measured = candidate(0, 4, 1 + 1e-15, 1), best = candidate(1, 1, 0.9, 3);
  const std::vector<Candidate> rising = {slow, quick, measured, best};
  for (size_t first = 0; first < rising.size(); ++first)
    for (size_t second = 0; second < rising.size(); ++second) {
      Evaluator evaluator(request);
      evaluator.submit(rising[first]);
      CHECK(evaluator.submit(rising[second]) == (second > first));
      CHECK(evaluator.best().layout == rising[std::max(first, second)].layout);
    }
  // One point makes all sizes alike on one device that launches nothing, where the work is not known.
  request.cluster.nodes.resize(1);
  request.cluster.types[0].launch_seconds = 0;
  LayerKind& kind = request.model.kinds[0];
  kind.forward_flops = kind.input_flops = kind.weight_flops = 0;
  CHECK(plan_with(request, "auto").plan.microbatch == 4);
}

TEST_CASE("by money brute force finds what trying everything finds") {
  int solved = 0;
  for (uint64_t seed = 1; solved < 20; ++seed) {
    Request request = random_request(seed);
    if (total_devices(request.cluster) != 3 || request.model.count() > 6) continue;
    request.batch = 4;
    request.objective = Objective::cost;
    request.extensions = kPublished;  // a poor first guess, which brute force has to better
    for (size_t n = 0; n < request.cluster.nodes.size(); ++n)
      request.cluster.nodes[n].price_per_hour = 1 + 3.0 * static_cast<double>((seed + 2 * n) % 5);
    Evaluator all(request), truth(request);
    std::vector<int> order;  // of the groups
    for (size_t n = 0; n < request.cluster.nodes.size(); ++n)
      order.insert(order.end(), static_cast<size_t>(request.cluster.nodes[n].devices), static_cast<int>(n));
    PlanLayout layout;
    std::vector<int> left;
    const std::function<void(int, int)> fill = [&](int first, int microbatches) {
      if (first == 0) {  // a pipeline begins, or all have
        if (microbatches == 0) {
          for (const bool sharded : {false, true}) {
            if (sharded && layout.pipelines.size() < 2) continue;
            PlanLayout whole = layout;
            whole.sharded_optimizer = sharded;
            if (sharded && !place_optimizer(whole, all.costs(1, layout.microbatch))) continue;
            all.submit(all.simulate(std::move(whole), "all"));
          }
          return;
        }
        for (int count = 1; count <= microbatches; ++count) {
          layout.pipelines.push_back({count, {}});
          fill(-1, microbatches - count);
          layout.pipelines.pop_back();
        }
        return;
      }
      const int begin = std::max(first, 0);
      if (begin == request.model.count()) return fill(0, microbatches);
      std::vector<int> tried;
      for (size_t i = 0; i < left.size(); ++i) {
        const int node = left[i];
        if (std::find(tried.begin(), tried.end(), node) != tried.end()) continue;
        tried.push_back(node);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
        for (int layers = 1; begin + layers <= request.model.count(); ++layers)
          for (const bool recompute : {false, true}) {
            layout.pipelines.back().stages.push_back({node, 0, begin, layers, recompute});
            fill(begin + layers, microbatches);
            layout.pipelines.back().stages.pop_back();
          }
        left.insert(left.begin() + static_cast<std::ptrdiff_t>(i), node);
      }
    };
    for (const int microbatch : request.microbatches) {
      layout = {};
      layout.microbatch = microbatch;
      left = order;
      fill(0, request.batch / microbatch);
    }
    INFO("seed " << seed);
    plan_exhaustive(truth);
    REQUIRE(truth.best().feasible() == all.best().feasible());
    if (!all.best().feasible()) continue;
    CHECK(truth.best_score() == Approx(all.best_score()).epsilon(1e-9));
    ++solved;
  }
}
