#include "core/ops/elementwise.h"

#include <cmath>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

// Lengths around the widths of vectors, tails, and one that is shared among threads.
const std::vector<Shape> kShapes = {{1}, {7}, {16}, {17}, {3, 5}, {2, 33}, {4, 64}, {65, 127}};

void unary(std::vector<Case>& cases, const std::string& op, const OperandCase& operand,
           const Attributes& attributes = {}) {
  for (const Shape& shape : kShapes) {
    OperandCase x = operand;
    x.shape = shape;
    cases.push_back({op, {x}, attributes});
  }
  cases.push_back({op,
                   {[&] {
                     OperandCase x = operand;
                     x.shape = {};
                     return x;
                   }()},
                   attributes});
}

void binary(std::vector<Case>& cases, const std::string& op, const OperandCase& a, const OperandCase& b,
            const Attributes& attributes = {}) {
  const std::vector<std::pair<Shape, Shape>> shapes = {{{1}, {1}},
                                                       {{}, {}},
                                                       {{17}, {17}},
                                                       {{3, 65}, {3, 65}},
                                                       {{65, 127}, {65, 127}},
                                                       {{5, 33}, {33}},
                                                       {{33}, {5, 33}},
                                                       {{4, 17}, {4, 1}},
                                                       {{4, 1}, {1, 17}},
                                                       {{2, 3, 5}, {3, 1}},
                                                       {{2, 1, 5}, {3, 1}},
                                                       {{6, 7}, {}},
                                                       {{}, {6, 7}},
                                                       {{1, 1}, {5, 33}},
                                                       {{2, 1, 3, 1}, {1, 4, 1, 5}},
                                                       {{64, 80}, {80}},
                                                       {{8, 1, 64}, {64}},
                                                       {{1, 40, 40}, {3, 1, 40}}};
  for (const auto& [first, second] : shapes) {
    OperandCase x = a, y = b;
    x.shape = first;
    y.shape = second;
    cases.push_back({op, {x, y}, attributes});
  }
}

// Values at which formulas break: both zeros, large and small, infinities where the result is defined.
void special(std::vector<Case>& cases, const std::string& op, std::vector<double> values,
             const Attributes& attributes = {}) {
  const int64_t count = static_cast<int64_t>(values.size());
  Case test{op, {T({3 * count}).of(std::move(values))}, attributes};
  test.gradient = false;
  cases.push_back(std::move(test));
}

// A chain as the fuse pass makes them, of every step.
void fused(std::vector<Case>& cases) {
  const auto add = [&](const PointwiseProgram& program, std::vector<OperandCase> operands) {
    cases.push_back({"fused", std::move(operands), encode(program)});
  };
  // (x0 + x1) * x2, gelu of it times 0.5, written as two dtypes.
  PointwiseProgram two;
  two.inputs = 3;
  two.steps = {{Pointwise::add, 0, 1},
               {Pointwise::mul, 3, 2},
               {Pointwise::gelu_tanh, 4},
               {Pointwise::scale, 5, -1, 0.5}};
  two.results = {6, 4};
  two.dtypes = {DType::f32, DType::bf16};
  add(two, {T({5, 33}), T({33}), T({5, 1})});
  add(two, {T({64, 80}), T({64, 80}), T({64, 80})});
  add(two, {T({7}), A({7}), T({7})});  // operands of two dtypes
  // Eight operands, four results, one of them an operand.
  PointwiseProgram wide;
  wide.inputs = 8;
  for (int i = 0; i < 7; ++i)
    wide.steps.push_back({i % 2 == 0 ? Pointwise::add : Pointwise::sub, i == 0 ? 0 : 7 + i, i + 1});
  wide.results = {14, 10, 8, 3};
  wide.dtypes = {DType::f32, DType::f32, DType::f16, DType::f32};
  add(wide, std::vector<OperandCase>(8, T({3, 67})));
  // As long as programs get, each step using the one before and the first operand.
  PointwiseProgram longest;
  longest.inputs = 2;
  for (int i = 0; i < kMaxPointwiseSteps; ++i)
    longest.steps.push_back({i % 2 == 0 ? Pointwise::mul : Pointwise::add, i == 0 ? 0 : 1 + i, i % 2});
  longest.results = {1 + kMaxPointwiseSteps};
  longest.dtypes = {DType::f32};
  add(longest, {T({129}), T({129})});
  // Every step once, each on both operands (positive ones, so that all are defined); results as they come.
  for (int code = 0; code <= static_cast<int>(Pointwise::cast); ++code) {
    PointwiseProgram one;
    one.inputs = 2;
    const Pointwise step = static_cast<Pointwise>(code);
    one.steps = {{step, 0, operands_of(step) == 2 ? 1 : -1, 1.5}, {Pointwise::mul, 2, 1}};
    one.results = {3};
    one.dtypes = {DType::f32};
    add(one, {T({37}).in(0.25, 2), T({37}).in(0.5, 2)});
  }
  // A broadcast operand of one element, and a scalar result.
  add(two, {T({}), T({}), T({})});
}

}  // namespace

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  binary(cases, "add", T({}), T({}));
  binary(cases, "sub", T({}), T({}));
  binary(cases, "mul", T({}), T({}));
  binary(cases, "div", T({}), T({}).in(-2, 2).apart(0.5));
  // Never equal, so that differences do not step over the kink.
  binary(cases, "maximum", T({}).of({0.5, -2, 1, 3, 0, -1, 2}), T({}).of({0.75, -0.25, 1.25, -1.75, 2.25}));
  const double inf = INFINITY;
  Case nan{"maximum", {T({6}).of({NAN, 1, NAN, inf, -inf, 0}), T({6}).of({1, NAN, NAN, 2, -3, -1})}};
  nan.gradient = false;
  cases.push_back(nan);

  binary(cases, "minimum", T({}).of({0.5, -2, 1, 3, 0, -1, 2}), T({}).of({0.75, -0.25, 1.25, -1.75, 2.25}));
  Case lower = nan;
  lower.op = "minimum";
  cases.push_back(lower);
  binary(cases, "power", T({}).in(0.25, 4), T({}).in(-2, 2));
  // Whole exponents of negative numbers, whose logarithm there is not.
  binary(cases, "power", T({}).in(-2, 2).apart(0.1), T({}).of({2, 3, -1, 0, 1}).constant());
  Case edges = nan;
  edges.op = "power";
  edges.inputs = {T({8}).of({0, 0, 0, -8, inf, NAN, 1, -1}), T({8}).of({0, 2, -1, 0.5, -1, 0, NAN, inf})};
  cases.push_back(edges);
  for (const char* op : {"equal", "not_equal", "less", "less_equal"}) {
    binary(cases, op, T({}).of({0.5, -2, 1, 3, 0, -1, 2}).constant(),
           T({}).of({0.5, 3, 1, -1, 0}).constant());
    Case special = nan;
    special.op = op;
    cases.push_back(special);
  }
  // What is left out may be anything: it does not come through.
  for (const char* op : {"mask", "mask_out"}) {
    binary(cases, op, T({}).of({0, 1, 0, -2}).constant(), T({}));
    Case special{op, {T({6}).of({0, 0, 0, 1, 1, NAN}), T({6}).of({NAN, inf, -inf, NAN, inf, 2})}};
    special.gradient = false;
    cases.push_back(special);
  }

  unary(cases, "clamp_min", T({}).of({-3, -1, 0, 0.75, 2}), {{"bound", 0.5}});
  unary(cases, "clamp_max", T({}).of({-3, -1, 0, 0.75, 2}), {{"bound", 0.5}});
  unary(cases, "abs", T({}).apart(0.01));
  unary(cases, "sign", T({}).apart(0.01).constant());
  unary(cases, "sin", T({}).in(-8, 8));
  unary(cases, "cos", T({}).in(-8, 8));
  unary(cases, "pow", T({}).in(0.25, 4), {{"exponent", 1.5}});
  unary(cases, "pow", T({}).in(-2, 2).apart(0.1), {{"exponent", 3.0}});
  unary(cases, "pow", T({}).in(0.25, 4), {{"exponent", -0.5}});
  unary(cases, "pow", T({}).in(0.25, 4).constant(), {{"exponent", 0.0}});
  special(cases, "sin", {0, -0.0, 100, -100, 1000, 1e5, 3.14159265, 1e-30});
  special(cases, "cos", {0, -0.0, 100, -100, 1000, 1e5, 1.57079633, 1e-30});
  special(cases, "sign", {0, NAN, inf, -inf, 3, -3, 1e-30});
  special(cases, "abs", {0, -0.0, NAN, inf, -inf, 3, -3, 1e-30});
  special(cases, "clamp_min", {NAN, inf, -inf, 1, 0.5, 3}, {{"bound", 1.0}});
  special(cases, "clamp_max", {NAN, inf, -inf, 1, 0.5, 3}, {{"bound", 1.0}});
  special(cases, "pow", {0, 1, -1, 4, inf, -8, 0.5}, {{"exponent", 2.0}});
  unary(cases, "scale", T({}), {{"factor", -2.5}});
  unary(cases, "shift", T({}), {{"amount", 0.75}});
  unary(cases, "neg", T({}));
  unary(cases, "square", T({}));
  unary(cases, "sqrt", T({}).in(0.1, 4));
  unary(cases, "exp", T({}).in(-4, 4));
  unary(cases, "log", T({}).in(0.1, 8));
  unary(cases, "tanh", T({}).in(-4, 4));
  unary(cases, "sigmoid", T({}).in(-8, 8));
  unary(cases, "relu", T({}).apart(0.01));
  unary(cases, "silu", T({}).in(-6, 6));
  unary(cases, "gelu", T({}).in(-4, 4));
  unary(cases, "gelu", T({}).in(-4, 4), {{"approximate", std::string("none")}});
  special(cases, "exp", {0, -0.0, 1, -1, 88, -88, 1000, -1000, inf, -inf, 1e-30, -103});
  special(cases, "log", {0, 1, 2.71828, 1e30, 1e-30, inf, -1, 65504});
  special(cases, "sqrt", {0, 1, 4, 1e30, 1e-30, inf, -1, 2});
  special(cases, "tanh", {0, -0.0, 1e-4, -1e-4, 0.625, 9, -9, 100, -100, inf, -inf, 1e-30});
  special(cases, "sigmoid", {0, -0.0, 20, -20, 100, -100, 1000, -1000, inf, -inf, 1e-5, -50});
  special(cases, "relu", {0, -0.0, NAN, inf, -inf, 3, -3, 1e-30});
  special(cases, "silu", {0, 20, -20, 80, -80, 1000, -1000, 1e-5});
  special(cases, "gelu", {0, 5, -5, 10, -10, 100, -100, 1000, -1000, 1e-4, -1e-4, 2});
  special(cases, "gelu", {0, 5, -5, 10, -10, 100, -100, 1000, -1000, 1e-4, -1e-4, 2},
          {{"approximate", std::string("none")}});

  binary(cases, "gelu_gradient", T({}).in(-4, 4), T({}));
  binary(cases, "gelu_gradient", T({}).in(-4, 4), T({}), {{"approximate", std::string("none")}});
  binary(cases, "silu_gradient", T({}).in(-6, 6), T({}));
  binary(cases, "relu_gradient", T({}), T({}));
  binary(cases, "tanh_gradient", T({}), T({}));
  binary(cases, "sigmoid_gradient", T({}).in(0, 1), T({}));
  for (const char* op : {"gelu_gradient", "silu_gradient"})
    cases.push_back({op, {T({8}).of({100, -100, 10, -10, 0, 1e-5, 30, -30}), T({8}).of({1, -2})}});

  // Every dtype to every other, with values that round, and that saturate an i32 or a u8.
  const std::vector<double> numbers = {0, 1, -1, 2.75, -2.75, 100.5, 250.9, 0.999};
  for (const DType from :
       {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean})
    for (const DType to :
         {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
      const bool sign = from != DType::u8 && from != DType::boolean && to != DType::u8;
      const auto values = sign ? numbers : std::vector<double>{0, 1, 2.75, 100.5, 250.9, 0.999};
      Case test{"cast",
                {exact(from, {37}).of(from == DType::boolean ? std::vector<double>{0, 1, 1} : values)},
                {{"dtype", std::string(name_of(to))}}};
      test.dtypes = {DType::f32};
      test.gradient = false;
      cases.push_back(test);
    }
  for (const DType to : {DType::f32, DType::bf16, DType::f16})
    unary(cases, "cast", T({}).in(-100, 100).constant(), {{"dtype", std::string(name_of(to))}});
  // Integers past what an f32 holds keep their digits.
  Case wide{"cast",
            {exact(DType::i64, {4}).of({16777217, -16777219, 123456789, 2147483647})},
            {{"dtype", std::string("i32")}}};
  wide.dtypes = {DType::f32};
  wide.gradient = false;
  cases.push_back(wide);
  // Differences see the rounding of the others; to f64 there is none.
  cases.push_back({"cast", {T({5})}, {{"dtype", std::string("f64")}}});

  fused(cases);
  return cases;
}

}  // namespace het::ops_test
