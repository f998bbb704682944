#include "planner/policy.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "core/base/error.h"
#include "core/base/sequential.h"
#include "planner/autohet/search.h"
#include "tests/unit/planner/random_case.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

Request request_of(const std::vector<Machines>& machines, const char* model, int batch) {
  Request request;
  request.cluster = cluster_of(machines);
  request.model = known_model(model);
  request.batch = batch;
  return request;
}

}  // namespace

TEST_CASE("auto is never infeasible where brute force is not, and close to it, on random small clusters") {
  double sum = 0, worst = 0;
  int solved = 0;
  for (uint64_t seed = 1000; solved < 50; ++seed) {
    const Request request = random_request(seed);
    if (total_devices(request.cluster) > 5) continue;  // tests/bench runs the larger ones
    const Planned truth = plan_with(request, "exhaustive"), found = plan_with(request, "auto");
    INFO("seed " << seed);
    REQUIRE((found.feasible || !truth.feasible));
    if (!truth.feasible) continue;
    CHECK(validate(found.plan, {request.model.count(), request.batch}) == std::vector<std::string>{});
    CHECK(truth.lower_bound_seconds <= truth.best.simulation.seconds * (1 + 1e-9));
    const double gap = found.best.simulation.seconds / truth.best.simulation.seconds - 1;
    sum += gap;
    worst = std::max(worst, gap);
    CHECK(gap <= 0.03);
    ++solved;
  }
  CHECK(sum / solved <= 0.005);
}

TEST_CASE(
    "auto is close to brute force with degrees of tensor parallelism and several hosts of a type, too") {
  double sum = 0;
  int solved = 0;
  for (uint64_t seed = 2000; solved < 15; ++seed) {
    const Request request = wide_random_request(seed);
    if (total_devices(request.cluster) > 5) continue;
    const Planned truth = plan_with(request, "exhaustive"), found = plan_with(request, "auto");
    INFO("seed " << seed);
    REQUIRE((found.feasible || !truth.feasible));
    if (!truth.feasible) continue;
    CHECK(truth.lower_bound_seconds <= truth.best.simulation.seconds);
    // Brute force fills hosts in order; auto may do better.
    const double gap = found.best.simulation.seconds / truth.best.simulation.seconds - 1;
    CHECK(gap <= 0.03);
    sum += std::max(gap, 0.0);
    ++solved;
  }
  CHECK(sum / solved <= 0.005);
}

TEST_CASE("auto is never slower than the baselines or its own published part") {
  for (const auto& [machines, model] : std::vector<std::pair<std::vector<Machines>, const char*>>{
           {{{"A100-80", 5}, {"H800", 3}}, "gpt3-6.7b"},
           {{{"A100-80", 8}, {"H20", 8}}, "llama3-8b"},
           {{{"V100-16", 4}, {"T4", 4, 2}}, "bert-large"}}) {
    const Request request = request_of(machines, model, 64);
    const Planned best = plan_with(request, "auto");
    REQUIRE(best.feasible);
    for (const char* policy : {"megatron", "whale", "autohet"}) {
      const Planned other = plan_with(request, policy);
      INFO(model << " against " << policy);
      if (other.feasible) CHECK(best.best.simulation.seconds <= other.best.simulation.seconds);
    }
    CHECK(best.lower_bound_seconds <= best.best.simulation.seconds);
  }
}

TEST_CASE("devices that would only slow a small model down are left out") {
  Request request;
  request.model = plain_model(6);
  request.batch = 12;
  request.cluster = cluster_of({{"A100-80", 5}, {"H800", 3}, {"RTX-3090", 2, 2}}, 3e9);
  const Planned best = plan_with(request, "auto");
  Evaluator all(request);
  search_plans(all, request.extensions, "all");
  REQUIRE(best.feasible);
  CHECK(best.best.simulation.seconds < all.best_score());
  int used = 0;
  for (const PipelineLayout& pipeline : best.best.layout.pipelines)
    used += static_cast<int>(pipeline.stages.size()) * best.best.layout.tensor;
  CHECK(used < total_devices(request.cluster));
  for (size_t only = 0; only < request.cluster.nodes.size(); ++only) {
    Request part = request;
    part.cluster.nodes = {request.cluster.nodes[only]};
    INFO(part.cluster.nodes[0].type);
    CHECK(best.best.simulation.seconds <= plan_with(part, "auto").best.simulation.seconds);
  }
}

TEST_CASE("planning twice gives the same plan, and naming nodes one by one or as a count is the same") {
  const Request request = request_of({{"A100-80", 2, 2}, {"L4", 3}}, "bert-large", 32);
  const Planned one = plan_with(request, "auto"), two = plan_with(request, "auto");
  CHECK(to_lua(one.plan) == to_lua(two.plan));
  Request apart = request;
  apart.cluster.nodes = {known_machine("a1", "A100-80", 2), known_machine("a2", "A100-80", 2),
                         known_machine("b", "L4", 3)};
  apart.cluster = merged(apart.cluster);
  CHECK(to_lua(plan_with(apart, "auto").plan) == to_lua(one.plan));
}

TEST_CASE("a search that is given up ends soon, in whatever part it is") {
  Request request = request_of({{"A100-80", 4, 3}, {"RTX-3090", 4, 2}}, "bert-large", 256);
  const SequentialScope alone;
  int64_t asked = 0, most = std::numeric_limits<int64_t>::max();
  request.goes_on = [&] { return ++asked <= most; };
  plan_with(request, "auto");
  const int64_t all = asked;
  CHECK(all > 100);
  for (const int64_t when : {int64_t{0}, all / 10, all / 2, all - 1}) {
    asked = 0;
    most = when;
    CHECK_THROWS_WITH(plan_with(request, "auto"), Catch::Matchers::Contains("was given up"));
    CHECK(asked <= when + 64);  // some parts ask once each, and end before others begin
  }
}

TEST_CASE("megatron cuts equally, whale in proportion") {
  const Request request = request_of({{"A100-80", 2}, {"H20", 2}}, "gpt3-6.7b", 32);
  const Planned megatron = plan_with(request, "megatron"), whale = plan_with(request, "whale");
  REQUIRE(megatron.feasible);
  REQUIRE(whale.feasible);
  for (const Pipeline& pipeline : megatron.plan.pipelines)
    CHECK(pipeline.microbatches == megatron.plan.pipelines[0].microbatches);
  CHECK(whale.best.simulation.seconds < megatron.best.simulation.seconds);
}

TEST_CASE("megatron may shard optimizer state always, whale only where gradients are not accumulated") {
  // One layer on four devices, each with room for weights, gradients and a quarter of the state.
  Request request;
  request.model = plain_model(1, 1e8);
  const Model& model = request.model;
  const double bytes = 1e8 * (model.weight_bytes + model.gradient_bytes + model.optimizer_bytes / 2);
  request.cluster.types = {plain_type("unit", 1, bytes / kUsableMemory / 1073741824.0)};
  request.cluster.nodes = {plain_machine("a", "unit", 4)};
  request.cluster.between = {1e-5, 1e10};
  request.microbatches = {1};
  request.tensors = {1};
  for (const int batch : {4, 8}) {
    request.batch = batch;
    const Planned megatron = plan_with(request, "megatron"), whale = plan_with(request, "whale");
    REQUIRE(megatron.feasible);
    CHECK(megatron.plan.sharded_optimizer);
    CHECK(whale.feasible == (batch == 4));
  }
}

TEST_CASE("a model that fits nowhere gets an error with the excess, the place and what would help") {
  const Planned planned = plan_with(request_of({{"T4", 2}}, "gpt3-13b", 8), "auto");
  CHECK_FALSE(planned.feasible);
  CHECK(mentions(planned.problems, "all devices together have"));
  CHECK(mentions(planned.problems, "the nearest plan"));
  CHECK(mentions(planned.problems, "what would help"));
}

TEST_CASE("all mistakes of a request are reported") {
  Request request = request_of({{"A100-80", 8}}, "llama3-8b", 24);
  request.tensors = {3};
  request.microbatches = {5};
  request.cluster.between = {-1, 1e9};
  try {
    plan_with(request, "auto");
    FAIL("accepted");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("tensor = 3 does not divide 32 heads and 8 key-value heads") != std::string::npos);
    CHECK(text.find("these work: 1, 2, 4, 8") != std::string::npos);
    CHECK(
        text.find("a micro-batch of 5 does not divide the batch of 24; these do: 1, 2, 3, 4, 6, 8, 12, 24") !=
        std::string::npos);
    CHECK(text.find("latency = -1") != std::string::npos);
  }
  CHECK_THROWS_WITH(plan_with(request_of({{"T4", 1}}, "bert-large", 8), "autohit"),
                    Catch::Contains("did you mean \"autohet\"?"));
}

TEST_CASE("each extension can be switched off, and the published part uses none") {
  Request request = request_of({{"A100-80", 5}, {"H800", 3}}, "gpt3-6.7b", 60);
  const Planned published = plan_with(request, "autohet");
  REQUIRE(published.feasible);
  for (const Pipeline& pipeline : published.plan.pipelines) {
    CHECK(pipeline.microbatches == published.plan.pipelines[0].microbatches);
    for (const Stage& stage : pipeline.stages) {
      CHECK(stage.recompute == published.plan.pipelines[0].stages[0].recompute);
      CHECK(stage.optimizer_share == 1);
    }
  }
  CHECK(published.plan.schedule == Schedule::one_f_one_b);
  CHECK(published.plan.warmup == 0);
  const double everything = plan_with(request, "auto").best.simulation.seconds;
  request.extensions = kPublished;
  CHECK(plan_with(request, "auto").best.simulation.seconds >= everything);
}

TEST_CASE("without an extension no plan of auto uses it") {
  Request request = request_of({{"H800", 1}, {"A100-80", 1}}, "bert-large", 60);
  request.cluster.between = {1e-7, 1e13};  // replicas cost nothing
  const auto plan_without = [&](bool Extensions::*extension) {
    request.extensions = {};
    if (extension != nullptr) request.extensions.*extension = false;
    return plan_with(request, "auto").plan;
  };
  const auto even = [](const Plan& plan) {
    return std::all_of(plan.pipelines.begin(), plan.pipelines.end(), [&](const Pipeline& pipeline) {
      return pipeline.microbatches == plan.pipelines[0].microbatches;
    });
  };
  CHECK_FALSE(even(plan_without(nullptr)));
  CHECK(even(plan_without(&Extensions::uneven_microbatches)));
  const Plan plain = plan_without(&Extensions::schedules);
  CHECK(plain.schedule == Schedule::one_f_one_b);
  CHECK(plain.warmup == 0);
  const Plan placed = plan_without(&Extensions::placed_optimizer);
  for (const Pipeline& pipeline : placed.pipelines)
    for (const Stage& stage : pipeline.stages) CHECK(stage.optimizer_share == 1);
}

TEST_CASE("a layer's optimizer state lives somewhere, however little memory is left") {
  Request request = request_of({{"A100-40", 4}, {"T4", 4}, {"T4", 4}}, "gpt3-13b", 64);
  for (const bool recompute : {false, true}) {
    request.extensions = kPublished;
    request.extensions.placed_optimizer = true;
    request.extensions.recompute_per_stage = recompute;
    const Planned planned = plan_with(request, "auto");
    CHECK(validate(planned.plan, {request.model.count(), request.batch}) == std::vector<std::string>{});
  }
}

TEST_CASE("progress leaves devices alone that are taken away too often") {
  Request request = request_of({{"H800", 4}, {"A100-80", 4}}, "bert-large", 32);
  request.cluster.nodes[0].preemptions_per_hour = 29;
  const Planned fast = plan_with(request, "auto");
  request.objective = Objective::progress;
  const Planned steady = plan_with(request, "auto");
  const auto uses_first = [](const Planned& planned) {
    for (const PipelineLayout& pipeline : planned.best.layout.pipelines)
      for (const StageLayout& stage : pipeline.stages)
        if (stage.node == 0) return true;
    return false;
  };
  CHECK(uses_first(fast));
  CHECK_FALSE(uses_first(steady));
  CHECK(steady.best.score < score_of(request, fast.best.layout, fast.best.simulation.seconds));
}

TEST_CASE("money chooses other devices than time") {
  Request request = request_of({{"A100-80", 4}, {"T4", 4}}, "bert-large", 32);
  request.cluster.nodes[0].price_per_hour = 100;
  request.cluster.nodes[1].price_per_hour = 1;
  const Planned fast = plan_with(request, "auto");
  request.objective = Objective::cost;
  const Planned cheap = plan_with(request, "auto");
  CHECK(cheap.best.simulation.seconds > fast.best.simulation.seconds);
  CHECK(cheap.best.score < score_of(request, fast.best.layout, fast.best.simulation.seconds));
}
