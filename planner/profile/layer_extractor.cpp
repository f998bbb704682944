#include "planner/profile/layer_extractor.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"

namespace het {
namespace {

class LayerExtractor {
 public:
  LayerExtractor(const Graph& graph, const std::vector<bool>& keep) : graph_(graph), keep_(keep) {
    HET_REQUIRE(keep.size() == graph.layers.size(), keep.size(), graph.layers.size());
    there_.resize(graph.values.size());
    for (size_t i = 0; i < graph.values.size(); ++i) there_[i] = graph.values[i].producer < 0;
  }

  Graph run() {
    std::vector<Node> nodes;
    for (const Node& node : graph_.nodes) {
      Node own = node;
      if (!keeps(own)) {
        if (node.phase != Phase::update) note_taken(node);
        continue;
      }
      for (const ValueId id : own.outputs)
        if (id != kAbsent) there_[id] = true;
      nodes.push_back(std::move(own));
    }
    return assemble(std::move(nodes));
  }

 private:
  bool is_there(ValueId id) const { return id == kAbsent || there_[id]; }

  // Whether a node stays; the operands of a global norm that are not there are dropped.
  bool keeps(Node& node) const {
    if (node.op->collective) return false;
    if (node.phase != Phase::update && node.layer >= 0) return keep_[static_cast<size_t>(node.layer)];
    if (node.op->any_placement)
      node.inputs.erase(
          std::remove_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return !is_there(id); }),
          node.inputs.end());
    else if (node.phase == Phase::update)
      return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return is_there(id); });
    // Outside all layers, such as sums of a gradient's parts: with whatever is there of its operands.
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return id != kAbsent && there_[id]; }) ||
           node.inputs.empty();
  }

  // A node that is left out takes values from those that stay.
  void note_taken(const Node& node) {
    for (const ValueId id : node.inputs)
      if (id != kAbsent && there_[id] && graph_.values[id].producer >= 0) taken_.insert(id);
  }

  Graph assemble(std::vector<Node> nodes) const {
    std::vector<ValueId> as(graph_.values.size(), kAbsent);
    Graph result;
    result.layers = graph_.layers;
    result.scopes = graph_.scopes;
    const auto map = [&](ValueId id) {
      if (id == kAbsent || as[id] != kAbsent) return id == kAbsent ? kAbsent : as[id];
      as[id] = static_cast<ValueId>(result.values.size());
      Value value = graph_.values[id];
      if (!there_[id]) {
        value.role = Role::input;
        value.name = fmt::format("{}{}", kCut, id);
      }
      value.producer = -1;
      result.values.push_back(std::move(value));
      return as[id];
    };
    for (Node& node : nodes) {
      for (ValueId& id : node.inputs) id = map(id);
      for (ValueId& id : node.outputs) {
        id = map(id);
        if (id != kAbsent) result.values[id].producer = static_cast<NodeId>(result.nodes.size());
      }
      result.nodes.push_back(std::move(node));
    }
    for (const Output& output : graph_.outputs)
      if (there_[output.value] && as[output.value] != kAbsent)
        result.outputs.push_back({output.name, as[output.value]});
    for (const ValueId id : taken_)
      if (as[id] != kAbsent) result.outputs.push_back({fmt::format("{}{}", kCut, id), as[id]});
    return prune(result);
  }

  const Graph& graph_;
  const std::vector<bool>& keep_;
  std::vector<bool> there_;  // of values: made by a node that stays, or given to the graph
  std::set<ValueId> taken_;
};

}  // namespace

Graph extract_layers(const Graph& graph, const std::vector<bool>& keep) {
  return LayerExtractor(prune(graph), keep).run();
}

}  // namespace het
