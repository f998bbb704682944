// Which weights are divided among tensor-parallel ranks, and what it takes to communicate.
#include <catch2/catch.hpp>
#include <set>

#include "core/base/error.h"
#include "core/comm/communicator.h"
#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "core/program/eager.h"
#include "core/tensor/slice.h"
#include "kernels/reference/device.h"
#include "planner/lower/stage_graphs.h"
#include "planner/megatron/sharding.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::testing;

namespace {

struct Sizes {
  int64_t samples = 2, tokens = 4, width = 8, heads = 4, kv_heads = 4, hidden = 12, vocabulary = 19;
};

// How a block projects to queries, keys and values.
enum class Projection { joined, separate };

// One block between an embedding and a classifier, differentiated.
Graph model(const Sizes& z, Projection projection = Projection::joined) {
  Graph graph;
  GraphBuilder b(graph);
  const auto weight = [&](const std::string& name, Shape shape) {
    return b.parameter(name, {DType::f32, std::move(shape)}, {Initial::Kind::normal, 0.2});
  };
  const auto linear = [&](const std::string& name, ValueId x, int64_t in, int64_t out) {
    return b.call("linear", {x, weight(name + ".weight", {out, in}), weight(name + ".bias", {out})});
  };
  const auto norm = [&](const std::string& name, ValueId x) {
    return b.call("layer_norm", {x, weight(name + ".weight", {z.width}), weight(name + ".bias", {z.width})});
  };
  const TensorType tokens{DType::i32, {z.samples, z.tokens}};
  const ValueId inputs = b.input("inputs", tokens), labels = b.input("labels", tokens);
  const ValueId scale = b.input("scale", {DType::f32, {1}}, true);
  b.begin_layer("embedding");
  const ValueId table = weight("embedding", {z.vocabulary, z.width});
  const ValueId x = b.call("embedding", {inputs, table});
  b.begin_layer("block");
  b.push_scope("block");
  const int64_t size = z.width / z.heads, kv = z.kv_heads * size;
  const ValueId h = norm("norm1", x);
  std::vector<ValueId> parts;
  if (projection == Projection::joined)
    parts = b.call_all(op_named("split"), {linear("qkv", h, z.width, z.width + 2 * kv)},
                       {{"dim", int64_t{-1}}, {"sizes", std::vector<int64_t>{z.width, kv, kv}}});
  else
    parts = {linear("q", h, z.width, z.width), linear("k", h, z.width, kv), linear("v", h, z.width, kv)};
  const auto heads = [&](ValueId part, int64_t count) {
    return b.call("reshape", {part}, {{"shape", std::vector<int64_t>{z.samples, z.tokens, count, size}}});
  };
  ValueId y = b.call("attention",
                     {heads(parts[0], z.heads), heads(parts[1], z.kv_heads), heads(parts[2], z.kv_heads)});
  y = b.call("reshape", {y}, {{"shape", std::vector<int64_t>{z.samples, z.tokens, z.width}}});
  const ValueId mid = b.call("add", {x, linear("out", y, z.width, z.width)});
  y = b.call("gelu", {linear("up", norm("norm2", mid), z.width, z.hidden)});
  const ValueId last = b.call("add", {mid, linear("down", y, z.hidden, z.width)});
  b.pop_scope();
  b.begin_layer("head");
  const ValueId loss = b.call("linear_cross_entropy", {norm("norm3", last), table, kAbsent, labels, scale});
  b.output("loss", loss);
  for (const auto& [parameter, gradient] : differentiate(graph, loss))
    b.output("d" + graph.values[parameter].name, gradient);
  return graph;
}

std::map<std::string, TensorSlice> slices_of(const Graph& graph) {
  std::map<std::string, TensorSlice> found;
  for (const Value& value : graph.values)
    if (value.slice) found.emplace(value.name, *value.slice);
  return found;
}

std::vector<std::string> divided(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [name, slice] : slices_of(graph)) names.push_back(name);
  return names;
}

int count(const Graph& graph, std::string_view op, Phase phase, int32_t layer) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op->name == op && node.phase == phase && node.layer == layer;
  }));
}

std::string problem_of(const Graph& graph, const Shares& shares) {
  try {
    tensor_parallel(graph, shares, 0);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("axes say what keeps them from being cut", "[placements]") {
  const Graph graph = model({});
  const PlacementTable table(graph);
  const auto axis_of = [&](std::string_view name, int64_t dim) {
    for (const LogicalAxis& axis : table.axes())
      for (const AxisPlace& place : axis.places)
        if (place.value == *graph.find(name) && place.dim == dim && place.segments.size() == 1) return axis;
    return LogicalAxis{};
  };
  CHECK(axis_of("down.bias", 0).obstacle ==
        "linear_cross_entropy never cuts c: a logit needs all features of its row");
  const LogicalAxis hidden = axis_of("up.weight", 0);
  CHECK(hidden.units == 12);
  CHECK(hidden.obstacle.empty());
  std::set<std::string> uneven;
  for (const AxisPlace& place : hidden.places) {
    const Value& value = graph.values[static_cast<size_t>(place.value)];
    const auto lies = table.find(place.value, place.dim, place.segments);
    if (is_state(value)) uneven.insert(value.name + to_string(table.slice(place.value, *lies, {3, 1}, 1)));
  }
  CHECK(uneven == std::set<std::string>{"down.weight[:, 9:12]", "up.bias[9:12]", "up.weight[9:12, :]"});
  CHECK(axis_of("inputs", 0).has_inputs);
}

TEST_CASE("weights are divided as a transformer's should be", "[partition]") {
  const Graph graph = model({});
  for (const int part : {0, 1}) {
    const Graph own = tensor_parallel(graph, {1, 1}, part);
    CHECK(verify(own).empty());
    CHECK(divided(own) == std::vector<std::string>{"down.weight", "embedding", "out.weight", "qkv.bias",
                                                   "qkv.weight", "up.bias", "up.weight"});
    const auto slices = slices_of(own);
    CHECK(to_string(slices.at("qkv.weight")) == (part == 0 ? "[0:4+8:12+16:20, :]" : "[4:8+12:16+20:24, :]"));
    CHECK(to_string(slices.at("out.weight")) == (part == 0 ? "[:, 0:4]" : "[:, 4:8]"));
    CHECK(to_string(slices.at("down.weight")) == (part == 0 ? "[:, 0:6]" : "[:, 6:12]"));
    // A vocabulary need not divide evenly.
    CHECK(own.type(*own.find("embedding")).shape == Shape{part == 0 ? 10 : 9, 8});
    CHECK(own.type(*own.find("down.bias")).shape == Shape{8});
  }
}

TEST_CASE("a projection that makes its activation is divided by columns, never into summands",
          "[partition]") {
  const Graph joined = join_activations(prune(model({})));
  REQUIRE(joined.nodes.size() + 2 == prune(model({})).nodes.size());
  const Graph own = tensor_parallel(joined, {1, 1}, 0);
  CHECK(verify(own).empty());
  CHECK(divided(own) == divided(tensor_parallel(model({}), {1, 1}, 0)));
  int activated = 0;
  for (const Node& node : own.nodes) {
    if (!is_activated(node)) continue;
    ++activated;
    CHECK(own.type(node.outputs[0]).shape.back() == 6);  // half of the features between the projections
  }
  CHECK(activated == 2);
}

TEST_CASE("separate projections are divided like one that makes all three", "[partition]") {
  const Graph own = tensor_parallel(model({}, Projection::separate), {1, 1}, 0);
  const auto slices = slices_of(own);
  for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
    REQUIRE(slices.count(name) == 1);
    CHECK(size_of(slices.at(name).ranges(0)) < slices.at(name).whole_shape()[0]);
  }
  CHECK(size_of(slices.at("out.weight").ranges(1)) < slices.at("out.weight").whole_shape()[1]);
}

TEST_CASE("a block takes two all-reduces forward and two backward", "[partition]") {
  for (const Projection projection : {Projection::joined, Projection::separate}) {
    const Graph own = tensor_parallel(model({}, projection), {1, 1}, 1);
    const int block = 1;
    for (const Phase phase : {Phase::forward, Phase::backward})
      CHECK(count(own, "all_reduce", phase, block) == 2);
    CHECK(count(own, "all_gather", Phase::forward, block) == 0);
    // The gradients are outputs here, and those are whole: one gather for each divided parameter.
    const auto names = divided(own);
    const auto in_block =
        std::count_if(names.begin(), names.end(), [](auto& name) { return name != "embedding"; });
    CHECK(count(own, "all_gather", Phase::backward, block) == in_block);
    CHECK(count(own, "all_reduce", Phase::forward, 0) == 1);  // of the embedding
  }
}

TEST_CASE("divided by tokens, all-reduces become reduce-scatters and all-gathers", "[partition]") {
  const Graph own = tensor_parallel(model({}), {1, 1}, 1, true);
  CHECK(verify(own).empty());
  const int block = 1;
  CHECK(count(own, "all_reduce", Phase::forward, block) == 0);
  CHECK(count(own, "reduce_scatter", Phase::forward, block) == 2);
  CHECK(count(own, "all_gather", Phase::forward, block) == 2);
  const auto norm = std::find_if(own.nodes.begin(), own.nodes.end(),
                                 [](const Node& node) { return node.op->name == "layer_norm"; });
  CHECK(own.type(norm->inputs[0]).shape == Shape{2, 2, 8});  // half of the tokens
}

TEST_CASE("norms that make additions are divided by tokens with what they add", "[partition]") {
  const Graph joined = join_additions(model({}));
  const Graph own = tensor_parallel(joined, {1, 1}, 1, true);
  CHECK(verify(own).empty());
  const int block = 1;
  CHECK(count(own, "reduce_scatter", Phase::forward, block) == 2);
  CHECK(count(own, "all_gather", Phase::forward, block) == 2);
  const auto norms = [&](std::string_view op, size_t operands) {
    int found = 0;
    for (const Node& node : own.nodes) {
      if (node.op->name != op || node.inputs.size() != operands) continue;
      ++found;
      CHECK(own.type(node.inputs[0]).shape == Shape{2, 2, 8});
      CHECK(own.type(node.inputs.back()).shape == Shape{2, 2, 8});
    }
    return found;
  };
  CHECK(norms("layer_norm", 4) == 1);           // norm2
  CHECK(norms("layer_norm_gradient", 6) == 2);  // norm1 and norm2
}

TEST_CASE("heads and features that do not divide are refused with what would", "[partition]") {
  CHECK_THAT(problem_of(model({.width = 12, .heads = 6, .kv_heads = 6}), {1, 1, 1, 1}),
             Catch::Contains("block: 6 query heads among 4 devices; 3 or 6 would do"));
  CHECK_THAT(problem_of(model({.kv_heads = 2}), {1, 1, 1, 1}),
             Catch::Contains("block: 2 key heads among 4 devices; 2 would do"));
  CHECK_THAT(problem_of(model({.hidden = 13}), {1, 1}),
             Catch::Contains("block: 13 features among 2 devices; 1 or 13 would do"));
}

TEST_CASE("shares cut heads, features and vocabulary in whole units", "[partition]") {
  const Graph graph = model({});
  const auto slices = slices_of(tensor_parallel(graph, {3, 1}, 0));
  CHECK(to_string(slices.at("qkv.weight")) == "[0:6+8:14+16:22, :]");  // 3 of 4 heads
  CHECK(to_string(slices.at("down.weight")) == "[:, 0:9]");
  CHECK(to_string(slices.at("embedding")) == "[0:14, :]");
  CHECK(to_string(slices_of(tensor_parallel(graph, {3, 1}, 1)).at("qkv.bias")) == "[6:8+14:16+22:24]");
  CHECK_THAT(problem_of(model({.kv_heads = 2}), {3, 1}),
             Catch::Contains(
                 "block: 2 key heads among shares { 3, 1 }; each device needs at least one, they get 2, 0"));
  CHECK(problem_of(model({.width = 12, .heads = 6, .kv_heads = 6}), {2, 1, 2, 1}) == "accepted");
}

TEST_CASE("nodes run on shards in every way that their rules allow, and whole", "[placements]") {
  const Graph graph = model({});
  const PlacementTable table(graph);
  const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                 [](const Node& each) { return each.op->name == "attention"; });
  std::vector<std::string> ways;
  for (const NodeSharding& way : table.shardings(static_cast<NodeId>(node - graph.nodes.begin()))) {
    std::string text;
    for (size_t i = 0; i < node->inputs.size(); ++i)
      text += to_string(table.placements(node->inputs[i])[way.inputs[i]]) + "; ";
    for (size_t o = 0; o < node->outputs.size(); ++o)
      text += to_string(table.placements(node->outputs[o])[way.outputs[o]]) + "; ";
    ways.push_back(text);
  }
  const std::string samples = "sharded by 0 in [2]; ", heads = "sharded by 2 in [4]; ",
                    tokens = "sharded by 1 in [4]; ", whole = "replicated; ";
  CHECK(ways == std::vector<std::string>{
                    samples + samples + samples + samples + samples,
                    heads + heads + heads + heads + "sharded by 1 in [4]; ",
                    tokens + whole + whole + tokens + "sharded by 2 in [4]; ",
                });
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    CHECK(table.replicated(static_cast<NodeId>(n)).outputs.size() == graph.nodes[n].outputs.size());
}

TEST_CASE("a convolution without groups is cut by each of its channels", "[placements]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId images = b.input("images", {DType::f32, {2, 3, 8, 8}});
  ValueId x = images;
  for (const auto& [name, in, out] : {std::tuple{"first", 3, 6}, {"second", 6, 9}})
    x = b.call("conv2d", {x, b.parameter(name, {DType::f32, {out, in, 3, 3}}, {}),
                          b.parameter(std::string(name) + ".bias", {DType::f32, {out}}, {})});
  const ValueId loss = b.call("sum", {x});
  b.output("loss", loss);
  for (const auto& [parameter, gradient] : differentiate(graph, loss))
    b.output("d" + graph.values[static_cast<size_t>(parameter)].name, gradient);
  const PlacementTable table(graph);
  std::set<int> axes;  // of the channels: those of images, of what is between, of the result
  for (const auto& [id, dim, channels] :
       {std::tuple{images, 1, 3}, {*graph.find("first"), 0, 6}, {*graph.find("second"), 0, 9}}) {
    const auto lies = table.find(id, dim, {channels});
    REQUIRE(lies);
    axes.insert(table.placements(id)[*lies].axis);
    CHECK(table.axes()[static_cast<size_t>(table.placements(id)[*lies].axis)].units == channels);
  }
  CHECK(axes.size() == 3);
  int seen = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].op->name.starts_with("conv2d")) continue;
    std::set<int> cut;
    for (const NodeSharding& way : table.shardings(static_cast<NodeId>(n))) cut.insert(way.axis);
    CHECK(cut.size() == 4);  // samples, both channels, and summands, which cut no axis
    ++seen;
  }
  CHECK(seen == 5);
}

TEST_CASE("tokens of a single sample are cut like those of several", "[placements]") {
  for (const int64_t samples : {1, 2}) {
    const Graph graph = model({.samples = samples});
    const PlacementTable table(graph);
    INFO(samples << " samples");
    for (const Node& node : graph.nodes)
      if (node.op->name == "linear" && node.phase == Phase::forward)
        CHECK(table.find(node.outputs[0], 1, {4}));
    // Norms, additions and projections run on parts of the tokens.
    const Graph own = tensor_parallel(graph, {1, 1}, 0, true);
    CHECK(count(own, "reduce_scatter", Phase::forward, 1) == 2);
  }
}

TEST_CASE("projections to query heads can be cut where there is one key head", "[placements]") {
  const Graph graph = model({.kv_heads = 1}, Projection::separate);
  const PlacementTable table(graph);
  const auto lies = table.find(*graph.find("q.weight"), 0, {8});
  REQUIRE(lies);
  const Placement& cut = table.placements(*graph.find("q.weight"))[*lies];
  CHECK_THAT(table.axes()[static_cast<size_t>(cut.axis)].obstacle,
             Catch::Contains("attention cuts hq, hk together, whose sizes have no common divisor"));
}

TEST_CASE("an operator that says by one number where its part begins has parts of one range",
          "[placements]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId table_of = b.parameter("table", {DType::f64, {12, 6}}, {});
  const ValueId ids = b.input("ids", {DType::i32, {5}});
  const auto thirds =
      b.call_all(op_named("split"), {table_of}, {{"dim", int64_t{0}}, {"sizes", Shape{4, 4, 4}}});
  b.output("sum", b.call("add", {b.call("add", {thirds[0], thirds[1]}), thirds[2]}));
  const ValueId read = b.call("embedding", {ids, table_of});
  b.output("read", read);
  const PlacementTable table(graph);
  const auto segments = table.find(table_of, 0, {4, 4, 4});
  REQUIRE(segments.has_value());
  const NodeId node = graph.values[static_cast<size_t>(read)].producer;
  int by_rows = 0;
  for (const NodeSharding& way : table.shardings(node)) {
    CHECK(way.inputs[1] != *segments);
    const Placement& lies = table.placements(table_of)[way.inputs[1]];
    by_rows += lies.is_sharded() && lies.dim == 0 ? 1 : 0;
  }
  CHECK(by_rows == 1);
}

TEST_CASE("a bias of summands counts once", "[partition]") {
  for (const int part : {0, 1}) {
    const Graph own = tensor_parallel(model({}), {1, 1}, part);
    int present = 0, absent = 0;
    for (const Node& node : own.nodes) {
      if (node.op->name != "linear") continue;
      (node.inputs[2] == kAbsent ? absent : present)++;
    }
    CHECK(present == (part == 0 ? 4 : 2));  // qkv and up; out and down, whose results are summed
    CHECK(absent == (part == 0 ? 0 : 2));
    CHECK(own.find("out.bias").has_value());
  }
}

TEST_CASE("only what lies sharded or partial already is worked on in parts", "[placements]") {
  const Graph graph = model({});
  const PlacementTable table(graph);
  ShardingHints hints;
  for (size_t a = 0; a < table.axes().size(); ++a) hints.axes.insert(static_cast<int>(a));
  const ShardingProgram program = propagate(table, {1, 1}, hints);  // all state is replicated
  for (const NodeSharding& way : program.nodes) CHECK(way.rule == -1);
  CHECK(program.conversions.empty());
  CHECK(program == propagate(table, {1, 1}, hints));
}

TEST_CASE("a parameter lies as its hint says, and the others as they would", "[partition]") {
  Graph graph = model({});
  const auto hint = [&](std::string_view name, int64_t dim) {
    graph.values[static_cast<size_t>(*graph.find(name))].hints = {{"model", dim}};
  };
  hint("down.weight", 0);
  hint("up.weight", -1);
  const Graph own = tensor_parallel(graph, {1, 1}, 1);
  CHECK(verify(own).empty());
  const auto slices = slices_of(own);
  CHECK(to_string(slices.at("down.weight")) == "[4:8, :]");
  CHECK(slices.count("up.weight") == 0);
  CHECK(to_string(slices.at("qkv.weight")) == "[4:8+12:16+20:24, :]");
  const auto plan_of = [](Shares shares, int microbatches, std::optional<AxisSharding> sharding) {
    Plan plan;
    plan.tensor = static_cast<int>(shares.size());
    plan.pipelines = {{microbatches, {{std::vector<std::string>(shares.size(), "d"), 0, 1}}}};
    if (sharding) plan.sharding = along_one_axis(std::move(*sharding));
    return plan;
  };
  CHECK(bytes_beyond_megatron(graph, plan_of({1, 1}, 1, {})).value() > 0);
  CHECK_FALSE(bytes_beyond_megatron(model({}), plan_of({1, 1}, 1, {})).has_value());
  CHECK_FALSE(bytes_beyond_megatron(graph, plan_of({1}, 1, {})).has_value());

  hint("norm1.weight", 0);  // a norm needs its row, but the state may lie in parts
  CHECK(to_string(slices_of(tensor_parallel(graph, {1, 1}, 1)).at("norm1.weight")) == "[4:8]");

  Graph small;
  GraphBuilder b(small);
  const ValueId w = b.parameter("w", {DType::f32, {6, 2}}, {});
  b.output("y", b.call("linear", {b.input("x", {DType::f32, {4, 2}}), w}));
  small.values[static_cast<size_t>(w)].hints = {{"model", 1}};
  CHECK(problem_of(small, {1, 1, 1}) ==
        "w: model = 1 cannot hold: its dimension 1 has 2 units, too few for 3 devices");
}

TEST_CASE("the graphs of a stage's mesh have the same values, though a bias counts on one part alone",
          "[partition]") {
  const Graph graph = model({});
  StageGraphs graphs(graph, {}, true);
  // Along the first axis the product is one of summands; along the second its rows are cut, and its bias with
  // them.
  const AxisSharding rows{{{"down.weight", 0, {}}}, {}, {}};
  const StageCut cut{{{"first", {1, 1}, {}}, {"second", {1, 1}, rows}}};
  graphs.require(cut);
  const StageGraph& one = graphs.of(cut, 0);
  for (int device = 0; device < 4; ++device) {
    const StageGraph& own = graphs.of(cut, device);
    CHECK(verify(own.graph).empty());
    CHECK(own.graph.values.size() == one.graph.values.size());
    for (size_t i = 0; i < std::min(own.values.size(), one.values.size()); ++i) {
      CHECK(own.values[i].value == one.values[i].value);
      CHECK(own.values[i].lies == one.values[i].lies);
    }
    const auto weight = own.graph.find("down.weight");
    REQUIRE(weight.has_value());
    const std::string columns = device < 2 ? "0:6" : "6:12", part = device % 2 == 0 ? "0:4" : "4:8";
    CHECK(to_string(graphs.slice(cut, *weight, device)) == "[" + part + ", " + columns + "]");
    CHECK(own.graph.values[static_cast<size_t>(*weight)].slice == graphs.slice(cut, *weight, device));
  }
}

TEST_CASE("a sharding program is written by names, and read back as it was", "[partition]") {
  const Graph graph = model({});
  const PlacementTable table(graph);
  for (const Shares& shares : {Shares{1, 1}, Shares{3, 1}})
    for (const bool sequence : {false, true}) {
      const ShardingProgram program = megatron_sharding(table, shares, sequence);
      const AxisSharding written = sharding_of(table, program);
      CHECK(propagate(table, shares, hints_of(table, shares, written)) == program);
      CHECK(unmatched(graph, written).empty());
      CHECK_FALSE(written.state.empty());
    }
  // A node that does not run in the cheapest way is written as an exception.
  ShardingHints hints = hints_of(table, {1, 1}, sharding_of(table, megatron_sharding(table, {1, 1})));
  const std::vector<std::string> names = node_names(graph);
  for (size_t n = 0; n < names.size(); ++n)
    if (names[n].ends_with("gelu"))
      hints.nodes[static_cast<NodeId>(n)] = table.replicated(static_cast<NodeId>(n));
  REQUIRE_FALSE(hints.nodes.empty());
  const ShardingProgram program = propagate(table, {1, 1}, hints);
  CHECK(program != megatron_sharding(table, {1, 1}));
  const AxisSharding written = sharding_of(table, program);
  REQUIRE_FALSE(written.nodes.empty());
  CHECK(propagate(table, {1, 1}, hints_of(table, {1, 1}, written)) == program);
}

TEST_CASE("nodes that differ in their number alone have one entry, but for exceptions", "[partition]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f32, {4, 8}});
  for (int i = 0; i < 12; ++i) {
    const ValueId w = b.parameter(fmt::format("w{}", i), {DType::f32, {8, 8}}, {});
    b.output(fmt::format("y{}", i), b.call("linear", {x, w, kAbsent}));
  }
  const PlacementTable table(graph);
  ShardingHints hints = hints_of(table, {1, 1}, {{}, {{"x", 0, {}}}, {}});
  for (NodeId n = 0; n < 12; ++n)
    if (n != 3) hints.nodes[n] = table.replicated(n);
  const ShardingProgram program = propagate(table, {1, 1}, hints);
  const AxisSharding written = sharding_of(table, program);
  std::vector<std::string> patterns;
  for (const auto& rule : written.nodes) patterns.push_back(rule.pattern);
  CHECK(patterns == std::vector<std::string>{"linear", "linear *", "linear 4"});
  CHECK(propagate(table, {1, 1}, hints_of(table, {1, 1}, written)) == program);
}

TEST_CASE("what a sharding names has to be there, and can be cut so", "[partition]") {
  const Graph graph = model({});
  const PlacementTable table(graph);
  const auto problem = [&](const AxisSharding& sharding) -> std::string {
    try {
      hints_of(table, {1, 1}, sharding);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  CHECK(problem({{{"up.weight", 0, {}}}, {}, {}}) == "");
  CHECK_THAT(problem({{{"up.weight", 2, {}}}, {}, {}}),
             Catch::Contains("up.weight: it has no dimension 2; its shape is ["));
  CHECK_THAT(problem({{}, {}, {{"*linear", "sideways"}}}),
             Catch::Contains("does not run as 'sideways'; it runs as"));
  // A parameter and its optimizer state are updated by one node, so they lie alike.
  Graph trained;
  GraphBuilder b(trained);
  const TensorType matrix{DType::f32, {8, 4}}, number{DType::f32, {}};
  const ValueId w = b.parameter("w", matrix, {});
  const ValueId momentum = b.buffer("w.m", matrix);
  b.set_phase(Phase::update);
  b.call_all(op_named("sgd"),
             {w, momentum, b.input("dw", matrix), b.input("lr", number), b.input("c", number)},
             {{"momentum", 0.9}});
  const PlacementTable table_of_trained(trained);
  const auto program = [&](const AxisSharding& sharding) {
    return propagate(table_of_trained, {1, 1}, hints_of(table_of_trained, {1, 1}, sharding));
  };
  CHECK(program({{{"w", 0, {}}}, {}, {}}).values[static_cast<size_t>(momentum)] > kPartial);
  CHECK_THROWS_WITH(program({{{"w.m", 0, {}}}, {}, {}}), Catch::Contains("sgd cannot update 'w"));

  // Of 8 rows among shares { 100, 1 } the second device would have none.
  ShardingHints uneven;
  uneven.axes = fillable(table_of_trained, {100, 1});
  uneven.nodes[0] = table_of_trained.shardings(0)[0];
  CHECK_THROWS_WITH(propagate(table_of_trained, {100, 1}, uneven),
                    Catch::Contains("sgd cannot run as the plan's sharding says: it cuts 8 units, too few "
                                    "for 2 devices with the shares { 100, 1 }"));

  const std::vector<std::string> missing =
      unmatched(graph, {{{"up.wieght", 0, {}}}, {}, {{"*.conv9", "replicated"}}});
  REQUIRE(missing.size() == 2);
  CHECK(missing[0] == "state: 'up.wieght' matches nothing of the model; did you mean 'up.weight'?");
  CHECK_THAT(missing[1], Catch::Contains("nodes: '*.conv9' matches nothing of the model"));

  CHECK(matches("blocks.*.weight", "blocks.10.mlp.weight"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "axxbyybc"));
  CHECK_FALSE(matches("blocks.*.weight", "blocks.0.bias"));
  CHECK_FALSE(matches("", "a"));
}

TEST_CASE("what nothing can divide is computed whole", "[partition]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f32, {3, 8}});
  const ValueId w = b.parameter("w", {DType::f32, {8, 8}}, {});
  b.output("y", b.call("softmax", {b.call("linear", {x, w, kAbsent})}));
  CHECK(divided(tensor_parallel(graph, {1, 1}, 0)).empty());
}

TEST_CASE("state that exists whole is cut to the part that a program needs", "[partition]") {
  const auto state = reference_state(3);
  const TensorSlice slice = parse_slice({4, 2}, "[2:4, :]");
  const auto needed = [&](const std::string& name) {
    BufferSpec buffer{name, {DType::f32, {2, 2}}, Home::state};
    buffer.initial = {Initial::Kind::normal, 1};
    buffer.slice = slice;
    return buffer;
  };
  // Fresh: the part of what one device would begin with.
  state->require(needed("fresh"));
  const Tensor drawn = initial_tensor("fresh", {DType::f32, {4, 2}}, {Initial::Kind::normal, 1}, 3);
  CHECK(values_of(state->read("fresh")) == values_of(take(drawn, slice)));
  // Loaded before the program was there, and written after it.
  state->write("loaded", Tensor::of<float>({0, 1, 2, 3, 4, 5, 6, 7}, {4, 2}));
  state->require(needed("loaded"));
  CHECK(values_of(state->read("loaded")) == std::vector<double>{4, 5, 6, 7});
  state->write("loaded", Tensor::of<float>({7, 6, 5, 4, 3, 2, 1, 0}, {4, 2}));
  CHECK(values_of(state->read("loaded")) == std::vector<double>{3, 2, 1, 0});
  CHECK_THROWS_WITH(state->write("loaded", Tensor::of<float>({1, 2, 3}, {3})),
                    Catch::Contains("'loaded' has shape"));
}

namespace {

// What a collective gives each rank, from what each has: packed vectors.
std::vector<Tensor> exchanged(const std::vector<const Node*>& nodes, const std::vector<Tensor>& given) {
  const auto counts = nodes[0]->attributes.get<std::vector<int64_t>>("counts");
  const size_t ranks = nodes.size();
  std::vector<Tensor> results;
  for (size_t to = 0; to < ranks; ++to) {
    std::vector<double> values;
    for (size_t from = 0; from < ranks; ++from) {
      int64_t start = 0;
      for (size_t other = 0; other < to; ++other) start += counts[from * ranks + other];
      for (int64_t i = 0; i < counts[from * ranks + to]; ++i) values.push_back(given[from].at(start + i));
    }
    const auto size = static_cast<int64_t>(values.size());
    results.push_back(Tensor::of<double>(values, {size}));
  }
  return results;
}

}  // namespace

TEST_CASE("shards of one dimension become shards of another without a gather", "[partition]") {
  // State that is cut along a softmax's dimension is exchanged for parts of the other one, where that is
  // asked.
  Graph graph;
  GraphBuilder b(graph);
  const ValueId w = b.parameter("w", {DType::f64, {8, 6}}, {});
  const ValueId y = b.call("softmax", {w}, {{"dim", int64_t{0}}});
  b.output("y", b.call("gelu", {y}));
  const PlacementTable table(graph);
  const Shares shares{2, 1, 1};
  ShardingHints hints;
  hints.given[w] = *table.find(w, 0, {8});
  for (size_t a = 0; a < table.axes().size(); ++a) hints.axes.insert(static_cast<int>(a));
  const auto& ways = table.shardings(graph.values[static_cast<size_t>(y)].producer);
  hints.nodes[graph.values[static_cast<size_t>(y)].producer] =
      *std::find_if(ways.begin(), ways.end(), [](const NodeSharding& way) { return way.rule == 0; });
  const ShardingProgram program = propagate(table, shares, hints);

  Eager eager(make_reference_device());
  const Tensor whole = wave({DType::f64, {8, 6}}, 0.3);
  const Tensor wanted =
      eager.call(op_named("gelu"), eager.call(op_named("softmax"), {whole}, {{"dim", int64_t{0}}}), {})[0];
  std::vector<RankGraph> ranks;
  std::vector<std::map<ValueId, Tensor>> values(shares.size());
  for (size_t r = 0; r < shares.size(); ++r) {
    ranks.push_back(partition(table, program, static_cast<int>(r)));
    const Graph& own = ranks.back().graph;
    CHECK(verify(own).empty());
    CHECK(count(own, "all_to_all", Phase::forward, -1) == 1);
    values[r][*own.find("w")] = take(whole, *own.values[static_cast<size_t>(*own.find("w"))].slice);
  }
  bool compared = false;
  for (size_t n = 0; n < ranks[0].graph.nodes.size(); ++n) {
    std::vector<const Node*> nodes;
    std::vector<std::vector<Tensor>> operands;
    for (size_t r = 0; r < ranks.size(); ++r) {
      nodes.push_back(&ranks[r].graph.nodes[n]);
      operands.emplace_back();
      for (const ValueId id : nodes.back()->inputs) operands.back().push_back(values[r].at(id));
    }
    if (nodes[0]->op->collective == CollectiveKind::all_gather) continue;  // of the output, which is whole
    std::vector<Tensor> given, received;
    for (const auto& each : operands) given.push_back(each[0].contiguous());
    const bool exchanges = nodes[0]->op->collective == CollectiveKind::all_to_all;
    if (exchanges) received = exchanged(nodes, given);
    for (size_t r = 0; r < ranks.size(); ++r) {
      values[r][nodes[r]->outputs[0]] =
          exchanges ? received[r] : eager.call(*nodes[r]->op, operands[r], nodes[r]->attributes)[0];
      const Origin& origin = ranks[r].origins[static_cast<size_t>(nodes[r]->outputs[0])];
      if (origin.value == kAbsent || graph.type(origin.value).shape.size() != 2) continue;
      const TensorSlice slice = table.slice(origin.value, origin.lies, shares, static_cast<int>(r));
      CHECK(values[r].at(nodes[r]->outputs[0]).shape() == slice.shape());
    }
    if (nodes[0]->op->name != "gelu") continue;
    compared = true;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Origin& origin = ranks[r].origins[static_cast<size_t>(nodes[r]->outputs[0])];
      const Tensor own = take(wanted, table.slice(origin.value, origin.lies, shares, static_cast<int>(r)));
      const Tensor& made = values[r].at(nodes[r]->outputs[0]);
      for (int64_t i = 0; i < own.elements(); ++i) CHECK(made.at(i) == Approx(own.at(i)).epsilon(1e-12));
    }
    break;
  }
  CHECK(compared);
}
