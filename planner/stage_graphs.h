// Graphs of the ranks of a plan whose stages share their layers differently: over other numbers of devices,
// or by other shares. Ranks that exchange a value or a gradient find from them what the others have of it.
#pragma once

#include <map>
#include <optional>

#include "core/plan/partition.h"
#include "core/plan/plan.h"

namespace het {

class StageGraphs {
 public:
  // `graph`: the single device's, which has to outlive it; with `fused` nodes of the ranks' graphs are
  // joined.
  StageGraphs(const Graph& graph, const Plan& plan, bool fused);

  // Of rank `part` of a stage with these shares. Graphs of one stage have the same values and nodes.
  const RankGraph& of(const Shares& shares, int part);
  // What rank `part` has of the value that is this.
  TensorSlice slice(const Origin& origin, const Shares& shares, int part) const;

 private:
  const Graph& graph_;
  bool sequence_, fused_;
  PlacementTable table_;
  std::map<Shares, ShardingProgram> programs_;
  std::map<std::pair<Shares, int>, RankGraph> graphs_;
};

}  // namespace het
