#include "planner/assignment/problem.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace het::planner::assignment {
namespace {

// Usage over time, as changes at the ends of intervals: calls visit(time, usage) for each time at which it
// changes.
template <typename UsageOf, typename Visit>
void sweep(const AssignmentProblem& problem, const UsageOf& usage_of, const Visit& visit) {
  std::vector<std::pair<int64_t, WideCost>> changes;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.begin >= node.end) continue;
    const int64_t usage = usage_of(i);
    changes.emplace_back(node.begin, usage);
    changes.emplace_back(node.end, -WideCost{usage});
  }
  std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  WideCost usage = 0;
  for (size_t i = 0; i < changes.size();) {
    const int64_t time = changes[i].first;
    for (; i < changes.size() && changes[i].first == time; ++i) usage += changes[i].second;
    visit(time, usage);
  }
}

}  // namespace

std::string to_text(WideCost cost) {
  if (cost == 0) return "0";
  const bool negative = cost < 0;
  std::string text;
  for (; cost != 0; cost /= 10)
    text += static_cast<char>('0' + static_cast<int>(cost < 0 ? -(cost % 10) : cost % 10));
  if (negative) text += '-';
  return {text.rbegin(), text.rend()};
}

std::vector<std::string> AssignmentProblem::validate(size_t most) const {
  std::vector<std::string> mistakes;
  const auto add = [&](std::string sentence) {
    if (mistakes.size() < most) mistakes.push_back(std::move(sentence));
  };
  if (nodes.empty()) add("there are no nodes");
  for (size_t i = 0; i < nodes.size() && mistakes.size() < most; ++i) {
    const AssignmentNode& node = nodes[i];
    if (node.costs.empty()) add(fmt::format("node {} has no strategies", i));
    if (node.costs.size() != node.usages.size())
      add(fmt::format("node {} has {} costs but {} usages; each strategy has one of each", i,
                      node.costs.size(), node.usages.size()));
    if (node.begin > node.end)
      add(fmt::format("node {} has the interval [{}, {}], which ends before it begins", i, node.begin,
                      node.end));
    if (node.begin < 0)
      add(fmt::format("node {} has the interval [{}, {}]; times are not negative", i, node.begin, node.end));
    for (size_t s = 0; s < node.usages.size(); ++s)
      if (node.usages[s] < 0)
        add(fmt::format("node {}, strategy {} has the usage {}; usages are not negative", i, s,
                        node.usages[s]));
  }
  for (size_t e = 0; e < edges.size() && mistakes.size() < most; ++e) {
    const AssignmentEdge& edge = edges[e];
    WideCost combinations = 1;
    bool known = true;
    for (const int node : edge.nodes) {
      if (node < 0 || node >= std::ssize(nodes)) {
        add(fmt::format("edge {} names node {}; nodes are 0 to {}", e, node, std::ssize(nodes) - 1));
        known = false;
      } else if (combinations <= std::ssize(edge.costs)) {
        combinations *= std::ssize(nodes[static_cast<size_t>(node)].costs);
      }
    }
    if (known && combinations != std::ssize(edge.costs))
      add(fmt::format("edge {} has {} costs; the strategies of its nodes combine in {}{} ways", e,
                      edge.costs.size(), combinations > std::ssize(edge.costs) ? "at least " : "",
                      to_text(combinations)));
  }
  if (usage_limit && *usage_limit < 0)
    add(fmt::format("the usage limit is {}; it is not negative", *usage_limit));
  return mistakes;
}

Evaluation evaluate(const AssignmentProblem& problem, const std::vector<int>& choice) {
  Evaluation result;
  const auto strategy = [&](size_t node) { return static_cast<size_t>(choice[node]); };
  const auto add = [&](int64_t cost) {
    result.cost += cost;
    result.not_allowed += cost >= kForbiddenCost;
  };
  for (size_t i = 0; i < problem.nodes.size(); ++i) add(problem.nodes[i].costs[strategy(i)]);
  for (const AssignmentEdge& edge : problem.edges) {
    size_t index = 0;
    for (const int node : edge.nodes) {
      const auto at = static_cast<size_t>(node);
      index = index * problem.nodes[at].costs.size() + strategy(at);
    }
    add(edge.costs[index]);
  }
  sweep(
      problem, [&](size_t i) { return problem.nodes[i].usages[strategy(i)]; },
      [&](int64_t time, WideCost usage) {
        if (usage > result.peak_usage) {
          result.peak_usage = usage;
          result.peak_time = time;
        }
      });
  result.feasible = !problem.usage_limit || result.peak_usage <= *problem.usage_limit;
  return result;
}

std::optional<std::string> obviously_infeasible(const AssignmentProblem& problem) {
  std::optional<std::string> why;
  if (!problem.usage_limit) return why;
  sweep(
      problem,
      [&](size_t i) {
        return *std::min_element(problem.nodes[i].usages.begin(), problem.nodes[i].usages.end());
      },
      [&](int64_t time, WideCost usage) {
        if (!why && usage > *problem.usage_limit)
          why = fmt::format("at time {} the nodes use {} at least, which is {} above the limit {}", time,
                            to_text(usage), to_text(usage - *problem.usage_limit), *problem.usage_limit);
      });
  return why;
}

}  // namespace het::planner::assignment
