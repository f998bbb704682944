// Normalisation of rows, that is of the last dimension; statistics, weights and their gradients are of the
// accumulator type A.
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

Types infer_layer_norm(const OpCall& call) {
  require_inputs(call, 1, 3);
  require_rows(call, 0);
  require_eps(call);
  require_type(call, 1, vector_of(call[0]));
  require_type(call, 2, vector_of(call[0]));
  return {call[0], statistics_of(call[0]), statistics_of(call[0])};
}

Types infer_rms_norm(const OpCall& call) {
  require_inputs(call, 1, 2);
  require_rows(call, 0);
  require_eps(call);
  require_type(call, 1, vector_of(call[0]));
  return {call[0], statistics_of(call[0])};
}

// dweight is there when weight is, dbias when `bias` says so.
Types infer_layer_norm_gradient(const OpCall& call) {
  require_inputs(call, 5, 5);
  require_rows(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, vector_of(call[0]));
  require_type(call, 3, statistics_of(call[0]));
  require_type(call, 4, statistics_of(call[0]));
  return {call[0], call.has(2) ? vector_of(call[0]) : TensorType{},
          setting<bool>(call, "bias", call.has(2)) ? vector_of(call[0]) : TensorType{}};
}

Types infer_rms_norm_gradient(const OpCall& call) {
  require_inputs(call, 4, 4);
  require_rows(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, vector_of(call[0]));
  require_type(call, 3, statistics_of(call[0]));
  return {call[0], call.has(2) ? vector_of(call[0]) : TensorType{}};
}

std::vector<ValueId> gradient_layer_norm(GradientCall& call) {
  const ValueId dy = only_gradient(call);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  const auto optional = [&](size_t i) { return i < gradients.size() ? call.input(i) : kAbsent; };
  const auto made = call.graph.call_all(op_named("layer_norm_gradient"),
                                        {dy, call.input(0), optional(1), call.output(1), call.output(2)},
                                        {{"bias", optional(2) != kAbsent}});
  gradients[0] = as_gradient(call, 0, made[0]);
  for (size_t i = 1; i < gradients.size(); ++i) gradients[i] = made[i];
  return gradients;
}

std::vector<ValueId> gradient_rms_norm(GradientCall& call) {
  const ValueId dy = only_gradient(call);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  const ValueId weight = gradients.size() > 1 ? call.input(1) : kAbsent;
  const auto made =
      call.graph.call_all(op_named("rms_norm_gradient"), {dy, call.input(0), weight, call.output(1)});
  gradients[0] = as_gradient(call, 0, made[0]);
  if (gradients.size() > 1) gradients[1] = made[1];
  return gradients;
}

std::function<double(const OpCall&, Outputs)> flops_per_element(double count) {
  return [count](const OpCall& call, Outputs) { return count * static_cast<double>(call[0].elements()); };
}

}  // namespace

std::vector<OpDef> norm_ops() {
  return {
      {.name = "layer_norm",
       .signature = "x[..., n]:T, weight?[n]:A, bias?[n]:A → y:T, mean[rows]:A, rstd[rows]:A",
       .doc = "(x - mean) · rstd · weight + bias with rstd = 1 / √(variance + `eps`) (1e-5).",
       .attributes = {"eps"},
       .infer = infer_layer_norm,
       .gradient = gradient_layer_norm,
       .flops = flops_per_element(8)},
      {.name = "layer_norm_gradient",
       .signature = "dy[..., n]:T, x:T, weight?[n]:A, mean[rows]:A, rstd[rows]:A → dx:T, dweight[n]:A +=, "
                    "dbias[n]:A +=",
       .doc =
           "dweight is made when weight is given, dbias when `bias` is true (default: when weight is given).",
       .attributes = {"bias"},
       .infer = infer_layer_norm_gradient,
       .flops = flops_per_element(14),
       .accumulates = 0b110},
      {.name = "rms_norm",
       .signature = "x[..., n]:T, weight?[n]:A → y:T, rstd[rows]:A",
       .doc = "x · rstd · weight with rstd = 1 / √(mean of x² + `eps`) (1e-5).",
       .attributes = {"eps"},
       .infer = infer_rms_norm,
       .gradient = gradient_rms_norm,
       .flops = flops_per_element(4)},
      {.name = "rms_norm_gradient",
       .signature = "dy[..., n]:T, x:T, weight?[n]:A, rstd[rows]:A → dx:T, dweight[n]:A +=",
       .doc = "dweight is made when weight is given.",
       .infer = infer_rms_norm_gradient,
       .flops = flops_per_element(10),
       .accumulates = 0b10},
  };
}

}  // namespace het::ops
