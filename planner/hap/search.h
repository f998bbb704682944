// The cheapest sharding program of a graph for given shares: how state lies, and in which way each node runs.
//
// The choices of a program meet in values: a node needs its operands in some placement, another made them in
// one, and what differs is converted. Nodes are decided one after the other, those of the forward pass in
// order and each beside the nodes of the backward pass and of the update that use the same values. So few
// values lie between what is decided and what is not: of a chain of layers an activation and its gradient. A
// state of the search says of each such value how it is made, if that is decided, and which placements of it
// are paid for. Of two states that agree in what is made, one that costs less even when it pays for all that
// the other has dominates the other, which is dropped.
//
// All programs decide all nodes, so states are compared at the same step and no queue is needed: the search
// is A* by steps. A state is dropped when its cost and the least cost of the nodes to come (each in its
// cheapest way: the admissible heuristic) exceed the cost of a known program. Where layers repeat, states at
// the same place of two layers become equal but for a constant; then the decisions of the layer before are
// those of all that follow, and nothing is searched again.
#pragma once

#include <functional>

#include "planner/hap/costs.h"

namespace het::planner::hap {

struct SearchOptions {
  // What may be chosen; null: everything. Replicated nodes and state are always allowed.
  std::function<bool(NodeId, const NodeSharding&)> allows_node;
  std::function<bool(ValueId, PlacementId)> allows_state;
  // States kept after each group, and inside of one, the cheapest. What is dropped for this alone lowers the
  // bound.
  size_t most_states = 20000;
  // The cost of a known program: states from which all programs cost more are dropped. Then layers that
  // repeat are searched one by one.
  Ticks limit = kNever;
};

struct SearchResult {
  bool found = false;  // false: no program; only where replicated state is not allowed
  Ticks cost = kNever;
  Ticks bound = 0;                 // proven: no program costs less; with no shares, by no shares
  std::vector<PlacementId> state;  // by value, as given; replicated for what is not state
  std::vector<int> ways;           // by node, as ShardingCosts::way counts them
  int64_t states = 0;              // that were made
  int steps = 0, repeated = 0;     // steps of the search, and those taken from a layer before
};

// `shares`: none gives the bound for all shares; its program has no meaning then.
SearchResult search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options = {});

// What search() found, as propagate() takes it.
ShardingHints hints_of(ShardingCosts& costs, const Shares& shares, const SearchResult& result);

}  // namespace het::planner::hap
