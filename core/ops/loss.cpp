// Cross-entropy: the sum (not the mean) over the rows whose label is not `ignore`, times scale.
#include "core/ops/elementwise.h"
#include "core/ops/rules.h"

namespace het::ops {
namespace {

TensorType labels_of(const TensorType& rows) { return {DType::i32, leading(rows.shape)}; }
TensorType scale_of(const TensorType& rows) { return {accumulator_of(rows.dtype), {1}}; }
TensorType loss_of(const TensorType& rows) { return {accumulator_of(rows.dtype), {}}; }
TensorType lse_of(const TensorType& logits) {
  return {accumulator_of(logits.dtype), {elements_of(leading(logits.shape))}};
}

void require_rows(const OpCall& call, size_t input) {
  require_float(call, input);
  require_rank_from(call, input, 1);
  setting<int64_t>(call, "ignore", -100);
}

Types infer_cross_entropy(const OpCall& call) {
  require_inputs(call, 3, 3);
  require_rows(call, 0);
  require_type(call, 1, labels_of(call[0]));
  require_type(call, 2, scale_of(call[0]));
  return {loss_of(call[0]), lse_of(call[0])};
}

Types infer_cross_entropy_gradient(const OpCall& call) {
  require_inputs(call, 5, 5);
  require_rows(call, 1);
  require_type(call, 0, loss_of(call[1]));
  require_type(call, 2, labels_of(call[1]));
  require_type(call, 3, scale_of(call[1]));
  require_type(call, 4, lse_of(call[1]));
  return {call[1]};
}

void require_constant_scale(const GradientCall& call, size_t i) {
  if (call.wanted[i])
    fail_usage("the scale of '{}' depends on what is differentiated; it has to be an input or a constant",
               call.node.op->name);
}

std::vector<ValueId> gradient_cross_entropy(GradientCall& call) {
  require_constant_scale(call, 2);
  const ValueId dloss = only_gradient(call);
  const ValueId dlogits = call.graph.call(
      "cross_entropy_gradient", {dloss, call.input(0), call.input(1), call.input(2), call.output(1)},
      call.node.attributes);
  return {as_gradient(call, 0, dlogits), kAbsent, kAbsent};
}

TensorType log_probability_of(const TensorType& rows) {
  return {accumulator_of(rows.dtype), leading(rows.shape)};
}

Types infer_log_probability(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_rows(call, 0);
  require_type(call, 1, labels_of(call[0]));
  return {log_probability_of(call[0]), lse_of(call[0])};
}

Types infer_log_probability_gradient(const OpCall& call) {
  require_inputs(call, 4, 4);
  require_rows(call, 1);
  require_type(call, 0, log_probability_of(call[1]));
  require_type(call, 2, labels_of(call[1]));
  require_type(call, 3, lse_of(call[1]));
  return {call[1]};
}

std::vector<ValueId> gradient_log_probability(GradientCall& call) {
  const ValueId dlogits = call.graph.call("log_probability_gradient",
                                          {only_gradient(call), call.input(0), call.input(1), call.output(1)},
                                          call.node.attributes);
  return {as_gradient(call, 0, dlogits), kAbsent};
}

Types infer_linear_cross_entropy(const OpCall& call) {
  require_inputs(call, 5, 5);
  require_rows(call, 0);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 2);
  const int64_t classes = call[1].shape[0];
  if (last(call[0].shape) != call[1].shape[1])
    refuse(call, fmt::format(
                     "hidden of shape {} has {} features in its last dimension, weight {} takes {}; a weight "
                     "[{}, {}] would fit",
                     to_string(call[0].shape), last(call[0].shape), to_string(call[1].shape),
                     call[1].shape[1], classes, last(call[0].shape)));
  require_type(call, 2, {accumulator_of(call[0].dtype), {classes}});
  require_type(call, 3, labels_of(call[0]));
  require_type(call, 4, scale_of(call[0]));
  return {loss_of(call[0])};
}

// dhidden, dweight and dbias of the classifier that begins at operand `first`.
Types classifier_gradients(const OpCall& call, size_t first) {
  const DType dtype = accumulator_of(call[first].dtype);
  return {call[first],
          {dtype, call[first + 1].shape},
          call.has(first + 2) ? TensorType{dtype, {call[first + 1].shape[0]}} : TensorType{}};
}

Types infer_linear_cross_entropy_training(const OpCall& call) {
  Types types = infer_linear_cross_entropy(call);
  for (TensorType& gradient : classifier_gradients(call, 0)) types.push_back(std::move(gradient));
  return types;
}

// Is this the gradient that differentiation starts from: a constant 1?
bool is_seed(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  if (value.role != Role::intermediate) return false;
  const Node& node = graph.nodes[value.producer];
  return node.op->name == "fill" && node.attributes.get<double>("value") == 1.0;
}

// gradient · factor in one pass, so that the factor keeps its precision.
ValueId times(GradientCall& call, ValueId gradient, ValueId factor) {
  PointwiseProgram program;
  program.inputs = 2;
  program.steps = {{Pointwise::mul, 0, 1}};
  program.results = {2};
  program.dtypes = {call.graph.type(gradient).dtype};
  return call.graph.call("fused", {gradient, factor}, encode(program));
}

// Forward and backward are one pass over the logits: its loss takes the place of the forward node's, which
// then has no use and is pruned.
std::vector<ValueId> gradient_linear_cross_entropy(GradientCall& call) {
  require_constant_scale(call, 4);
  const ValueId dloss = call.output_gradients[0];
  const auto made =
      call.graph.call_all(op_named("linear_cross_entropy_training"), call.node.inputs, call.node.attributes);
  call.replace(call.output(0), made[0]);
  std::vector<ValueId> gradients{made[1], made[2], made[3], kAbsent, kAbsent};
  for (size_t i = 0; i < 3; ++i) {
    if (gradients[i] == kAbsent || !call.wanted[i]) continue;
    if (!is_seed(call.graph.graph(), dloss)) gradients[i] = times(call, gradients[i], dloss);
    gradients[i] = as_gradient(call, i, gradients[i]);
  }
  return gradients;
}

// Operands from `first` on: hidden, the weight and bias of these classes, labels.
void require_classifier(const OpCall& call, size_t first = 0) {
  require_rows(call, first);
  const TensorType &hidden = call[first], &weight = call[first + 1];
  require_dtype(call, first + 1, hidden.dtype);
  require_type(call, first + 1,
               {hidden.dtype, {weight.shape.empty() ? 0 : weight.shape[0], last(hidden.shape)}});
  require_type(call, first + 2, {accumulator_of(hidden.dtype), {weight.shape[0]}});
  require_type(call, first + 3, labels_of(hidden));
  require_part(call, weight.shape[0], "classes");
}

Types infer_linear_log_sum_exp(const OpCall& call) {
  require_inputs(call, 4, 4);
  require_classifier(call);
  return {{accumulator_of(call[0].dtype), {2, elements_of(leading(call[0].shape))}}};
}

Types infer_cross_entropy_of_parts(const OpCall& call) {
  require_inputs(call, 3, 3);
  require_float(call, 0);
  require_rank(call, 0, 3);
  setting<int64_t>(call, "ignore", -100);
  const int64_t rows = call[0].shape[2];
  require_type(call, 0, {call[0].dtype, {call[0].shape[0], 2, rows}});
  require_dtype(call, 1, DType::i32);
  if (call[1].elements() != rows)
    refuse(call, fmt::format("there are {} labels for {} rows", call[1].elements(), rows));
  require_type(call, 2, {call[0].dtype, {1}});
  return {{call[0].dtype, {}}, {call[0].dtype, {rows}}, {call[0].dtype, {rows}}};
}

Types infer_linear_cross_entropy_gradient(const OpCall& call) {
  require_inputs(call, 6, 6);
  require_classifier(call);
  require_type(call, 4, scale_of(call[0]));
  require_type(call, 5, lse_of(call[0]));
  return classifier_gradients(call, 0);
}

Types infer_linear_log_probability(const OpCall& call) {
  require_inputs(call, 4, 4);
  require_classifier(call);
  return {log_probability_of(call[0]), lse_of(call[0])};
}

Types infer_linear_log_probability_gradient(const OpCall& call) {
  require_inputs(call, 6, 6);
  require_classifier(call, 1);
  require_type(call, 0, log_probability_of(call[1]));
  require_type(call, 5, lse_of(call[1]));
  return classifier_gradients(call, 1);
}

std::vector<ValueId> gradient_linear_log_probability(GradientCall& call) {
  const ValueId dy = only_gradient(call);
  const auto made = call.graph.call_all(
      op_named("linear_log_probability_gradient"),
      {dy, call.input(0), call.input(1), call.input(2), call.input(3), call.output(1)}, call.node.attributes);
  std::vector<ValueId> gradients(4, kAbsent);
  for (size_t i = 0; i < made.size(); ++i)
    if (made[i] != kAbsent && call.wanted[i]) gradients[i] = as_gradient(call, i, made[i]);
  return gradients;
}

// Multiplications and additions of `count` products of all rows with a classifier; hidden is operand `first`.
double products(const OpCall& call, double count, size_t first = 0) {
  return 2.0 * count * static_cast<double>(elements_of(leading(call[first].shape))) *
         static_cast<double>(call[first + 1].elements());
}

// The logits, and the products of their gradients that are asked for.
double gradient_products(const OpCall& call, Outputs outputs, size_t first) {
  const auto asked = [&](size_t i) { return outputs[i].present() ? 1.0 : 0.0; };
  const size_t dhidden = outputs.size() - 3;
  return products(call, 1 + asked(dhidden) + asked(dhidden + 1), first);
}

// Each part's classes give their share of every row's statistics; from all parts' follow the loss and, again
// of each part's classes, the gradients.
std::vector<ValueId> by_classes(const ShardedCall& call) {
  const auto& in = call.inputs;
  const Attributes attributes = first_of(call.whole, call.input_slices[1]);
  const ValueId own = call.graph.call("linear_log_sum_exp", {in[0], in[1], in[2], in[3]}, attributes);
  const ValueId parts = call.all_gather(own);
  const auto loss =
      call.graph.call_all(op_named("cross_entropy_of_parts"), {parts, in[3], in[4]}, call.whole.attributes);
  if (call.output_slices.size() == 1) return {loss[0]};
  const auto made = call.graph.call_all(op_named("linear_cross_entropy_gradient"),
                                        {in[0], in[1], in[2], in[3], in[4], loss[1]}, attributes);
  return {loss[0], made[0], made[1], made[2]};
}

// The same for each row's log-probability.
std::vector<ValueId> log_probability_by_classes(const ShardedCall& call) {
  const auto& in = call.inputs;
  const ValueId own = call.graph.call("linear_log_sum_exp", in, first_of(call.whole, call.input_slices[1]));
  const ValueId parts = call.all_gather(own);
  const ValueId one = constant(call.graph, {call.graph.type(parts).dtype, {1}}, 1);
  const auto joined =
      call.graph.call_all(op_named("cross_entropy_of_parts"), {parts, in[3], one}, call.whole.attributes);
  const ValueId losses = call.graph.call("reshape", {joined[2]}, {{"shape", call.graph.type(in[3]).shape}});
  return {call.graph.call("neg", {losses}), joined[1]};
}

const NeverCut kWholeRows{"c", "a logit needs all features of its row"};

}  // namespace

std::vector<OpDef> loss_ops() {
  return {
      {.name = "cross_entropy",
       .signature = "logits[..., v]:T, labels[...]:i32, scale[1]:A → loss[]:A +=, lse[(...)]:A",
       .doc = "scale · Σ (log Σ exp(logits) - logits[label]) over rows whose label is not `ignore` (-100).",
       .attributes = {"ignore"},
       .infer = infer_cross_entropy,
       .gradient = gradient_cross_entropy,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .accumulates = 1,
       .sharding = {{.cut = "...", .sums = "loss"}},
       .never_cut = {{"v", "a softmax needs all classes"}}},
      {.name = "cross_entropy_gradient",
       .signature =
           "dloss[]:A, logits[..., v]:T, labels[...]:i32, scale[1]:A, lse[(...)]:A → dlogits[..., v]:T",
       .doc = "dloss · scale · (softmax(logits) - one-hot(label)), 0 where the label is `ignore`.",
       .attributes = {"ignore"},
       .infer = infer_cross_entropy_gradient,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[1].elements()); },
       .sharding = {{.cut = "..."}, {.partial = "dloss dlogits"}},
       .never_cut = {{"v", "a label names one of all classes"}}},
      {.name = "log_probability",
       .signature = "logits[..., v]:T, labels[...]:i32 → y[...]:A, lse[(...)]:A",
       .doc = "log softmax(logits) of each label, 0 where that is `ignore` (-100).",
       .attributes = {"ignore"},
       .infer = infer_log_probability,
       .gradient = gradient_log_probability,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .with_linear = "linear_log_probability",
       .with_linear_from = 0x1p28,
       .sharding = {{.cut = "..."}},
       .never_cut = {{"v", "a softmax needs all classes"}}},
      {.name = "log_probability_gradient",
       .signature = "dy[...]:A, logits[..., v]:T, labels[...]:i32, lse[(...)]:A → dlogits[..., v]:T",
       .doc = "dy · (one-hot(label) - softmax(logits)) of each row, 0 where the label is `ignore`.",
       .attributes = {"ignore"},
       .infer = infer_log_probability_gradient,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[1].elements()); },
       .sharding = {{.cut = "..."}, {.partial = "dy dlogits"}},
       .never_cut = {{"v", "a label names one of all classes"}}},
      {.name = "linear_cross_entropy",
       .signature = "hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32, scale[1]:A → loss[]:A +=",
       .doc = "The cross-entropy of hidden weightᵀ + bias, tile by tile: the logits are never all in memory.",
       .attributes = {"ignore"},
       .infer = infer_linear_cross_entropy,
       .gradient = gradient_linear_cross_entropy,
       .flops = [](const OpCall& call, Outputs) { return products(call, 1); },
       .accumulates = 1,
       .sharding = {{.cut = "...", .sums = "loss"}, {.cut = "v", .one_range = true, .decompose = by_classes}},
       .never_cut = {kWholeRows},
       .multiplies_weights = true},
      {.name = "linear_cross_entropy_training",
       .signature = "hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32, scale[1]:A → "
                    "loss[]:A +=, dhidden[..., c]:T, dweight[v, c]:A +=, dbias?[v]:A +=",
       .doc = "linear_cross_entropy and its gradients (for dloss = 1) in one pass over tiles of logits.",
       .attributes = {"ignore"},
       .infer = infer_linear_cross_entropy_training,
       .flops = [](const OpCall& call, Outputs outputs) { return gradient_products(call, outputs, 0); },
       .accumulates = 0b1101,
       .optional_outputs = 0b1110,
       .sharding = {{.cut = "...", .sums = "loss dweight dbias"},
                    {.cut = "v", .sums = "dhidden", .one_range = true, .decompose = by_classes}},
       .never_cut = {kWholeRows},
       .multiplies_weights = true},
      {.name = "linear_log_sum_exp",
       .signature = "hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32 → y[2, (...)]:A",
       .doc = "Of classes `first`, `first` + 1, … of `of`: log Σ exp of the logits hidden weightᵀ + bias of "
              "each row, "
              "and the logit of its label, 0 where that is another class or `ignore`.",
       .attributes = {"ignore", "first", "of"},
       .infer = infer_linear_log_sum_exp,
       .flops = [](const OpCall& call, Outputs) { return products(call, 1); },
       .sharding = {{.cut = "..."}},
       .never_cut = {{"v", "its parts are joined by cross_entropy_of_parts"}, kWholeRows},
       .multiplies_weights = true},
      {.name = "cross_entropy_of_parts",
       .signature = "parts[p, 2, (...)]:A, labels[...]:i32, scale[1]:A → loss[]:A +=, lse[(...)]:A, "
                    "losses[(...)]:A",
       .doc = "The cross-entropy from linear_log_sum_exp of each part of the classes; `losses`: log Σ exp - "
              "logit[label] of each row, 0 where the label is `ignore`.",
       .attributes = {"ignore"},
       .infer = infer_cross_entropy_of_parts,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .accumulates = 1,
       .optional_outputs = 0b100,
       .sharding = {{.cut = "...", .sums = "loss"}},
       .never_cut = {{"p", "a softmax needs all classes"}}},
      {.name = "linear_cross_entropy_gradient",
       .signature =
           "hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32, scale[1]:A, lse[(...)]:A → "
           "dhidden[..., c]:T, dweight[v, c]:A +=, dbias?[v]:A +=",
       .doc = "The gradients of linear_cross_entropy from all classes' lse, for a classifier of classes "
              "`first`, "
              "`first` + 1, … of `of`; dhidden is this part's share of a sum over the parts.",
       .attributes = {"ignore", "first", "of"},
       .infer = infer_linear_cross_entropy_gradient,
       .flops = [](const OpCall& call, Outputs outputs) { return gradient_products(call, outputs, 0); },
       .accumulates = 0b110,
       .optional_outputs = 0b111,
       .sharding = {{.cut = "...", .sums = "dweight dbias"},
                    {.cut = "v", .sums = "dhidden", .one_range = true}},
       .never_cut = {kWholeRows},
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return first_of(call, inputs[1]); }},
      {.name = "linear_log_probability",
       .signature = "hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32 → y[...]:A, lse[(...)]:A",
       .doc = "log softmax(hidden weightᵀ + bias) of each label, 0 where that is `ignore`, tile by tile: the "
              "logits are never all in memory.",
       .attributes = {"ignore"},
       .infer = infer_linear_log_probability,
       .gradient = gradient_linear_log_probability,
       .flops = [](const OpCall& call, Outputs) { return products(call, 1); },
       .sharding = {{.cut = "..."}, {.cut = "v", .one_range = true, .decompose = log_probability_by_classes}},
       .never_cut = {kWholeRows},
       .multiplies_weights = true},
      {.name = "linear_log_probability_gradient",
       .signature =
           "dy[...]:A, hidden[..., c]:T, weight[v, c]:T, bias?[v]:A, labels[...]:i32, lse[(...)]:A → "
           "dhidden[..., c]:T, dweight[v, c]:A +=, dbias?[v]:A +=",
       .doc = "The gradients of linear_log_probability from all classes' lse, for a classifier of classes "
              "`first`, `first` + 1, … of `of`; dhidden is this part's share of a sum over the parts.",
       .attributes = {"ignore", "first", "of"},
       .infer = infer_linear_log_probability_gradient,
       .flops = [](const OpCall& call, Outputs outputs) { return gradient_products(call, outputs, 1); },
       .accumulates = 0b110,
       .optional_outputs = 0b111,
       .sharding = {{.cut = "...", .sums = "dweight dbias"},
                    {.cut = "v", .sums = "dhidden", .one_range = true}},
       .never_cut = {kWholeRows},
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return first_of(call, inputs[2]); }},
  };
}

}  // namespace het::ops
