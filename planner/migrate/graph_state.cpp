#include "planner/migrate/graph_state.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "planner/megatron/sharding.h"
#include "planner/model/graph_model.h"

namespace het::planner {
namespace {

// State that a node changes.
std::vector<ValueId> changed_by(const Graph& graph, const Node& node) {
  std::vector<ValueId> changed;
  for (const auto& [output, input] : node.op->in_place)
    if (static_cast<size_t>(input) < node.inputs.size()) {
      const ValueId id = node.inputs[static_cast<size_t>(input)];
      if (id != kAbsent && is_state(graph.values[static_cast<size_t>(id)])) changed.push_back(id);
    }
  return changed;
}

// Values of each layer: its parameters, and the buffers that are updated with them or that its nodes read.
struct LayerValues {
  std::vector<std::set<ValueId>> of_layer;
  std::set<ValueId> optimizer;  // buffers that are updated with parameters
};

LayerValues values_of(const Graph& graph) {
  LayerValues found{parameters_of_layers(graph), {}};
  const std::vector<std::set<ValueId>> parameters = found.of_layer;
  const auto is = [&](ValueId id, Role role) {
    return id != kAbsent && graph.values[static_cast<size_t>(id)].role == role;
  };
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::update) {
      for (const ValueId id : node.inputs)
        if (is(id, Role::buffer) && node.layer >= 0)
          found.of_layer[static_cast<size_t>(node.layer)].insert(id);
      continue;
    }
    const std::vector<ValueId> changed = changed_by(graph, node);
    for (const ValueId buffer : changed) {
      if (!is(buffer, Role::buffer)) continue;
      found.optimizer.insert(buffer);
      for (size_t layer = 0; layer < parameters.size(); ++layer)
        if (std::any_of(changed.begin(), changed.end(),
                        [&](ValueId id) { return parameters[layer].count(id) != 0; }))
          found.of_layer[layer].insert(buffer);
    }
  }
  return found;
}

// What slices are found from; placements are kept by cut.
class Source {
 public:
  Source(Graph graph, std::vector<std::vector<ValueId>> of_layer)
      : graph_(std::move(graph)), of_layer_(std::move(of_layer)) {}
  Source(const Source&) = delete;  // the table refers to the graph
  Source& operator=(const Source&) = delete;

  std::vector<std::vector<TensorSlice>> slices(int layer, const StageCut& cut) {
    std::vector<std::vector<TensorSlice>> slices(static_cast<size_t>(cut.parts()));
    for (int part = 0; part < cut.parts(); ++part)
      for (const ValueId id : of_layer_[static_cast<size_t>(layer)])
        slices[static_cast<size_t>(part)].push_back(slice(id, cut, part));
    return slices;
  }

 private:
  TensorSlice slice(ValueId id, const StageCut& cut, int part) {
    TensorSlice own = TensorSlice::whole(graph_.type(id).shape);
    if (cut.parts() == 1) return own;
    if (!table_) table_.emplace(graph_);
    int64_t cut_dim = -1;
    for (size_t a = 0; a < cut.axes.size(); ++a) {
      const StageAxis& axis = cut.axes[a];
      const std::map<ValueId, PlacementId>& placements = placements_along(axis);
      const auto found = placements.find(id);
      const PlacementId lies = found == placements.end() ? kReplicated : found->second;
      const Placement& placement = table_->placements(id)[lies];
      if (!placement.is_sharded()) continue;
      // What the first axis leaves of a dimension, the second cuts in units that its own graph has.
      if (placement.dim == cut_dim)
        fail_usage("two axes of a stage's mesh cut dimension {} of '{}'; moves of such state are not planned",
                   cut_dim, graph_.values[static_cast<size_t>(id)].name);
      cut_dim = placement.dim;
      own = *intersection(own, table_->slice(id, lies, axis.shares, cut.coordinate(part, a)));
    }
    return own;
  }

  const std::map<ValueId, PlacementId>& placements_along(const StageAxis& axis) {
    auto known = placements_.find(axis);
    if (known == placements_.end()) known = placements_.emplace(axis, state_placements(*table_, axis)).first;
    return known->second;
  }

  const Graph graph_;
  const std::vector<std::vector<ValueId>> of_layer_;
  std::optional<PlacementTable> table_;
  std::map<StageAxis, std::map<ValueId, PlacementId>> placements_;
};

}  // namespace

ModelState state_of(const Graph& whole) {
  Graph graph = prune(whole);
  const LayerValues values = values_of(graph);
  ModelState state;
  std::vector<std::vector<ValueId>> of_layer;
  for (const std::set<ValueId>& own : values.of_layer) {
    of_layer.emplace_back(own.begin(), own.end());
    std::vector<StateTensor> tensors;
    for (const ValueId id : own) {
      const Value& value = graph.values[static_cast<size_t>(id)];
      tensors.push_back({value.type.shape, static_cast<double>(bytes_of(value.type.dtype)),
                         value.role == Role::parameter, values.optimizer.count(id) != 0});
    }
    const auto known = std::find(state.kinds.begin(), state.kinds.end(), tensors);
    state.layers.push_back(static_cast<int>(known - state.kinds.begin()));
    if (known == state.kinds.end()) state.kinds.push_back(std::move(tensors));
  }
  state.slices = [source = std::make_shared<Source>(std::move(graph), std::move(of_layer))](
                     int layer, const StageCut& cut) { return source->slices(layer, cut); };
  return state;
}

}  // namespace het::planner
