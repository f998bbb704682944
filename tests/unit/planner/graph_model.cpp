// What a planner counts in a training graph.
#include "planner/model/graph_model.h"

#include <catch2/catch.hpp>

#include "core/graph/gradient.h"
#include "core/ops/op.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::planner;

namespace {

constexpr int64_t kTokens = 6, kWidth = 8, kHidden = 16, kBlocks = 3;

// Blocks of two projections with a residual, and a loss; trained by SGD with momentum. `frozen`: the second
// projections are not trained, and kept in `dtype` alone. `tied`: the head is the first projection once more.
Graph model(DType dtype, bool frozen = false, bool tied = false) {
  Graph graph;
  GraphBuilder b(graph);
  std::vector<ValueId> trained;
  const auto weight = [&](const std::string& name, Shape shape, bool is_frozen) {
    if (is_frozen) return b.parameter(name, {dtype, std::move(shape)}, {});
    const ValueId master = b.parameter(name, {DType::f32, std::move(shape)}, {});
    trained.push_back(master);
    return dtype == DType::f32 ? master : b.call("cast", {master}, {{"dtype", std::string(name_of(dtype))}});
  };
  ValueId first = kAbsent, x = b.input("inputs", {dtype, {1, kTokens, kWidth}});
  for (int i = 0; i < kBlocks; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    b.begin_layer(name);
    const ValueId table = weight(name + ".up", {kHidden, kWidth}, false);
    if (i == 0) first = table;
    const ValueId up = b.call("linear", {x, table, kAbsent});
    const ValueId down =
        b.call("linear", {b.call("gelu", {up}), weight(name + ".down", {kWidth, kHidden}, frozen), kAbsent});
    x = b.call("add", {x, down});
  }
  b.begin_layer("head");
  if (tied) x = b.call("linear", {x, first, kAbsent});
  const ValueId loss = b.call("sum", {b.call("square", {x})}, {{"dtype", std::string("f32")}});
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss, trained);
  b.set_phase(Phase::update);
  b.set_layer(-1);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true);
  const ValueId one =
      b.call("fill", {}, {{"value", 1.0}, {"shape", std::vector<int64_t>{}}, {"dtype", std::string("f32")}});
  for (const auto& [parameter, gradient] : gradients)
    b.call_all(
        op_named("sgd"),
        {parameter, b.buffer(graph.values[parameter].name + ".m", graph.type(parameter)), gradient, lr, one},
        {{"momentum", 0.9}});
  return graph;
}

}  // namespace

TEST_CASE("layers that are alike are one kind", "[planner]") {
  const Model found = model_of_graph(model(DType::f32), "toy", 1, kTokens);
  CHECK(found.name == "toy");
  CHECK(found.tokens == kTokens);
  // The first block needs no gradient of its input: it is a separate kind.
  REQUIRE(found.kinds.size() == 3);
  CHECK(found.kinds[0].name == "blocks");
  CHECK(found.kinds[1].name == "blocks-2");
  CHECK(found.kinds[2].name == "head");
  CHECK(found.layers == std::vector<int>{0, 1, 1, 2});
}

TEST_CASE("work and sizes of a layer are those of its nodes", "[planner]") {
  const Model found = model_of_graph(model(DType::f32), "toy", 1, kTokens);
  const LayerKind& block = found.kinds[1];
  const double projection = 2.0 * kTokens * kWidth * kHidden;
  CHECK(block.parameters == 2.0 * kWidth * kHidden);
  CHECK(block.forward_flops == Approx(2 * projection).epsilon(0.3));  // and a few for each element
  CHECK(block.forward_flops > 2 * projection);
  CHECK(block.weight_flops == 2 * projection);
  CHECK(block.input_flops >= 2 * projection);
  // up's result for the gelu's gradient, the gelu's for down's weights, and the block's input for up's.
  CHECK(block.activation_bytes == 4.0 * kTokens * (2 * kHidden + kWidth));
  CHECK(block.boundary_bytes == 4.0 * kTokens * kWidth);
  CHECK(block.checkpoint_bytes == 4.0 * kTokens * kWidth);
  CHECK(found.kinds[2].boundary_bytes == 0);
  // Up by columns, down by rows: one sum of the block's output.
  CHECK(block.tensor_reductions == 1);
  // No gradient asks for the block's output, so recomputing it runs neither its last product nor that sum.
  CHECK(block.recompute_flops < block.forward_flops - projection);
  CHECK(block.recompute_flops > projection);
  CHECK(block.recompute_reductions == 0);
  CHECK(found.weight_bytes == 4);
  CHECK(found.optimizer_bytes == 4);
  CHECK(found.update_flops == 6);  // SGD with momentum
}

TEST_CASE("weights in a lower precision are kept beside the masters", "[planner]") {
  const Model found = model_of_graph(model(DType::bf16), "toy", 1, kTokens);
  CHECK(found.precision == Precision::bf16);
  CHECK(found.weight_bytes == 6);
  CHECK(found.kinds[1].boundary_bytes == 2.0 * kTokens * kWidth);
}

TEST_CASE("a model whose only product is a classifier joined with its loss has the precision of it",
          "[planner]") {
  Graph graph;
  GraphBuilder b(graph);
  b.begin_layer("head");
  const ValueId table = b.parameter("table", {DType::f32, {kHidden, kWidth}}, {});
  const ValueId cast = b.call("cast", {table}, {{"dtype", std::string("bf16")}});
  const ValueId hidden = b.input("hidden", {DType::bf16, {1, kTokens, kWidth}});
  const ValueId labels = b.input("labels", {DType::i32, {1, kTokens}});
  const ValueId scale = b.input("scale", {DType::f32, {1}}, true);
  const ValueId loss = b.call("linear_cross_entropy", {hidden, cast, kAbsent, labels, scale});
  b.output("loss", loss);
  CHECK(model_of_graph(graph, "toy", 1, kTokens).precision == Precision::bf16);
  differentiate(graph, loss, {table});
  CHECK(model_of_graph(graph, "toy", 1, kTokens).precision == Precision::bf16);
}

TEST_CASE("parameters that are not trained have no gradient, no optimizer state and no master", "[planner]") {
  const Model whole = model_of_graph(model(DType::bf16), "toy", 1, kTokens);
  const Model half = model_of_graph(model(DType::bf16, true), "toy", 1, kTokens);
  const LayerKind &block = half.kinds[1], &before = whole.kinds[1];
  CHECK(whole.trained_share == 1);
  CHECK(half.trained_share == 0.5);
  CHECK(block.parameters == before.parameters);
  CHECK(half.weight_bytes == (6 + 2) / 2.0);
  CHECK(half.made_bytes == 1);
  CHECK(half.gradient_bytes == 2);
  CHECK(half.optimizer_bytes == whole.optimizer_bytes / 2);
  CHECK(block.forward_flops == before.forward_flops);
  CHECK(block.input_flops == before.input_flops);
  CHECK(block.weight_flops == before.weight_flops / 2);
  // gelu's result is for the gradient of the second weight alone.
  CHECK(block.activation_bytes == before.activation_bytes - 2.0 * kTokens * kHidden);
}

TEST_CASE("a parameter that several layers use is counted in each, and named", "[planner]") {
  CHECK(model_of_graph(model(DType::f32), "toy", 1, kTokens).shared.empty());
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Model found = model_of_graph(model(dtype, false, true), "toy", 1, kTokens);
  REQUIRE(found.shared.size() == 1);
  CHECK(found.shared[0].layers == std::vector<int>{0, kBlocks});
  CHECK(found.shared[0].parameters == kHidden * kWidth);
  CHECK(found.shared[0].trained);
  CHECK(found.layer(kBlocks).parameters == kHidden * kWidth);
  CHECK(total_parameters(found) == kBlocks * 2 * kHidden * kWidth);
  CHECK(validate(found).empty());
}

TEST_CASE("degrees are those that share the features out evenly", "[planner]") {
  CHECK(tensor_degrees_of(model(DType::f32), 8) == std::vector<int>{1, 2, 4, 8});
  CHECK(tensor_degrees_of(model(DType::f32), 1) == std::vector<int>{1});
}
