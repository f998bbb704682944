#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

constexpr Tolerance kRows{1e-5, 1.0 / 200, 1.0 / 1500};

// The statistics that the gradient kernels are given need not be those of x: they are operands like any
// other.
OperandCase rstd(int64_t rows) { return A({rows}).in(0.5, 2); }

}  // namespace

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{7}, {1, 5}, {3, 17}, {2, 3, 33}, {4, 64}, {65, 127}, {40, 256}, {9, 2}}) {
    const int64_t n = shape.back(), rows = elements_of(shape) / n;
    const Attributes eps{{"eps", 1e-3}};
    cases.push_back({"layer_norm", {T(shape), A({n}), A({n})}, {}, kRows});
    cases.push_back({"layer_norm", {T(shape).in(2, 4), A({n})}, eps, kRows});
    cases.push_back({"layer_norm", {T(shape), absent(), A({n})}, eps, kRows});
    cases.push_back({"layer_norm", {T(shape)}, eps, kRows});
    cases.push_back({"layer_norm_gradient", {T(shape), T(shape), A({n}), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"layer_norm_gradient",
                     {T(shape), T(shape), A({n}), A({rows}), rstd(rows)},
                     {{"bias", false}},
                     kRows});
    cases.push_back({"layer_norm_gradient",
                     {T(shape), T(shape), absent(), A({rows}), rstd(rows)},
                     {{"bias", true}},
                     kRows});
    cases.push_back(
        {"layer_norm_gradient", {T(shape), T(shape), absent(), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape), A({n})}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape)}, eps, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), A({n}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), absent(), rstd(rows)}, {}, kRows});
  }
  // Rows that are shared among several warps, or too long to be held in registers; more rows than blocks.
  for (const Shape& shape : {Shape{35, 320}, {11, 1032}, {9, 2112}, {9, 8208}, {70, 8}}) {
    const int64_t n = shape.back(), rows = shape[0];
    cases.push_back({"layer_norm", {T(shape), A({n}), A({n})}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape), A({n})}, {}, kRows});
    cases.push_back({"layer_norm_gradient", {T(shape), T(shape), A({n}), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), A({n}), rstd(rows)}, {}, kRows});
  }
  // A mean far from 0: the variance must not come from the difference of two large numbers.
  Case far{"layer_norm", {T({3, 64}).in(1000, 1001), A({64}), A({64})}, {}, {2e-4}};
  far.dtypes = {DType::f32};
  far.gradient = false;
  cases.push_back(far);
  // Equal elements: the variance is 0 and eps alone keeps the result finite.
  Case flat{"layer_norm", {T({2, 16}).of({0.5}), A({16}), A({16})}, {}, kRows};
  flat.gradient = false;
  cases.push_back(flat);
  return cases;
}

}  // namespace het::ops_test
