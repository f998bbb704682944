// The graphs of a plan's ranks. Stages may share their layers differently: over other numbers of devices, by
// other shares, other meshes or other sharding programs. Ranks that exchange a value or a gradient find from
// them what the others have of it.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "core/plan/partition.h"
#include "core/plan/plan.h"

namespace het {

// What a value of a rank's graph is: a value of the single device's graph, or its part of it.
struct StageValue {
  ValueId value = kAbsent;                 // kAbsent: neither; it stands between two such values
  std::vector<Placement::Kind> lies = {};  // along each axis of the stage's mesh

  bool is_partial() const;     // a summand along some axis
  bool is_replicated() const;  // every device of the stage has all of it
};

struct StageGraph {
  Graph graph;
  std::vector<StageValue> values;  // by value
};

class StageGraphs {
 public:
  // `graph`: the single device's, which has to outlive it; with `fused` nodes of the ranks' graphs are
  // joined. `table`: of that graph, and outlives it, too; null: it is made.
  StageGraphs(const Graph& graph, const Plan& plan, bool fused, const PlacementTable* table = nullptr);
  StageGraphs(const StageGraphs&) = delete;  // parts refer to each other
  StageGraphs& operator=(const StageGraphs&) = delete;

  // Of device `device` of a stage that is cut so. Graphs of one stage have the same values and nodes. Throws
  // Error(usage) where its layers cannot be cut so.
  const StageGraph& of(const StageCut& cut, int device);
  // Throws Error(usage) where some device of a stage cannot have its part of the layers.
  void require(const StageCut& cut);
  // What device `device` of the stage has of a value of its graph, as a slice of what it is of.
  TensorSlice slice(const StageCut& cut, ValueId id, int device);

 private:
  // What is left of the layers when they are cut along the first axes of a mesh.
  struct Part {
    Graph own;  // not of the root
    const Graph* graph = nullptr;
    const Part* of = nullptr;     // what was cut; null: the single device's graph
    std::vector<Origin> origins;  // by value: in the graph of `of`
    const StageAxis* axis = nullptr;
    int coordinate = 0;
    std::unique_ptr<AxisCuts> cuts;  // of the graph of `of`
    // Made when it is cut. Of parts where operands are absent that count on the first one alone, the table is
    // of their graph with these.
    Graph completed;
    std::optional<PlacementTable> made;
    const PlacementTable* table = nullptr;  // `made`, or the caller's
  };
  using Place = std::pair<std::vector<StageAxis>, std::vector<int>>;  // the axes, and the part along each

  Part& part(const Place& place);
  const PlacementTable& table_of(const Place& place);
  const ShardingProgram& program_of(const Place& whole, const StageAxis& axis);
  static Place place_of(const StageCut& cut, int device);
  static Place whole_of(Place place);  // without its last axis
  static Place first_of(Place place);  // the first part along all axes

  bool sequence_, fused_;
  Part root_;
  std::map<Place, std::unique_ptr<Part>> parts_;
  std::map<std::pair<Place, StageAxis>, ShardingProgram> programs_;  // of what is cut
  std::map<std::pair<StageCut, int>, StageGraph> graphs_;
};

}  // namespace het
