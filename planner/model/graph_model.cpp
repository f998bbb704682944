#include "planner/model/graph_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "planner/megatron/sharding.h"

namespace het::planner {
namespace {

class Counter {
 public:
  Counter(const Graph& graph, int samples) : graph_(graph), samples_(samples), layers_(graph.layers.size()) {
    find_invariant();
    find_roots();
    find_needed_for_inputs();
    find_needed_again();
  }

  std::vector<std::set<ValueId>> parameters() const {
    std::vector<std::set<ValueId>> of_layer(layers_.size());
    for (const Node& node : graph_.nodes)
      if (in_layer(node))
        for (const ValueId id : node.inputs) parameters_behind(id, of_layer[node.layer]);
    return of_layer;
  }

  std::vector<LayerKind> run() {
    count_parameters();
    count_work();
    count_activations();
    count_boundaries();
    count_workspace();
    for (LayerKind& layer : layers_)
      for (double* figure : {&layer.activation_bytes, &layer.checkpoint_bytes, &layer.workspace_bytes,
                             &layer.forward_flops, &layer.recompute_flops, &layer.input_flops,
                             &layer.weight_flops, &layer.forward_bytes, &layer.boundary_bytes})
        *figure /= samples_;
    return std::move(layers_);
  }

 private:
  bool in_layer(const Node& node) const {
    return node.layer >= 0 && node.phase != Phase::update && !invariant_[&node - graph_.nodes.data()];
  }
  double bytes(ValueId id) const { return static_cast<double>(graph_.type(id).bytes()); }

  // What depends on state and numbers of the step alone is computed once a step.
  void find_invariant() {
    std::vector<bool> constant(graph_.values.size());
    for (size_t i = 0; i < graph_.values.size(); ++i) constant[i] = is_of_step(graph_.values[i]);
    invariant_.resize(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.phase == Phase::update) continue;
      invariant_[n] = std::all_of(node.inputs.begin(), node.inputs.end(),
                                  [&](ValueId id) { return id == kAbsent || constant[id]; });
      for (const ValueId id : node.outputs)
        if (id != kAbsent) constant[id] = invariant_[n];
    }
  }

  // Views lie in the buffer of what they are views of.
  void find_roots() {
    root_.resize(graph_.values.size());
    std::iota(root_.begin(), root_.end(), 0);
    for (const Node& node : graph_.nodes)
      if (node.op->view)
        for (const ValueId id : node.outputs)
          if (id != kAbsent) root_[id] = root_[node.inputs[0]];
  }

  // A value that is a micro-batch's own: neither state nor given from outside nor computed once a step.
  bool is_activation(ValueId root) const {
    const NodeId producer = graph_.values[root].producer;
    return producer >= 0 && !invariant_[producer] && graph_.nodes[producer].phase == Phase::forward &&
           graph_.nodes[producer].layer >= 0;
  }

  // Backward nodes whose results another layer waits for; the others make gradients of weights.
  void find_needed_for_inputs() {
    needed_.resize(graph_.nodes.size());
    std::vector<NodeId> stack;
    for (const Node& node : graph_.nodes) {
      if (!in_layer(node)) continue;
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || graph_.values[id].producer < 0) continue;
        const NodeId producer = graph_.values[id].producer;
        const Node& made = graph_.nodes[producer];
        if (made.phase == Phase::backward && in_layer(made) && made.layer != node.layer && !is_sum(node))
          stack.push_back(producer);
      }
    }
    while (!stack.empty()) {
      const NodeId n = stack.back();
      stack.pop_back();
      if (needed_[n] || graph_.nodes[n].phase != Phase::backward) continue;
      needed_[n] = true;
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent && graph_.values[id].producer >= 0) stack.push_back(graph_.values[id].producer);
    }
  }

  // Forward nodes that a layer's own backward pass reads, or others of these; what other layers read is kept.
  void find_needed_again() {
    const std::vector<bool> handed_on = read_by_other_layers(graph_);
    again_.resize(graph_.nodes.size());
    std::vector<NodeId> stack;
    const auto need = [&](const Node& reader) {
      for (const ValueId id : reader.inputs) {
        if (id == kAbsent || graph_.values[id].producer < 0) continue;
        const NodeId n = graph_.values[id].producer;
        const Node& node = graph_.nodes[n];
        if (again_[n] || !in_layer(node) || node.phase != Phase::forward || node.layer != reader.layer)
          continue;
        if (std::any_of(node.outputs.begin(), node.outputs.end(),
                        [&](ValueId output) { return output != kAbsent && handed_on[output]; }))
          continue;
        again_[n] = true;
        stack.push_back(n);
      }
    };
    for (const Node& node : graph_.nodes)
      if (in_layer(node) && node.phase == Phase::backward) need(node);
    while (!stack.empty()) {
      const NodeId n = stack.back();
      stack.pop_back();
      need(graph_.nodes[n]);
    }
  }

  // The sum of the gradients of a parameter that several layers use.
  bool is_sum(const Node& node) const { return node.op->adds_operands; }

  void parameters_behind(ValueId id, std::set<ValueId>& found) const {
    std::vector<ValueId> stack{id};
    std::set<ValueId> seen;
    while (!stack.empty()) {
      const ValueId each = stack.back();
      stack.pop_back();
      if (each == kAbsent || !seen.insert(each).second) continue;
      const Value& value = graph_.values[each];
      if (value.role == Role::parameter) found.insert(each);
      if (value.producer < 0 || !invariant_[value.producer]) continue;
      const std::vector<ValueId>& inputs = graph_.nodes[value.producer].inputs;
      stack.insert(stack.end(), inputs.begin(), inputs.end());
    }
  }

  // A parameter that several layers use counts in each.
  void count_parameters() {
    const std::vector<std::set<ValueId>> of_layer = parameters();
    for (size_t layer = 0; layer < layers_.size(); ++layer)
      for (const ValueId id : of_layer[layer])
        layers_[layer].parameters += static_cast<double>(graph_.type(id).elements());
  }

  void count_work() {
    for (LayerKind& layer : layers_) layer.recompute_flops = layer.recompute_reductions = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!in_layer(node)) continue;
      LayerKind& layer = layers_[node.layer];
      const Cost cost = cost_of(graph_, node);
      if (node.phase == Phase::forward) {
        layer.forward_flops += cost.flops;
        layer.tensor_reductions += node.op->collective ? 1 : 0;
        if (again_[n]) {
          layer.recompute_flops += cost.flops;
          layer.recompute_reductions += node.op->collective ? 1 : 0;
        }
        double weights = 0;
        for (const ValueId id : node.inputs)
          if (id != kAbsent && (is_state(graph_.values[id]) || !is_activation(root_[id])))
            weights += bytes(id);
        if (!node.op->view) layer.forward_bytes += std::max(0.0, cost.bytes - weights);
      } else {
        (needed_[n] ? layer.input_flops : layer.weight_flops) += cost.flops;
      }
    }
  }

  // What is kept for the backward pass, by the layer that reads it; made elsewhere and read there too, by the
  // maker.
  void count_activations() {
    std::map<ValueId, std::set<int32_t>> readers;  // by buffer
    for (const Node& node : graph_.nodes) {
      if (!in_layer(node) || node.phase != Phase::backward) continue;
      for (const ValueId id : node.inputs)
        if (id != kAbsent && is_activation(root_[id])) readers[root_[id]].insert(node.layer);
    }
    for (const auto& [id, layers] : readers) {
      const int32_t maker = graph_.nodes[graph_.values[id].producer].layer;
      layers_[layers.count(maker) != 0 ? maker : *layers.begin()].activation_bytes += bytes(id);
    }
  }

  // What passes from the layers up to one to those after it, forward; recomputing a layer keeps what passes
  // into it.
  void count_boundaries() {
    std::map<ValueId, std::pair<int32_t, int32_t>> spans;  // maker, last reader
    for (const Node& node : graph_.nodes) {
      if (!in_layer(node) || node.phase != Phase::forward) continue;
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || !is_activation(root_[id])) continue;
        const int32_t maker = graph_.nodes[graph_.values[root_[id]].producer].layer;
        const auto entry = spans.emplace(root_[id], std::pair{maker, maker}).first;
        entry->second.second = std::max(entry->second.second, node.layer);
      }
    }
    for (const auto& [id, span] : spans)
      for (int32_t layer = span.first; layer < span.second; ++layer) {
        layers_[layer].boundary_bytes += bytes(id);
        layers_[layer + 1].checkpoint_bytes += bytes(id);
      }
  }

  // The most that is alive at once of what a layer's backward pass makes, gradients of weights aside.
  void count_workspace() {
    std::vector<size_t> last(graph_.values.size(), 0);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent) last[root_[id]] = std::max(last[root_[id]], n);
    std::vector<double> live(layers_.size());
    std::vector<std::vector<ValueId>> dying(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (in_layer(node)) {
        for (const ValueId id : node.outputs) {
          if (id == kAbsent || root_[id] != id || graph_.nodes[last[id]].phase == Phase::update) continue;
          const bool kept = node.phase == Phase::forward && graph_.nodes[last[id]].phase == Phase::backward;
          if (kept || last[id] <= n || is_sum(node)) continue;
          live[node.layer] += bytes(id);
          dying[last[id]].push_back(id);
        }
        layers_[node.layer].workspace_bytes = std::max(layers_[node.layer].workspace_bytes, live[node.layer]);
      }
      for (const ValueId id : dying[n]) live[graph_.nodes[graph_.values[id].producer].layer] -= bytes(id);
    }
  }

  const Graph& graph_;
  int samples_;
  std::vector<LayerKind> layers_;
  std::vector<bool> invariant_, needed_, again_;  // of nodes
  std::vector<ValueId> root_;                     // of values: the buffer's
};

// What one of two ranks that share each layer runs; nothing: they cannot.
std::optional<Graph> half_of(const Graph& graph) {
  if (tensor_degrees_of(graph, 2).back() != 2) return std::nullopt;
  return prune(tensor_parallel(graph, {1, 1}, 0));
}

// Of two ranks that share each layer, half of what they divide is missing.
double whole_of(double all, double part) { return std::clamp(2 * part - all, 0.0, all); }

void count_division(const Graph& half, int samples, std::vector<LayerKind>& layers) {
  const std::vector<LayerKind> own = Counter(half, samples).run();
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].whole_parameters = whole_of(layers[i].parameters, own[i].parameters);
    layers[i].whole_activation_bytes = whole_of(layers[i].activation_bytes, own[i].activation_bytes);
    layers[i].whole_workspace_bytes = whole_of(layers[i].workspace_bytes, own[i].workspace_bytes);
    layers[i].tensor_reductions = own[i].tensor_reductions;
    layers[i].recompute_reductions = own[i].recompute_reductions;
  }
}

// Those that the update changes; of a graph without one, all.
std::set<ValueId> trained_parameters(const Graph& graph) {
  std::set<ValueId> trained, all;
  for (size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].role == Role::parameter) all.insert(static_cast<ValueId>(i));
  bool updates = false;
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::update) continue;
    updates = true;
    for (const ValueId id : node.inputs)
      if (all.count(id) != 0) trained.insert(id);
  }
  return updates ? trained : all;
}

// The parameters that several layers use, those of the same layers together.
std::vector<SharedParameter> shared_parameters(const Graph& graph, const std::set<ValueId>& trained,
                                               const std::optional<Graph>& half) {
  std::map<std::string, double> parts;  // elements by name
  if (half)
    for (const Value& value : half->values)
      if (value.role == Role::parameter) parts[value.name] = static_cast<double>(value.type.elements());
  std::map<ValueId, std::vector<int>> users;
  const std::vector<std::set<ValueId>> of_layer = parameters_of_layers(graph);
  for (size_t layer = 0; layer < of_layer.size(); ++layer)
    for (const ValueId id : of_layer[layer]) users[id].push_back(static_cast<int>(layer));
  std::map<std::pair<std::vector<int>, bool>, SharedParameter> shared;
  for (const auto& [id, layers] : users) {
    if (layers.size() < 2) continue;
    const bool is_trained = trained.count(id) != 0;
    SharedParameter& one = shared[{layers, is_trained}];
    const auto elements = static_cast<double>(graph.type(id).elements());
    const auto part = parts.find(graph.values[id].name);
    one.layers = layers;
    one.trained = is_trained;
    one.parameters += elements;
    one.whole_parameters += part == parts.end() ? 0 : whole_of(elements, part->second);
  }
  std::vector<SharedParameter> list;
  for (auto& [key, one] : shared) list.push_back(std::move(one));
  return list;
}

// "blocks" of "blocks.3".
std::string base_of(const std::string& layer) {
  const size_t dot = layer.rfind('.');
  const bool number = dot != std::string::npos && dot + 1 < layer.size() &&
                      std::all_of(layer.begin() + static_cast<std::ptrdiff_t>(dot) + 1, layer.end(),
                                  [](unsigned char c) { return std::isdigit(c) != 0; });
  return number ? layer.substr(0, dot) : layer;
}

}  // namespace

std::vector<std::set<ValueId>> parameters_of_layers(const Graph& graph) {
  return Counter(graph, 1).parameters();
}

std::vector<int> tensor_degrees_of(const Graph& graph, int most) {
  std::vector<int> degrees{1};
  for (int degree = 2; degree <= most; degree *= 2) {
    try {
      const Graph own = tensor_parallel(graph, Shares(static_cast<size_t>(degree), 1), 0);
      const bool divides = std::any_of(own.values.begin(), own.values.end(),
                                       [](const Value& value) { return value.slice.has_value(); });
      if (!divides) break;
    } catch (const Error&) {
      break;  // its heads or features do not divide
    }
    degrees.push_back(degree);
  }
  return degrees;
}

Model model_of_graph(const Graph& whole, std::string name, int samples, int tokens) {
  const Graph graph = prune(whole);
  Model model;
  model.name = std::move(name);
  model.tokens = tokens;
  model.precision = Precision::f32;
  double parameters = 0, masters = 0, buffers = 0, copies = 0, update_flops = 0;
  std::set<ValueId> copied;
  for (const Value& value : graph.values) {
    if (value.role == Role::parameter) {
      parameters += static_cast<double>(value.type.elements());
      masters += static_cast<double>(value.type.bytes());
    }
    if (value.role == Role::buffer) buffers += static_cast<double>(value.type.bytes());
  }
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::update) update_flops += cost_of(graph, node).flops;
    if (node.op->multiplies_weights) {
      const DType dtype = graph.type(node.inputs[0]).dtype;
      if (dtype == DType::bf16) model.precision = Precision::bf16;
      if (dtype == DType::f16) model.precision = Precision::f16;
    }
    if (is_cast(node) && graph.values[node.inputs[0]].role == Role::parameter &&
        copied.insert(node.inputs[0]).second)
      copies += static_cast<double>(graph.type(node.outputs[0]).bytes());
    if (node.op->heads_dim >= 0) {
      const auto dim = static_cast<size_t>(node.op->heads_dim);
      model.heads = static_cast<int>(graph.type(node.inputs[0]).shape[dim]);
      model.kv_heads = static_cast<int>(graph.type(node.inputs[1]).shape[dim]);
    }
  }
  if (!(parameters > 0)) fail_usage("the graph has no parameters: there is nothing to plan");
  if (tokens < 1) fail_usage("tokens = {} of a sample; it has 1 or more", tokens);
  model.weight_bytes = (masters + copies) / parameters;
  model.made_bytes = copies / parameters;
  const std::set<ValueId> trained = trained_parameters(graph);
  double elements = 0;
  for (const ValueId id : trained) elements += static_cast<double>(graph.type(id).elements());
  model.trained_share = elements / parameters;
  model.gradient_bytes = 4 * model.trained_share;
  model.optimizer_bytes = buffers / parameters;
  model.update_flops = update_flops / parameters;

  std::map<std::string, int> used;  // names of kinds
  std::vector<LayerKind> layers = Counter(graph, samples).run();
  const std::optional<Graph> half = half_of(graph);
  if (half) count_division(*half, samples, layers);
  model.shared = shared_parameters(graph, trained, half);
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerKind layer = layers[i];
    const auto known = std::find_if(model.kinds.begin(), model.kinds.end(), [&](LayerKind kind) {
      kind.name.clear();
      return kind == layer;
    });
    if (known == model.kinds.end()) {
      const std::string base = base_of(graph.layers[i].name);
      const int count = ++used[base];
      layer.name = count == 1 ? base : fmt::format("{}-{}", base, count);
      model.layers.push_back(static_cast<int>(model.kinds.size()));
      model.kinds.push_back(std::move(layer));
    } else {
      model.layers.push_back(static_cast<int>(known - model.kinds.begin()));
    }
  }
  return model;
}

}  // namespace het::planner
