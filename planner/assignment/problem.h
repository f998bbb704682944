// The assignment problem: every node takes one of its strategies. A strategy has a cost, and a usage at each
// time of the node's interval. An edge has a cost for every combination of its nodes' strategies. Wanted is
// the choice of least total cost with no time's total usage above the limit. Sharding of operators is such a
// problem (the ASPLOS 2025 contest on intra-operator parallelism, google/iopddl): strategies are shardings,
// edges are resharding, usage is memory. Plain data; nothing here solves anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"

namespace het::planner::assignment {

// Sums of many 64-bit costs.
__extension__ typedef __int128 WideCost;
std::string to_text(WideCost cost);

// A cost of at least this much means "not allowed", as in the contest's instances. It is still a number:
// where nothing else is feasible, a choice with the fewest of these wins.
inline constexpr int64_t kForbiddenCost = 1'000'000'000'000'000'000;

struct AssignmentNode {
  int64_t begin = 0, end = 0;  // in use at times begin, begin + 1, ..., end - 1; none when begin == end
  std::vector<int64_t> costs, usages;  // [strategies] each; usages are not negative
  bool operator==(const AssignmentNode&) const = default;
};

struct AssignmentEdge {
  std::vector<int> nodes;      // any number
  std::vector<int64_t> costs;  // [strategies of nodes[0], of nodes[1], ...], the last varies fastest
  bool operator==(const AssignmentEdge&) const = default;
};

struct AssignmentProblem {
  std::string name;
  std::vector<AssignmentNode> nodes;
  std::vector<AssignmentEdge> edges;
  std::optional<int64_t> usage_limit;  // at every time; none: unlimited
  bool operator==(const AssignmentProblem&) const = default;

  // A sentence for each mistake (sizes, node numbers, negative usages), the first `most`.
  std::vector<std::string> validate(size_t most = 10) const;
};

// What a choice of one strategy per node costs and uses.
struct Evaluation {
  WideCost cost = 0;
  WideCost peak_usage = 0;
  int64_t peak_time = 0;  // the first time with that usage
  bool feasible = false;
  int64_t not_allowed = 0;  // costs of kForbiddenCost and more
};
// `choice` has one valid strategy for each node of a valid problem.
Evaluation evaluate(const AssignmentProblem& problem, const std::vector<int>& choice);

// The time at which the least usages of all nodes already exceed the limit, as a sentence; none: there is no
// such time.
std::optional<std::string> obviously_infeasible(const AssignmentProblem& problem);

// Read an instance in the contest's JSON form from its text or from a file. `name` is for messages. Throws
// Error(usage) that names the place: a byte of the file, or a field such as problem.nodes.usages[3][0].
AssignmentProblem parse_instance(std::string_view text, const std::string& name);
AssignmentProblem read_instance(const Path& path);

}  // namespace het::planner::assignment
