// The graphs of a plan's ranks. Stages may share their layers differently: over other numbers of devices, by
// other shares or another sharding program. Ranks that exchange a value or a gradient find from them what the
// others have of it.
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

  // Of rank `part` of a stage that is cut so. Graphs of one stage have the same values and nodes.
  const RankGraph& of(const StageCut& cut, int part);
  // What rank `part` has of the value that is this.
  TensorSlice slice(const Origin& origin, const StageCut& cut, int part);

 private:
  const Graph& graph_;
  bool sequence_, fused_;
  const PlacementTable& table();

  std::optional<PlacementTable> table_;  // made when a stage has several devices
  std::map<StageCut, ShardingProgram> programs_;
  std::map<std::pair<StageCut, int>, RankGraph> graphs_;
};

}  // namespace het
