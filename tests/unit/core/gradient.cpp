#include "core/graph/gradient.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::testing;

TEST_CASE("a parameter used twice gets the sum of both gradients") {
  // loss = sum(w * w * x): dw = 2 w x
  Graph graph;
  GraphBuilder builder(graph);
  const TensorType type{DType::f64, {3}};
  const ValueId x = builder.input("x", type);
  const ValueId w = builder.parameter("w", type, {Initial::Kind::ones});
  const ValueId product = builder.call("mul", {builder.call("mul", {w, x}), w});
  const ValueId loss = builder.call("sum", {product}, {{"dims", std::vector<int64_t>{0}}});
  const auto gradients = differentiate(graph, loss);
  builder.output("loss", loss);
  builder.output("dw", gradients.at(w));
  REQUIRE(verify(graph).empty());
  Executor executor(lower_single(graph), reference_state());
  executor.write("x", Tensor::of<double>({1, -2, 3}, {3}));
  executor.run();
  CHECK(values_of(executor.read("loss")) == std::vector<double>{2});
  CHECK(values_of(executor.read("dw")) == std::vector<double>{2, -4, 6});
}

TEST_CASE("a parameter that the loss does not depend on has no gradient") {
  Graph graph;
  GraphBuilder builder(graph);
  const TensorType type{DType::f64, {3}};
  const ValueId w = builder.parameter("w", type, {});
  const ValueId unused = builder.parameter("unused", type, {});
  const ValueId loss = builder.call("sum", {w}, {{"dims", std::vector<int64_t>{0}}});
  const auto gradients = differentiate(graph, loss);
  CHECK(gradients.at(w) != kAbsent);
  CHECK(gradients.at(unused) == kAbsent);
}

TEST_CASE("backward nodes carry the layer and scope of the forward node") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", {DType::f32, {2, 4}});
  const int32_t layer = builder.begin_layer("block");
  builder.push_scope("block.0");
  const ValueId w = builder.parameter("w", {DType::f32, {4, 4}}, {});
  const ValueId y = builder.call("linear", {x, w});
  builder.pop_scope();
  builder.set_layer(-1);
  const ValueId loss = builder.call("sum", {y}, {{"dims", std::vector<int64_t>{0, 1}}});
  differentiate(graph, loss);
  bool found = false;
  for (const Node& node : graph.nodes)
    if (node.op->name == "linear_weight_gradient") {
      found = true;
      CHECK(node.layer == layer);
      CHECK(graph.scopes[node.scope] == "block.0");
      CHECK(node.phase == Phase::backward);
    }
  CHECK(found);
}

TEST_CASE("a loss that is not a scalar, and an operator without a gradient, are refused by name") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId w = builder.parameter("w", {DType::f32, {4}}, {});
  CHECK_THROWS_WITH(differentiate(graph, w), Catch::Contains("scalar"));
}
