#include "planner/milp.h"

#include <catch2/catch.hpp>

using namespace het;
using namespace het::planner;

TEST_CASE("a linear program is solved, and one without a solution is said to have none") {
  LinearProgram program;  // maximise 3x + 2y with x + y <= 4, x + 3y <= 6, x <= 3
  const int x = program.add(Variable{0, 3, -3}), y = program.add(Variable{0, kNoBound, -2});
  program.add(Row{{{x, 1}, {y, 1}}, -kNoBound, 4});
  program.add(Row{{{x, 1}, {y, 3}}, -kNoBound, 6});
  const LinearSolution best = solve(program);
  REQUIRE(best.optimal);
  CHECK(best.objective == Approx(-11));
  CHECK(best.values[0] == Approx(3));
  program.add(Row{{{x, 1}, {y, 1}}, 5, kNoBound});
  CHECK_FALSE(solve(program).feasible);
}

TEST_CASE("a knapsack in integers equals its best by hand; the relaxation bounds it") {
  LinearProgram program;
  const double value[] = {10, 13, 7, 8}, weight[] = {3, 4, 2, 3};
  Row row;
  for (int i = 0; i < 4; ++i) row.terms.emplace_back(program.add(Variable{0, 1, -value[i], true}), weight[i]);
  row.upper = 7;
  program.add(row);
  const LinearSolution best = solve(program);
  REQUIRE(best.optimal);
  CHECK(best.objective == Approx(-23));
  CHECK(best.values == std::vector<double>{1, 1, 0, 0});
}
