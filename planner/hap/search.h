// The cheapest sharding program of a graph for given shares: how state lies, and in which way each node runs.
//
// The choices of a program meet in values: a node needs its operands in some placement, another made them in
// one, and what differs is converted. Each node of the forward pass is decided together with the nodes of the
// backward pass and of the update that use the same values: a group. A table lists all that can be decided in
// a group as far as other groups see it: how the values that it shares with them are made, which placements
// of these it needs, and what that costs. Tables of groups of a layer that share values are joined as long as
// they stay small; then the search goes from layer to layer. Groups, joins and layers that are alike are
// decided once.
//
// Of two states that decide the same nodes, one that costs less even when it pays for all that the other has
// dominates the other, which is dropped. All programs decide all nodes, so no queue is needed: this is A* by
// steps. Its heuristic, the least entry of each table to come, bounds what was dropped for want of room, and
// ends a search that cannot beat a known program. Where layers repeat, states at the same place of two layers
// become equal but for a constant; then the decisions of the layer before are those of all that follow.
//
// Where adapters stand beside layers, or two passes share parameters, values that are open at the same time
// have so many states that none dominates all others: such a graph is wide. Then few states are kept, the
// cheapest, and what is dropped lowers the bound. The optimum and its proof come from the problem as an
// assignment problem (assignment.h), which takes longer the deeper the graph is: once for the shares that are
// found, and for the bound over all shares.
#pragma once

#include <functional>

#include "planner/hap/costs.h"

namespace het::planner::hap {

struct SearchOptions {
  // What may be chosen; null: everything.
  std::function<bool(NodeId, const NodeSharding&)> allows_node;
  std::function<bool(ValueId, PlacementId)> allows_state;
  // States kept after each group, and inside of one, the cheapest. What is dropped for this alone lowers the
  // bound.
  size_t most_states = 20000;
  // States that are looked at before the graph counts as wide.
  int64_t most_looked_at = 3'000'000;
  // The cost of a known program: where the heuristic exceeds it, nothing is searched, and it is the bound.
  Ticks limit = kNever;
};

struct SearchResult {
  bool found = false;  // false: no program: replicated state is not allowed, or the steps did not suffice
  Ticks cost = kNever;
  Ticks bound = 0;                 // proven: no program costs less; with no shares, by no shares
  std::vector<PlacementId> state;  // by value, as given; replicated for what is not state
  std::vector<int> ways;           // by node, as ShardingCosts::way counts them
  int64_t states = 0;              // that were made
  int steps = 0, repeated = 0;     // steps of the search, and those taken from a layer before
};

// `shares`: none gives the bound for all shares; its program has no meaning then.
// Costs that are wide stay so.
SearchResult search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options = {});

// The same as an assignment problem by branch and bound, to one in a million or for a number of steps,
// without `limit`. Its cost may be too low where the problem has no exact view (assignment.h).
SearchResult search_assignment(ShardingCosts& costs, const MaybeShares& shares,
                               const SearchOptions& options = {});

// What search() found, as propagate() takes it.
ShardingHints hints_of(ShardingCosts& costs, const Shares& shares, const SearchResult& result);

}  // namespace het::planner::hap
