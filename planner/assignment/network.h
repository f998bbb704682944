// The assignment problem as the solver works on it: variables, costs of pairs of variables, and usage in rows
// (times that can be the first to exceed the limit). Costs are doubles; what may not be chosen costs
// kBlocked. Plain data.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/assignment/problem.h"

namespace het::planner::assignment {

inline constexpr double kBlocked = 1e30;  // far above any sum of 64-bit costs
inline bool is_blocked(double cost) { return cost >= kBlocked / 10; }
// By how much a choice has to cost less than the best one to be worth a search: `least`, or `gap` of the
// best.
inline double wanted_gain(double best, double least, double gap) {
  return is_blocked(best) ? least : std::max(least, gap * std::abs(best));
}

// What a variable uses of rows first, ..., last - 1: use[strategy].
struct UsageItem {
  int first = 0, last = 0;
  std::vector<int64_t> use;
};

struct NetworkVariable {
  std::vector<double> cost;  // [strategies]
  std::vector<UsageItem> items;
};

struct PairCost {
  int a = 0, b = 0;
  std::vector<double> cost;  // [strategies of a, of b]
};

struct Network {
  std::vector<NetworkVariable> variables;
  std::vector<PairCost> pairs;
  std::vector<int64_t> capacity;  // [rows]
  double constant = 0;

  int size(int variable) const {
    return static_cast<int>(variables[static_cast<size_t>(variable)].cost.size());
  }
  // What the pair costs with this choice of all variables.
  double cost(const PairCost& pair, const std::vector<int>& choice) const {
    return pair.cost[static_cast<size_t>(choice[static_cast<size_t>(pair.a)] * size(pair.b) +
                                         choice[static_cast<size_t>(pair.b)])];
  }
};

enum class Forbidden {
  block,  // costs of kForbiddenCost and above may not be chosen
  count,  // they may, each at more than everything else together
};

// The network of a valid problem: variables 0, 1, ... are its nodes, others stand for combinations of three
// and more. Throws Error(usage) where usages cannot be summed, or an edge of many nodes has more combinations
// than memory.
Network build_network(const AssignmentProblem& problem, Forbidden forbidden);

// What the variables use of each row.
std::vector<int64_t> usage_of(const Network& network, const std::vector<int>& choice);
bool fits(const Network& network, const std::vector<int64_t>& usage);
double cost_of(const Network& network, const std::vector<int>& choice);  // kBlocked and above: not allowed

}  // namespace het::planner::assignment
