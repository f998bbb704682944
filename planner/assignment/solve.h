// The solver of assignment problems: a choice, what it costs, and a proven lower bound, within a limit of
// time or of steps.
//
//   presolve ─▶ dual (prices of rows, bound) ─▶ branch and bound ─▶ local search in large neighbourhoods
//
// Small problems, and large ones without tight usage whose graph is nearly a tree, are solved to the proven
// optimum; the solver then returns early, and the result does not depend on the machine. Else it uses all of
// its time or steps, or ends at the gap that was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/assignment/problem.h"

namespace het::planner::assignment {

struct SolveOptions {
  double seconds = 60;
  int64_t steps = 0;  // above 0: instead of seconds, so that the result does not depend on speed (clock.h)
  double gap = 0;     // relative to the cost, below 1: a choice that is proven to be so near ends the search
  uint64_t seed = 1;
  int threads = 1;             // that search; with `steps` one does
  std::function<bool()> stop;  // asked often, by all of them; true ends the search
};

struct AssignmentResult {
  bool feasible = false;    // there is a choice
  std::vector<int> choice;  // a strategy for each node
  WideCost cost = 0;
  int64_t not_allowed = 0;  // costs of kForbiddenCost and more that it has
  bool has_bound = false;
  WideCost bound = 0;       // no feasible choice costs less
  bool optimal = false;     // proven: cost == bound; or, when not feasible, that nothing is
  std::string why_not;      // why there is no choice
  WideCost peak_usage = 0;  // of the choice, first at peak_time
  int64_t peak_time = 0;
  int variables = 0, pairs = 0, rows = 0;  // after presolve
  int64_t moves = 0;                       // of the local search

  // (cost - bound) / |cost|, at least 0; 0 when proven.
  double gap() const;
};

// Throws Error(usage) when the problem is not valid.
AssignmentResult solve(const AssignmentProblem& problem, const SolveOptions& options = {});

}  // namespace het::planner::assignment
