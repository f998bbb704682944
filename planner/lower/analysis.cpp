#include "planner/lower/analysis.h"

#include <algorithm>

#include "core/base/bits.h"
#include "core/ops/op.h"

namespace het {

LoweringAnalysis::LoweringAnalysis(const Graph& graph, const RankAssignment& assignment)
    : graph_(graph), assignment_(assignment) {
  count_uses();
  find_invariant();
  find_accumulated();
  find_write_targets();
  find_recomputed();
}

void LoweringAnalysis::count_uses() {
  uses_.assign(graph_.values.size(), 0);
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs)
      if (id != kAbsent) ++uses_[id];
  for (const Output& output : graph_.outputs) ++uses_[output.value];
}

void LoweringAnalysis::find_invariant() {
  std::vector<bool> changed(graph_.values.size());
  for (const Node& node : graph_.nodes)
    if (node.phase != Phase::update)
      for (const auto& [output, input] : node.op->in_place)
        if (input < static_cast<int>(node.inputs.size()) && node.inputs[input] != kAbsent)
          changed[node.inputs[input]] = true;
  invariant_.assign(graph_.values.size(), false);
  from_state_ = invariant_;
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    invariant_[i] = is_of_step(graph_.values[i]) && !changed[i];
    from_state_[i] = invariant_[i] && is_state(graph_.values[i]);
  }
  for (const Node& node : graph_.nodes) {
    if (node.phase == Phase::update || !node.op->in_place.empty()) continue;
    for (std::vector<bool>* known : {&invariant_, &from_state_}) {
      const bool all = std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return id == kAbsent || (*known)[id]; });
      for (const ValueId id : node.outputs)
        if (id != kAbsent) (*known)[id] = all;
    }
  }
}

bool LoweringAnalysis::invariant_node(const Node& node) const {
  for (const ValueId id : node.outputs)
    if (id != kAbsent) return invariant_[id];
  return false;
}

bool LoweringAnalysis::from_state(const Node& node) const {
  for (const ValueId id : node.outputs)
    if (id != kAbsent) return from_state_[id];
  return false;
}

void LoweringAnalysis::find_accumulated() {
  accumulated_.assign(graph_.values.size(), false);
  used_inside_.assign(graph_.values.size(), false);
  const auto is_summed = [&](ValueId id) {
    const Value& value = graph_.values[id];
    return value.role == Role::intermediate && !invariant_[id] &&
           graph_.nodes[value.producer].phase != Phase::update;
  };
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs) {
      if (id == kAbsent) continue;
      if (node.phase == Phase::update)
        accumulated_[id] = accumulated_[id] || is_summed(id);
      else
        used_inside_[id] = true;
    }
  for (const Output& output : graph_.outputs) accumulated_[output.value] = is_summed(output.value);
  for (const auto& [part, sum] : assignment_.part_of) {
    accumulated_[part] = true;
    used_inside_[part] = false;  // by the sum alone
  }
  for (const Node& node : graph_.nodes) {
    if (!assignment_.assigned[id_of(node)] || node.phase == Phase::update) continue;
    for (const ValueId id : node.outputs)
      if (id != kAbsent && accumulated_[id] && !invariant_[id])
        summands_[root_of(id)] += assignment_.microbatches;
  }
}

ValueId LoweringAnalysis::root_of(ValueId id) const {
  const auto found = assignment_.part_of.find(id);
  return found == assignment_.part_of.end() ? id : found->second;
}

// Values of the forward pass that another layer of the same stage uses, in either pass.
std::vector<bool> LoweringAnalysis::find_handed_on() const {
  std::vector<bool> handed_on(graph_.values.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (!assignment_.assigned[n] || node.phase == Phase::update) continue;
    for (const ValueId id : node.inputs) {
      if (id == kAbsent || graph_.values[id].producer < 0) continue;
      const NodeId producer = graph_.values[id].producer;
      if (assignment_.stage[producer] == assignment_.stage[n] && graph_.nodes[producer].layer != node.layer)
        handed_on[id] = true;
    }
  }
  return handed_on;
}

// Of each layer in a stage that recomputes: the forward nodes that its backward needs again. What other
// layers use, what is summed over micro-batches and what changes state is made once and kept.
void LoweringAnalysis::find_recomputed() {
  recomputed_.assign(graph_.nodes.size(), false);
  const std::vector<bool> handed_on = find_handed_on();
  std::vector<NodeId> stack;
  const auto need = [&](ValueId id, int stage, int32_t layer) {
    if (id == kAbsent || graph_.values[id].producer < 0) return;
    const NodeId n = graph_.values[id].producer;
    const Node& node = graph_.nodes[n];
    if (recomputed_[n] || !assignment_.assigned[n] || assignment_.stage[n] != stage ||
        node.phase != Phase::forward)
      return;
    if (node.layer != layer || !node.op->in_place.empty()) return;
    for (const ValueId output : node.outputs)
      if (output != kAbsent && (accumulated_[output] || handed_on[output])) return;
    recomputed_[n] = true;
    stack.push_back(n);
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    const int stage = assignment_.stage[n];
    if (!assignment_.assigned[n] || node.phase != Phase::backward || stage == kAllStages ||
        !assignment_.recompute[stage])
      continue;
    for (const ValueId id : node.inputs) need(id, stage, node.layer);
  }
  while (!stack.empty()) {
    const NodeId n = stack.back();
    stack.pop_back();
    for (const ValueId id : graph_.nodes[n].inputs) need(id, assignment_.stage[n], graph_.nodes[n].layer);
  }
}

// Results that may be written straight into the concat or the sum that is their only use.
void LoweringAnalysis::find_write_targets() {
  write_targets_.resize(graph_.values.size());
  for (const Node& node : graph_.nodes) {
    if (invariant_node(node) || !assignment_.assigned[id_of(node)]) continue;
    if (node.op->concatenates) {
      const int64_t rank = static_cast<int64_t>(graph_.type(node.outputs[0]).shape.size());
      int64_t dim = node.attributes.get<int64_t>("dim");
      if (dim < 0) dim += rank;
      const Layout whole = Layout::contiguous(graph_.type(node.outputs[0]));
      int64_t start = 0;
      for (const ValueId id : node.inputs) {
        const int64_t size = graph_.type(id).shape[dim];
        place(id, node, sliced(whole, dim, start, size));
        start += size;
      }
    } else if (node.op->adds_operands && all_can_add(node)) {
      for (const ValueId id : node.inputs) {
        write_targets_[id] = {node.outputs[0], Layout::contiguous(graph_.type(id)), true};
      }
    }
  }
}

bool LoweringAnalysis::same_run(ValueId id, const Node& user) const {
  const Value& value = graph_.values[id];
  if (value.role != Role::intermediate || uses_[id] != 1 || accumulated_[id] || invariant_[id]) return false;
  const Node& producer = graph_.nodes[value.producer];
  return producer.phase == user.phase &&
         assignment_.stage[value.producer] == assignment_.stage[id_of(user)] &&
         assignment_.deferred[value.producer] == assignment_.deferred[id_of(user)];
}

void LoweringAnalysis::place(ValueId id, const Node& concat, Layout layout) {
  if (!same_run(id, concat)) return;
  const Node& producer = graph_.nodes[graph_.values[id].producer];
  if (producer.op->view_source) {
    if (const auto before = producer.op->view_source(layout, graph_.type(producer.inputs[0]))) {
      place(producer.inputs[0], concat, *before);
      if (write_targets_[producer.inputs[0]].into != kAbsent)
        write_targets_[id] = {concat.outputs[0], std::move(layout), false};
    }
    return;
  }
  if (producer.op->view || producer.op->concatenates || !producer.op->in_place.empty()) return;
  const int output = graph_.values[id].output;
  const bool strided = has_bit(producer.op->strided_outputs, output);
  if (!layout.is_contiguous() && !(strided && inner_stride_is_one(layout))) return;
  write_targets_[id] = {concat.outputs[0], std::move(layout), false};
}

bool LoweringAnalysis::all_can_add(const Node& sum) const {
  return std::all_of(sum.inputs.begin(), sum.inputs.end(), [&](ValueId id) {
    if (!same_run(id, sum)) return false;
    const Value& value = graph_.values[id];
    return ((graph_.nodes[value.producer].op->accumulates >> value.output) & 1) != 0;
  });
}

bool inner_stride_is_one(const Layout& layout) {
  return layout.strides.empty() || layout.strides.back() == 1 || layout.type.shape.back() == 1;
}

}  // namespace het
