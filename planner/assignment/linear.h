// An assignment problem as a 0/1 program (planner/milp.h): its optimum for small problems, by a solver that
// shares nothing with solve(), and a lower bound by the relaxation.
//
// x[i, s] is 1 where node i takes strategy s: they sum to 1. Of an edge y[s, t, ...] is 1 where its nodes
// take s, t, ...: those with strategy s of a node sum to x[node, s]. An edge of two nodes that costs nothing
// and forbids needs no y: x[a, s] is at most the sum of the x[b, t] that are allowed beside s, and the same
// for b. At each time the usages of all x sum to the limit at most.
#pragma once

#include <vector>

#include "planner/assignment/problem.h"
#include "planner/milp.h"

namespace het::planner::assignment {

struct LinearAssignment {
  LinearProgram program;
  std::vector<std::vector<int>> variables;  // x, by node and strategy
  double unit = 1;                          // costs of the program are in these

  std::vector<int> choice_of(const LinearSolution& solution) const;
};

// Of a valid problem. What costs kForbiddenCost or more is never chosen. `relaxed`: x may lie between 0
// and 1.
LinearAssignment linear_program_of(const AssignmentProblem& problem, bool relaxed = false);

}  // namespace het::planner::assignment
