// The update phase: in f32 (or f64), state written in place.
#include "core/ops/rules.h"

namespace het::ops {
namespace {

void require_accumulator(const OpCall& call, size_t input) {
  require_float(call, input);
  const DType wanted = accumulator_of(call[input].dtype);
  if (call[input].dtype != wanted)
    refuse(call, fmt::format("{} has to be {}: updates are made in the accumulator type",
                             operand_name(call.op, input), wanted));
}

double within(const OpCall& call, std::string_view name, double fallback, double least, double below) {
  const double value = setting<double>(call, name, fallback);
  if (!(value >= least && value < below))
    refuse(call, fmt::format("{} = {} has to be at least {} and below {}", name, value, least, below));
  return value;
}

constexpr double kNoLimit = 1e30;

Types infer_global_norm(const OpCall& call) {
  require_inputs(call, 1, static_cast<size_t>(-1));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    require_accumulator(call, i);
    require_dtype(call, i, call[0].dtype);
  }
  within(call, "max_norm", 0, 0, kNoLimit);
  return {{call[0].dtype, {}}, {call[0].dtype, {}}};
}

// Of `count` parameters, the settings that they share.
Types infer_updates(const OpCall& call, size_t count) {
  Types types;
  for (size_t first = 0; first < 4 * count; first += 4) {
    require_accumulator(call, first);
    require_dtype(call, first, call[0].dtype);
    for (size_t i = first + 1; i < first + 4; ++i) require_type(call, i, call[first]);
    types.insert(types.end(), 3, call[first]);
  }
  require_type(call, 4 * count, {call[0].dtype, {}});
  require_type(call, 4 * count + 1, {DType::i64, {}});
  require_type(call, 4 * count + 2, {call[0].dtype, {}});
  within(call, "beta1", 0.9, 0, 1);
  within(call, "beta2", 0.999, 0, 1);
  within(call, "eps", 1e-8, 0, kNoLimit);
  return types;
}

Types infer_adamw(const OpCall& call) {
  require_inputs(call, 7, 7);
  within(call, "weight_decay", 0, 0, kNoLimit);
  return infer_updates(call, 1);
}

Types infer_adamw_n(const OpCall& call) {
  require_inputs(call, 7, static_cast<size_t>(-1));
  const size_t count = (call.inputs.size() - 3) / 4;
  if (call.inputs.size() != 4 * count + 3)
    refuse(call, "it takes four operands for each parameter, and three for all");
  const auto decays = setting<std::vector<double>>(call, "weight_decays");
  if (decays.size() != count)
    refuse(call, fmt::format("'weight_decays' are {}, parameters {}", decays.size(), count));
  for (const double decay : decays)
    if (!(decay >= 0 && decay < kNoLimit))
      refuse(call, fmt::format("a weight decay of {} has to be at least 0 and below {}", decay, kNoLimit));
  return infer_updates(call, count);
}

double adamw_flops(const OpCall&, Outputs outputs) {
  double elements = 0;
  for (size_t o = 0; o < outputs.size(); o += 3) elements += static_cast<double>(outputs[o].elements());
  return 15.0 * elements;
}

Types infer_sgd(const OpCall& call) {
  require_inputs(call, 5, 5);
  require_accumulator(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, call[0]);
  require_type(call, 3, {call[0].dtype, {}});
  require_type(call, 4, {call[0].dtype, {}});
  const double momentum = within(call, "momentum", 0, 0, 1);
  within(call, "weight_decay", 0, 0, kNoLimit);
  if (momentum != 0 && !call.has(1))
    refuse(call, fmt::format("momentum = {} needs the operand momentum to keep it in", momentum));
  if (setting<bool>(call, "nesterov", false) && momentum == 0)
    refuse(call, "nesterov needs a momentum above 0");
  return {call[0], call[1]};
}

Types infer_assign(const OpCall& call) {
  require_inputs(call, 3, 3);
  require_accumulator(call, 0);
  require_type(call, 1, call[0]);
  require_type(call, 2, {call[0].dtype, {}});
  return {call[0]};
}

Types infer_add_n(const OpCall& call) {
  require_inputs(call, 1, static_cast<size_t>(-1));
  require_float(call, 0);
  for (size_t i = 1; i < call.inputs.size(); ++i) require_type(call, i, call[0]);
  return {call[0]};
}

double total_elements(const OpCall& call) {
  double total = 0;
  for (const TensorType& type : call.inputs) total += static_cast<double>(type.elements());
  return total;
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {
      {.name = "global_norm",
       .signature = "g1:A, g2:A, … → norm[]:A, coefficient[]:A",
       .doc = "The Euclidean norm of all operands together, and min(1, `max_norm` / norm) (1 when max_norm "
              "is 0); the "
              "coefficient is NaN when the norm is not finite.",
       .attributes = {"max_norm"},
       .infer = infer_global_norm,
       .flops = [](const OpCall& call, Outputs) { return 2.0 * total_elements(call); },
       .any_placement = true},
      {.name = "adamw",
       .signature =
           "param[...]:A, m[...]:A, v[...]:A, gradient[...]:A, lr[]:A, step[]:i64, coefficient[]:A → "
           "param[...]:A, m[...]:A, v[...]:A",
       .doc = "Loshchilov and Hutter's AdamW, with bias correction for `step` = 1, 2, …, in place; nothing "
              "is written "
              "when the coefficient, by which the gradient is multiplied, is not finite.",
       .attributes = {"beta1", "beta2", "eps", "weight_decay"},
       .infer = infer_adamw,
       .flops = adamw_flops,
       .in_place = {{0, 0}, {1, 1}, {2, 2}},
       .joined_as = {.op = "adamw_n", .attribute = "weight_decay", .list = "weight_decays"},
       .sharding = {{.cut = "..."}}},
      {.name = "adamw_n",
       .signature = "param1:A, m1:A, v1:A, gradient1:A, param2:A, …, lr[]:A, step[]:i64, coefficient[]:A → "
                    "param1:A, m1:A, v1:A, param2:A, …",
       .doc = "adamw of several parameters in one pass, each with one of `weight_decays`; made by lowering.",
       .attributes = {"beta1", "beta2", "eps", "weight_decays"},
       .infer = infer_adamw_n,
       .flops = adamw_flops,
       .in_place = {{0, 0}, {1, 1}, {2, 2}},
       .in_place_group = {3, 4}},
      {.name = "sgd",
       .signature =
           "param[...]:A, momentum?[...]:A, gradient[...]:A, lr[]:A, coefficient[]:A → param[...]:A, "
           "momentum?[...]:A",
       .doc = "Stochastic gradient descent with `momentum`, `weight_decay` and `nesterov`, in place; nothing "
              "is written "
              "when the coefficient, by which the gradient is multiplied, is not finite.",
       .attributes = {"momentum", "weight_decay", "nesterov"},
       .infer = infer_sgd,
       .flops = [](const OpCall& call, Outputs) { return 6.0 * static_cast<double>(call[0].elements()); },
       .in_place = {{0, 0}, {1, 1}},
       .sharding = {{.cut = "..."}}},
      {.name = "assign",
       .signature = "state[...]:A, value[...]:A, coefficient[]:A → state[...]:A",
       .doc = "The value takes the state's place; nothing is written when the coefficient is not finite.",
       .infer = infer_assign,
       .in_place = {{0, 0}},
       .sharding = {{.cut = "..."}}},
      {.name = "add_n",
       .signature = "g1:A, g2:A, … → A",
       .doc = "The sum of all operands. Lowered to additions into one buffer where their producers can add.",
       .infer = infer_add_n,
       .gradient =
           [](GradientCall& call) {
             std::vector<ValueId> gradients;
             for (size_t i = 0; i < call.node.inputs.size(); ++i)
               gradients.push_back(call.output_gradients[0]);
             return gradients;
           },
       .flops = [](const OpCall& call, Outputs) { return total_elements(call); },
       .notation =
           [](const OpCall& call, Outputs outputs) {
             const std::string dims = aligned_dims(outputs[0].shape, outputs[0].shape);
             std::string text;
             for (size_t i = 0; i < call.inputs.size(); ++i)
               text += fmt::format("{}x{}{}", i > 0 ? ", " : "", i, dims);
             return text + " → y" + dims;
           },
       .sharding = {{.cut = "..."}, {.partial = "x* y"}},
       .adds_operands = true},
  };
}

}  // namespace het::ops
