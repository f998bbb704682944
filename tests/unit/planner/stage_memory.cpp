// What the planner says that a stage takes, beside what its lowered program takes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "core/tensor/tensor.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/graph_state.h"
#include "planner/migrate/state_migration.h"
#include "planner/model/graph_model.h"
#include "planner/request.h"
#include "planner/simulate/simulate.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/planner/random_plan.h"

namespace het::testing {
namespace {

constexpr int64_t kContext = 64, kWidth = 32, kHeads = 4, kVocabulary = 40;
constexpr int kBlocks = 14, kLayers = kBlocks + 2;

Graph model_of(int64_t samples) {
  return trained_gpt({samples, kContext, kWidth, kHeads, kVocabulary, kBlocks});
}

planner::Cluster cluster_for(int devices) {
  planner::Cluster cluster;
  planner::DeviceType type;
  type.name = "unit";
  type.f32_flops = 1e12;
  type.memory_bytes = 64e9;
  type.memory_bytes_per_second = 1e12;
  type.inside = {1e-6, 1e10};
  cluster.types = {type};
  planner::Machine node;
  node.hosts = {"d"};
  node.type = "unit";
  node.devices = devices;
  cluster.nodes = {node};
  return cluster;
}

}  // namespace

TEST_CASE("a stage takes the memory that the planner says", "[planner][stage memory]") {
  const planner::Model model = planner::model_of_graph(model_of(1), "toy", 1, kContext);
  int recomputing = 0;
  for (unsigned seed = 1; seed <= 240; ++seed) {
    std::mt19937 random(seed);
    const int samples = 1 + static_cast<int>(random() % 3);
    Plan plan = random_plan(random, kLayers, samples);
    if (plan.sequence) continue;  // not planned for
    const Graph graph = model_of(samples);
    planner::SimulateOptions details;
    details.details = true;
    const planner::Simulation simulation =
        planner::simulate(plan, cluster_for(devices_in(plan)), model, {}, details);
    const std::vector<std::string> devices = devices_of(plan);
    for (const planner::StageUse& use : simulation.stages) {
      const std::vector<Stage>& stages = plan.pipelines[static_cast<size_t>(use.pipeline)].stages;
      const Stage& stage = stages[static_cast<size_t>(use.stage)];
      const auto rank = std::find(devices.begin(), devices.end(), stage.devices[0]) - devices.begin();
      const auto real =
          static_cast<double>(memory_of(lower(graph, plan, static_cast<int>(rank), true)).total());
      // Messages wait in buffers of their own, which only a stage of an embedding alone can tell.
      const double messages = (use.in_flight + 1) * 4.0 * kContext * kWidth * samples;
      INFO("seed " << seed << ", pipeline " << use.pipeline << ", stage " << use.stage << ": said "
                   << use.memory_bytes << ", real " << real << "\n"
                   << to_lua(plan));
      CHECK(use.memory_bytes >= 0.95 * real - messages);
      // Not all is kept for weight gradients that a split backward puts off, and interleaved gradients come
      // when activations go: these take less than is said.
      if (!stage.recompute || plan.schedule == Schedule::split_backward || plan.chunks > 1) continue;
      // Where no micro-batch follows those in flight, gradients come to be as activations go.
      if (use.in_flight >= plan.pipelines[static_cast<size_t>(use.pipeline)].microbatches) continue;
      CHECK(use.memory_bytes <= 1.05 * real);
      ++recomputing;
    }
  }
  CHECK(recomputing > 15);
}

namespace {

// Of each device of a plan, the state that its lowered program holds, element by element: names and positions
// in the whole tensor.
std::map<std::string, std::map<std::string, std::vector<bool>>> state_of(const Graph& graph,
                                                                         const Plan& plan) {
  std::map<std::string, std::map<std::string, std::vector<bool>>> state;
  const std::vector<std::string> devices = devices_of(plan);
  for (size_t rank = 0; rank < devices.size(); ++rank)
    for (const BufferSpec& buffer : lower(graph, plan, static_cast<int>(rank), true).buffers) {
      if (buffer.home != Home::state) continue;
      const Shape whole = buffer.slice ? buffer.slice->whole_shape() : buffer.type.shape;
      Tensor all({DType::f32, whole}), part({DType::f32, buffer.type.shape});
      for (int64_t i = 0; i < all.elements(); ++i) all.set(i, 0);
      for (int64_t i = 0; i < part.elements(); ++i) part.set(i, 1);
      if (buffer.slice)
        put(all, part, *buffer.slice);
      else
        all = part;
      std::vector<bool>& held = state[devices[rank]][buffer.name];
      held.resize(static_cast<size_t>(all.elements()));
      for (int64_t i = 0; i < all.elements(); ++i) held[static_cast<size_t>(i)] = all.at(i) != 0;
    }
  return state;
}

// The bytes of what devices hold under one plan and not under another, element by element.
double lacking_bytes(const Graph& graph, const Plan& from, const Plan& to) {
  const auto before = state_of(graph, from), after = state_of(graph, to);
  double lacking = 0;
  for (const auto& [device, state] : after)
    for (const auto& [name, held] : state) {
      const std::vector<bool>* had = nullptr;
      if (const auto known = before.find(device); known != before.end())
        if (const auto same = known->second.find(name); same != known->second.end()) had = &same->second;
      for (size_t i = 0; i < held.size(); ++i) lacking += held[i] && !(had != nullptr && (*had)[i]) ? 4 : 0;
    }
  return lacking;
}

// Gives stages of several devices a `sharding` of their own, which cuts parameters along any dimension or not
// at all.
void shard_by_chance(Plan& plan, const PlacementTable& table, std::mt19937& random) {
  const Graph& graph = table.graph();
  plan.sequence = false;  // Megatron's
  for (Pipeline& pipeline : plan.pipelines)
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      Stage& stage = pipeline.stages[s];
      if (stage.devices.size() < 2 || random() % 4 == 0) continue;
      const size_t groups = pipeline.stages.size() / static_cast<size_t>(plan.chunks);
      if (s >= groups) {  // stages of one group are cut alike
        stage.sharding = pipeline.stages[s % groups].sharding;
        continue;
      }
      AxisSharding& sharding = stage.sharding.emplace(along_one_axis({})).axes[0].sharding.emplace();
      for (size_t i = 0; i < graph.values.size(); ++i) {
        const Value& value = graph.values[i];
        if (value.role != Role::parameter) continue;
        const auto dim = static_cast<int64_t>(random() % 3);
        std::string problem;
        if (dim < 2 &&
            placement_of(table, tensor_shares(plan, stage), static_cast<ValueId>(i), dim, {}, problem))
          sharding.state.push_back({value.name, dim, {}});
      }
      std::sort(sharding.state.begin(), sharding.state.end());
    }
}

}  // namespace

TEST_CASE("the bytes that a change of plan moves are those that programs lack", "[planner][stage memory]") {
  const Graph graph = model_of(1);
  const planner::Model model = planner::model_of_graph(graph, "toy", 1, kContext);
  int changes = 0;
  for (unsigned seed = 1; changes < 12; ++seed) {
    std::mt19937 random(seed);
    Plan plans[] = {random_plan(random, kLayers, 1), random_plan(random, kLayers, 1)};
    // Tensor parallelism cuts each tensor, a sharded optimizer the tensors of a layer one after the other:
    // what both leave a device is estimated.
    const bool sharded = plans[0].sharded_optimizer || plans[1].sharded_optimizer;
    if (sharded && (plans[0].tensor > 1 || plans[1].tensor > 1)) continue;
    const planner::Cluster cluster = cluster_for(std::max(devices_in(plans[0]), devices_in(plans[1])));
    const planner::StateMigration migration(plans[0], cluster, model);
    const planner::Move move = migration.move(plans[1]);
    const double lacking = lacking_bytes(graph, plans[0], plans[1]);
    INFO("seed " << seed << "\n" << to_lua(plans[0]) << "\n" << to_lua(plans[1]));
    // A sharded optimizer is divided at rows, which are no fractions.
    CHECK(move.bytes == Approx(lacking).epsilon(sharded ? 0.05 : 1e-9));
    ++changes;
  }
}

TEST_CASE("of a graph it is known what stages with sharding hold", "[planner][replan][stage memory]") {
  constexpr int kFew = 8;
  const Graph graph = trained_gpt({1, 16, kWidth, kHeads, kVocabulary, kFew - 2});
  const PlacementTable table(graph);
  const planner::ModelState known = planner::state_of(graph);
  int changes = 0, refused = 0;
  for (unsigned seed = 1; changes < 16 && seed < 200; ++seed) {
    std::mt19937 random(seed);
    Plan plans[] = {random_plan(random, kFew, 1, true), random_plan(random, kFew, 1, true)};
    for (Plan& plan : plans) plan.sharded_optimizer = false;  // runs place whole parameters
    shard_by_chance(plans[0], table, random);
    if (to_lua(plans[0]).find("sharding") == std::string::npos) continue;
    INFO("seed " << seed << "\n" << to_lua(plans[0]) << "\n" << to_lua(plans[1]));
    double lacking = 0;
    try {
      lacking = lacking_bytes(graph, plans[0], plans[1]);
    } catch (const Error&) {  // stages that cannot exchange what passes between them
      ++refused;
      continue;
    }
    const planner::Cluster cluster = cluster_for(std::max(devices_in(plans[0]), devices_in(plans[1])));
    CHECK(planner::StateMigration(plans[0], cluster, known).move(plans[1]).bytes == lacking);
    ++changes;
  }
  CAPTURE(refused);
  CHECK(changes == 16);
}

TEST_CASE("of a model of numbers it is not known what stages with sharding hold", "[planner][replan]") {
  const Graph graph = trained_gpt({1, 16, kWidth, kHeads, kVocabulary, 2});
  planner::Request request;
  request.model = planner::model_of_graph(graph, "toy", 1, 16);
  request.cluster = cluster_for(2);
  Plan old;
  old.tensor = 2;
  old.pipelines = {{1, {{{"d:0", "d:1"}, 0, 4}}}};
  old.sharding = along_one_axis({{{"*.up.*", -1, {}}}, {}, {}});
  request.old = old;
  const std::vector<std::string> problems = validate(request);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] ==
        "the old plan: it cuts layers by `sharding`; which parameters that cuts, only the model's graph "
        "shows, and this model is given by numbers");
  request.state = std::make_shared<planner::ModelState>(planner::state_of(graph));
  CHECK(validate(request).empty());
  old.sharding->axes[0].sharding->state[0].pattern = "*.wp.*";
  request.old = old;
  REQUIRE(validate(request).size() == 1);
  CHECK(validate(request)[0].find("matches nothing of the model") != std::string::npos);
}

}  // namespace het::testing
