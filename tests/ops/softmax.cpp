#include <cmath>

#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> softmax_cases() {
  std::vector<Case> cases;
  const std::vector<std::pair<Shape, int64_t>> shapes = {
      {{1}, 0},       {{7}, -1},       {{3, 17}, -1},  {{3, 17}, 0},   {{2, 5, 33}, 1}, {{4, 1}, -1},
      {{2, 3, 4}, 0}, {{65, 127}, -1}, {{65, 127}, 0}, {{9, 300}, -1}, {{2, 3, 16}, -1}};
  for (const auto& [shape, dim] : shapes) {
    const Attributes attributes{{"dim", dim}};
    cases.push_back({"softmax", {T(shape).in(-3, 3)}, attributes});
    cases.push_back({"softmax_gradient", {T(shape).in(0, 1), T(shape)}, attributes, {1e-5}});
    cases.push_back({"softmax_statistics", {T(shape).in(-3, 3)}, attributes});
    cases.push_back({"softmax_gradient_sums", {T(shape).in(0, 1), T(shape)}, attributes, {1e-5}});
  }
  Case large{"softmax", {T({4, 4}).of({1000, 999, -1000, 0, 80, -80, 80, 79})}};
  large.gradient = false;
  cases.push_back(large);
  Case masked{"softmax", {T({2, 5}).of({1, -INFINITY, 0.5, -INFINITY, -1})}};
  masked.gradient = false;
  cases.push_back(masked);
  for (const Case& odd : {large, masked}) {
    cases.push_back(odd);
    cases.back().op = "softmax_statistics";
  }
  // All of the second row is masked in a part of two elements.
  Case part{"softmax", {T({2, 6}).of({1, 0, -INFINITY, 2, 3, -1, -INFINITY, -INFINITY, -INFINITY, 1, 2, 0})}};
  part.gradient = false;
  cases.push_back(part);
  return cases;
}

}  // namespace het::ops_test
