#include "core/ops/elementwise.h"

#include <algorithm>

#include "core/ops/rules.h"

namespace het {

std::string_view name_of(Pointwise code) {
  switch (code) {
#define HET_POINTWISE_NAME(code, operands) \
  case Pointwise::code: return #code;
    HET_POINTWISE_STEPS(HET_POINTWISE_NAME)
#undef HET_POINTWISE_NAME
  }
  return "unknown";
}

int operands_of(Pointwise code) {
  switch (code) {
#define HET_POINTWISE_OPERANDS(code, operands) \
  case Pointwise::code: return operands;
    HET_POINTWISE_STEPS(HET_POINTWISE_OPERANDS)
#undef HET_POINTWISE_OPERANDS
  }
  return 0;
}

namespace {

constexpr int kPointwiseCodes = 0
#define HET_POINTWISE_ONE(code, operands) +1
    HET_POINTWISE_STEPS(HET_POINTWISE_ONE)
#undef HET_POINTWISE_ONE
    ;

// The attribute of the operator that is the step's immediate; empty: it has none.
std::string_view immediate_of(Pointwise code) {
  switch (code) {
    case Pointwise::scale: return "factor";
    case Pointwise::shift: return "amount";
    case Pointwise::clamp_min:
    case Pointwise::clamp_max: return "bound";
    case Pointwise::pow: return "exponent";
    default: return {};
  }
}

// The one step that a single operator is.
PointwiseStep step_of(const OpDef& op, const Attributes& attributes) {
  PointwiseStep step;
  std::string name(op.name);
  if (name == "gelu" || name == "gelu_gradient") {
    const bool exact = attributes.get<std::string>("approximate", "tanh") == "none";
    name = std::string(exact ? "gelu_erf" : "gelu_tanh") + (name == "gelu" ? "" : "_gradient");
  }
  for (int code = 0;; ++code) {
    HET_REQUIRE(code < kPointwiseCodes, op.name);
    step.code = static_cast<Pointwise>(code);
    if (name_of(step.code) == name) break;
  }
  if (operands_of(step.code) == 2) step.b = 1;
  if (const std::string_view number = immediate_of(step.code); !number.empty())
    step.immediate = attributes.get<double>(std::string(number));
  return step;
}

// What is wrong with a program; empty when it is sound.
std::string problem_of(const PointwiseProgram& program) {
  const int steps = static_cast<int>(program.steps.size());
  if (program.inputs < 1 || program.inputs > kMaxPointwiseInputs)
    return fmt::format("it has {} operands, 1 to {} are possible", program.inputs, kMaxPointwiseInputs);
  if (steps < 1 || steps > kMaxPointwiseSteps)
    return fmt::format("it has {} steps, 1 to {} are possible", steps, kMaxPointwiseSteps);
  if (program.results.empty() || program.results.size() > static_cast<size_t>(kMaxPointwiseResults))
    return fmt::format("it has {} results, 1 to {} are possible", program.results.size(),
                       kMaxPointwiseResults);
  if (program.dtypes.size() != program.results.size())
    return fmt::format("it has {} results but {} dtypes", program.results.size(), program.dtypes.size());
  for (int i = 0; i < steps; ++i) {
    const PointwiseStep& step = program.steps[i];
    const int ready = program.inputs + i;
    const bool two = operands_of(step.code) == 2;
    if (step.a < 0 || step.a >= ready || (two ? step.b < 0 || step.b >= ready : step.b != -1))
      return fmt::format("step {} ({}) reads sources {} and {}; {} are ready by then", i, name_of(step.code),
                         step.a, step.b, ready);
  }
  for (const int result : program.results)
    if (result < 0 || result >= program.inputs + steps)
      return fmt::format("result {} is not one of its {} sources", result, program.inputs + steps);
  for (const DType dtype : program.dtypes)
    if (!is_float(dtype)) return fmt::format("a result is {}; only floats are possible", dtype);
  return {};
}

}  // namespace

PointwiseProgram pointwise_program(const OpDef& op, const Attributes& attributes, size_t inputs) {
  HET_REQUIRE(op.elementwise, op.name);
  if (op.name == "fused") return decode(attributes, inputs);
  PointwiseProgram program;
  program.inputs = static_cast<int>(inputs);
  program.steps = {step_of(op, attributes)};
  program.results = {program.inputs};
  if (op.name == "cast") program.dtypes = {*dtype_named(attributes.get<std::string>("dtype"))};
  return program;
}

std::optional<Pointwise> single_step(const OpDef& op, const Attributes& attributes) {
  if (!op.elementwise || op.name == "fused") return std::nullopt;
  return step_of(op, attributes).code;
}

Attributes encode(const PointwiseProgram& program) {
  const std::string problem = problem_of(program);
  HET_REQUIRE(problem.empty(), problem);
  std::vector<int64_t> steps;
  std::vector<double> immediates;
  for (const PointwiseStep& step : program.steps) {
    steps.insert(steps.end(), {static_cast<int64_t>(step.code), step.a, step.b});
    immediates.push_back(step.immediate);
  }
  std::string dtypes;
  for (const DType dtype : program.dtypes) dtypes += fmt::format("{}{}", dtypes.empty() ? "" : " ", dtype);
  return {{"steps", steps},
          {"immediates", immediates},
          {"results", std::vector<int64_t>(program.results.begin(), program.results.end())},
          {"dtypes", dtypes}};
}

ValueId Pass::call(GraphBuilder& graph, DType dtype) {
  program_.results = {program_.inputs + static_cast<int>(program_.steps.size()) - 1};
  program_.dtypes = {dtype};
  return graph.call("fused", operands_, encode(program_));
}

PointwiseProgram decode(const Attributes& attributes, size_t inputs) {
  PointwiseProgram program;
  program.inputs = static_cast<int>(inputs);
  const auto steps = attributes.get<std::vector<int64_t>>("steps");
  const auto immediates = attributes.get<std::vector<double>>("immediates");
  if (steps.size() != 3 * immediates.size())
    fail_usage(
        "fused: 'steps' has {} numbers and 'immediates' {}; each step needs three (code, a, b) and one",
        steps.size(), immediates.size());
  for (size_t i = 0; i < immediates.size(); ++i) {
    const int64_t code = steps[3 * i];
    if (code < 0 || code >= kPointwiseCodes)
      fail_usage("fused: step {} has the code {}; codes are 0 to {}", i, code, kPointwiseCodes - 1);
    program.steps.push_back({static_cast<Pointwise>(code), static_cast<int>(steps[3 * i + 1]),
                             static_cast<int>(steps[3 * i + 2]), immediates[i]});
  }
  for (const int64_t result : attributes.get<std::vector<int64_t>>("results"))
    program.results.push_back(static_cast<int>(result));
  const std::string dtypes = attributes.get<std::string>("dtypes");
  for (size_t begin = 0; begin < dtypes.size();) {
    const size_t end = std::min(dtypes.find(' ', begin), dtypes.size());
    const std::string name = dtypes.substr(begin, end - begin);
    const auto dtype = dtype_named(name);
    if (!dtype) fail_usage("fused: '{}' in 'dtypes' is no dtype", name);
    program.dtypes.push_back(*dtype);
    begin = end + 1;
  }
  const std::string problem = problem_of(program);
  if (!problem.empty()) fail_usage("fused: not a program: {}", problem);
  return program;
}

std::string to_string(const PointwiseProgram& program) {
  const auto source = [&](int i) {
    return i < program.inputs ? fmt::format("x{}", i) : fmt::format("t{}", i - program.inputs);
  };
  std::string text;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const PointwiseStep& step = program.steps[i];
    text += fmt::format("{}t{} = {}({}", i == 0 ? "" : "; ", i, name_of(step.code), source(step.a));
    if (step.b >= 0) text += ", " + source(step.b);
    if (!immediate_of(step.code).empty()) text += fmt::format(", {}", step.immediate);
    text += ")";
  }
  text += " ->";
  for (size_t i = 0; i < program.results.size(); ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", source(program.results[i]));
    if (i < program.dtypes.size()) text += fmt::format(" {}", program.dtypes[i]);
  }
  return text;
}

bool can_fuse(const OpDef& op, std::span<const TensorType> inputs, std::span<const TensorType> outputs) {
  const auto floating = [](const TensorType& type) { return is_float(type.dtype); };
  return op.elementwise && std::all_of(inputs.begin(), inputs.end(), floating) &&
         std::all_of(outputs.begin(), outputs.end(), floating);
}

}  // namespace het

namespace het::ops {
namespace {

Shape broadcast_shape(const OpCall& call) {
  Shape shape = call[0].shape;
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    const auto joined = broadcast_of(shape, call[i].shape);
    if (!joined)
      refuse(call,
             fmt::format(
                 "shapes {} and {} do not broadcast: from the last dimension on, sizes must be equal or 1",
                 to_string(shape), to_string(call[i].shape)));
    shape = *joined;
  }
  return shape;
}

Types infer_pointwise(const OpCall& call) {
  const PointwiseStep step = with_context([&] { return fmt::format("operator {}", call.op.name); },
                                          [&] { return step_of(call.op, call.attributes); });
  const size_t operands = static_cast<size_t>(operands_of(step.code));
  require_inputs(call, operands, operands);
  require_float(call, 0);
  for (size_t i = 1; i < operands; ++i)
    if (call[i].dtype != call[0].dtype) refuse(call, "operands need the same dtype; cast one of them");
  return {{call[0].dtype, broadcast_shape(call)}};
}

double pointwise_flops(const OpCall& call, Outputs outputs) {
  if (call.op.name == "cast") return 0;
  const size_t steps =
      call.op.name == "fused" ? call.attributes.get<std::vector<double>>("immediates").size() : 1;
  return static_cast<double>(steps) * static_cast<double>(outputs[0].elements());
}

using Rule = std::function<std::vector<ValueId>(GradientCall&)>;

// The operands of the signature by name; dimensions are aligned at their last, as broadcasting does.
std::string notation_of_pointwise(const OpCall& call, Outputs outputs) {
  std::string text;
  const Shape& result = outputs[0].shape;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    text += fmt::format("{}{}{}", i > 0 ? ", " : "",
                        call.op.name == "fused" ? fmt::format("x{}", i) : operand_name(call.op, i),
                        aligned_dims(call[i].shape, result));
  text += " → ";
  for (size_t o = 0; o < outputs.size(); ++o)
    text += fmt::format("{}{}{}", o > 0 ? ", " : "", o > 0 ? fmt::format("y{}", o) : "y",
                        aligned_dims(outputs[o].shape, result));
  return text;
}

// Operators that are linear in these operands together, the others held: sums of their summands' results.
void is_linear_in(OpDef& op, std::string_view operands_and_result) {
  op.sharding.push_back({.partial = operands_and_result});
}

OpDef pointwise(std::string_view name, std::string_view signature, std::string_view doc, Rule gradient) {
  OpDef op;
  op.notation = notation_of_pointwise;
  op.sharding = {{.cut = "..."}};
  op.name = name;
  op.signature = signature;
  op.doc = doc;
  op.infer = infer_pointwise;
  op.gradient = std::move(gradient);
  op.flops = pointwise_flops;
  op.elementwise = true;
  return op;
}

OpDef unary(std::string_view name, std::string_view doc, Rule gradient) {
  return pointwise(name, "x:T → T", doc, std::move(gradient));
}

OpDef binary(std::string_view name, std::string_view doc, Rule gradient) {
  return pointwise(name, "a:T, b:T → T", doc, std::move(gradient));
}

// A gradient operator of an activation: not differentiable itself.
OpDef derivative(std::string_view name, std::string_view signature, std::string_view doc) {
  OpDef op = pointwise(name, signature, doc, {});
  is_linear_in(op, "dy y");
  return op;
}

std::vector<ValueId> no_gradient(GradientCall& call) {
  return std::vector<ValueId>(call.node.inputs.size(), kAbsent);
}

// Steps where nothing changes almost everywhere: no gradient flows back.
OpDef comparison(std::string_view name, std::string_view doc) { return binary(name, doc, no_gradient); }

// Of a condition and a value: the gradient passes where the value does.
OpDef selection(std::string_view name, std::string_view doc) {
  OpDef op = pointwise(name, "condition:T, b:T → T", doc, [](GradientCall& call) {
    const ValueId passed = call.graph.call(call.node.op->name, {call.input(0), call.output_gradients[0]});
    return std::vector{kAbsent, sum_to_input(call, 1, passed)};
  });
  is_linear_in(op, "b y");
  return op;
}

// Of one operand and a constant, which is an attribute.
OpDef with_number(std::string_view name, std::string_view doc, std::string_view attribute, Rule gradient) {
  OpDef op = unary(name, doc, std::move(gradient));
  op.attributes = {attribute};
  return op;
}

// That constant as a scalar of the operand's dtype.
ValueId number_of(GradientCall& call, const char* attribute) {
  return constant(call.graph, {call.graph.type(call.input(0)).dtype, {}},
                  call.node.attributes.get<double>(attribute));
}

ValueId mul(GradientCall& call, ValueId a, ValueId b) { return call.graph.call("mul", {a, b}); }
ValueId scaled(GradientCall& call, ValueId x, double factor) {
  return call.graph.call("scale", {x}, {{"factor", factor}});
}

// The gradients of both operands from functions that make them in the broadcast shape, called when wanted.
template <typename First, typename Second>
std::vector<ValueId> both(GradientCall& call, First first, Second second) {
  return {call.wanted[0] ? sum_to_input(call, 0, first()) : kAbsent,
          call.wanted[1] ? sum_to_input(call, 1, second()) : kAbsent};
}

// Of maximum and minimum: where a is `taken` dy goes to a, elsewhere to b; on a tie to b.
std::vector<ValueId> choice_gradient(GradientCall& call, ValueId taken) {
  const ValueId dy = call.output_gradients[0];
  const ValueId to_a = call.graph.call("mask", {taken, dy});
  return both(
      call, [&] { return to_a; },
      [&] {
        return call.graph.call("sub", {dy, to_a});
      });
}

std::vector<ValueId> pow_gradient(GradientCall& call) {
  const double exponent = call.node.attributes.get<double>("exponent");
  if (exponent == 0) return {kAbsent};
  const ValueId power = call.graph.call("pow", {call.input(0)}, {{"exponent", exponent - 1}});
  return {scaled(call, mul(call, power, call.output_gradients[0]), exponent)};
}

// As PyTorch's: d/da is b a^(b-1), and 0 where b is 0; d/db is y log(a), and 0 where a is 0 and b at least 0.
std::vector<ValueId> power_gradient(GradientCall& call) {
  const ValueId a = call.input(0), b = call.input(1), dy = call.output_gradients[0];
  const auto op = [&](std::string_view name, std::vector<ValueId> operands) {
    return call.graph.call(name, std::move(operands));
  };
  const ValueId zero = constant(call.graph, {call.graph.type(a).dtype, {}}, 0);
  const auto to_base = [&] {
    const ValueId lower = op("power", {a, call.graph.call("shift", {b}, {{"amount", -1.0}})});
    return op("mask_out", {op("equal", {b, zero}), mul(call, dy, mul(call, b, lower))});
  };
  const auto to_exponent = [&] {
    const ValueId flat = op("mask", {op("equal", {a, zero}), op("less_equal", {zero, b})});
    return op("mask_out", {flat, mul(call, dy, mul(call, call.output(0), op("log", {a})))});
  };
  return both(call, to_base, to_exponent);
}

std::vector<ValueId> div_gradient(GradientCall& call) {
  const ValueId share = call.graph.call("div", {call.output_gradients[0], call.input(1)});
  return both(
      call, [&] { return share; },
      [&] { return call.graph.call("neg", {mul(call, share, call.output(0))}); });
}

std::vector<ValueId> cast_gradient(GradientCall& call) {
  return {as_gradient(call, 0, call.output_gradients[0])};
}

Types infer_cast(const OpCall& call) {
  require_inputs(call, 1, 1);
  if (!call.attributes.has("dtype")) refuse(call, "it needs the attribute 'dtype'");
  return {{dtype_setting(call, "dtype", DType::none), call[0].shape}};
}

Types infer_gelu(const OpCall& call) {
  const std::string approximate = setting<std::string>(call, "approximate", "tanh");
  if (approximate != "tanh" && approximate != "none")
    refuse(call, fmt::format("'approximate' is '{}'; it can be 'tanh' or 'none' (exact)", approximate));
  return infer_pointwise(call);
}

Types infer_fused(const OpCall& call) {
  require_inputs(call, 1, kMaxPointwiseInputs);
  for (size_t i = 0; i < call.inputs.size(); ++i) require_float(call, i);
  const PointwiseProgram program = decode(call.attributes, call.inputs.size());
  const Shape shape = broadcast_shape(call);
  Types types;
  for (const DType dtype : program.dtypes) types.push_back({dtype, shape});
  return types;
}

}  // namespace

std::vector<OpDef> elementwise_ops() {
  std::vector<OpDef> ops;
  ops.push_back(binary("add", "a + b, broadcasting.", [](GradientCall& call) {
    const ValueId dy = call.output_gradients[0];
    return both(
        call, [&] { return dy; }, [&] { return dy; });
  }));
  ops.push_back(binary("sub", "a - b, broadcasting.", [](GradientCall& call) {
    const ValueId dy = call.output_gradients[0];
    return both(
        call, [&] { return dy; }, [&] { return call.graph.call("neg", {dy}); });
  }));
  ops.push_back(binary("mul", "a · b, broadcasting.", [](GradientCall& call) {
    const ValueId dy = call.output_gradients[0];
    return both(
        call, [&] { return mul(call, dy, call.input(1)); }, [&] { return mul(call, dy, call.input(0)); });
  }));
  is_linear_in(ops[0], "a b y");
  is_linear_in(ops[1], "a b y");
  is_linear_in(ops[2], "a y");
  is_linear_in(ops[2], "b y");
  ops.push_back(binary("div", "a / b, broadcasting.", div_gradient));
  is_linear_in(ops.back(), "a y");
  ops.push_back(
      binary("maximum", "The larger of a and b, broadcasting; NaN where either is.", [](GradientCall& call) {
        return choice_gradient(call, call.graph.call("less", {call.input(1), call.input(0)}));
      }));
  ops.push_back(
      binary("minimum", "The smaller of a and b, broadcasting; NaN where either is.", [](GradientCall& call) {
        return choice_gradient(call, call.graph.call("less", {call.input(0), call.input(1)}));
      }));
  ops.push_back(binary("power", "a to the power of b, broadcasting.", power_gradient));
  ops.push_back(comparison("equal", "1 where a = b, else 0."));
  ops.push_back(comparison("not_equal", "1 where a ≠ b, else 0; NaN differs from all numbers."));
  ops.push_back(comparison("less", "1 where a < b, else 0."));
  ops.push_back(comparison("less_equal", "1 where a ≤ b, else 0."));
  ops.push_back(selection("mask", "b where the condition is not 0, else 0."));
  ops.push_back(selection("mask_out", "b where the condition is 0, else 0."));

  ops.push_back(with_number("scale", "x times the constant `factor`.", "factor", [](GradientCall& call) {
    return std::vector{scaled(call, call.output_gradients[0], call.node.attributes.get<double>("factor"))};
  }));
  is_linear_in(ops.back(), "x y");
  ops.push_back(with_number("shift", "x plus the constant `amount`.", "amount",
                            [](GradientCall& call) { return std::vector{call.output_gradients[0]}; }));
  // No gradient passes at the bound itself, as in PyTorch since 2.15 and in relu.
  ops.push_back(
      with_number("clamp_min", "x, or `bound` where x is below it.", "bound", [](GradientCall& call) {
        const ValueId below = call.graph.call("less_equal", {call.input(0), number_of(call, "bound")});
        return std::vector{call.graph.call("mask_out", {below, call.output_gradients[0]})};
      }));
  ops.push_back(
      with_number("clamp_max", "x, or `bound` where x is above it.", "bound", [](GradientCall& call) {
        const ValueId above = call.graph.call("less_equal", {number_of(call, "bound"), call.input(0)});
        return std::vector{call.graph.call("mask_out", {above, call.output_gradients[0]})};
      }));
  ops.push_back(with_number("pow", "x to the power of the constant `exponent`.", "exponent", pow_gradient));

  ops.push_back(unary("neg", "-x.", [](GradientCall& call) {
    return std::vector{call.graph.call("neg", {call.output_gradients[0]})};
  }));
  is_linear_in(ops.back(), "x y");
  ops.push_back(unary("abs", "The absolute value of x.", [](GradientCall& call) {
    return std::vector{mul(call, call.graph.call("sign", {call.input(0)}), call.output_gradients[0])};
  }));
  ops.push_back(unary("sign", "-1, 0 or 1.", no_gradient));
  ops.push_back(unary("sin", "The sine of x, in radians.", [](GradientCall& call) {
    return std::vector{mul(call, call.graph.call("cos", {call.input(0)}), call.output_gradients[0])};
  }));
  ops.push_back(unary("cos", "The cosine of x, in radians.", [](GradientCall& call) {
    const ValueId slope = call.graph.call("neg", {call.graph.call("sin", {call.input(0)})});
    return std::vector{mul(call, slope, call.output_gradients[0])};
  }));
  ops.push_back(unary("square", "x².", [](GradientCall& call) {
    return std::vector{mul(call, scaled(call, call.input(0), 2.0), call.output_gradients[0])};
  }));
  ops.push_back(unary("sqrt", "√x.", [](GradientCall& call) {
    return std::vector{scaled(call, call.graph.call("div", {call.output_gradients[0], call.output(0)}), 0.5)};
  }));
  ops.push_back(unary("exp", "eˣ.", [](GradientCall& call) {
    return std::vector{mul(call, call.output_gradients[0], call.output(0))};
  }));
  ops.push_back(unary("log", "The natural logarithm of x.", [](GradientCall& call) {
    return std::vector{call.graph.call("div", {call.output_gradients[0], call.input(0)})};
  }));
  ops.push_back(unary("tanh", "The hyperbolic tangent of x.", [](GradientCall& call) {
    return std::vector{call.graph.call("tanh_gradient", {call.output(0), call.output_gradients[0]})};
  }));
  ops.push_back(unary("sigmoid", "1 / (1 + e⁻ˣ).", [](GradientCall& call) {
    return std::vector{call.graph.call("sigmoid_gradient", {call.output(0), call.output_gradients[0]})};
  }));
  // relu(x) > 0 where x > 0: the result serves, and x need not be kept.
  ops.push_back(unary("relu", "x where it is positive, else 0.", [](GradientCall& call) {
    return std::vector{call.graph.call("relu_gradient", {call.output(0), call.output_gradients[0]})};
  }));
  ops.push_back(unary("silu", "x · sigmoid(x).", [](GradientCall& call) {
    return std::vector{call.graph.call("silu_gradient", {call.input(0), call.output_gradients[0]})};
  }));
  OpDef gelu = unary("gelu", "x · Φ(x), by tanh (`approximate = \"tanh\"`, as GPT-2) or exactly (\"none\").",
                     [](GradientCall& call) {
                       return std::vector{call.graph.call(
                           "gelu_gradient", {call.input(0), call.output_gradients[0]}, call.node.attributes)};
                     });
  gelu.infer = infer_gelu;
  gelu.attributes = {"approximate"};
  ops.push_back(std::move(gelu));

  OpDef gelu_gradient = derivative("gelu_gradient", "x:T, dy:T → T", "gelu'(x) · dy.");
  gelu_gradient.infer = infer_gelu;
  gelu_gradient.attributes = {"approximate"};
  ops.push_back(std::move(gelu_gradient));
  ops.push_back(derivative("silu_gradient", "x:T, dy:T → T", "silu'(x) · dy."));
  ops.push_back(derivative("relu_gradient", "x:T, dy:T → T", "dy where x is positive, else 0."));
  ops.push_back(derivative("tanh_gradient", "t:T, dy:T → T", "(1 - t²) · dy, with t = tanh(x)."));
  ops.push_back(derivative("sigmoid_gradient", "s:T, dy:T → T", "s (1 - s) · dy, with s = sigmoid(x)."));

  OpDef cast = unary("cast",
                     "The same numbers as another `dtype`; to an integer towards zero, beyond its range the "
                     "nearest that it has, and NaN gives 0.",
                     cast_gradient);
  cast.signature = "x → dtype";
  cast.attributes = {"dtype"};
  cast.infer = infer_cast;
  cast.copies_operand = true;
  cast.casts = true;
  ops.push_back(std::move(cast));

  OpDef fused =
      pointwise("fused", "x0, x1, … → 1 to 4 results of the broadcast shape",
                "Several elementwise operators in one pass; made by the compiler, see elementwise.h.", {});
  fused.attributes = {"steps", "immediates", "results", "dtypes"};
  fused.infer = infer_fused;
  ops.push_back(std::move(fused));
  return ops;
}

}  // namespace het::ops

namespace het {

std::vector<std::string_view> elementwise_names() {
  std::vector<std::string_view> names;
  for (const OpDef& op : ops::elementwise_ops()) names.push_back(op.name);
  return names;
}

}  // namespace het
