#include "planner/hap/check.h"

#include <algorithm>
#include <cmath>

#include "core/base/elapsed.h"
#include "planner/assignment/linear.h"
#include "planner/assignment/solve.h"
#include "planner/hap/assignment.h"

namespace het::planner::hap {

Check check(const Request& request, const Synthesised& program, const CheckOptions& options) {
  Check check;
  check.checked = program.cost;
  ShardingCosts costs(*request.table, *request.group, request.microbatches);
  costs.set_outer(request.outer);
  double begin = steady_seconds();
  const AssignmentView view = as_assignment(costs, program.program.shares, request.options);
  check.nodes = static_cast<int>(view.problem.nodes.size());
  check.edges = static_cast<int>(view.problem.edges.size());
  for (const assignment::AssignmentNode& node : view.problem.nodes)
    check.strategies += static_cast<int64_t>(node.costs.size());
  assignment::SolveOptions limits;
  limits.seconds = options.seconds;
  const assignment::AssignmentResult found = assignment::solve(view.problem, limits);
  // Below the cost of a program where some holdings count nothing.
  if (found.feasible && view.exact) check.cost = static_cast<Ticks>(found.cost);
  if (found.has_bound) check.bound = static_cast<Ticks>(std::max<assignment::WideCost>(0, found.bound));
  check.seconds = steady_seconds() - begin;
  begin = steady_seconds();
  const assignment::LinearAssignment linear = assignment::linear_program_of(view.problem, true);
  for (const Row& row : linear.program.rows) check.linear_entries += std::ssize(row.terms);
  if (check.linear_entries <= static_cast<int64_t>(options.most_linear_entries)) {
    const LinearSolution relaxed = planner::solve(linear.program);
    constexpr double kTolerance = 1e-6;  // of GLPK
    if (relaxed.optimal)
      check.linear_bound = static_cast<Ticks>(std::floor(relaxed.objective * linear.unit * (1 - kTolerance)));
    check.linear_seconds = steady_seconds() - begin;
  }
  return check;
}

}  // namespace het::planner::hap
