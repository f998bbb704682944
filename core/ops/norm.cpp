// Normalisation of rows, that is of the last dimension; statistics, weights and their gradients are of the
// accumulator type A.
#include <utility>

#include "core/ops/rules.h"

namespace het::ops {
namespace {

TensorType vector_of(const TensorType& x) { return {accumulator_of(x.dtype), {last(x.shape)}}; }
TensorType statistics_of(const TensorType& x) {
  return {accumulator_of(x.dtype), {elements_of(leading(x.shape))}};
}

void require_rows(const OpCall& call, size_t input) {
  require_float(call, input);
  require_rank_from(call, input, 1);
}

void require_eps(const OpCall& call) {
  const double eps = setting<double>(call, "eps", 1e-5);
  if (!(eps >= 0)) refuse(call, fmt::format("eps = {} is negative; 1e-5 is usual", eps));
}

// sum is made when residual is given, which is operand `residual`.
Types with_sum(const OpCall& call, size_t residual, Types results) {
  require_type(call, residual, call[0]);
  if (call.has(residual)) results.push_back(call[0]);
  return results;
}

Types infer_layer_norm(const OpCall& call) {
  require_inputs(call, 1, 4);
  require_rows(call, 0);
  require_eps(call);
  require_type(call, 1, vector_of(call[0]));
  require_type(call, 2, vector_of(call[0]));
  return with_sum(call, 3, {call[0], statistics_of(call[0]), statistics_of(call[0])});
}

Types infer_rms_norm(const OpCall& call) {
  require_inputs(call, 1, 3);
  require_rows(call, 0);
  require_eps(call);
  require_type(call, 1, vector_of(call[0]));
  return with_sum(call, 2, {call[0], statistics_of(call[0])});
}

// dweight is there when weight is, dbias when `bias` says so.
Types infer_layer_norm_gradient(const OpCall& call) {
  require_inputs(call, 5, 6);
  require_rows(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, vector_of(call[0]));
  require_type(call, 3, statistics_of(call[0]));
  require_type(call, 4, statistics_of(call[0]));
  require_type(call, 5, call[0]);
  return {call[0], call.has(2) ? vector_of(call[0]) : TensorType{},
          setting<bool>(call, "bias", call.has(2)) ? vector_of(call[0]) : TensorType{}};
}

Types infer_rms_norm_gradient(const OpCall& call) {
  require_inputs(call, 4, 5);
  require_rows(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, vector_of(call[0]));
  require_type(call, 3, statistics_of(call[0]));
  require_type(call, 4, call[0]);
  return {call[0], call.has(2) ? vector_of(call[0]) : TensorType{}};
}

// Gradients of a norm's operands: x, those that are its alone, and `residual`, which has the gradient of x.
std::vector<ValueId> gradient_norm(GradientCall& call, bool centred) {
  const size_t residual = static_cast<size_t>(call.node.op->adds_before);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  const auto optional = [&](size_t i) { return i < gradients.size() ? call.input(i) : kAbsent; };
  const bool adds = optional(residual) != kAbsent;
  // What flows back to the sum is added to what the norm gives; nothing has to flow through the norm.
  const ValueId dsum = adds ? std::exchange(call.output_gradients[residual], kAbsent) : kAbsent;
  const ValueId dy = only_gradient(call);
  ValueId dx = dsum;
  if (dy != kAbsent) {
    std::vector<ValueId> inputs{dy, adds ? call.output(residual) : call.input(0), optional(1),
                                call.output(1)};
    if (centred) inputs.push_back(call.output(2));
    if (dsum != kAbsent) inputs.push_back(dsum);
    Attributes attributes;
    if (centred) attributes.set("bias", optional(2) != kAbsent);
    const auto made = call.graph.call_all(op_named(centred ? "layer_norm_gradient" : "rms_norm_gradient"),
                                          std::move(inputs), std::move(attributes));
    dx = made[0];
    for (size_t i = 1; i < std::min(residual, gradients.size()); ++i) gradients[i] = made[i];
  }
  gradients[0] = as_gradient(call, 0, dx);
  if (adds) gradients[residual] = as_gradient(call, residual, dx);
  return gradients;
}

// `count` for each element, and one for the addition, which operand `added` asks for.
std::function<double(const OpCall&, Outputs)> flops_per_element(double count, size_t added) {
  return [=](const OpCall& call, Outputs) {
    return (count + (call.has(added) ? 1 : 0)) * static_cast<double>(call[0].elements());
  };
}

const std::vector<NeverCut> kNorm{{"n", "a norm is of all elements of its row"}};

}  // namespace

std::vector<OpDef> norm_ops() {
  return {
      {.name = "layer_norm",
       .signature =
           "x[..., n]:T, weight?[n]:A, bias?[n]:A, residual?[..., n]:T → y[..., n]:T, mean[(...)]:A, "
           "rstd[(...)]:A, sum[..., n]:T",
       .doc = "(x - mean) · rstd · weight + bias with rstd = 1 / √(variance + `eps`) (1e-5). Given residual, "
              "sum = x + residual is made and takes the place of x.",
       .attributes = {"eps"},
       .infer = infer_layer_norm,
       .gradient = [](GradientCall& call) { return gradient_norm(call, true); },
       .flops = flops_per_element(8, 3),
       .adds_before = 3,
       .sharding = {{.cut = "..."}},
       .never_cut = kNorm},
      {.name = "layer_norm_gradient",
       .signature = "dy[..., n]:T, x[..., n]:T, weight?[n]:A, mean[(...)]:A, rstd[(...)]:A, skip?[..., n]:T "
                    "→ dx[..., n]:T, "
                    "dweight[n]:A +=, dbias[n]:A +=",
       .doc = "dweight is made when weight is given, dbias when `bias` is true (default: when weight is "
              "given). skip is added to dx.",
       .attributes = {"bias"},
       .infer = infer_layer_norm_gradient,
       .flops = flops_per_element(14, 5),
       .accumulates = 0b110,
       .adds_after = 5,
       .sharding = {{.cut = "...", .sums = "dweight dbias"},
                    {.partial = "dy dx dweight dbias", .once = "skip"}},
       .never_cut = kNorm},
      {.name = "rms_norm",
       .signature =
           "x[..., n]:T, weight?[n]:A, residual?[..., n]:T → y[..., n]:T, rstd[(...)]:A, sum[..., n]:T",
       .doc = "x · rstd · weight with rstd = 1 / √(mean of x² + `eps`) (1e-5). Given residual, sum = x + "
              "residual is made and takes the place of x.",
       .attributes = {"eps"},
       .infer = infer_rms_norm,
       .gradient = [](GradientCall& call) { return gradient_norm(call, false); },
       .flops = flops_per_element(4, 2),
       .adds_before = 2,
       .sharding = {{.cut = "..."}},
       .never_cut = kNorm},
      {.name = "rms_norm_gradient",
       .signature = "dy[..., n]:T, x[..., n]:T, weight?[n]:A, rstd[(...)]:A, skip?[..., n]:T → dx[..., n]:T, "
                    "dweight[n]:A +=",
       .doc = "dweight is made when weight is given. skip is added to dx.",
       .infer = infer_rms_norm_gradient,
       .flops = flops_per_element(10, 4),
       .accumulates = 0b10,
       .adds_after = 4,
       .sharding = {{.cut = "...", .sums = "dweight"}, {.partial = "dy dx dweight", .once = "skip"}},
       .never_cut = kNorm},
  };
}

}  // namespace het::ops
