#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> embedding_cases() {
  std::vector<Case> cases;
  const std::vector<std::pair<Shape, Shape>> shapes = {{{1}, {1, 1}}, {{7}, {5, 3}},       {{2, 9}, {11, 33}},
                                                       {{}, {4, 8}},  {{4, 40}, {65, 64}}, {{3, 1}, {2, 17}}};
  for (const auto& [ids, table] : shapes) {
    const OperandCase id = I32(ids, 0, table[0]);
    Shape made = ids;
    made.push_back(table[1]);
    cases.push_back({"embedding", {id, T(table)}});
    cases.push_back({"embedding_gradient", {T(made), id}, {{"rows", table[0]}}, {1e-5}});
    // Rows in the middle of a table three times as long.
    const Attributes part{{"first", table[0]}, {"of", 3 * table[0]}};
    Attributes gradient = part;
    gradient.set("rows", table[0]);
    cases.push_back({"embedding", {I32(ids, 0, 3 * table[0]), T(table)}, part});
    cases.push_back({"embedding_gradient", {T(made), I32(ids, 0, 3 * table[0])}, gradient, {1e-5}});
  }
  // One row many times, others never.
  cases.push_back({"embedding_gradient",
                   {T({50, 6}), OperandCase{Kind::i32, {50}}.of({2})},
                   {{"rows", int64_t{4}}},
                   {1e-5}});
  // Rows of several accesses for each lane.
  cases.push_back({"embedding", {I32({3}, 0, 5), T({5, 1400})}});
  // More indices than are sorted at a time, and than sorted runs are merged at a time.
  for (const int64_t count : {1100, 17000}) {
    cases.push_back(
        {"embedding_gradient", {T({count, 2}), I32({count}, 0, 40)}, {{"rows", int64_t{40}}}, {1e-5}});
    cases.back().dtypes = {DType::f32};
  }
  return cases;
}

}  // namespace het::ops_test
