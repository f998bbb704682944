#include "core/graph/graph.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"

using namespace het;

namespace {
const TensorType kMatrix{DType::f32, {4, 8}};
}

TEST_CASE("a parameter declared twice is one value; with another type it is refused") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId a = builder.parameter("w", kMatrix, {});
  CHECK(builder.parameter("w", kMatrix, {}) == a);
  CHECK_THROWS_AS(builder.parameter("w", {DType::f32, {8, 4}}, {}), Error);
  CHECK_THROWS_AS(builder.input("w", kMatrix), Error);
  CHECK_THROWS_WITH(builder.buffer("w", kMatrix),
                    "'w' is already parameter f32[4, 8] of the graph; it cannot also be buffer f32[4, 8]");
}

TEST_CASE("shapes that do not match are refused with both shapes and the layer") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", kMatrix);
  const ValueId w = builder.parameter("w", {DType::f32, {3, 7}}, {});
  builder.push_scope("blocks.3");
  builder.push_scope("mlp");
  try {
    builder.call("linear", {x, w});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(text.find("[4, 8]") != std::string::npos);
    CHECK(text.find("[3, 7]") != std::string::npos);
    CHECK(text.find("blocks.3.mlp") != std::string::npos);
  }
}

TEST_CASE("an unknown operator names the nearest one") {
  try {
    op_named("liner");
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("linear") != std::string::npos);
  }
}

TEST_CASE("verify finds a node that stands before its producer and a type that its rule does not give") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", kMatrix);
  const ValueId y = builder.call("relu", {x});
  builder.output("y", builder.call("square", {y}));
  CHECK(verify(graph).empty());
  Graph swapped = graph;
  std::swap(swapped.nodes[0], swapped.nodes[1]);
  CHECK_FALSE(verify(swapped).empty());
  Graph mistyped = graph;
  mistyped.values[y].type.shape = {8, 4};
  CHECK_FALSE(verify(mistyped).empty());
}

TEST_CASE("fusing joins a chain into one node and leaves a value that is used twice alone") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", kMatrix);
  const ValueId a = builder.call("square", {builder.call("scale", {x}, {{"factor", 2.0}})});
  const ValueId shared = builder.call("exp", {a});
  builder.output("p", builder.call("add", {builder.call("relu", {shared}), shared}));
  builder.output("shared", shared);
  const Graph fused = fuse(graph);
  CHECK(verify(fused).empty());
  CHECK(graph.nodes.size() == 5);
  CHECK(fused.nodes.size() == 2);  // scale-square-exp, and relu-add
}

TEST_CASE("pruning drops what reaches no output and no state") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", kMatrix);
  builder.call("exp", {builder.call("relu", {x})});
  builder.output("y", builder.call("square", {x}));
  const Graph pruned = prune(graph);
  CHECK(verify(pruned).empty());
  CHECK(pruned.nodes.size() == 1);
}
