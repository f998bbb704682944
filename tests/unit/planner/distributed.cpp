// Plans do not change results: programs of all ranks of random plans, run by threads, against one device.
#include "tests/unit/planner/distributed.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/comm/loopback.h"
#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
#include "core/io/safetensors.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "kernels/cpu/device.h"
#include "planner/lower/lower.h"
#include "planner/lower/schedule.h"
#include "planner/lower/sharded_update.h"
#include "planner/megatron/sharding.h"
#include "tests/emulated_cuda/reference_on_gpu.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;
using namespace het::testing::distributed;

// In f64 nothing but the order of sums may differ; in f32 that alone makes a difference of about 1e-6.
TEST_CASE("random plans train the model that one device trains", "[distributed]") {
  const DType dtype = GENERATE(DType::f64, DType::f32);
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
  const int trials = trials_or(40);
  const unsigned first = first_seed();
  Alone one(dtype);
  for (const size_t which : {0U, 1U}) REQUIRE(verify(one.model(which)).empty());
  double worst = 0;
  for (unsigned seed = first; seed < first + static_cast<unsigned>(trials); ++seed) {
    std::mt19937 random(seed);
    const Plan drawn = random_plan(random, kLayers, kSamples, true);
    const Plan plan = seed % 4 < 2 ? with_a_host_for_each_stage(drawn) : drawn;
    const size_t which = seed % 2;
    const auto verdict_of = [&](const Plan& tried) {
      return judge(one.model(which), tried, one.outcome(which, tried), tolerance);
    };
    const Verdict verdict = verdict_of(plan);
    worst = std::max(worst, verdict.apart);
    if (verdict.problem.empty()) continue;
    const Plan simplest =
        simplest_failing(plan, [&](const Plan& tried) { return !verdict_of(tried).problem.empty(); });
    FAIL_CHECK("seed " << seed << ", " << (which == 1 ? "LLaMA" : "GPT") << ": " << verdict.problem << "\n"
                       << to_lua(plan) << "\nThe simplest plan that fails: " << verdict_of(simplest).problem
                       << "\n"
                       << to_lua(simplest));
  }
  WARN("largest difference over " << trials << " plans in " << name_of(dtype) << ": " << worst);
}

TEST_CASE("ranks that block and sum gradients late train the same model", "[distributed][runtime]") {
  Alone one(DType::f64);
  const int trials = trials_or(24);
  int blocking = 0, late = 0;
  for (unsigned seed = first_seed(); seed < first_seed() + static_cast<unsigned>(trials); ++seed) {
    std::mt19937 random(seed);
    const Plan plan = with_a_host_for_each_stage(random_plan(random, kLayers, kSamples, true));
    for (Runtime runtime : {Runtime{true, false}, {false, true}, {true, true}}) {
      if (!problems_of(runtime, plan.schedule, plan.warmup).empty()) {
        CHECK_THROWS_WITH(lower(one.model(seed % 2), plan, 0, true, runtime),
                          Catch::Contains("runtime 'blocking'"));
        continue;
      }
      ++(runtime.blocking ? blocking : late);
      const Verdict verdict =
          judge(one.model(seed % 2), plan, one.outcome(seed % 2, plan), 1e-12, On::processors, runtime);
      INFO("seed " << seed << ", " << name_of(runtime) << "\n" << to_lua(plan));
      CHECK(verdict.problem == "");
    }
  }
  CHECK(blocking > 0);
  CHECK(late > 0);
}

TEST_CASE("stages of several devices send a boundary to another host once, divided, and gather it",
          "[distributed]") {
  const Graph model = small_model(false, DType::f64);
  Plan plan;
  plan.tensor = 2;
  plan.microbatch = kSamples;
  plan.pipelines = {{3, {{{"a:0", "a:1"}, 0, 3}, {{"b:0", "b:1"}, 3, 3}}}};
  const int64_t elements = kSamples * kContext * kWidth;
  const auto sent_by = [&](const Plan& sender) {
    int64_t sent = 0, gathered = 0;
    for (int rank = 0; rank < 4; ++rank)
      for (const Instruction& instruction : lower(model, sender, rank, true).instructions)
        if (const auto* start = std::get_if<Start>(&instruction)) {
          if (start->request.kind == CollectiveKind::send) sent += start->request.counts[0];
          if (start->request.kind == CollectiveKind::all_gather && start->request.counts.size() == 2 &&
              start->request.counts[0] == elements / 2)
            ++gathered;
        }
    return std::pair(sent, gathered);
  };
  // Three micro-batches, forward and backward; two receivers gather each.
  CHECK(sent_by(plan) == std::pair<int64_t, int64_t>(2 * 3 * elements, 2 * 3 * 2));
  CHECK(judge(model, plan, alone(model, 3), 1e-12).problem == "");
  Plan inside = plan;
  inside.pipelines[0].stages[1].devices = {"a:2", "a:3"};
  CHECK(sent_by(inside) == std::pair<int64_t, int64_t>(2 * 2 * 3 * elements, 0));
}

TEST_CASE("a stage converts its part of a tied gradient itself, though the loss makes it in the forward pass",
          "[distributed]") {
  // What is added to the loss reads it in the forward pass, where it then makes its gradients.
  const Graph model = small_model(false, DType::f64, true);
  Plan plan;
  plan.microbatch = kSamples;
  plan.pipelines = {{2, {{{"a:0"}, 0, 5}, {{"b:0", "b:1"}, 5, 1}}}};
  // The head's stage divides the samples for the loss, and the table's columns where it is added to.
  Stage& head = plan.pipelines[0].stages[1];
  head.shares = {1, 1};
  head.sharding =
      along_one_axis({{{"embedding.weight", 1, {}}},
                      {},
                      {{"add_n", "x0 dim 1, x1 dim 1 -> y dim 1"},
                       {"linear_cross_entropy_training",
                        "hidden dim 0, labels dim 0 -> loss partial, dhidden dim 0, dweight partial"}}});
  CHECK(judge(model, plan, alone(model, 2), 1e-12).problem == "");
}

TEST_CASE("a blocking stage receives first where the next one sends the gradient before it needs activations",
          "[runtime]") {
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::gpipe})
    for (int stages = 2; stages <= 5; ++stages)
      for (int microbatches = 1; microbatches <= 7; ++microbatches)
        for (int stage = 0; stage + 1 < stages; ++stage) {
          const ScheduleShape shape{schedule, stages, microbatches};
          const auto own = units_of(shape, stage), next = units_of(shape, stage + 1);
          for (size_t u = 1; u < own.size(); ++u) {
            const WorkUnit &before = own[u - 1], &after = own[u];
            if (before.kind != WorkUnit::Kind::forward || after.kind != WorkUnit::Kind::backward) continue;
            const auto at = [&](WorkUnit unit) {
              unit.stage = stage + 1;
              return std::find(next.begin(), next.end(), unit) - next.begin();
            };
            INFO(stages << " stages, " << microbatches << " micro-batches, stage " << stage << ", unit "
                        << u);
            CHECK(receives_first(shape, stage, before, after) == (at(after) < at(before)));
          }
        }
}

// Whether a rank starts a sum over several ranks before its last backward pass ends.
bool sums_before_the_last_backward(const Program& program) {
  bool summed = false, before = false;
  for (const Instruction& instruction : program.instructions) {
    if (const auto* start = std::get_if<Start>(&instruction)) {
      const CollectiveKind kind = start->request.kind;
      summed = summed || (kind != CollectiveKind::send && kind != CollectiveKind::receive);
    } else if (const auto* compute = std::get_if<Compute>(&instruction)) {
      if (compute->phase == Phase::backward) before = summed;
    }
  }
  return before;
}

TEST_CASE("late reductions start after the last backward pass, blocking sends are awaited at once",
          "[runtime]") {
  Plan plan;
  plan.microbatch = kSamples;
  Stage first, second;
  first.layers = 3;
  second.first_layer = 3;
  second.layers = kLayers - 3;
  for (const char* node : {"a", "b"}) {
    first.devices = {std::string(node) + ":0"};
    second.devices = {std::string(node) + ":1"};
    plan.pipelines.push_back({3, {first, second}});
  }
  const Graph model = small_model(false, DType::f32);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(sums_before_the_last_backward(lower(model, plan, rank, true)));
    CHECK_FALSE(sums_before_the_last_backward(lower(model, plan, rank, true, {false, true})));
    const Program program = lower(model, plan, rank, true, {true, true});
    CHECK_FALSE(sums_before_the_last_backward(program));
    // Nothing is computed between a message's start and its arrival.
    const auto& all = program.instructions;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto* start = std::get_if<Start>(&all[i]);
      if (start == nullptr ||
          (start->request.kind != CollectiveKind::send && start->request.kind != CollectiveKind::receive))
        continue;
      for (size_t j = i + 1; j < all.size(); ++j) {
        const auto* await = std::get_if<Await>(&all[j]);
        if (await != nullptr && static_cast<size_t>(await->start) == i) break;
        CHECK_FALSE(std::holds_alternative<Compute>(all[j]));
      }
    }
  }
}

// Hints on some parameters, dimensions at random: where they cannot hold for four ranks, none.
Graph with_hints(Graph graph, std::mt19937& random) {
  for (Value& value : graph.values) {
    if (value.role != Role::parameter || random() % 3 != 0) continue;
    const auto rank = static_cast<unsigned>(value.type.shape.size());
    value.hints = {{"model", static_cast<int64_t>(random() % (rank + 1)) - 1}};
    for (const Shares& shares : {Shares{1, 1, 1, 1}, Shares{5, 1, 1, 1}}) {
      try {
        tensor_parallel(graph, shares, 0);
      } catch (const Error&) {
        value.hints.clear();
      }
    }
  }
  return graph;
}

TEST_CASE("random plans train the same model where layers say how they are cut", "[distributed]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int hints = 0, checked = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    if (tensor_shares(plan, plan.pipelines[0].stages[0]).size() == 1) continue;
    const size_t which = seed % 2;
    const Graph hinted = with_hints(one.model(which), random);
    for (const Value& value : hinted.values) hints += static_cast<int>(value.hints.size());
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(hinted, plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(hints > 2 * trials);
}

// State and inputs cut along dimensions at random, as far as the graph allows it among so many.
AxisSharding random_sharding(const Graph& graph, const Shares& shares, std::mt19937& random) {
  const PlacementTable table(graph);
  AxisSharding sharding;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    const bool input = value.role == Role::input && !value.per_step;
    if ((value.role != Role::parameter && !input) || value.type.shape.empty() || random() % 2 == 0) continue;
    const auto dim = static_cast<int64_t>(random() % value.type.shape.size());
    std::string problem;
    if (placement_of(table, shares, static_cast<ValueId>(i), dim, {}, problem))
      (input ? sharding.inputs : sharding.state).push_back({value.name, dim, {}});
  }
  std::sort(sharding.state.begin(), sharding.state.end());
  std::sort(sharding.inputs.begin(), sharding.inputs.end());
  return sharding;
}

TEST_CASE("random plans train the same model where stages say how they are cut", "[distributed]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int shardings = 0, checked = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    Plan plan = random_plan(random, kLayers, kSamples, true);
    if (plan.schedule == Schedule::interleaved) continue;
    const size_t which = seed % 3;
    const int before = shardings;
    plan.sequence = false;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages) {
        const Shares shares = tensor_shares(plan, stage);
        if (shares.size() == 1 || random() % 4 == 0) continue;
        stage.sharding = along_one_axis(random_sharding(one.model(which), shares, random));
        ++shardings;
      }
    if (shardings == before) continue;
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(one.model(which), plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(shardings > trials);
}

// Meshes of the devices of stages: the batch along one axis and Megatron's way along the other, or whatever
// can be drawn, with shares.
StageSharding random_mesh(const Graph& graph, std::vector<int> sizes, std::mt19937& random) {
  StageSharding mesh;
  for (size_t a = 0; a < sizes.size(); ++a) {
    StageAxis axis{a == 0 ? "first" : "second", Shares(static_cast<size_t>(sizes[a]), 1), {}};
    if (random() % 3 == 0) axis.shares[0] = 2;
    mesh.axes.push_back(std::move(axis));
  }
  if (random() % 2 == 0) {
    StageAxis& batch = mesh.axes[random() % 2];
    batch.sharding = {{}, {{"labels", 0, {}}, {"tokens", 0, {}}}, {}};
    return mesh;
  }
  for (StageAxis& axis : mesh.axes)
    if (random() % 3 != 0) axis.sharding = random_sharding(graph, axis.shares, random);
  return mesh;
}

TEST_CASE("random plans train the same model where stages have meshes", "[distributed][stage mesh]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int meshes = 0, checked = 0, refused = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    Plan plan = with_a_host_for_each_stage(random_plan(random, kLayers, kSamples, true));
    if (plan.schedule == Schedule::interleaved) continue;
    const size_t which = seed % 3;
    const int before = meshes;
    plan.sequence = false;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages) {
        if (stage.devices.size() != 4 || random() % 4 == 0) continue;
        stage.shares.clear();
        stage.sharding = random_mesh(one.model(which), {2, 2}, random);
        ++meshes;
      }
    if (meshes == before) continue;
    try {
      lower(one.model(which), plan, 0, true);
    } catch (const Error&) {  // a dimension that both axes cut may have too few units
      ++refused;
      continue;
    }
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(one.model(which), plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(meshes > trials);
  CHECK(refused < 2 * trials);
}

TEST_CASE("random plans train a model without norms and residuals", "[distributed]") {
  const Graph model = bare_model();
  REQUIRE(verify(model).empty());
  std::map<int, Outcome> known;  // by micro-batches
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const auto [entry, fresh] = known.emplace(microbatches_of(plan), Outcome{});
    if (fresh) entry->second = alone(model, entry->first);
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(model, plan, entry->second, 1e-12).problem.empty());
  }
}

TEST_CASE("the loss goes round the ranks with the norms of the gradients, and nothing else after them") {
  const Graph model = small_model(true, DType::f32);  // whose weights are not tied
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  for (int p = 0; p < 2; ++p) {
    Stage first{{fmt::format("x:{}", 2 * p)}, 0, 1}, second{{fmt::format("x:{}", 2 * p + 1)}, 1, kLayers - 1};
    plan.pipelines.push_back({p + 1, {first, second}});
  }
  for (int rank = 0; rank < 4; ++rank) {
    const Program program = lower(model, plan, rank, true);
    std::vector<std::string> whole;  // operations of all ranks
    for (const Instruction& instruction : program.instructions)
      if (const auto* start = std::get_if<Start>(&instruction);
          start != nullptr && program.groups[start->group].ranks.size() == 4 && start->request.peer < 0) {
        whole.push_back(start->request.label);
        CHECK(start->request.kind == CollectiveKind::all_gather);
        CHECK(start->request.counts == std::vector<int64_t>{3, 3, 3, 3});  // norm, loss, word
      }
    CHECK(whole == std::vector<std::string>{"gradient norms"});
  }
}

TEST_CASE("every plan, stage and micro-batch computes with the same stochastically rounded weights",
          "[distributed]") {
  const Graph plain[] = {small_model(false, DType::f64), small_model(true, DType::f64)};
  const Graph models[] = {with_rounded_copies(plain[0]), with_rounded_copies(plain[1])};
  for (const int which : {0, 1}) {
    REQUIRE(verify(models[which]).empty());
    CHECK(difference(alone(plain[which], 2), alone(models[which], 2)) > 1e-4);
  }
  for (unsigned seed = 201; seed < 225; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const Graph& model = models[seed % 2];
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(model, plan, alone(model, microbatches_of(plan)), 1e-12).problem == "");
  }
}

TEST_CASE("norms and products that make what stands beside them train the same model to the bit",
          "[distributed]") {
  const bool llama = GENERATE(false, true);
  const Graph model = small_model(llama, DType::f32);
  const Graph apart = join_chains(prune(model)), joined = fuse(model);
  CHECK(verify(joined).empty());
  // In each block the addition before its second norm, and of the backward pass both; gelu and its gradient.
  CHECK(joined.nodes.size() + (llama ? 3 : 5) * kBlocks == apart.nodes.size());
  const auto trained = [&](const Graph& graph) {
    Executor executor(lower_single(graph, 3), std::make_shared<StateStore>(make_cpu_device(), 3));
    return train(executor, 3);
  };
  const Outcome separate = trained(apart), together = trained(joined);
  CHECK(separate.losses == together.losses);
  CHECK(separate.norms == together.norms);
  for (const auto& [name, tensor] : separate.parameters)
    CHECK(values_of(tensor) == values_of(together.parameters.at(name)));
}

TEST_CASE("random plans train a model whose products make gelu", "[distributed]") {
  const Graph model = small_model(false, DType::f64), joined = join_activations(prune(model));
  REQUIRE(joined.nodes.size() < prune(model).nodes.size());
  for (unsigned seed = 301; seed < 311; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(joined, plan, alone(model, microbatches_of(plan)), 1e-12).problem == "");
  }
}

namespace {

// The parameters that each rank has whole, bit for bit, after some steps.
std::vector<std::map<std::string, std::vector<std::byte>>> bits_after(const Graph& model, const Plan& plan,
                                                                      int steps) {
  std::vector<Program> programs = lower_all(model, plan, true);
  CHECK(verify_together(programs).empty());
  std::vector<std::map<std::string, std::vector<std::byte>>> bits(programs.size());
  const int microbatches = microbatches_of(plan);
  const auto errors = on_ranks(
      std::move(programs), std::chrono::seconds(60),
      [&](int rank, Executor& executor) {
        for (int step = 1; step <= steps; ++step) {
          write_inputs(executor, step, microbatches);
          executor.run();
        }
        for (const auto& [name, entry] : executor.state().entries()) {
          if (!entry.trained || entry.slice) continue;
          const Tensor copy = executor.state().read(name);
          const auto* bytes = copy.bytes();
          bits[static_cast<size_t>(rank)][name].assign(bytes,
                                                       bytes + copy.elements() * bytes_of(copy.dtype()));
        }
      },
      On::instruction_sets);
  for (const std::string& error : errors) CHECK(error == "");
  return bits;
}

// Parameters that two ranks have, but not the same.
int unequal(const std::vector<std::map<std::string, std::vector<std::byte>>>& bits) {
  std::set<std::string> found;
  for (const auto& one : bits)
    for (const auto& other : bits)
      for (const auto& [name, bytes] : one)
        if (const auto at = other.find(name); at != other.end() && at->second != bytes) found.insert(name);
  return static_cast<int>(found.size());
}

}  // namespace

TEST_CASE("copies of parameters on unlike processors stay equal to the bit", "[distributed]") {
  const std::vector<std::string> sets = cpu_instruction_sets();
  if (sets.size() < 2) {
    WARN("this processor has one instruction set");
    return;
  }
  const Graph model = small_model(false, DType::f32);
  const auto stage = [](int first) {
    Stage stage;
    for (int t = 0; t < 2; ++t) stage.devices.push_back(fmt::format("d:{}", first + t));
    stage.layers = kLayers;
    return stage;
  };
  struct Case {
    const char* name;
    Plan plan;
    bool drifts;  // where devices are taken to be alike
  };
  std::vector<Case> cases;
  Plan plan;
  plan.tensor = 2;
  plan.microbatch = kSamples;
  plan.pipelines = {{2, {stage(0)}}};
  cases.push_back({"heads and features are cut", plan, true});
  plan.sharded_optimizer = true;
  cases.push_back({"and optimizer state", plan, true});
  plan.sharded_optimizer = false;
  plan.pipelines = {{2, {stage(0)}}, {1, {stage(2)}}};
  cases.push_back({"in two pipelines", plan, true});
  plan.sharded_optimizer = true;
  cases.push_back({"in two pipelines, with optimizer state", plan, true});
  plan.sharded_optimizer = false;
  plan.pipelines = {{2, {stage(0)}}};
  plan.sharding = along_one_axis({{}, {}, {{"*", "replicated"}}});
  cases.push_back({"nothing is cut", plan, true});
  plan.sharding = along_one_axis({{}, {{"tokens", 0}, {"labels", 0}}, {}});
  cases.push_back({"the batch is cut", plan, false});
  for (Case& each : cases) {
    INFO(each.name << ", on " << sets.front() << " and " << sets.back());
    constexpr int kSteps = 100;
    each.plan.unlike_devices = true;
    CHECK(unequal(bits_after(model, each.plan, kSteps)) == 0);
    each.plan.unlike_devices = false;
    const int unlike = unequal(bits_after(model, each.plan, kSteps));
    if (each.drifts) CHECK(unlike > 0);
  }
}

// Sums of a softmax have other last bits on other processors, also of equal gradients.
TEST_CASE("updates of operators have one owner on unlike processors", "[distributed]") {
  if (cpu_instruction_sets().size() < 2) {
    WARN("this processor has one instruction set");
    return;
  }
  Graph model;
  GraphBuilder b(model);
  const TensorType matrix{DType::f32, {kWidth, kWidth}};
  const ValueId labels = b.input("labels", {DType::i32, {kSamples, kContext}});
  const ValueId scale = b.input("scale", {DType::f32, {1}}, true);
  const ValueId tokens = b.input("tokens", {DType::i32, {kSamples, kContext}});
  b.input("counter", {DType::i64, {2}});
  b.input("order", {DType::i32, {kContext}}, true);
  b.begin_layer("body");
  ValueId x = b.call("embedding", {tokens, b.parameter("table", {DType::f32, {kVocabulary, kWidth}},
                                                       {Initial::Kind::normal, 0.4})});
  x = b.call("gelu",
             {b.call("linear", {x, b.parameter("up", matrix, {Initial::Kind::normal, 0.4}), kAbsent})});
  b.begin_layer("head");
  const ValueId head = b.parameter("head", {DType::f32, {kVocabulary, kWidth}}, {Initial::Kind::normal, 0.4});
  const ValueId loss = b.call("linear_cross_entropy", {x, head, kAbsent, labels, scale});
  b.output("loss", loss);
  const auto gradients = differentiate(model, loss, {});
  b.set_phase(Phase::update);
  b.set_layer(-1);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true);
  b.input("step", {DType::i64, {}}, true);
  std::vector<ValueId> all;
  for (const auto& [parameter, gradient] : gradients) all.push_back(gradient);
  const auto clipped = b.call_all(op_named("global_norm"), all, {{"max_norm", 0.5}});
  b.output("norm", clipped[0]);
  for (const auto& [parameter, gradient] : gradients)
    b.call("assign",
           {parameter, b.call("sub", {parameter, b.call("mul", {b.call("softmax", {gradient}), lr})}),
            clipped[1]});
  CHECK_FALSE(updates_alike(model));
  CHECK(updates_alike(small_model(false, DType::f32)));
  Plan plan;
  plan.tensor = 2;
  plan.microbatch = kSamples;
  Stage stage;
  stage.devices = {"d:0", "d:1"};
  stage.layers = 2;
  plan.pipelines = {{2, {stage}}};
  for (const bool cuts_batch : {false, true}) {
    plan.sharding = along_one_axis({{}, {}, {{"*", "replicated"}}});
    if (cuts_batch) plan.sharding = along_one_axis({{}, {{"tokens", 0}, {"labels", 0}}, {}});
    INFO((cuts_batch ? "the batch is cut" : "nothing is cut"));
    plan.unlike_devices = true;
    CHECK(unequal(bits_after(model, plan, 20)) == 0);
    plan.unlike_devices = false;
    CHECK(unequal(bits_after(model, plan, 20)) > 0);
  }
}
