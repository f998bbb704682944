// Softmax along one dimension, and what it takes to run it on parts of that dimension.
#include "core/ops/elementwise.h"
#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer(const OpCall& call) {
  const bool backward = call.op.name != "softmax" && call.op.name != "softmax_statistics";
  require_inputs(call, backward ? 2 : 1, backward ? 2 : 1);
  require_float(call, 0);
  normal_dim(call, setting<int64_t>(call, "dim", -1), call[0].shape.size());
  if (backward) require_type(call, 1, call[0]);
  return {call[0]};
}

int64_t dim_of(const OpCall& call) {
  return from_start(call.attributes.get<int64_t>("dim", -1), call[0].shape.size());
}

// One number in place of the dimension.
TensorType kept(const OpCall& call) {
  infer(call);
  TensorType type{accumulator_of(call[0].dtype), call[0].shape};
  type.shape[static_cast<size_t>(dim_of(call))] = 1;
  return type;
}

Types infer_statistics(const OpCall& call) {
  TensorType type = kept(call);
  type.shape.insert(type.shape.begin(), 2);
  return {type};
}

Types infer_sums(const OpCall& call) { return {kept(call)}; }

// The dimension that it runs along is `along`: "n" in operands, "1" in what is summed over it.
std::string dims_of(const OpCall& call, std::string_view along) {
  const int64_t dim = dim_of(call);
  std::string dims;
  for (int64_t d = 0; d < static_cast<int64_t>(call[0].shape.size()); ++d)
    dims += fmt::format("{}{}", d > 0 ? ", " : "", d == dim ? std::string(along) : fmt::format("...{}", d));
  return dims;
}

std::string notation(const OpCall& call, Outputs) {
  const std::string dims = dims_of(call, "n");
  return call.inputs.size() == 1 ? fmt::format("x[{0}] → y[{0}]", dims)
                                 : fmt::format("y[{0}], dy[{0}] → dx[{0}]", dims);
}

// --- each part has some of the dimension

ValueId summed(GraphBuilder& graph, ValueId x) {
  return graph.call("sum", {x}, {{"dims", std::vector<int64_t>{0}}});
}

// Entry `i` of dimension `dim`, which is dropped.
ValueId entry(GraphBuilder& graph, ValueId x, int64_t dim, int64_t i) {
  Shape shape = graph.type(x).shape;
  shape.erase(shape.begin() + dim);
  const ValueId one = graph.call("slice", {x}, {{"dim", dim}, {"start", i}, {"length", int64_t{1}}});
  return graph.call("reshape", {one}, {{"shape", shape}});
}

// Each part gathers all maxima m and sums s = Σ exp(x - m). With e, the softmax of the maxima over the parts,
// y = exp(x - m) e / Σ e·s. x is read once more than by the whole operator.
std::vector<ValueId> softmax_of_part(const ShardedCall& call) {
  GraphBuilder& graph = call.graph;
  const ValueId x = call.inputs[0], own = graph.call("softmax_statistics", {x}, call.whole.attributes);
  const DType dtype = graph.type(own).dtype;
  const ValueId parts = call.all_gather(own);  // [parts, 2, ...]
  const ValueId shares = graph.call("softmax", {entry(graph, parts, 1, 0)}, {{"dim", int64_t{0}}});
  Pass weighted({shares, entry(graph, parts, 1, 1)});
  weighted(Pointwise::mul, 0, 1);
  const ValueId total = summed(graph, weighted.call(graph, dtype));
  const ValueId share = entry(graph, shares, 0, call.part);
  const ValueId factor = graph.call("div", {share, total}), top = entry(graph, own, 0, 0);
  Pass pass({x, top, factor});
  pass(Pointwise::mul, pass(Pointwise::exp, pass(Pointwise::sub, 0, 1)), 2);
  return {pass.call(graph, graph.type(x).dtype)};
}

std::vector<ValueId> softmax_gradient_of_part(const ShardedCall& call) {
  GraphBuilder& graph = call.graph;
  const ValueId own = graph.call("softmax_gradient_sums", call.inputs, call.whole.attributes);
  const ValueId total = summed(graph, call.all_gather(own));
  Pass pass({call.inputs[0], call.inputs[1], total});
  pass(Pointwise::mul, 0, pass(Pointwise::sub, 1, 2));
  return {pass.call(graph, graph.type(call.inputs[0]).dtype)};
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  return {
      {.name = "softmax",
       .signature = "x → y",
       .doc = "exp(x) / Σ exp(x) along `dim` (-1, the last).",
       .attributes = {"dim"},
       .infer = infer,
       .gradient =
           [](GradientCall& call) {
             return std::vector{call.graph.call(
                 "softmax_gradient", {call.output(0), call.output_gradients[0]}, call.node.attributes)};
           },
       .flops = [](const OpCall& call, Outputs) { return 5.0 * static_cast<double>(call[0].elements()); },
       .notation = notation,
       .sharding = {{.cut = "..."}, {.cut = "n", .on_demand = true, .decompose = softmax_of_part}}},
      {.name = "softmax_gradient",
       .signature = "y, dy → dx",
       .doc = "y (dy - Σ y·dy) along `dim`.",
       .attributes = {"dim"},
       .infer = infer,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .notation = notation,
       .sharding = {{.cut = "..."},
                    {.cut = "n", .on_demand = true, .decompose = softmax_gradient_of_part},
                    {.partial = "dy dx"}}},
      {.name = "softmax_statistics",
       .signature = "x → statistics[2, ...]:A",
       .doc =
           "Along `dim`, which is kept as size 1: the largest x, but no less than the lowest finite number, "
           "and Σ exp(x - it), 0 of nothing. Softmax follows from those of all parts of the dimension.",
       .attributes = {"dim"},
       .infer = infer_statistics,
       .flops = [](const OpCall& call, Outputs) { return 3.0 * static_cast<double>(call[0].elements()); },
       .notation =
           [](const OpCall& call, Outputs) {
             return fmt::format("x[{}] → statistics[2, {}]", dims_of(call, "n"), dims_of(call, "1"));
           },
       .sharding = {{.cut = "..."}},
       .never_cut = {{"n", "the sums of parts are relative to different maxima"}}},
      {.name = "softmax_gradient_sums",
       .signature = "y, dy → sums:A",
       .doc = "Σ y·dy along `dim`, which is kept as size 1.",
       .attributes = {"dim"},
       .infer = infer_sums,
       .flops = [](const OpCall& call, Outputs) { return 2.0 * static_cast<double>(call[0].elements()); },
       .notation =
           [](const OpCall& call, Outputs) {
             return fmt::format("y[{0}], dy[{0}] → sums[{1}]", dims_of(call, "n"), dims_of(call, "1"));
           },
       .sharding = {{.cut = "..."}, {.cut = "n", .sums = "sums"}, {.partial = "dy sums"}}},
  };
}

}  // namespace het::ops
