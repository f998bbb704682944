// The problem of search.h once more, as an assignment problem (planner/assignment): a second way to the same
// optimum. It shares the decisions (steps.h) and the cost of what a value is needed as (forms.h) with the
// search, and none of its tables, joins, dominance or repeated layers.
//
//   node: a step          strategies: its ways              cost: the way's
//   node: a shared value  strategies: how it is made, and   cost: ValueCosts::cost() of both
//                         what is held of it by phase
//   edge: step, value     0 where the way makes the value so, and finds what it reads among what is held;
//                         else forbidden
//
// So no cost is on an edge: a tensor that is gathered once for several users is one holding that all of them
// find, not an edge to each.
#pragma once

#include <vector>

#include "planner/assignment/problem.h"
#include "planner/hap/search.h"

namespace het::planner::hap {

struct AssignmentView {
  assignment::AssignmentProblem problem;  // the steps first, then the values
  std::vector<NodeId> nodes;              // of the steps; -1: an output of the graph
  std::vector<std::vector<int>> ways;     // of the steps, by strategy, as ShardingCosts::way counts them
  bool exact = true;  // false: some of a value's many holdings count nothing; the optimum is a lower bound

  // By node of the graph, as SearchResult has them. `choice`: of the problem's nodes.
  std::vector<int> ways_of(const std::vector<int>& choice, size_t graph_nodes) const;
};

AssignmentView as_assignment(ShardingCosts& costs, const MaybeShares& shares,
                             const SearchOptions& options = {});

}  // namespace het::planner::hap
