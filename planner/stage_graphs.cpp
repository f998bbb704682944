#include "planner/stage_graphs.h"

#include "core/graph/fuse.h"
#include "planner/megatron/sharding.h"

namespace het {

StageGraphs::StageGraphs(const Graph& graph, const Plan& plan, bool fused)
    : graph_(graph), sequence_(plan.sequence), fused_(fused), table_(graph) {}

const RankGraph& StageGraphs::of(const Shares& shares, int part) {
  const auto [entry, fresh] = graphs_.try_emplace({shares, part});
  if (!fresh) return entry->second;
  RankGraph& made = entry->second;
  if (shares.size() == 1) {
    made.graph = graph_;
    for (size_t id = 0; id < graph_.values.size(); ++id)
      made.origins.push_back({static_cast<ValueId>(id), kReplicated});
  } else {
    const auto [program, first] = programs_.try_emplace(shares);
    if (first) program->second = megatron_sharding(table_, shares, sequence_);
    made = partition(table_, program->second, part);
  }
  made.graph = fused_ ? fuse(made.graph) : prune(made.graph);  // which leave values as they are numbered
  made.origins.resize(made.graph.values.size());
  return made;
}

TensorSlice StageGraphs::slice(const Origin& origin, const Shares& shares, int part) const {
  return shares.size() == 1 ? TensorSlice::whole(graph_.type(origin.value).shape)
                            : table_.slice(origin.value, origin.lies, shares, part);
}

}  // namespace het
