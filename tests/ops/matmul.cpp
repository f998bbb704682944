#include <array>
#include <tuple>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

constexpr Tolerance kProducts{1e-5, 1.0 / 200, 1.0 / 1500};

}  // namespace

std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const auto add = [&](const Shape& lead, const Shape& lead_b, int64_t m, int64_t k, int64_t n) {
        Shape a = lead, b = lead_b;
        a.insert(a.end(), {ta ? k : m, ta ? m : k});
        b.insert(b.end(), {tb ? n : k, tb ? k : n});
        cases.push_back({"matmul", {T(a), T(b)}, {{"transpose_a", ta}, {"transpose_b", tb}}, kProducts});
      };
      add({}, {}, 1, 1, 1);
      add({}, {}, 3, 5, 7);
      add({}, {}, 1, 33, 4);
      add({}, {}, 17, 1, 9);
      add({}, {}, 65, 64, 33);
      add({4}, {4}, 3, 5, 2);
      add({2, 3}, {2, 3}, 5, 8, 6);
      add({3}, {}, 4, 6, 5);
      add({2, 2}, {}, 3, 7, 4);
      add({1}, {1}, 2, 3, 1);
    }
  for (const auto& [lead, k, m, n] : std::vector<std::tuple<Shape, int64_t, int64_t, int64_t>>{
           {{}, 3, 5, 7}, {{4}, 6, 5, 3}, {{2, 3}, 1, 4, 9}, {{3}, 70, 17, 33}, {{5}, 9, 1, 1}}) {
    Shape a = lead, b = lead;
    a.insert(a.end(), {k, m});
    b.insert(b.end(), {k, n});
    cases.push_back({"matmul_weight_gradient", {T(a), T(b)}, {}, kProducts});
  }
  const std::vector<std::pair<Shape, int64_t>> inputs = {
      {{1}, 1}, {{5}, 3}, {{7, 9}, 4}, {{2, 3, 17}, 33}, {{4, 1, 8}, 1}, {{65, 64}, 127}, {{2, 30, 48}, 80}};
  const Attributes gelu{{"activation", "gelu"}};
  for (const auto& [shape, out] : inputs) {
    const int64_t in = shape.back();
    Shape made = shape;
    made.back() = out;
    cases.push_back({"linear", {T(shape), T({out, in})}, {}, kProducts});
    cases.push_back({"linear", {T(shape), T({out, in}), A({out})}, {}, kProducts});
    cases.push_back({"linear", {T(shape), T({out, in}), absent()}, {}, kProducts});
    cases.push_back({"linear", {T(shape).constant(), T({out, in}).constant(), A({out})}, {}, kProducts});
    cases.push_back({"linear_input_gradient", {T(made), T({out, in})}, {}, kProducts});
    // Both results of an activation, and either alone, as far as gradients go.
    Case kept{"linear", {T(shape), T({out, in}), A({out})}, gelu, kProducts};
    cases.push_back(kept);
    for (const uint32_t through : {2u, 3u}) {
      kept.through = through;
      cases.push_back(kept);
    }
    cases.push_back({"linear", {T(shape), T({out, in})}, gelu, kProducts});
    cases.push_back({"linear_input_gradient", {T(made), T({out, in}), T(shape).in(-4, 4)}, gelu, kProducts});
    cases.push_back({"linear_weight_gradient", {T(made), T(shape)}, {}, kProducts});
    cases.push_back({"linear_weight_gradient", {T(made), T(shape)}, {{"bias", true}}, kProducts});
    cases.push_back({"linear_weight_gradient", {T(made), T(shape)}, {{"bias", false}}, kProducts});
  }
  // More terms than are multiplied at a time, ragged or not; more columns than are kept in f32 at a
  // time.
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{70, 1090, 37}, {64, 1088, 96}, {20, 1056, 1060}}) {
    std::vector<Case> large{
        {"linear", {T({rows, in}), T({out, in}), A({out})}, {}, kProducts},
        {"linear_input_gradient", {T({rows, in}), T({in, out})}, {}, kProducts},
        {"linear_weight_gradient", {T({in, rows}), T({in, out})}, {{"bias", true}}, kProducts}};
    large.push_back({"linear", {T({rows, in}), T({out, in}), A({out})}, gelu, kProducts});
    large.push_back(
        {"linear_input_gradient", {T({rows, in}), T({in, out}), T({rows, out}).in(-4, 4)}, gelu, kProducts});
    for (Case& c : large) {
      c.gradient = false;
      cases.push_back(std::move(c));
    }
  }
  // With GELU, more rows than a block has and more columns than are packed at a time. In bf16 and f16 the
  // product is rounded before GELU: of so many elements some miss the tolerance, which is of one rounding.
  Case many{"linear", {T({300, 3}), T({2100, 3}), A({2100})}, gelu, kProducts};
  many.dtypes = {DType::f32};
  many.gradient = false;
  cases.push_back(std::move(many));
  // Parts of the tokens: one is large enough for matrix units, and the other is not; and more of them
  // than are multiplied at a time.
  cases.push_back({"linear_weight_gradient", {T({511, 16}), T({511, 16})}, {{"bias", true}}, kProducts});
  cases.push_back({"linear_weight_gradient", {T({2100, 24}), T({2100, 40})}, {{"bias", true}}, kProducts});
  // Rows and columns enough that the sums of dy are shared out, in packs and not.
  for (const int64_t out : {264, 257})
    cases.push_back({"linear_weight_gradient", {T({300, out}), T({300, 2})}, {{"bias", true}}, kProducts});
  return cases;
}

}  // namespace het::ops_test
