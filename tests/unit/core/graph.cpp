#include "core/graph/graph.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
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

TEST_CASE("what a builder cannot do is the caller's mistake") {
  Graph graph;
  GraphBuilder builder(graph);
  const auto kind = [](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::bug;
  };
  CHECK(kind([&] { builder.pop_scope(); }) == ErrorKind::usage);
  CHECK(kind([&] { builder.input("x", {DType::f32, {-1}}); }) == ErrorKind::usage);
  CHECK(kind([&] {
          builder.parameter("w", {DType::f32, {0, int64_t{1} << 62, int64_t{1} << 62}}, {});
        }) == ErrorKind::usage);
  const ValueId x = builder.input("x", kMatrix);
  const std::vector<int64_t> many(3, int64_t{1} << 53);
  CHECK(kind([&] { builder.call("add_n", {x, kAbsent}); }) == ErrorKind::usage);
  CHECK(kind([&] { builder.call("reshape", {x}, {{"shape", many}}); }) == ErrorKind::usage);
  CHECK(kind([&] { builder.call("fill", {}, {{"value", 0.0}, {"shape", many}}); }) == ErrorKind::usage);
  CHECK(kind([&] {
          builder.call("fill", {}, {{"value", 0.0}, {"shape", std::vector<int64_t>(33, 1)}});
        }) == ErrorKind::usage);
  CHECK(kind([&] {
          builder.call("split", {x},
                       {{"dim", int64_t{0}}, {"sizes", std::vector<int64_t>(5000, int64_t{1} << 53)}});
        }) == ErrorKind::usage);
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

namespace {

// Names of the operators in order, with the number of operands that are there: "add/2 layer_norm/1".
std::string outline(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes)
    text += fmt::format("{}{}/{}", text.empty() ? "" : " ", node.op->name,
                        node.inputs.size() - std::count(node.inputs.begin(), node.inputs.end(), kAbsent));
  return text;
}

}  // namespace

TEST_CASE("fusing leaves the addition before a norm to it, and its sum to whoever else reads it") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", kMatrix), y = b.input("y", kMatrix);
  const ValueId weight = b.parameter("weight", {DType::f32, {8}}, {});
  const bool rms = GENERATE(false, true);
  const auto norm = [&](ValueId of) { return b.call(rms ? "rms_norm" : "layer_norm", {of, weight}); };
  SECTION("a residual") {
    const ValueId sum = b.call("add", {x, y});
    b.output("z", b.call("add", {sum, norm(sum)}));
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == (rms ? "rms_norm/3 add/2" : "layer_norm/3 add/2"));
    CHECK(fused.nodes[0].outputs.back() == sum);
    CHECK(fused.values[sum].producer == 0);
    CHECK(fused.values[sum].output == (rms ? 2 : 3));
    CHECK(fused.nodes[1].inputs[0] == sum);
  }
  SECTION("only the first of two norms makes the sum") {
    const ValueId sum = b.call("add", {x, y});
    b.output("first", norm(sum));
    b.output("second", norm(sum));
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == (rms ? "rms_norm/3 rms_norm/2" : "layer_norm/3 layer_norm/2"));
  }
  SECTION("a sum that is an output, of one value twice") {
    const ValueId sum = b.call("add", {x, x});
    b.output("sum", sum);
    b.output("z", norm(sum));
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == (rms ? "rms_norm/3" : "layer_norm/3"));
  }
  const auto stays = [&] {
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == outline(graph));
  };
  SECTION("not in another layer") {
    const ValueId sum = b.call("add", {x, y});
    b.begin_layer("next");
    b.output("z", norm(sum));
    stays();
  }
  SECTION(
      "not where another layer reads the norm's result, which a layer that recomputes keeps, but not the "
      "sum") {
    const ValueId z = norm(b.call("add", {x, y}));
    b.begin_layer("next");
    b.output("z", b.call("softmax", {z}));
    stays();
  }
  SECTION("not in another phase") {
    const ValueId sum = b.call("add", {x, y});
    b.set_phase(Phase::backward);
    b.output("z", norm(sum));
    stays();
  }
  SECTION("not what is repeated") {
    b.output("z", norm(b.call("add", {x, b.input("row", {DType::f32, {1, 8}})})));
    stays();
  }
  SECTION("not a sum that is read before") {
    const ValueId sum = b.call("add", {x, y});
    b.output("s", b.call("softmax", {sum}));
    b.output("z", norm(sum));
    stays();
  }
  SECTION("not a sum of state, which is made once a step") {
    const ValueId p = b.parameter("p", kMatrix, {}), q = b.parameter("q", kMatrix, {});
    b.output("z", b.call("softmax", {norm(b.call("add", {p, q}))}));
    stays();
  }
  SECTION("not what a chain took") {
    const ValueId sum = b.call("add", {b.call("scale", {x}, {{"factor", 2.0}}), y});
    b.output("z", norm(sum));
    CHECK(outline(fuse(graph)) == (rms ? "fused/2 rms_norm/2" : "fused/2 layer_norm/2"));
  }
}

TEST_CASE("fusing leaves the addition to a norm's gradient to it") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", kMatrix), dy = b.input("dy", kMatrix), skip = b.input("skip", kMatrix);
  const ValueId weight = b.parameter("weight", {DType::f32, {8}}, {});
  const ValueId rstd = b.input("rstd", {DType::f32, {4}});
  const auto gradient = [&] {
    const auto made = b.call_all(op_named("rms_norm_gradient"), {dy, x, weight, rstd});
    b.output("dweight", made[1]);
    return made[0];
  };
  const auto stays = [&] {
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == outline(graph));
  };
  SECTION("in either order of operands") {
    const ValueId dx = gradient();
    const ValueId sum = GENERATE(false, true) ? b.call("add", {skip, dx}) : b.call("add", {dx, skip});
    b.output("dx", sum);
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == "rms_norm_gradient/5");
    CHECK(fused.nodes[0].outputs[0] == sum);
    CHECK(fused.nodes[0].inputs[4] == skip);
  }
  SECTION("one addition, not two") {
    b.output("dx", b.call("softmax", {b.call("add", {b.call("add", {gradient(), skip}), dy})}));
    CHECK(outline(fuse(graph)) == "rms_norm_gradient/4 fused/3 softmax/1");  // the chain took both
  }
  SECTION("not a gradient that something else reads") {
    const ValueId dx = gradient();
    b.output("both", b.call("add", {dx, skip}));
    b.output("dx", dx);
    stays();
  }
  SECTION("not twice the gradient") {
    const ValueId dx = gradient();
    b.output("dx", b.call("add", {dx, dx}));
    stays();
  }
  SECTION("not what is made later") {
    const ValueId dx = gradient();
    b.output("dx", b.call("add", {dx, b.call("softmax", {skip})}));
    stays();
  }
  SECTION("not the gradient of the weight") {
    const auto made = b.call_all(op_named("rms_norm_gradient"), {dy, x, weight, rstd});
    b.output("dx", made[0]);
    b.output("sum", b.call("add", {made[1], b.input("other", {DType::f32, {8}})}));
    stays();
  }
  SECTION("not in another layer") {
    const ValueId dx = gradient();
    b.begin_layer("before");
    b.output("dx", b.call("add", {dx, skip}));
    stays();
  }
}

TEST_CASE("fusing leaves gelu to the product before it") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", kMatrix), bias = b.parameter("bias", {DType::f32, {16}}, {});
  const ValueId up = b.parameter("up", {DType::f32, {16, 8}}, {});
  const ValueId down = b.parameter("down", {DType::f32, {8, 16}}, {});
  const auto stays = [&] {
    const Graph fused = fuse(graph);
    CHECK(verify(fused).empty());
    CHECK(outline(fused) == outline(prune(graph)));
  };
  SECTION("between the two projections of a GPT's block, with what the backward pass needs of it") {
    const ValueId before = b.call("linear", {x, up, bias});
    const ValueId y = b.call("linear", {b.call("gelu", {before}), down});
    SECTION("in training") {
      const ValueId loss = b.call("sum", {b.call("softmax", {y})}, {{"dtype", "f32"}});
      const auto gradients = differentiate(graph, loss, {up, down, bias, x});
      for (const auto& [of, gradient] : gradients) b.output("d" + graph.values[of].name, gradient);
      const Graph fused = fuse(graph);
      CHECK(verify(fused).empty());
      CHECK(fused.nodes.size() + 2 == prune(graph).nodes.size());
      CHECK(fused.nodes[0].attributes.get<std::string>("activation") == "gelu");
      REQUIRE(fused.nodes[0].outputs.size() == 2);
      CHECK(fused.nodes[0].outputs[1] == before);
      CHECK(fused.values[before].output == 1);
      int gradients_with_gelu = 0;
      for (const Node& node : fused.nodes) {
        CHECK_FALSE(node.op->name.starts_with("gelu"));
        if (node.op->name != "linear_input_gradient" || !is_activated(node)) continue;
        ++gradients_with_gelu;
        CHECK(node.inputs[2] == before);
      }
      CHECK(gradients_with_gelu == 1);
    }
    SECTION("alone") {
      b.output("y", y);
      const Graph fused = fuse(graph);
      CHECK(verify(fused).empty());
      CHECK(outline(fused) == "linear/3 linear/2");
      CHECK(fused.nodes[0].outputs == std::vector<ValueId>{graph.nodes[1].outputs[0], kAbsent});
    }
  }
  SECTION("not where something else reads the product") {
    const ValueId before = b.call("linear", {x, up, bias});
    b.output("y", b.call("linear", {b.call("gelu", {before}), down}));
    SECTION("an output") { b.output("before", before); }
    SECTION("another operator") { b.output("s", b.call("softmax", {before})); }
    SECTION("another gelu") { b.output("s", b.call("softmax", {b.call("gelu", {before})})); }
    SECTION("gelu's gradient, as what is multiplied") {
      b.output("s", b.call("softmax", {b.call("gelu_gradient", {before, before})}));
    }
    stays();
  }
  SECTION("not exact gelu") {
    const ValueId h = b.call("gelu", {b.call("linear", {x, up})}, {{"approximate", "none"}});
    b.output("y", b.call("linear", {h, down}));
    stays();
  }
  SECTION("not in another layer") {
    const ValueId before = b.call("linear", {x, up});
    b.begin_layer("next");
    b.output("y", b.call("linear", {b.call("gelu", {before}), down}));
    stays();
  }
  SECTION("not where another layer reads it, which a layer that recomputes keeps, but not the product") {
    const ValueId y = b.call("gelu", {b.call("linear", {x, up})});
    b.begin_layer("next");
    b.output("y", b.call("linear", {y, down}));
    stays();
  }
  SECTION("not what a chain takes") {
    const ValueId y = b.call("gelu", {b.call("linear", {x, up})});
    b.output("y", b.call("mul", {y, b.call("linear", {x, up})}));
    CHECK(outline(fuse(graph)) == "linear/2 linear/2 fused/2");
  }
  SECTION("not of what is the same in all micro-batches") {
    b.output(
        "y",
        b.call("softmax",
               {b.call("gelu", {b.call("linear", {up, b.parameter("square", {DType::f32, {8, 8}}, {})})})}));
    stays();
  }
  SECTION("not of a gradient that something else reads") {
    const ValueId dh = b.call("linear_input_gradient", {x, down});
    b.output("dh", dh);
    b.output("y", b.call("softmax", {b.call("gelu_gradient", {b.input("h", {DType::f32, {4, 16}}), dh})}));
    stays();
  }
  SECTION("not of a gradient that is made before what it is at") {
    const ValueId dh = b.call("linear_input_gradient", {x, down});
    const ValueId h = b.call("softmax", {b.input("h", {DType::f32, {4, 16}})});
    b.output("y", b.call("softmax", {b.call("gelu_gradient", {h, dh})}));
    stays();
  }
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
