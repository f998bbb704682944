// Normalisation of rows, that is of the last dimension; statistics, weights and their gradients are of the
// accumulator type A.
#include <utility>

#include "core/ops/elementwise.h"
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

Types infer_row_moments(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_rows(call, 0);
  return {{accumulator_of(call[0].dtype), {3, elements_of(leading(call[0].shape))}}};
}

// The operands are those of layer_norm_gradient, and so are the gradients of the weights.
Types infer_norm_gradient_sums(const OpCall& call) {
  require_inputs(call, 5, 5);
  Types types = infer_layer_norm_gradient(call);
  types[0] = {statistics_of(call[0]).dtype, {2, statistics_of(call[0]).shape[0]}};
  return types;
}

// --- a norm whose columns are cut into parts

// One number of each row, for a pass over the rows.
ValueId along_rows(GraphBuilder& graph, ValueId numbers, const TensorType& rows) {
  return graph.call("reshape", {numbers}, {{"shape", with_last(rows.shape, 1)}});
}

// Entries `start`, … of dimension `dim`.
ValueId slice_of(GraphBuilder& graph, ValueId x, int64_t dim, int64_t start) {
  return graph.call("slice", {x}, {{"dim", dim}, {"start", start}, {"length", int64_t{1}}});
}

ValueId sum_over(GraphBuilder& graph, ValueId x, std::vector<int64_t> dims) {
  return graph.call("sum", {x}, {{"dims", std::move(dims)}});
}

struct RowStatistics {
  ValueId mean = kAbsent, rstd = kAbsent;  // [rows]
};

// The statistics of rows of n elements from the moments of their parts, [parts, 3, rows], by Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979):
// mean = Σ sum / n and variance = Σ (squares + count (sum / count - mean)²) / n. Not centred, the mean is 0.
RowStatistics joined_statistics(GraphBuilder& graph, ValueId parts, int64_t n, double eps, bool centred) {
  const DType dtype = graph.type(parts).dtype;
  const double share = 1 / static_cast<double>(n);
  const ValueId one = constant(graph, {dtype, {1}}, 1);
  const ValueId count = slice_of(graph, parts, 1, 0),
                sums = slice_of(graph, parts, 1, 1);  // [parts, 1, rows]
  std::vector<ValueId> operands{count, sums, slice_of(graph, parts, 1, 2), one};
  RowStatistics rows;
  if (centred) {
    Pass mean({sum_over(graph, sums, {0, 1})});
    mean(Pointwise::scale, 0, -1, share);
    rows.mean = mean.call(graph, dtype);
    operands.push_back(rows.mean);
  }
  Pass spread(operands);
  int off = spread(Pointwise::div, 1, spread(Pointwise::maximum, 0, 3));  // an empty part has no mean
  if (centred) off = spread(Pointwise::sub, off, 4);
  const int between = spread(Pointwise::mul, spread(Pointwise::square, off), 0);
  spread(Pointwise::scale, spread(Pointwise::add, 2, between), -1, share);
  const ValueId variance = sum_over(graph, spread.call(graph, dtype), {0, 1});
  Pass inverse({variance, one});
  inverse(Pointwise::div, 1, inverse(Pointwise::sqrt, inverse(Pointwise::shift, 0, -1, eps)));
  rows.rstd = inverse.call(graph, dtype);
  return rows;
}

// The moments of each part are gathered; from them follow the statistics of whole rows, and with these each
// part of the result. x is read once more than by the whole operator.
std::vector<ValueId> norm_by_columns(const ShardedCall& call, bool centred) {
  GraphBuilder& graph = call.graph;
  const auto given = [&](size_t i) { return i < call.inputs.size() ? call.inputs[i] : kAbsent; };
  const auto residual = static_cast<size_t>(call.whole.op.adds_before);
  ValueId x = call.inputs[0], sum = kAbsent;
  if (given(residual) != kAbsent) x = sum = graph.call("add", {x, given(residual)});
  const TensorType type = graph.type(x);
  const ValueId parts = call.all_gather(graph.call("row_moments", {x}));
  const RowStatistics rows = joined_statistics(graph, parts, last(call.whole[0].shape),
                                               call.whole.attributes.get<double>("eps", 1e-5), centred);

  std::vector<ValueId> operands{x, along_rows(graph, rows.rstd, type)};
  const auto operand = [&](ValueId id) {
    if (id == kAbsent) return -1;
    operands.push_back(id);
    return static_cast<int>(operands.size()) - 1;
  };
  const int mean = operand(centred ? along_rows(graph, rows.mean, type) : kAbsent),
            weight = operand(given(1)), bias = operand(centred ? given(2) : kAbsent);
  Pass normalise(operands);
  int y = normalise(Pointwise::mul, mean < 0 ? 0 : normalise(Pointwise::sub, 0, mean), 1);
  if (weight >= 0) y = normalise(Pointwise::mul, y, weight);
  if (bias >= 0) normalise(Pointwise::add, y, bias);
  std::vector<ValueId> results{normalise.call(graph, type.dtype)};
  if (centred) results.push_back(rows.mean);
  results.push_back(rows.rstd);
  results.push_back(sum);
  return results;
}

// dx = rstd (g - Σg / n - h·Σgh / n), with sums over whole rows, the first only when centred.
std::vector<ValueId> norm_gradient_by_columns(const ShardedCall& call, bool centred) {
  GraphBuilder& graph = call.graph;
  const auto given = [&](size_t i) { return i < call.inputs.size() ? call.inputs[i] : kAbsent; };
  const ValueId dy = call.inputs[0], x = call.inputs[1], weight = given(2),
                mean = centred ? given(3) : kAbsent, rstd = given(centred ? 4 : 3),
                skip = given(static_cast<size_t>(call.whole.op.adds_after));
  const TensorType type = graph.type(x);
  const bool bias = centred && call.whole.attributes.get<bool>("bias", weight != kAbsent);
  const auto own =
      graph.call_all(op_named("norm_gradient_sums"), {dy, x, weight, mean, rstd}, {{"bias", bias}});
  const ValueId totals = sum_over(graph, call.all_gather(own[0]), {0});  // [2, rows]

  std::vector<ValueId> operands{dy, x, along_rows(graph, rstd, type),
                                along_rows(graph, slice_of(graph, totals, 0, 1), type)};
  const auto operand = [&](ValueId id) {
    if (id == kAbsent) return -1;
    operands.push_back(id);
    return static_cast<int>(operands.size()) - 1;
  };
  const int w = operand(weight), m = operand(centred ? along_rows(graph, mean, type) : kAbsent),
            sum_g = operand(centred ? along_rows(graph, slice_of(graph, totals, 0, 0), type) : kAbsent),
            s = operand(skip);
  const double share = 1 / static_cast<double>(last(call.whole[1].shape));
  Pass pass(operands);
  const int h = pass(Pointwise::mul, m < 0 ? 1 : pass(Pointwise::sub, 1, m), 2);
  int dx = w < 0 ? 0 : pass(Pointwise::mul, 0, w);
  if (sum_g >= 0) dx = pass(Pointwise::sub, dx, pass(Pointwise::scale, sum_g, -1, share));
  const int along = pass(Pointwise::mul, h, pass(Pointwise::scale, 3, -1, share));
  dx = pass(Pointwise::mul, pass(Pointwise::sub, dx, along), 2);
  if (s >= 0) pass(Pointwise::add, dx, s);
  return {pass.call(graph, type.dtype), own[1], own[2]};
}

template <bool kCentred>
std::vector<ValueId> by_columns(const ShardedCall& call) {
  return norm_by_columns(call, kCentred);
}
template <bool kCentred>
std::vector<ValueId> gradient_by_columns(const ShardedCall& call) {
  return norm_gradient_by_columns(call, kCentred);
}

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
       .sharding = {{.cut = "..."}, {.cut = "n", .on_demand = true, .decompose = by_columns<true>}}},
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
                    {.cut = "n", .on_demand = true, .decompose = gradient_by_columns<true>},
                    {.partial = "dy dx dweight dbias", .once = "skip"}}},
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
       .sharding = {{.cut = "..."}, {.cut = "n", .on_demand = true, .decompose = by_columns<false>}}},
      {.name = "rms_norm_gradient",
       .signature = "dy[..., n]:T, x[..., n]:T, weight?[n]:A, rstd[(...)]:A, skip?[..., n]:T → dx[..., n]:T, "
                    "dweight[n]:A +=",
       .doc = "dweight is made when weight is given. skip is added to dx.",
       .infer = infer_rms_norm_gradient,
       .flops = flops_per_element(10, 4),
       .accumulates = 0b10,
       .adds_after = 4,
       .sharding = {{.cut = "...", .sums = "dweight"},
                    {.cut = "n", .on_demand = true, .decompose = gradient_by_columns<false>},
                    {.partial = "dy dx dweight", .once = "skip"}}},
      {.name = "row_moments",
       .signature = "x[..., n]:T → moments[3, (...)]:A",
       .doc = "Of each row its number of elements, their sum and Σ (x - their mean)²: what the "
              "statistics of whole rows follow from, when each part has some of the columns.",
       .infer = infer_row_moments,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * static_cast<double>(call[0].elements()); },
       .sharding = {{.cut = "..."}},
       .never_cut = {{"n", "squares of parts are about different means"}}},
      {.name = "norm_gradient_sums",
       .signature = "dy[..., n]:T, x[..., n]:T, weight?[n]:A, mean?[(...)]:A, rstd[(...)]:A → "
                    "sums[2, (...)]:A, dweight[n]:A +=, dbias[n]:A +=",
       .doc =
           "Of each row Σ g and Σ g·h with g = dy · weight and h = (x - mean) · rstd, a mean that is absent "
           "being 0: with the sums of whole rows a norm's gradient follows for each part of the columns. "
           "dweight and dbias as layer_norm_gradient's.",
       .attributes = {"bias"},
       .infer = infer_norm_gradient_sums,
       .flops = [](const OpCall& call, Outputs) { return 8.0 * static_cast<double>(call[0].elements()); },
       .accumulates = 0b110,
       .sharding = {{.cut = "...", .sums = "dweight dbias"},
                    {.cut = "n", .sums = "sums"},
                    {.partial = "dy sums dweight dbias"}}},
  };
}

}  // namespace het::ops
