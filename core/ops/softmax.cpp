#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer(const OpCall& call) {
  const bool backward = call.op.name == "softmax_gradient";
  require_inputs(call, backward ? 2 : 1, backward ? 2 : 1);
  require_float(call, 0);
  normal_dim(call, setting<int64_t>(call, "dim", -1), call[0].shape.size());
  if (backward) require_type(call, 1, call[0]);
  return {call[0]};
}

// The dimension that it runs along is "n".
std::string notation(const OpCall& call, Outputs) {
  const int64_t dim = from_start(call.attributes.get<int64_t>("dim", -1), call[0].shape.size());
  std::string dims;
  for (int64_t d = 0; d < static_cast<int64_t>(call[0].shape.size()); ++d)
    dims += fmt::format("{}{}", d > 0 ? ", " : "", d == dim ? "n" : fmt::format("...{}", d));
  return call.inputs.size() == 1 ? fmt::format("x[{0}] → y[{0}]", dims)
                                 : fmt::format("y[{0}], dy[{0}] → dx[{0}]", dims);
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
       .sharding = {{.cut = "..."}},
       .never_cut = {{"n", "a softmax needs all of its dimension"}}},
      {.name = "softmax_gradient",
       .signature = "y, dy → dx",
       .doc = "y (dy - Σ y·dy) along `dim`.",
       .attributes = {"dim"},
       .infer = infer,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .notation = notation,
       .sharding = {{.cut = "..."}, {.partial = "dy dx"}},
       .never_cut = {{"n", "a softmax needs all of its dimension"}}},
  };
}

}  // namespace het::ops
