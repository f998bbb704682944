#include "core/ops/rounding.h"

#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_dtype(call, 0, DType::f32);
  require_type(call, 1, {DType::i64, {}});
  setting<int64_t>(call, "seed");
  setting<int64_t>(call, "stream");
  require_slice(call);
  return {{DType::bf16, call[0].shape}};
}

}  // namespace

std::vector<OpDef> rounding_ops() {
  return {
      {.name = "stochastic_cast",
       .signature = "x[...]:f32, step[]:i64 → y[...]:bf16",
       .doc =
           "x as bf16, rounded up or down by chance so that the expected value is x; what bf16 holds "
           "exactly, and what is beyond its largest finite number or not finite, is rounded to nearest. "
           "The draw depends on `seed`, `stream` (the parameter), step and the place of the element alone; x "
           "may be the `slice` of a tensor of shape `whole`: {64, 8} with \"[0:48, :]\". The gradient passes "
           "as through a cast.",
       .attributes = {"seed", "stream", "slice", "whole"},
       .infer = infer,
       .gradient =
           [](GradientCall& call) {
             return std::vector{as_gradient(call, 0, call.output_gradients[0]), kAbsent};
           },
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
       .sharding = {{.cut = "..."}},
       .localize = part_of_operand,
       .copies_operand = true,
       .casts = true}};
}

}  // namespace het::ops
