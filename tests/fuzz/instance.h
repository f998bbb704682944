// What every fuzzer of assignment instances asks: any bytes either give a valid problem, whose choices can be
// evaluated, or an Error of the usage kind.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "planner/assignment/problem.h"

namespace het::fuzz {

// True when the text was accepted. Aborts when it breaks the promise.
inline bool instance(std::string_view text) {
  namespace assignment = planner::assignment;
  assignment::AssignmentProblem problem;
  try {
    problem = assignment::parse_instance(text, "fuzz");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
  if (!problem.validate().empty()) std::abort();
  std::vector<int> last;
  for (const assignment::AssignmentNode& node : problem.nodes)
    last.push_back(static_cast<int>(node.costs.size()) - 1);
  const assignment::Evaluation found = evaluate(problem, last);
  if (found.feasible && obviously_infeasible(problem)) std::abort();
  return true;
}

}  // namespace het::fuzz
