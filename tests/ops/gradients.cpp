// What differentiation makes of whole small models: which nodes, in which precision.
#include <catch2/catch.hpp>

#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
#include "core/ops/op.h"

namespace het::ops_test {
namespace {

int count(const Graph& graph, std::string_view op) {
  int found = 0;
  for (const Node& node : graph.nodes) found += node.op->name == op ? 1 : 0;
  return found;
}

const Attributes kToBf16{{"dtype", std::string("bf16")}};

// A tied model in bf16 with f32 master weights: embedding, linear with bias, norm, classifier and loss.
// `copy` makes the weights that it computes with.
struct Model {
  Graph graph;
  ValueId table, weight, bias, gain, loss;
  std::map<ValueId, ValueId> gradients;

  explicit Model(bool seed, const char* copy = "cast") {
    GraphBuilder builder(graph);
    const ValueId ids = builder.input("ids", {DType::i32, {6}}),
                  labels = builder.input("labels", {DType::i32, {6}});
    const ValueId scale = builder.input("scale", {DType::f32, {1}});
    table = builder.parameter("table", {DType::f32, {11, 4}}, {});
    weight = builder.parameter("weight", {DType::f32, {4, 4}}, {});
    bias = builder.parameter("bias", {DType::f32, {4}}, {});
    gain = builder.parameter("gain", {DType::f32, {4}}, {});
    const auto small = [&](ValueId id) {
      if (copy == std::string("cast")) return builder.call("cast", {id}, kToBf16);
      const auto step = graph.find("step");
      return builder.call(copy, {id, step ? *step : builder.input("step", {DType::i64, {}}, true)},
                          {{"seed", int64_t{1}}, {"stream", int64_t{id}}});
    };
    const ValueId small_table = small(table), small_weight = small(weight);
    const ValueId x = builder.call("embedding", {ids, small_table});
    const ValueId y = builder.call("linear", {x, small_weight, bias});
    const ValueId z = builder.call("rms_norm", {builder.call("gelu", {y}), gain});
    loss = builder.call("linear_cross_entropy", {z, small_table, kAbsent, labels, scale});
    if (!seed) loss = builder.call("scale", {loss}, {{"factor", 3.0}});
    builder.output("loss", loss);
    gradients = differentiate(graph, loss);
    for (const ValueId id : {table, weight, bias, gain})
      builder.output("d " + graph.values[id].name, gradients.at(id));
    graph = prune(graph);
  }
};

}  // namespace

TEST_CASE("gradients of weights reach the master weights in f32 without a cast") {
  for (const char* copy : {"cast", "stochastic_cast"}) {
    const Model model(true, copy);
    REQUIRE(verify(model.graph).empty());
    for (const ValueId id : {model.table, model.weight, model.bias, model.gain})
      CHECK(model.graph.type(model.gradients.at(id)) == model.graph.type(id));
    // The two casts are those of the forward pass.
    CHECK(count(model.graph, copy) == 2);
    CHECK(count(model.graph, "cast") + count(model.graph, "stochastic_cast") == 2);
  }
}

TEST_CASE("a weight used twice gets its gradients by addition into one buffer") {
  const Model model(true);
  REQUIRE(count(model.graph, "add_n") == 1);
  for (const Node& node : model.graph.nodes)
    if (node.op->name == "add_n")
      for (const ValueId id : node.inputs) {
        const Value& value = model.graph.values[id];
        CHECK(((model.graph.nodes[value.producer].op->accumulates >> value.output) & 1) == 1);
      }
}

TEST_CASE("gradients of weights that leading dimensions have apart are summed in f32") {
  for (const bool transposed : {false, true}) {
    Graph graph;
    GraphBuilder builder(graph);
    const ValueId x = builder.input("x", {DType::bf16, {3, 5, 4}});
    const ValueId weight =
        builder.parameter("weight", {DType::f32, transposed ? Shape{3, 6, 4} : Shape{3, 4, 6}}, {});
    const ValueId y =
        builder.call("matmul", {x, builder.call("cast", {weight}, kToBf16)}, {{"transpose_b", transposed}});
    const ValueId loss = builder.call("sum", {y}, {{"dtype", std::string("f32")}});
    const ValueId gradient = differentiate(graph, loss).at(weight);
    CHECK(graph.type(gradient) == graph.type(weight));
    CHECK(graph.nodes[graph.values[gradient].producer].op->name == "matmul_weight_gradient");
  }
}

TEST_CASE("the classifier's loss and gradients come from one node") {
  const Model model(true);
  CHECK(count(model.graph, "linear_cross_entropy") == 0);
  CHECK(count(model.graph, "linear_cross_entropy_training") == 1);
  CHECK(count(model.graph, "fused") == 0);  // nothing is multiplied by a gradient of 1
  const Value& loss = model.graph.values[model.graph.outputs[0].value];
  CHECK(model.graph.nodes[loss.producer].op->name == "linear_cross_entropy_training");
}

TEST_CASE("a loss that goes on after the classifier multiplies its gradients") {
  const Model model(false);
  REQUIRE(verify(model.graph).empty());
  CHECK(count(model.graph, "linear_cross_entropy") == 0);
  CHECK(count(model.graph, "linear_cross_entropy_training") == 1);
  CHECK(count(model.graph, "fused") == 2);  // dhidden and dweight
}

TEST_CASE("gradients of a classifier that nothing reads are not computed") {
  for (const bool by_row : {false, true}) {
    Graph graph;
    GraphBuilder builder(graph);
    const ValueId hidden = builder.parameter("hidden", {DType::f32, {6, 4}}, {});
    const ValueId weight = builder.parameter("weight", {DType::f32, {9, 4}}, {});
    const ValueId labels = builder.input("labels", {DType::i32, {6}});
    const ValueId scale = builder.input("scale", {DType::f32, {1}});
    const ValueId loss =
        by_row
            ? builder.call("sum", {builder.call("linear_log_probability", {hidden, weight, kAbsent, labels})})
            : builder.call("linear_cross_entropy", {hidden, weight, kAbsent, labels, scale});
    builder.output("d hidden", differentiate(graph, loss, {hidden}).at(hidden));
    const Node whole = graph.nodes[graph.values[graph.outputs[0].value].producer];
    const Graph pruned = prune(graph);
    CHECK(verify(pruned).empty());
    const Node& node = pruned.nodes[pruned.values[pruned.outputs[0].value].producer];
    const size_t dweight = node.outputs.size() - 2;
    CHECK(whole.outputs[dweight] != kAbsent);
    CHECK(node.outputs[dweight] == kAbsent);
    CHECK(cost_of(pruned, node).flops * 3 == cost_of(graph, whole).flops * 2);
  }
}

TEST_CASE("a loss is joined with the linear that it alone reads") {
  // What else reads the logits, or how they are made: nothing; an output; another node; gelu; another layer;
  // the loss or the linear with a gradient of its own; too few of them.
  enum Case { plain, output, read_twice, gelu, layer, own_loss, own_linear, few };
  for (const Case which : {plain, output, read_twice, gelu, layer, own_loss, own_linear, few}) {
    INFO("case " << which);
    Graph graph;
    GraphBuilder builder(graph);
    builder.begin_layer("head");
    const ValueId hidden = builder.parameter("hidden", {DType::f32, {2, 3, 4}}, {});
    const int64_t classes = (int64_t{1} << 28) / 12 + (which == few ? 0 : 1);  // 3 rows of f32
    const ValueId weight = builder.parameter("weight", {DType::f32, {classes, 4}}, {});
    const ValueId labels = builder.input("labels", {DType::i32, {2, 3}});
    const ValueId logits = builder.call("linear", {hidden, weight},
                                        {{"activation", std::string(which == gelu ? "gelu" : "none")}});
    if (which == layer) builder.begin_layer("loss");
    const ValueId result = builder.call("log_probability", {logits, labels}, {{"ignore", int64_t{-1}}});
    builder.output("loss", builder.call("sum", {result}));
    if (which == output) builder.output("logits", logits);
    if (which == read_twice) builder.output("exp", builder.call("exp", {logits}));
    std::vector<std::pair<NodeId, NodeId>> apart;
    if (which == own_loss) apart = {{1, 2}};
    if (which == own_linear) apart = {{0, 1}};
    join_classifiers(graph, apart);
    CHECK(verify(graph).empty());
    const Graph pruned = prune(graph);
    CHECK(count(pruned, "linear_log_probability") == (which == plain ? 1 : 0));
    CHECK(count(pruned, "linear") == (which == plain ? 0 : 1));
    const Node& node = pruned.nodes[pruned.values[result].producer];
    CHECK(node.attributes.get<int64_t>("ignore") == -1);
  }
}

TEST_CASE("what has no gradient is refused by name, with its layer") {
  Graph graph;
  GraphBuilder builder(graph);
  builder.push_scope("block.3");
  const ValueId x = builder.parameter("x", {DType::f32, {2, 4}}, {});
  const auto norm = builder.call_all(op_named("layer_norm"), {x});
  // Through the statistics of a norm nothing flows back.
  const ValueId through_mean = builder.call("sum", {norm[1]});
  CHECK_THROWS_WITH(differentiate(graph, through_mean),
                    Catch::Contains("layer_norm") && Catch::Contains("result 2"));
  const ValueId positive = builder.call("relu_gradient", {x, x});
  const ValueId loss = builder.call("sum", {positive});
  CHECK_THROWS_WITH(differentiate(graph, loss),
                    Catch::Contains("relu_gradient") && Catch::Contains("block.3"));
  const ValueId scale =
      builder.call("slice", {builder.call("reshape", {x}, {{"shape", std::vector<int64_t>{8}}})},
                   {{"dim", int64_t{0}}, {"start", int64_t{0}}, {"length", int64_t{1}}});
  const ValueId labels = builder.input("labels", {DType::i32, {2}});
  const ValueId scaled = builder.call("cross_entropy", {x, labels, scale});
  CHECK_THROWS_WITH(differentiate(graph, scaled),
                    Catch::Contains("cross_entropy") && Catch::Contains("scale"));
}

}  // namespace het::ops_test
