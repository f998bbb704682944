#include "planner/assignment/linear.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace het::planner::assignment {
namespace {

class Writer {
 public:
  Writer(const AssignmentProblem& problem, bool relaxed) : problem_(problem), relaxed_(relaxed) {}

  LinearAssignment run() {
    find_unit();
    for (const AssignmentNode& node : problem_.nodes) add_node(node);
    for (const AssignmentEdge& edge : problem_.edges)
      if (only_forbids(edge))
        forbid(edge);
      else
        add_edge(edge);
    if (problem_.usage_limit) limit_usage();
    return std::move(result_);
  }

 private:
  static bool is_allowed(int64_t cost) { return cost < kForbiddenCost; }

  void find_unit() {
    const auto look = [&](const std::vector<int64_t>& costs) {
      for (const int64_t cost : costs)
        if (is_allowed(cost)) result_.unit = std::max(result_.unit, std::abs(static_cast<double>(cost)));
    };
    for (const AssignmentNode& node : problem_.nodes) look(node.costs);
    for (const AssignmentEdge& edge : problem_.edges) look(edge.costs);
  }

  int add_variable(int64_t cost, bool integer) {
    Variable variable{0, is_allowed(cost) ? 1.0 : 0.0, 0, integer && !relaxed_};
    if (is_allowed(cost)) variable.cost = static_cast<double>(cost) / result_.unit;
    return result_.program.add(variable);
  }

  void add_node(const AssignmentNode& node) {
    std::vector<int> variables;
    Row one{{}, 1, 1};
    for (const int64_t cost : node.costs) {
      variables.push_back(add_variable(cost, true));
      one.terms.emplace_back(variables.back(), 1);
    }
    result_.variables.push_back(std::move(variables));
    result_.program.add(std::move(one));
  }

  const std::vector<int>& of(int node) const { return result_.variables[static_cast<size_t>(node)]; }

  static bool only_forbids(const AssignmentEdge& edge) {
    return edge.nodes.size() == 2 && edge.nodes[0] != edge.nodes[1] &&
           std::all_of(edge.costs.begin(), edge.costs.end(),
                       [](int64_t cost) { return cost == 0 || !is_allowed(cost); });
  }

  void forbid(const AssignmentEdge& edge) {
    const std::vector<int>&a = of(edge.nodes[0]), &b = of(edge.nodes[1]);
    const auto cost = [&](size_t s, size_t t) { return edge.costs[s * b.size() + t]; };
    const auto at_most = [&](int one, const std::vector<int>& others, const auto& cost_beside) {
      Row row{{{one, 1}}, -kNoBound, 0};
      for (size_t other = 0; other < others.size(); ++other)
        if (is_allowed(cost_beside(other))) row.terms.emplace_back(others[other], -1);
      if (row.terms.size() <= others.size()) result_.program.add(std::move(row));  // else all are allowed
    };
    for (size_t s = 0; s < a.size(); ++s) at_most(a[s], b, [&](size_t t) { return cost(s, t); });
    for (size_t t = 0; t < b.size(); ++t) at_most(b[t], a, [&](size_t s) { return cost(s, t); });
  }

  void add_edge(const AssignmentEdge& edge) {
    std::vector<std::vector<Row>> marginals;  // by place in the edge and strategy
    for (const int node : edge.nodes) {
      std::vector<Row> rows;
      for (const int x : of(node)) rows.push_back({{{x, -1}}, 0, 0});
      marginals.push_back(std::move(rows));
    }
    Row one{{}, 1, 1};  // also of an edge without nodes
    for (size_t combination = 0; combination < edge.costs.size(); ++combination) {
      const int y = add_variable(edge.costs[combination], false);
      one.terms.emplace_back(y, 1);
      size_t rest = combination;
      for (size_t place = edge.nodes.size(); place-- > 0;) {
        marginals[place][rest % marginals[place].size()].terms.emplace_back(y, 1);
        rest /= marginals[place].size();
      }
    }
    result_.program.add(std::move(one));
    for (std::vector<Row>& rows : marginals)
      for (Row& row : rows) result_.program.add(std::move(row));
  }

  // Usage grows only where an interval begins.
  void limit_usage() {
    std::set<int64_t> times;
    for (const AssignmentNode& node : problem_.nodes) times.insert(node.begin);
    for (const int64_t time : times) {
      Row row{{}, -kNoBound, static_cast<double>(*problem_.usage_limit)};
      for (size_t i = 0; i < problem_.nodes.size(); ++i) {
        const AssignmentNode& node = problem_.nodes[i];
        for (size_t s = 0; node.begin <= time && time < node.end && s < node.usages.size(); ++s)
          row.terms.emplace_back(result_.variables[i][s], static_cast<double>(node.usages[s]));
      }
      result_.program.add(std::move(row));
    }
  }

  const AssignmentProblem& problem_;
  const bool relaxed_;
  LinearAssignment result_;
};

}  // namespace

std::vector<int> LinearAssignment::choice_of(const LinearSolution& solution) const {
  std::vector<int> choice;
  for (const std::vector<int>& each : variables) {
    const auto most = std::max_element(each.begin(), each.end(), [&](int a, int b) {
      return solution.values[static_cast<size_t>(a)] < solution.values[static_cast<size_t>(b)];
    });
    choice.push_back(static_cast<int>(most - each.begin()));
  }
  return choice;
}

LinearAssignment linear_program_of(const AssignmentProblem& problem, bool relaxed) {
  return Writer(problem, relaxed).run();
}

}  // namespace het::planner::assignment
