#include "planner/simulate/costs.h"

#include <algorithm>
#include <limits>

namespace het::planner {
namespace {

double range(const std::vector<double>& prefix, int first, int last) {
  return prefix[static_cast<size_t>(last)] - prefix[static_cast<size_t>(first)];
}

}  // namespace

double CostTable::parameters_in(int first, int last) const {
  double elements = range(parameters, first, last);
  for (const SharedParameter& one : shared)
    if (one.is_used_in(first, last)) elements += one.parameters;
  return elements;
}

double CostTable::forward_seconds(int node, int first, int last) const {
  return range(nodes[static_cast<size_t>(node)].forward, first, last);
}

double CostTable::backward_seconds(int node, int first, int last, bool recompute) const {
  const NodeCosts& costs = nodes[static_cast<size_t>(node)];
  return range(costs.input, first, last) + range(costs.weight, first, last) +
         (recompute ? range(costs.recompute, first, last) : 0);
}

double CostTable::input_seconds(int node, int first, int last) const {
  return range(nodes[static_cast<size_t>(node)].input, first, last);
}

double CostTable::held_bytes(int first, int last, bool recompute) const {
  return range(recompute ? checkpoint : activation, first, last);
}

double CostTable::running_bytes(int first, int last, bool recompute) const {
  double most = last < layers ? boundary[static_cast<size_t>(last) - 1] : 0;
  for (int layer = first; layer < last; ++layer) {
    const double again = held_bytes(layer, layer + 1, false) - held_bytes(layer, layer + 1, true);
    most = std::max(most, workspace[static_cast<size_t>(layer)] + (recompute ? again : 0));
  }
  return most;
}

double CostTable::stage_bytes(int first, int last, int in_flight, bool recompute, double optimizer_share,
                              int waiting) const {
  const double own = held_bytes(first, last, recompute), all = held_bytes(first, last, false);
  return parameters_in(first, last) * (weight_bytes + gradient_bytes + optimizer_bytes * optimizer_share) +
         in_flight * own + std::min(waiting, in_flight) * (all - own) + running_bytes(first, last, recompute);
}

CostTable make_costs(const Cluster& cluster, const Model& model, const Profile& profile, int tensor,
                     int microbatch) {
  CostTable table;
  table.tensor = tensor;
  table.microbatch = microbatch;
  table.layers = model.count();
  table.weight_bytes = model.weight_bytes;
  table.gathered_bytes = (model.weight_bytes - model.made_bytes) * model.trained_share;
  table.gradient_bytes = model.gradient_bytes;
  table.optimizer_bytes = model.optimizer_bytes;
  table.trained_share = model.trained_share;
  const auto divided = [&](double all, double whole) { return whole + (all - whole) / tensor; };
  std::vector<double> parameters, whole;  // of each layer, without shared ones
  for (const int kind : model.layers) {
    parameters.push_back(model.kinds[static_cast<size_t>(kind)].parameters);
    whole.push_back(model.kinds[static_cast<size_t>(kind)].whole_parameters);
  }
  for (SharedParameter one : model.shared) {
    for (const int layer : one.layers) {
      parameters[static_cast<size_t>(layer)] -= one.parameters;
      whole[static_cast<size_t>(layer)] -= one.whole_parameters;
    }
    one.parameters = divided(one.parameters, one.whole_parameters);
    table.shared.push_back(std::move(one));
  }
  table.parameters = table.whole_parameters = table.activation = table.checkpoint = {0};
  for (int layer = 0; layer < table.layers; ++layer) {
    const LayerKind& kind = model.layer(layer);
    const auto l = static_cast<size_t>(layer);
    table.parameters.push_back(table.parameters.back() + divided(parameters[l], whole[l]));
    table.whole_parameters.push_back(table.whole_parameters.back() + whole[l]);
    table.reductions.push_back(kind.tensor_reductions);
    table.reductions_again.push_back(kind.reductions_again());
    const double kept = kept_bytes(profile, kind, tensor, microbatch);
    table.activation.push_back(table.activation.back() + kept);
    // The kept input is whole on every device of the group.
    table.checkpoint.push_back(table.checkpoint.back() + kind.checkpoint_bytes * microbatch);
    table.workspace.push_back(divided(kind.workspace_bytes, kind.whole_workspace_bytes) * microbatch);
    table.boundary.push_back(kind.boundary_bytes * microbatch);
  }
  const int count = static_cast<int>(cluster.nodes.size());
  for (int node = 0; node < count; ++node) {
    NodeCosts costs;
    costs.memory_bytes = type_of(cluster, node).memory_bytes * kUsableMemory;
    costs.memory_bytes_per_second = type_of(cluster, node).memory_bytes_per_second;
    costs.inside = inside_link(cluster, node);
    costs.groups = cluster.nodes[static_cast<size_t>(node)].devices / tensor;
    std::vector<LayerSeconds> kinds;
    for (const LayerKind& kind : model.kinds)
      kinds.push_back(layer_seconds(profile, cluster, node, model, kind, tensor, microbatch));
    costs.forward = costs.input = costs.weight = costs.update = costs.recompute = {0};
    for (const int kind : model.layers) {
      const LayerSeconds& seconds = kinds[static_cast<size_t>(kind)];
      costs.forward.push_back(costs.forward.back() + seconds.forward);
      costs.input.push_back(costs.input.back() + seconds.input);
      costs.weight.push_back(costs.weight.back() + seconds.weight);
      costs.update.push_back(costs.update.back() + seconds.update);
      costs.recompute.push_back(costs.recompute.back() + seconds.recompute);
      (seconds.source == Source::measured       ? costs.measured
       : seconds.source == Source::interpolated ? costs.interpolated
       : seconds.source == Source::extrapolated ? costs.extrapolated
       : seconds.source == Source::calibrated   ? costs.calibrated
                                                : costs.estimated)++;
    }
    table.nodes.push_back(std::move(costs));
  }
  table.mesh = cluster.mesh;
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b) table.between.push_back(between_link(cluster, a, b));
  return table;
}

CostTable make_compute_costs(const Cluster& cluster, const Model& model, const Profile& profile, int tensor,
                             int microbatch) {
  Cluster without = cluster;
  for (Machine& node : without.nodes) node.inside = {0, std::numeric_limits<double>::max()};
  return make_costs(without, model, profile, tensor, microbatch);
}

}  // namespace het::planner
