#include "core/ops/rules.h"

namespace het::ops {
namespace {

// What is drawn by the place of each element of x.
Types infer_drawn(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_rank_from(call, 0, 1);
  require_type(call, 1, {DType::i64, {2}});
  setting<int64_t>(call, "seed");
  setting<int64_t>(call, "stream");
  require_slice(call);
  return {call[0]};
}

Types infer(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  const double p = setting<double>(call, "p");
  if (!(p >= 0 && p < 1))
    refuse(call, fmt::format("p = {} has to be at least 0 and below 1: the share set to 0", p));
  return infer_drawn(call);
}

Types infer_uniform(const OpCall& call) {
  require_inputs(call, 2, 2);
  if (call[0].dtype != DType::f32 && call[0].dtype != DType::f64)
    refuse(call, fmt::format("x has to be f32 or f64, it is {}", to_string(call[0])));
  return infer_drawn(call);
}

}  // namespace

std::vector<OpDef> dropout_ops() {
  return {
      {.name = "dropout",
       .signature = "x[samples, ...]:T, counter[2]:i64 → y[samples, ...]:T",
       .doc =
           "Elements set to 0 with probability `p`, the others divided by 1 - p. The draw depends on `seed`, "
           "`stream` (the layer), counter = {step, index of the first sample} and the place of the element "
           "in its sample alone; x may be the `slice` of a tensor of shape `whole`. Its gradient is dropout "
           "with "
           "the same settings.",
       .attributes = {"p", "seed", "stream", "slice", "whole"},
       .infer = infer,
       .gradient =
           [](GradientCall& call) {
             const ValueId dx =
                 call.graph.call("dropout", {call.output_gradients[0], call.input(1)}, call.node.attributes);
             return std::vector{dx, kAbsent};
           },
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
       .sharding = {{.cut = "samples"}, {.cut = "..."}, {.partial = "x y"}},
       .localize = part_of_operand},
      {.name = "uniform",
       .signature = "x[samples, ...]:A, counter[2]:i64 → y[samples, ...]:A",
       .doc = "Random numbers above 0 and below 1 in the shape of x, which is not read. The draw depends on "
              "`seed`, `stream`, counter = {step, index of the first sample} and the place of the element in "
              "its sample alone, as that of dropout; x may be the `slice` of a tensor of shape `whole`.",
       .attributes = {"seed", "stream", "slice", "whole"},
       .infer = infer_uniform,
       .gradient =
           [](GradientCall&) {
             return std::vector{kAbsent, kAbsent};
           },
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
       .sharding = {{.cut = "samples"}, {.cut = "..."}},
       .localize = part_of_operand}};
}

}  // namespace het::ops
