// What the search says about its program, checked by solvers that share neither its tables nor its dominance:
// the same problem as an assignment problem (assignment.h), for branch and bound (planner/assignment) and, as
// a linear program, for GLPK.
#pragma once

#include <cstdint>

#include "planner/hap/hap.h"

namespace het::planner::hap {

struct CheckOptions {
  double seconds = 60;                 // of branch and bound
  size_t most_linear_entries = 20000;  // of the linear program's matrix, that GLPK is given
};

// All for the shares of the program that is checked.
struct Check {
  int nodes = 0, edges = 0;    // of the assignment problem
  int64_t strategies = 0;      // of its nodes together
  Ticks checked = kNever;      // what the checked program costs
  Ticks cost = kNever;         // of the cheapest program that branch and bound found
  Ticks bound = 0;             // no program costs less, by branch and bound
  Ticks linear_bound = 0;      // nor less than this, by GLPK's relaxation; 0: too large for it
  int64_t linear_entries = 0;  // of that program's matrix
  double seconds = 0, linear_seconds = 0;
  bool is_exact() const { return cost == bound; }
};

// A program of the request.
Check check(const Request& request, const Synthesised& program, const CheckOptions& options = {});

}  // namespace het::planner::hap
