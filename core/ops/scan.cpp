// Sums along one dimension, of all entries up to each.
#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  normal_dim(call, setting<int64_t>(call, "dim", -1), call[0].shape.size());
  setting<bool>(call, "reverse", false);
  return {call[0]};
}

std::vector<ValueId> gradient(GradientCall& call) {
  Attributes attributes = call.node.attributes;
  attributes.set("reverse", !attributes.get<bool>("reverse", false));
  return {call.graph.call("cumsum", {call.output_gradients[0]}, attributes)};
}

std::string notation(const OpCall& call, Outputs) {
  const int64_t rank = static_cast<int64_t>(call[0].shape.size());
  const int64_t along = from_start(call.attributes.get<int64_t>("dim", -1), rank);
  std::vector<std::string> dims;
  for (int64_t d = 0; d < rank; ++d) dims.push_back(d == along ? "n" : fmt::format("...{}", d));
  return fmt::format("x[{0}] → y[{0}]", fmt::join(dims, ", "));
}

}  // namespace

std::vector<OpDef> scan_ops() {
  return {{.name = "cumsum",
           .signature = "x:T → y:T",
           .doc = "Along `dim` (-1, the last) the sum of each entry and those before it; with `reverse` of "
                  "it and those after it.",
           .attributes = {"dim", "reverse"},
           .infer = infer,
           .gradient = gradient,
           .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
           .notation = notation,
           .sharding = {{.cut = "..."}, {.partial = "x y"}},
           .never_cut = {{"n", "a sum counts the entries before it"}}}};
}

}  // namespace het::ops
