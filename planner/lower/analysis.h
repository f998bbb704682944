// What lowering finds out about each value before it writes a Program: which values are computed once, which
// are accumulated over micro-batches, which are written straight into another value's buffer, which are
// computed again in the backward pass. It changes nothing.
#pragma once

#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "planner/lower/rank_assignment.h"

namespace het {

// Where a value shall be written instead of into a separate buffer.
struct WriteTarget {
  ValueId into = kAbsent;  // the result of a concat, or of an add_n
  Layout layout;           // of the value inside that result's buffer
  bool adds = false;       // into an add_n: the first producer writes, later ones add
};

class LoweringAnalysis {
 public:
  // Of the rank that `assignment` is of. Both must outlive it.
  LoweringAnalysis(const Graph& graph, const RankAssignment& assignment);

  // Depends on state and numbers of the step alone, and not on state that a micro-batch changes: computed
  // once.
  bool invariant(ValueId id) const { return invariant_[id]; }
  bool invariant_node(const Node& node) const;
  // On state alone: not even once a step while that has not changed.
  bool from_state(ValueId id) const { return from_state_[id]; }
  bool from_state(const Node& node) const;
  // Made in a micro-batch and used once a step: summed over the micro-batches.
  bool accumulated(ValueId id) const { return accumulated_[id]; }
  // Used within micro-batches (too).
  bool used_inside(ValueId id) const { return used_inside_[id]; }
  // The sum that an accumulated value belongs to: itself, or the gradient that it is a summand of.
  ValueId root_of(ValueId id) const;
  // Of each such sum: how many summands a step of this rank makes.
  const std::map<ValueId, int>& summands() const { return summands_; }
  // Where it is written; into == kAbsent: a separate buffer.
  const WriteTarget& write_target(ValueId id) const { return write_targets_[id]; }
  // Whether a stage that recomputes runs this node again, before the backward pass of its layer. What one
  // layer hands to another is kept.
  bool recomputed(size_t node) const { return recomputed_[node]; }
  // Whether the value and its user, its only one, are made in the same run of the same unit.
  bool same_run(ValueId id, const Node& user) const;

 private:
  void count_uses();
  void find_invariant();
  void find_accumulated();
  void find_write_targets();
  std::vector<bool> find_handed_on() const;
  void find_recomputed();
  void place(ValueId id, const Node& concat, Layout layout);
  bool all_can_add(const Node& sum) const;
  NodeId id_of(const Node& node) const { return static_cast<NodeId>(&node - graph_.nodes.data()); }

  const Graph& graph_;
  const RankAssignment& assignment_;
  std::vector<int> uses_;
  std::vector<bool> invariant_, from_state_, accumulated_, used_inside_, recomputed_;
  std::vector<WriteTarget> write_targets_;
  std::map<ValueId, int> summands_;
};

bool inner_stride_is_one(const Layout& layout);

}  // namespace het
