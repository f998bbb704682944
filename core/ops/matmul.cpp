#include "core/ops/rules.h"

namespace het::ops {
namespace {

int64_t rows_of(const Shape& shape) { return elements_of(leading(shape)); }

// --- matmul

struct Sizes {
  int64_t m, k, n;
};

bool flag(const OpCall& call, std::string_view name) { return setting<bool>(call, name, false); }

Sizes sizes_of(const OpCall& call) {
  const bool ta = flag(call, "transpose_a"), tb = flag(call, "transpose_b");
  const Shape &a = call[0].shape, &b = call[1].shape;
  const int64_t a1 = a[a.size() - 2], a2 = a[a.size() - 1], b1 = b[b.size() - 2], b2 = b[b.size() - 1];
  const int64_t k = ta ? a1 : a2, k_of_b = tb ? b2 : b1;
  if (k != k_of_b)
    refuse(call, fmt::format("a{} has {} columns but b{} has {} rows; they have to be equal",
                             ta ? " transposed" : "", k, tb ? " transposed" : "", k_of_b));
  return {ta ? a2 : a1, k, tb ? b1 : b2};
}

Types infer_matmul(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_dtype(call, 1, call[0].dtype);
  require_rank_from(call, 0, 2);
  require_rank_from(call, 1, 2);
  const Sizes sizes = sizes_of(call);
  const Shape &a = call[0].shape, &b = call[1].shape;
  Shape result(a.begin(), a.end() - 2);
  if (b.size() != 2 && Shape(b.begin(), b.end() - 2) != result)
    refuse(call,
           fmt::format("the leading dimensions {} and {} have to be equal, or b has to have 2 dimensions",
                       to_string(result), to_string(Shape(b.begin(), b.end() - 2))));
  result.insert(result.end(), {sizes.m, sizes.n});
  return {{call[0].dtype, result}};
}

ValueId matmul(GradientCall& call, ValueId a, ValueId b, bool transpose_a, bool transpose_b) {
  return call.graph.call("matmul", {a, b}, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
}

ValueId swap_last(GradientCall& call, ValueId id) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < call.graph.type(id).shape.size(); ++i) order.push_back(static_cast<int64_t>(i));
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return call.graph.call("transpose", {id}, {{"order", order}});
}

// Of weights that leading dimensions share, such as experts, rows are summed over in the accumulator type.
ValueId second_gradient(GradientCall& call, bool ta, bool tb) {
  const ValueId a = call.input(0), dy = call.output_gradients[0];
  if (!ta && is_weight(call.graph.graph(), call.input(1))) {
    const std::vector<ValueId> operands = tb ? std::vector{dy, a} : std::vector{a, dy};
    return as_gradient(call, 1, call.graph.call("matmul_weight_gradient", operands));
  }
  return as_gradient(call, 1, tb ? matmul(call, dy, a, true, ta) : matmul(call, a, dy, !ta, false));
}

// The gradient of a second operand of rank 2, which all leading dimensions of the first share.
ValueId shared_gradient(GradientCall& call, bool ta, bool tb) {
  const ValueId a = call.input(0), dy = call.output_gradients[0];
  if (!ta) {
    // A weight's gradient: rows of both are summed over in the accumulator type.
    const std::vector<ValueId> operands = tb ? std::vector{dy, a} : std::vector{a, dy};
    return as_gradient(call, 1, call.graph.call("linear_weight_gradient", operands, {{"bias", false}}));
  }
  ValueId each = tb ? swap_last(call, matmul(call, a, dy, false, false)) : matmul(call, a, dy, false, false);
  return sum_to_input(call, 1, each);
}

std::vector<ValueId> gradient_matmul(GradientCall& call) {
  const bool ta = call.node.attributes.get<bool>("transpose_a", false);
  const bool tb = call.node.attributes.get<bool>("transpose_b", false);
  const ValueId a = call.input(0), b = call.input(1), dy = call.output_gradients[0];
  const bool shared = call.graph.type(b).shape.size() == 2 && call.graph.type(a).shape.size() > 2;
  ValueId da = kAbsent, db = kAbsent;
  if (call.wanted[0]) {
    if (!ta)
      da = matmul(call, dy, b, false, !tb);
    else if (shared)
      da = swap_last(call, matmul(call, dy, b, false, !tb));
    else
      da = matmul(call, b, dy, tb, true);
    da = as_gradient(call, 0, da);
  }
  if (call.wanted[1]) {
    if (call.graph.type(b).shape.size() == 2 && (shared || !ta))
      db = shared_gradient(call, ta, tb);
    else
      db = second_gradient(call, ta, tb);
  }
  return {da, db};
}

// --- linear: y = x weightᵀ + bias, or an activation of that

// Whether gelu, by tanh, is made with the product.
bool activates(const OpCall& call) {
  const std::string activation = setting<std::string>(call, "activation", "none");
  if (activation != "none" && activation != "gelu")
    refuse(call, fmt::format("'activation' is '{}'; it can be 'none' or 'gelu'", activation));
  return activation == "gelu";
}

Types infer_matmul_weight_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_dtype(call, 1, call[0].dtype);
  require_rank_from(call, 0, 2);
  require_rank_from(call, 1, 2);
  if (leading(call[0].shape) != leading(call[1].shape))
    refuse(call, fmt::format("the leading dimensions {} of a and {} of b have to be equal",
                             to_string(leading(call[0].shape)), to_string(leading(call[1].shape))));
  Shape result = leading(leading(call[0].shape));
  result.insert(result.end(), {last(call[0].shape), last(call[1].shape)});
  return {{accumulator_of(call[0].dtype), result}};
}

Types infer_linear(const OpCall& call) {
  require_inputs(call, 2, 3);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 2);
  const int64_t out = call[1].shape[0], in = call[1].shape[1];
  if (last(call[0].shape) != in)
    refuse(call, fmt::format(
                     "x of shape {} has {} features in its last dimension, weight {} takes {}; a weight [{}, "
                     "{}] would fit",
                     to_string(call[0].shape), last(call[0].shape), to_string(call[1].shape), in, out,
                     last(call[0].shape)));
  require_type(call, 2, {accumulator_of(call[0].dtype), {out}});
  const TensorType y{call[0].dtype, with_last(call[0].shape, out)};
  return activates(call) ? Types{y, y} : Types{y};
}

Types infer_linear_input_gradient(const OpCall& call) {
  require_inputs(call, 2, 3);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 2);
  if (last(call[0].shape) != call[1].shape[0])
    refuse(call, fmt::format("dy has {} features in its last dimension, weight makes {}", last(call[0].shape),
                             call[1].shape[0]));
  const TensorType dx{call[0].dtype, with_last(call[0].shape, call[1].shape[1])};
  require_type(call, 2, dx);
  if (activates(call) != call.has(2))
    refuse(call,
           call.has(2) ? "an operand before needs an activation" : "an activation needs the operand before");
  return {dx};
}

Types infer_linear_weight_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  require_rank_from(call, 1, 1);
  require_dtype(call, 1, call[0].dtype);
  if (leading(call[0].shape) != leading(call[1].shape))
    refuse(call, fmt::format("the leading dimensions {} of dy and {} of x have to be equal",
                             to_string(leading(call[0].shape)), to_string(leading(call[1].shape))));
  const DType dtype = accumulator_of(call[0].dtype);
  const int64_t out = last(call[0].shape);
  Types types{{dtype, {out, last(call[1].shape)}}};
  types.push_back(setting<bool>(call, "bias", false) ? TensorType{dtype, {out}} : TensorType{});
  return types;
}

// Of what comes before the activation, if there is one.
ValueId gradient_before(GradientCall& call) {
  const ValueId dy = call.output_gradients[0];
  if (!is_activated(call.node)) return dy;
  const ValueId direct = call.output_gradients[1];
  if (dy == kAbsent) return direct;
  const ValueId through = call.graph.call("gelu_gradient", {call.output(1), dy});
  return direct == kAbsent ? through : call.graph.call("add", {through, direct});
}

std::vector<ValueId> gradient_linear(GradientCall& call) {
  const ValueId dy = gradient_before(call);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  const bool bias = gradients.size() > 2 && call.input(2) != kAbsent && call.wanted[2];
  if (call.wanted[0])
    gradients[0] = as_gradient(call, 0, call.graph.call("linear_input_gradient", {dy, call.input(1)}));
  if (call.wanted[1]) {
    const auto made =
        call.graph.call_all(op_named("linear_weight_gradient"), {dy, call.input(0)}, {{"bias", bias}});
    gradients[1] = as_gradient(call, 1, made[0]);
    if (bias) gradients[2] = made[1];
  } else if (bias) {
    gradients[2] = sum_to_input(call, 2, dy);
  }
  return gradients;
}

double rows(const TensorType& type) { return static_cast<double>(rows_of(type.shape)); }

// Of x or dy with a weight, and of the activation.
double linear_flops(const OpCall& call, Outputs outputs) {
  return 2.0 * rows(call[0]) * static_cast<double>(call[1].elements()) +
         (activates(call) ? static_cast<double>(outputs[0].elements()) : 0.0);
}

// A sum that an activation follows has no summands.
bool is_plain(const OpCall& call) { return !activates(call); }

std::string notation_of_matmul(const OpCall& call, Outputs) {
  const bool a = call.attributes.get<bool>("transpose_a", false),
             b = call.attributes.get<bool>("transpose_b", false);
  return fmt::format("a[..., {}], b[{}{}] → y[..., m, n]", a ? "k, m" : "m, k",
                     call[1].shape.size() == 2 ? "" : "..., ", b ? "n, k" : "k, n");
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  return {
      {.name = "matmul",
       .signature = "a[..., m, k]:T, b[..., k, n]:T → [..., m, n]:T",
       .doc = "The matrix product; leading dimensions are equal, or b has two dimensions and serves for all. "
              "`transpose_a`, `transpose_b`: the operand is stored with its last two dimensions swapped.",
       .attributes = {"transpose_a", "transpose_b"},
       .infer = infer_matmul,
       .gradient = gradient_matmul,
       .flops =
           [](const OpCall& call, Outputs outputs) {
             return 2.0 * static_cast<double>(outputs[0].elements()) * static_cast<double>(sizes_of(call).k);
           },
       .notation = notation_of_matmul,
       .sharding = {{.cut = "..."},
                    {.cut = "m"},
                    {.cut = "n"},
                    {.cut = "k", .sums = "y"},
                    {.partial = "a y"},
                    {.partial = "b y"}}},
      {.name = "matmul_weight_gradient",
       .signature = "a[..., k, m]:T, b[..., k, n]:T → dweight[..., m, n]:A +=",
       .doc = "aᵀ b for each of the leading dimensions: the gradient of weights that each has apart.",
       .infer = infer_matmul_weight_gradient,
       .flops =
           [](const OpCall& call, Outputs outputs) {
             return 2.0 * static_cast<double>(call[0].elements()) *
                    static_cast<double>(last(outputs[0].shape));
           },
       .accumulates = 1,
       .sharding = {{.cut = "..."},
                    {.cut = "m"},
                    {.cut = "n"},
                    {.cut = "k", .sums = "dweight"},
                    {.partial = "a dweight"},
                    {.partial = "b dweight"}}},
      {.name = "linear",
       .signature = "x[..., in]:T, weight[out, in]:T, bias?[out]:A → y[..., out]:T, before?[..., out]:T",
       .doc =
           "x weightᵀ + bias. With `activation = \"gelu\"`, y is gelu (by tanh) of that, which is the result "
           "before.",
       .attributes = {"activation"},
       .infer = infer_linear,
       .gradient = gradient_linear,
       .flops = linear_flops,
       .preactivation_result = 1,
       .is_linear = true,
       .sharding = {{.cut = "..."},                                                // samples, tokens
                    {.cut = "out"},                                                // column-parallel
                    {.cut = "in", .sums = "y", .once = "bias", .when = is_plain},  // row-parallel
                    {.partial = "x y", .once = "bias", .when = is_plain},
                    {.partial = "weight y", .once = "bias", .when = is_plain}},
       .multiplies_weights = true},
      {.name = "linear_input_gradient",
       .signature = "dy[..., out]:T, weight[out, in]:T, before?[..., in]:T → dx[..., in]:T",
       .doc = "dy weight. With `activation = \"gelu\"`, times gelu's derivative at before.",
       .attributes = {"activation"},
       .infer = infer_linear_input_gradient,
       .flops = linear_flops,
       .preactivation_operand = 2,
       .sharding = {{.cut = "..."},
                    {.cut = "in"},
                    {.cut = "out", .sums = "dx"},
                    {.partial = "dy dx"},
                    {.partial = "weight dx"}}},
      {.name = "linear_weight_gradient",
       .signature = "dy[..., out]:T, x[..., in]:T → dweight[out, in]:A +=, dbias[out]:A +=",
       .doc = "dyᵀ x, and with `bias` the sum of the rows of dy.",
       .attributes = {"bias"},
       .infer = infer_linear_weight_gradient,
       .flops =
           [](const OpCall& call, Outputs outputs) {
             return 2.0 * rows(call[0]) * static_cast<double>(outputs[0].elements());
           },
       .accumulates = 3,
       .sharding = {{.cut = "...", .sums = "dweight dbias"},
                    {.cut = "out"},
                    {.cut = "in"},  // dbias is computed by all
                    {.partial = "dy dweight dbias"},
                    {.partial = "x dweight"}}},
  };
}

}  // namespace het::ops
