#include "planner/stage_graphs.h"

#include "core/graph/fuse.h"
#include "planner/megatron/sharding.h"

namespace het {

StageGraphs::StageGraphs(const Graph& graph, const Plan& plan, bool fused)
    : graph_(graph), sequence_(plan.sequence), fused_(fused) {}

const PlacementTable& StageGraphs::table() {
  if (!table_) table_.emplace(graph_);
  return *table_;
}

const RankGraph& StageGraphs::of(const StageCut& cut, int part) {
  const auto [entry, fresh] = graphs_.try_emplace({cut, part});
  if (!fresh) return entry->second;
  RankGraph& made = entry->second;
  if (cut.parts() == 1) {
    made.graph = graph_;
    for (size_t id = 0; id < graph_.values.size(); ++id)
      made.origins.push_back({static_cast<ValueId>(id), kReplicated});
  } else {
    const auto [program, first] = programs_.try_emplace(cut);
    if (first) program->second = sharding_program_of(table(), cut, sequence_);
    made = partition(table(), program->second, part);
  }
  made.graph = fused_ ? fuse(made.graph) : prune(made.graph);  // which leave values as they are numbered
  made.origins.resize(made.graph.values.size());
  return made;
}

TensorSlice StageGraphs::slice(const Origin& origin, const StageCut& cut, int part) {
  return cut.parts() == 1 ? TensorSlice::whole(graph_.type(origin.value).shape)
                          : table().slice(origin.value, origin.lies, cut.shares, part);
}

}  // namespace het
