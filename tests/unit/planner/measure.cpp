// Layers cut out of a graph, what their instructions are, and what is measured of them.
#include "planner/profile/measure.h"

#include <catch2/catch.hpp>

#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
#include "core/ops/op.h"
#include "kernels/cpu/device.h"
#include "planner/lower/lower.h"
#include "planner/model/graph_model.h"
#include "planner/profile/eviction.h"
#include "planner/profile/layer_extractor.h"
#include "tests/emulated_cuda/device.h"

using namespace het;
using namespace het::planner;

namespace {

constexpr int64_t kTokens = 6, kWidth = 8, kHidden = 16, kVocabulary = 10;

// An embedding, blocks of two projections with a residual, and a head that shares the embedding's weights;
// trained by SGD with momentum, or AdamW, after clipping.
Graph model(int blocks, int64_t samples = 1, bool adamw = false) {
  Graph graph;
  GraphBuilder b(graph);
  const auto weight = [&](const std::string& name, Shape shape) {
    return b.parameter(name, {DType::f32, std::move(shape)}, {Initial::Kind::normal, 0.1});
  };
  const ValueId tokens = b.input("inputs", {DType::i32, {samples, kTokens}});
  b.begin_layer("embedding");
  ValueId x = b.call("embedding", {tokens, weight("tokens", {kVocabulary, kWidth})});
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    b.begin_layer(name);
    const ValueId up = b.call("linear", {x, weight(name + ".up", {kHidden, kWidth}), kAbsent});
    const ValueId down =
        b.call("linear", {b.call("gelu", {up}), weight(name + ".down", {kWidth, kHidden}), kAbsent});
    x = b.call("add", {x, down});
  }
  b.begin_layer("head");
  const ValueId logits = b.call("linear", {x, weight("tokens", {kVocabulary, kWidth}), kAbsent});
  const ValueId loss = b.call("sum", {b.call("square", {logits})}, {{"dtype", std::string("f32")}});
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss);
  b.set_phase(Phase::update);
  b.set_layer(-1);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true);
  std::vector<ValueId> all;
  all.reserve(gradients.size());
  for (const auto& [parameter, gradient] : gradients) all.push_back(gradient);
  const auto norm = b.call_all(op_named("global_norm"), all, {{"max_norm", 1.0}});
  b.output("gradient_norm", norm[0]);
  const ValueId step = adamw ? b.input("step", {DType::i64, {}}, true) : kAbsent;
  for (const auto& [parameter, gradient] : gradients) {
    const auto moment = [&, of_parameter = parameter](const char* of) {
      return b.buffer(graph.values[of_parameter].name + of, graph.type(of_parameter));
    };
    if (adamw)
      b.call_all(op_named("adamw"), {parameter, moment(".m"), moment(".v"), gradient, lr, step, norm[1]});
    else
      b.call_all(op_named("sgd"), {parameter, moment(".m"), gradient, lr, norm[1]}, {{"momentum", 0.9}});
  }
  return graph;
}

// FLOPs of a program's instructions by layer and part.
double flops_of(const Compute& compute) {
  const auto types = [](const std::vector<Operand>& operands) {
    std::vector<TensorType> list;
    for (const Operand& operand : operands)
      list.push_back(operand.buffer == kAbsent ? TensorType{} : operand.layout.type);
    return list;
  };
  const auto inputs = types(compute.inputs), outputs = types(compute.outputs);
  return cost_of(OpCall{*compute.op, inputs, compute.attributes}, outputs).flops;
}

std::map<std::pair<int, Part>, double> work_of(const Program& program) {
  std::map<std::pair<int, Part>, double> work;
  const std::vector<Share> shares = shares_of(program);
  for (size_t i = 0; i < shares.size(); ++i)
    work[{shares[i].layer, shares[i].part}] += flops_of(std::get<Compute>(program.instructions[i]));
  return work;
}

std::vector<bool> only(const Graph& graph, const std::vector<int>& layers) {
  std::vector<bool> keep(graph.layers.size());
  for (const int layer : layers) keep[static_cast<size_t>(layer)] = true;
  return keep;
}

}  // namespace

TEST_CASE("extracted layers run alone", "[planner][measure]") {
  const Graph whole = model(5);
  const Graph part = extract_layers(whole, only(whole, {2}));
  CHECK(verify(part).empty());
  for (const het::Node& node : part.nodes) CHECK((node.phase == Phase::update || node.layer == 2));
  std::vector<std::string> parameters;
  for (const het::Node& node : part.nodes)
    for (const ValueId id : node.inputs)
      if (node.op->name == "linear" && id != kAbsent && part.values[id].role == Role::parameter)
        parameters.push_back(part.values[id].name);
  CHECK(parameters == std::vector<std::string>{"blocks.1.up", "blocks.1.down"});
  // From the block before and from the one after; to the one after and to the one before.
  int given = 0, taken = 0;
  for (const Value& value : part.values) given += value.role == Role::input && value.name.starts_with(kCut);
  for (const Output& output : part.outputs) taken += output.name.starts_with(kCut);
  CHECK(given == 2);
  CHECK(taken == 2);
  CHECK(verify(lower_single(fuse(part))).empty());
  // All of a graph is the graph.
  const Graph all = extract_layers(whole, std::vector<bool>(whole.layers.size(), true));
  CHECK(all.nodes.size() == prune(whole).nodes.size());
  CHECK(verify(all).empty());
}

TEST_CASE("instructions do the work that the model counts, layer by layer and part by part",
          "[planner][measure]") {
  const Graph whole = model(3);
  const Model counted = model_of_graph(whole, "toy", 1, kTokens);
  const auto check = [&](const Program& program, const std::vector<int>& layers) {
    auto work = work_of(program);
    for (const int layer : layers) {
      INFO("layer " << layer);
      const LayerKind& kind = counted.layer(layer);
      CHECK(work[{layer, Part::forward}] == kind.forward_flops);
      CHECK(work[{layer, Part::input}] == kind.input_flops);
      // The sum of the shared weights' two gradients is none: the second is added where the first lies.
      const double sum = layer == 0 ? 2.0 * kVocabulary * kWidth : 0;
      CHECK(work[{layer, Part::weight}] == kind.weight_flops - sum);
    }
  };
  check(lower_single(prune(whole)), {0, 1, 2, 3, 4});
  check(lower_single(extract_layers(whole, only(whole, {0, 1, 4}))), {0, 1, 4});
  check(lower_single(extract_layers(whole, only(whole, {2}))), {2});
}

TEST_CASE("a stage that recomputes runs again what its backward pass needs", "[planner][measure]") {
  const Graph whole = model(2);
  // As lowering does it: forward instructions that are there twice.
  Plan plan;
  plan.pipelines = {{1, {{{"here:0"}, 0, 4, true}}}};
  std::map<int, int> again, counted;
  std::map<std::pair<std::string, int>, int> seen;
  for (const Instruction& instruction : lower(prune(whole), plan).instructions)
    if (const auto& compute = std::get<Compute>(instruction); compute.phase == Phase::forward)
      again[compute.layer] += 1;
  const Program once = lower_single(prune(whole));
  const std::vector<Share> shares = shares_of(once);
  std::map<int, double> flops;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& compute = std::get<Compute>(once.instructions[i]);
    if (compute.phase == Phase::forward) counted[compute.layer] += 1 + (shares[i].again ? 1 : 0);
    if (shares[i].again) flops[compute.layer] += flops_of(compute);
  }
  CHECK(counted == again);
  const Model found = model_of_graph(whole, "toy", 1, kTokens);
  for (int layer = 0; layer < 4; ++layer) {
    INFO("layer " << layer);
    CHECK(found.layer(layer).recompute_flops == flops[layer]);
  }
  CHECK(found.layer(1).recompute_flops < found.layer(1).forward_flops);
}

TEST_CASE("bytes of a layer are those of its buffers", "[planner][measure]") {
  const bool adamw = GENERATE(false, true);  // its moments are two, and all parameters are updated at once
  const Graph whole = model(3, 1, adamw);
  const Model counted = model_of_graph(whole, "toy", 1, kTokens);
  const std::vector<LayerMemory> memory = memory_by_layer(lower_single(prune(whole)));
  REQUIRE(memory.size() == 5);
  for (int layer = 0; layer < 5; ++layer) {
    INFO("layer " << layer);
    const LayerKind& kind = counted.layer(layer);
    const LayerMemory& of = memory[static_cast<size_t>(layer)];
    CHECK(of.weights == 4 * kind.parameters);
    CHECK(of.gradients == 4 * kind.parameters);
    CHECK(of.optimizer == (adamw ? 8 : 4) * kind.parameters);
    CHECK(of.activations == kind.activation_bytes);
  }
}

TEST_CASE("each kind of layer is measured once, whatever the number of its layers", "[planner][measure]") {
  const auto device = GENERATE(make_cpu_device(), cuda_emulated::make_device());
  MeasureOptions options;
  options.type = "mine";
  options.least_runs = options.most_runs = 3;
  options.microbatch = 2;
  const bool adamw = GENERATE(false, true);
  const Model counted = model_of_graph(model(6), "toy", 1, kTokens);
  const Measured measured = measure_layers(model(6, 2, adamw), counted, device, {}, options);
  CHECK(measured.runs == 3);
  REQUIRE(measured.points.size() == counted.kinds.size());
  double sum = 0;
  for (size_t i = 0; i < measured.points.size(); ++i) {
    const ProfilePoint& point = measured.points[i];
    INFO(point.kind);
    CHECK(point.kind == counted.kinds[i].name);
    CHECK(point.type == "mine");
    CHECK(point.microbatch == 2);
    CHECK(point.collectives);
    CHECK(point.forward > 0);
    CHECK(point.update > 0);
    CHECK((point.input > 0) == (counted.kinds[i].input_flops > 0));
    CHECK(point.recompute <= point.forward);
    CHECK(point.activation_bytes == 2 * counted.kinds[i].activation_bytes);
    sum += point.forward + point.input + point.weight + point.update;
  }
  // Every instruction is in one of them; but for the update of the table, all that the embedding has, which
  // is the head's, too.
  CHECK(sum - measured.points[0].update == Approx(measured.seconds));
}

TEST_CASE("kinds of layers that are asked for are measured alone", "[planner][measure][calibrated]") {
  const Model counted = model_of_graph(model(6), "toy", 1, kTokens);
  MeasureOptions options;
  options.least_runs = options.most_runs = 2;
  options.kinds = {counted.kinds[1].name};
  const Measured measured = measure_layers(model(6), counted, make_cpu_device(), {}, options);
  REQUIRE(measured.points.size() == 1);
  CHECK(measured.points[0].kind == counted.kinds[1].name);
  CHECK(measured.points[0].forward > 0);
  CHECK(measured.points[0].update > 0);
  options.kinds = {"cellar"};
  CHECK_THROWS_WITH(measure_layers(model(6), counted, make_cpu_device(), {}, options),
                    Catch::Contains("no layer kind \"cellar\""));
}

TEST_CASE("threads that take turns on the cores are counted as far as they are more", "[planner][measure]") {
  CHECK(turns(2.0, 1.0, 4) == 2);
  CHECK(turns(9.0, 1.0, 2) == 2);    // other work on the machine
  CHECK(turns(1.5, 1.0, 1) == 1);    // each thread has a core
  CHECK(turns(1.5, 1.0, 0.5) == 1);  // more cores than threads
  CHECK(turns(0.9, 1.0, 4) == 1);
  CHECK(turns(0, 0, 4) == 1);
}

TEST_CASE("each pass of a measured layer begins with the caches as other layers leave them",
          "[planner][measure]") {
  const Graph whole = model(6);
  const auto memory =
      memory_by_layer(lower_single(fuse(extract_layers(whole, only(whole, {0, 1, 2, 3, 4, 5, 6, 7})))));
  const Program program = lower_single(fuse(extract_layers(whole, only(whole, {0, 1, 7}))));
  const std::vector<Share> shares = shares_of(program);
  Eviction eviction(shares, memory);
  double others = 0;  // the five blocks that are left out
  for (size_t layer = 2; layer < 7; ++layer)
    others += 2 * memory[layer].weights + memory[layer].gradients + 2 * memory[layer].activations;
  CHECK(eviction.bytes() == static_cast<size_t>(others / 2) / 64 * 64);
  CHECK(eviction.bytes() > 0);
  // Three layers forward and back, and the update.
  int passes = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    passes += eviction.begins_pass(i);
    if (shares[i].part == Part::apart) CHECK_FALSE(eviction.begins_pass(i));
    eviction(i);
  }
  CHECK(passes == 7);
  const std::vector<LayerMemory> huge(8, LayerMemory{1e9, 1e9, 1e9, 1e9});
  CHECK(Eviction(shares, huge).bytes() == Eviction::kMostBytes);
}

TEST_CASE("of a tensor-parallel group one rank's part is measured", "[planner][measure]") {
  const Model counted = model_of_graph(model(2), "toy", 1, kTokens);
  MeasureOptions options;
  options.least_runs = options.most_runs = 2;
  options.tensor = 2;
  const Measured measured = measure_layers(model(2), counted, make_cpu_device(), {}, options);
  const ProfilePoint& block = measured.points[1];
  CHECK_FALSE(block.collectives);
  CHECK(block.tensor == 2);
  CHECK(block.weight_bytes == 2 * counted.kinds[1].parameters);
  CHECK(block.activation_bytes < counted.kinds[1].activation_bytes);
  CHECK(block.forward > 0);
}
