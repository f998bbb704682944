// Operands at aligned addresses, in sizes that reach the paths of kernels that only those take: whole packs,
// rows kept in registers, sums in several parts, tiles. The cases of the families, at odd addresses, reach
// the others.
#include <catch2/catch.hpp>

#include "core/ops/elementwise.h"
#include "core/ops/op.h"
#include "core/ops/part.h"
#include "core/tensor/slice.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

using List = std::vector<int64_t>;

void elementwise(std::vector<Case>& cases) {
  // More than a block, with an end that is no whole pack; repeated as positions, biases, columns and one
  // number are.
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{4099}, {4099}},
                                                                 {{3, 16, 64}, {16, 64}},
                                                                 {{33, 64}, {64}},
                                                                 {{64}, {33, 64}},
                                                                 {{5, 72}, {5, 1}},
                                                                 {{1000}, {}},
                                                                 {{2, 1, 3, 8}, {1, 4, 1, 8}},
                                                                 {{2, 3, 4, 16}, {3, 1, 16}},
                                                                 {{2, 3, 4, 16}, {2, 1, 4, 1}}})
    for (const char* op : {"mul", "div"}) cases.push_back({op, {T(a), T(b).apart(0.25)}});
  for (const char* op : {"scale", "relu", "gelu", "silu", "tanh"})
    cases.push_back({op,
                     {T({4099}).in(-4, 4).apart(0.01)},
                     op == std::string("scale") ? Attributes{{"factor", 3.0}} : Attributes{}});
  for (const char* op : {"gelu_gradient", "silu_gradient", "relu_gradient", "sub", "add"})
    cases.push_back({op, {T({3, 1040}).in(-4, 4), T({3, 1040})}});
  for (const char* to : {"f32", "bf16", "f16", "f64", "i32"})
    cases.push_back({"cast", {T({4099}).in(-100, 100)}, {{"dtype", std::string(to)}}});

  using P = Pointwise;
  const auto chain = [&](int inputs, const std::vector<PointwiseStep>& steps, const std::vector<int>& results,
                         const std::vector<OperandCase>& operands) {
    // In the dtype of the operands, and mixed.
    for (const DType dtype : {DType::f32, DType::bf16}) {
      PointwiseProgram program{inputs, steps, results, std::vector<DType>(results.size(), dtype)};
      if (results.size() > 2) program.dtypes[1] = DType::f16;
      cases.push_back({"fused", operands, encode(program), {4e-6, 1.0 / 256, 1.0 / 1024}});
    }
  };
  const OperandCase x = T({3, 1040}).in(-3, 3);
  chain(2, {{P::silu, 0}, {P::mul, 2, 1}}, {3}, {x, x});
  chain(3, {{P::mul, 0, 1}, {P::silu_gradient, 2, 3}}, {4}, {x, x, x});
  chain(2, {{P::gelu_tanh, 0}, {P::mul, 2, 1}}, {3}, {x, x});
  chain(3, {{P::mul, 0, 1}, {P::gelu_tanh_gradient, 2, 3}}, {4}, {x, x, x});
  chain(3, {{P::add, 0, 1}, {P::add, 3, 2}}, {4}, {x, x, T({1040})});
  // Almost the chain before.
  chain(3, {{P::add, 0, 1}, {P::add, 2, 3}}, {4}, {x, x, T({1040})});
  chain(3, {{P::add, 0, 1}, {P::sub, 3, 2}}, {4}, {x, x, T({1040})});
  chain(2, {{P::silu, 0}, {P::mul, 2, 0}}, {3}, {x, x});
  // Values of two or more steps ago, of one step twice, operands of both kinds repeated, operands as results.
  chain(3, {{P::exp, 0}, {P::scale, 1, -1, 0.5}, {P::mul, 3, 4}, {P::sub, 5, 5}, {P::maximum, 6, 5}},
        {7, 3, 2, 7}, {T({3, 1040}), A({1040}), T({3, 1})});
  // As many values alive as there can be: blocks of fewer threads.
  std::vector<PointwiseStep> steps;
  for (int i = 0; i < 12; ++i) steps.push_back({P::scale, i % 8, -1, 0.5 + i});
  for (int i = 0; i < 12; ++i) steps.push_back({P::add, 8 + i, 19 + i});
  for (int i = 0; i < 8; ++i) steps.push_back({P::sub, i, 31 + i});
  chain(8, steps, {39, 30}, std::vector<OperandCase>(8, T({2, 1040})));
}

// In whole packs, for which GPUs' library makes activations, and not.
void products(std::vector<Case>& cases) {
  constexpr Tolerance kProducts{1e-5, 1.0 / 200, 1.0 / 1500};
  const Attributes gelu{{"activation", std::string("gelu")}};
  for (const auto& [in, out] :
       std::vector<std::pair<int64_t, int64_t>>{{64, 72}, {16, 8}, {24, 33}, {33, 24}}) {
    cases.push_back({"linear", {T({37, in}), T({out, in}), A({out})}, gelu, kProducts});
    cases.push_back({"linear", {T({37, in}), T({out, in})}, gelu, kProducts});
    cases.push_back(
        {"linear_input_gradient", {T({37, out}), T({out, in}), T({37, in}).in(-4, 4)}, gelu, kProducts});
  }
}

void others(std::vector<Case>& cases) {
  // Slots every second of them, in packs and not.
  for (const int64_t width : {64, 1032, 36}) {
    const OperandCase slot = OperandCase{Kind::i32, {2, 6, 1}}.of({0, 2, -1, 4, 6, 10}),
                      weight = A({2, 6, 1});
    cases.push_back(
        {"dispatch", {T({2, 6, width}), slot, weight}, {{"experts", int64_t{4}}, {"capacity", int64_t{3}}}});
    cases.push_back({"combine", {T({4, 2, 3, width}), slot, weight}});
    cases.push_back({"combine_weight_gradient", {T({2, 6, width}), T({4, 2, 3, width}), slot}, {}, {1e-5}});
  }
  cases.push_back({"matmul_weight_gradient", {T({3, 40, 64}), T({3, 40, 72})}, {}, {1e-5}});
  for (const Shape& shape : {Shape{4099}, {2, 3, 8, 16}, {70, 90}, {3, 130, 64}, {2, 5, 66, 40}})
    cases.push_back({"copy", {T(shape)}});
  for (const DType dtype : {DType::i64, DType::u8}) {
    Case test{"copy", {exact(dtype, {3, 130, 80}).in(0, 2)}};
    test.dtypes = {DType::f32};
    cases.push_back(test);
  }
  for (const char* dtype : {"f32", "bf16", "i64", "u8"}) {
    Case test{"fill", {}, {{"value", 3.0}, {"shape", List{37, 123}}, {"dtype", std::string(dtype)}}};
    test.dtypes = {DType::f32};
    cases.push_back(test);
  }
  const auto sum = [&](const Shape& shape, const List& dims) {
    for (const char* op : {"sum", "mean"})
      cases.push_back({op, {T(shape).in(-1, 2)}, {{"dims", dims}, {"dtype", std::string("f32")}}, {1e-5}});
  };
  sum({700, 16}, {1});  // a thread for each result, a warp, a block, several blocks
  sum({20, 512}, {1});
  sum({9, 4096}, {1});
  sum({40000}, {0});
  sum({40001}, {0});
  sum({600, 64}, {0});
  sum({500, 33}, {0});
  sum({2000, 3}, {0});
  sum({8, 300, 64}, {0, 1});
  sum({8, 300, 64}, {1});
  sum({6, 40, 64}, {0, 2});
  sum({6, 7, 8, 64}, {0, 2});
  sum({3, 4, 5, 6, 8}, {1, 3});
  sum({1500, 1200}, {0});
  cases.push_back({"sum", {T({30, 512})}, {{"dims", List{1}}}, {1e-5}});

  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int64_t>>{{{11, 64}, -1},
                                                                         {{3, 512}, -1},
                                                                         {{3, 1024}, -1},
                                                                         {{3, 4096}, -1},
                                                                         {{2, 5003}, -1},
                                                                         {{1, 16384}, -1},
                                                                         {{2, 32768}, -1},
                                                                         {{1, 33001}, -1},
                                                                         {{1, 40000}, -1},
                                                                         {{3, 70, 40}, 1}}) {
    const Attributes attributes{{"dim", dim}};
    const double size = static_cast<double>(shape[from_start(dim, shape.size())]);
    Case forward{"softmax", {T(shape).in(-3, 3)}, attributes};
    Case backward{"softmax_gradient", {T(shape).in(0, 2 / size), T(shape)}, attributes, {1e-5}};
    // Parts of so many are no normal numbers in f16.
    if (size > 1000) forward.dtypes = backward.dtypes = {DType::f32, DType::bf16};
    cases.push_back(forward);
    cases.push_back(backward);
  }
  for (const Shape& shape : {Shape{3, 64}, {2, 1032}, {5, 7, 40}, {2, 2500}}) {
    Shape whole = shape;
    whole.back() += 20;
    Attributes attributes{{"p", 0.3}, {"seed", int64_t{42}}, {"stream", int64_t{9}}};
    set_part(attributes, TensorSlice::whole(whole).narrowed(-1, Range{20, whole.back()}));
    cases.push_back({"dropout", {T(shape), I64({3, 12}, {2})}, attributes});
  }
}

}  // namespace

TEST_CASE("a device computes the same from aligned operands of larger sizes") {
  std::vector<Case> cases;
  elementwise(cases);
  products(cases);
  others(cases);
  for (const Subject& subject : subjects()) {
    if (subject.is_reference()) continue;
    DYNAMIC_SECTION(subject.name) {
      for (const Case& test : cases) {
        const OpDef& op = op_named(test.op);
        for (const DType dtype : test.dtypes) {
          const TypedCase typed = typed_case(test, dtype);
          std::vector<Placing> placings{Placing::packed};
          if (op.name == "copy") placings.insert(placings.end(), {Placing::permuted, Placing::reversed});
          for (const Placing placing : placings)
            for (const uint32_t accumulate : {0u, op.accumulates}) {
              INFO(to_string(test) << ", " << name_of(dtype) << ", " << name_of(placing)
                                   << ", accumulating into " << accumulate);
              bool supported = false;
              const auto problems = compare(*subject.device, {typed, placing, accumulate, true}, supported);
              CHECK(supported);
              CHECK(problems == std::vector<std::string>());
              if (op.accumulates == 0) break;
            }
        }
      }
    }
  }
}

}  // namespace het::ops_test
