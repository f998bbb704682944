#include "planner/assignment/network.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace het::planner::assignment {
namespace {

// Costs as doubles. Where forbidden ones count, each of them costs more than all others together.
class CostScale {
 public:
  CostScale(const AssignmentProblem& problem, Forbidden forbidden) : block_(forbidden == Forbidden::block) {
    double most = 1;
    const auto add = [&](const std::vector<int64_t>& costs) {
      int64_t largest = 0, least = 0;
      for (const int64_t cost : costs) {
        if (cost < kForbiddenCost) largest = std::max(largest, cost);
        least = std::min(least, cost);
      }
      most += static_cast<double>(largest) - static_cast<double>(least);
    };
    for (const AssignmentNode& node : problem.nodes) add(node.costs);
    for (const AssignmentEdge& edge : problem.edges) add(edge.costs);
    unit_ = std::min(most, static_cast<double>(kForbiddenCost));
  }
  double operator()(int64_t cost) const {
    if (cost < kForbiddenCost) return static_cast<double>(cost);
    if (block_) return kBlocked;
    return static_cast<double>(cost / kForbiddenCost) * unit_ + static_cast<double>(cost % kForbiddenCost);
  }

 private:
  bool block_;
  double unit_ = 0;
};

// The times at which usage can be largest: where the last of several nodes begins before one of them ends.
std::vector<int64_t> candidate_times(const AssignmentProblem& problem) {
  std::vector<int64_t> begins, ends, times;
  for (const AssignmentNode& node : problem.nodes) {
    if (node.begin >= node.end) continue;
    begins.push_back(node.begin);
    ends.push_back(node.end);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  for (size_t i = 0; i < begins.size(); ++i) {
    if (i + 1 < begins.size()) {
      const auto next_end = std::upper_bound(ends.begin(), ends.end(), begins[i]);
      if (begins[i + 1] == begins[i] || *next_end > begins[i + 1]) continue;
    }
    times.push_back(begins[i]);
  }
  return times;
}

void add_usage(const AssignmentProblem& problem, Network& network) {
  if (!problem.usage_limit) return;
  const int64_t limit = *problem.usage_limit;
  const std::vector<int64_t> times = candidate_times(problem);
  network.capacity.assign(times.size(), limit);
  std::vector<WideCost> most(times.size() + 1, 0);
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.begin >= node.end) continue;
    UsageItem item;
    const auto row_of = [&](int64_t time) {
      return static_cast<int>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
    };
    item.first = row_of(node.begin);
    item.last = row_of(node.end);
    int64_t largest = 0;
    for (size_t s = 0; s < node.usages.size(); ++s) {
      if (node.usages[s] > limit) network.variables[i].cost[s] = kBlocked;
      item.use.push_back(std::min(node.usages[s], limit));
      largest = std::max(largest, item.use.back());
    }
    most[static_cast<size_t>(item.first)] += largest;
    most[static_cast<size_t>(item.last)] -= largest;
    if (largest > 0) network.variables[i].items.push_back(std::move(item));
  }
  constexpr WideCost kMostSum = int64_t{1} << 62;
  WideCost sum = 0;
  for (size_t row = 0; row < times.size(); ++row) {
    sum += most[row];
    if (sum > kMostSum)
      fail_usage(
          "at time {} usages of up to {} overlap, which is more than 2^62; state them in a larger unit",
          times[row], to_text(sum));
  }
}

// Costs of a pair of different variables, or of one where the others have a single strategy or are the same.
void add_small(Network& network, const std::vector<int>& scope, std::vector<double> table) {
  if (scope.empty()) {
    network.constant += table[0];
  } else if (scope.size() == 1) {
    std::vector<double>& cost = network.variables[static_cast<size_t>(scope[0])].cost;
    for (size_t s = 0; s < cost.size(); ++s) cost[s] = std::min(cost[s] + table[s], kBlocked);
  } else {
    network.pairs.push_back({scope[0], scope[1], std::move(table)});
  }
}

// Costs of three and more: a variable whose strategies are the combinations, and the pairs that tie it to
// each.
void add_combined(Network& network, const std::vector<int>& scope, const std::vector<double>& table,
                  size_t edge) {
  std::vector<size_t> allowed;
  for (size_t i = 0; i < table.size(); ++i)
    if (!is_blocked(table[i])) allowed.push_back(i);
  size_t strategies = 0;
  for (const int variable : scope) strategies += static_cast<size_t>(network.size(variable));
  constexpr size_t kMost = 100'000'000;
  if (allowed.size() * strategies > kMost)
    fail_usage("edge {} joins {} nodes in {} combinations, which is more than this solver can hold", edge,
               scope.size(), allowed.size());
  NetworkVariable combined;
  for (const size_t i : allowed) combined.cost.push_back(table[i]);
  if (allowed.empty()) combined.cost.push_back(kBlocked);
  const int self = static_cast<int>(network.variables.size());
  network.variables.push_back(std::move(combined));
  size_t stride = 1;
  for (size_t k = scope.size(); k-- > 0;) {
    const auto size = static_cast<size_t>(network.size(scope[k]));
    PairCost pair{self, scope[k], std::vector<double>(std::max<size_t>(allowed.size(), 1) * size, kBlocked)};
    for (size_t c = 0; c < allowed.size(); ++c) pair.cost[c * size + allowed[c] / stride % size] = 0;
    network.pairs.push_back(std::move(pair));
    stride *= size;
  }
}

void add_edge(const AssignmentProblem& problem, size_t number, const CostScale& scale, Network& network) {
  const AssignmentEdge& edge = problem.edges[number];
  const auto size_of = [&](int node) { return problem.nodes[static_cast<size_t>(node)].costs.size(); };
  std::vector<double> table(edge.costs.size());
  std::transform(edge.costs.begin(), edge.costs.end(), table.begin(), scale);
  // Each node once, and none with a single strategy.
  std::vector<int> scope;
  for (const int node : edge.nodes)
    if (size_of(node) > 1 && std::find(scope.begin(), scope.end(), node) == scope.end())
      scope.push_back(node);
  if (scope.size() != edge.nodes.size()) {
    size_t count = 1;
    for (const int node : scope) count *= size_of(node);
    std::vector<double> smaller(count);
    std::vector<size_t> strategy(scope.size());
    for (size_t i = 0; i < count; ++i) {
      size_t rest = i;
      for (size_t k = scope.size(); k-- > 0; rest /= size_of(scope[k]))
        strategy[k] = rest % size_of(scope[k]);
      size_t index = 0;
      for (const int node : edge.nodes) {
        const auto at = static_cast<size_t>(std::find(scope.begin(), scope.end(), node) - scope.begin());
        index = index * size_of(node) + (at < scope.size() ? strategy[at] : 0);
      }
      smaller[i] = table[index];
    }
    table = std::move(smaller);
  }
  if (scope.size() <= 2)
    add_small(network, scope, std::move(table));
  else
    add_combined(network, scope, table, number);
}

}  // namespace

Network build_network(const AssignmentProblem& problem, Forbidden forbidden) {
  const CostScale scale(problem, forbidden);
  Network network;
  network.variables.resize(problem.nodes.size());
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const std::vector<int64_t>& costs = problem.nodes[i].costs;
    network.variables[i].cost.resize(costs.size());
    std::transform(costs.begin(), costs.end(), network.variables[i].cost.begin(), scale);
  }
  network.pairs.reserve(problem.edges.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) add_edge(problem, e, scale, network);
  add_usage(problem, network);
  return network;
}

std::vector<int64_t> usage_of(const Network& network, const std::vector<int>& choice) {
  std::vector<int64_t> usage(network.capacity.size() + 1, 0);
  for (size_t v = 0; v < network.variables.size(); ++v)
    for (const UsageItem& item : network.variables[v].items) {
      const int64_t use = item.use[static_cast<size_t>(choice[v])];
      usage[static_cast<size_t>(item.first)] += use;
      usage[static_cast<size_t>(item.last)] -= use;
    }
  std::partial_sum(usage.begin(), usage.end(), usage.begin());
  usage.pop_back();
  return usage;
}

bool fits(const Network& network, const std::vector<int64_t>& usage) {
  for (size_t row = 0; row < usage.size(); ++row)
    if (usage[row] > network.capacity[row]) return false;
  return true;
}

double cost_of(const Network& network, const std::vector<int>& choice) {
  double cost = network.constant;
  for (size_t v = 0; v < network.variables.size(); ++v)
    cost += network.variables[v].cost[static_cast<size_t>(choice[v])];
  for (const PairCost& pair : network.pairs) cost += network.cost(pair, choice);
  return cost;
}

}  // namespace het::planner::assignment
