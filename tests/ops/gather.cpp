#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> gather_cases() {
  std::vector<Case> cases;
  // Entries of a row, and how many of them are named; some twice.
  const std::vector<std::pair<Shape, int64_t>> shapes = {{{1}, 1},        {{7}, 3},       {{3, 8}, 1},
                                                         {{2, 5, 33}, 4}, {{4, 65}, 130}, {{700, 16}, 2}};
  for (const auto& [shape, k] : shapes) {
    Shape named = shape;
    named.back() = k;
    const OperandCase index = I32(named, 0, shape.back());
    cases.push_back({"gather", {T(shape), index}});
    cases.push_back({"scatter_add", {T(named), index}, {{"size", shape.back()}}, {1e-5}});
  }
  // One entry gets all, the others nothing.
  cases.push_back(
      {"scatter_add", {T({3, 50}), OperandCase{Kind::i32, {3, 50}}.of({2})}, {{"size", int64_t{4}}}, {1e-5}});
  return cases;
}

}  // namespace het::ops_test
