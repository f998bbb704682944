// The update of a step: gradient norms, the decision of all ranks, and the rows that a rank updates.
#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/lower/lowering.h"

namespace het {

void Lowering::emit_update_phase() {
  const auto is_norm = [](const Node& node) { return node.op->any_placement; };
  const bool keeps_order = assignment_.groups.empty() || !changes_state() ||
                           std::any_of(graph_.nodes.begin(), graph_.nodes.end(), is_norm);
  const std::vector<bool> late = keeps_order ? std::vector<bool>(graph_.nodes.size()) : behind_changes();
  const auto emit_those = [&](bool wanted) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (late[n] == wanted && assignment_.assigned[n] && node.phase == Phase::update &&
          !analysis_.invariant_node(node))
        emit_update(node);
    }
    emit_updates();
  };
  emit_those(false);
  if (keeps_order) return;
  decide();
  emit_those(true);
}

std::vector<bool> Lowering::behind_changes() const {
  std::vector<bool> late(graph_.nodes.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    late[n] = changes_state(node) || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
                return id != kAbsent && graph_.values[id].producer >= 0 && late[graph_.values[id].producer];
              });
  }
  return late;
}

void Lowering::decide() {
  for (const auto& [id, gradient] : assignment_.gradients) buckets_->await(id);
  await_collectives();
  const auto ranks = static_cast<int64_t>(assignment_.groups[0].ranks.size());
  const Operand own = out_.add_whole({"this rank's numbers", {DType::f32, {1}}});
  const Operand all = out_.add_whole({"all ranks' numbers", {DType::f32, {ranks, 1}}});
  Node node;
  node.phase = Phase::update;
  out_.fill(node, own, 0);
  gather_numbers(own, all, "all gradients are there");
  out_.decide();
}

void Lowering::gather_numbers(const Operand& own, const Operand& all, std::string label) {
  CollectiveRequest gather = request_for(CollectiveKind::all_gather, own, std::move(label));
  gather.counts.assign(assignment_.groups[0].ranks.size(), own.layout.type.elements());
  out_.await(out_.start({0, std::move(gather), own, all, Phase::update}));
}

void Lowering::emit_update(const Node& node) {
  const bool joins = !node.op->joined_as.op.empty() && can_join(node);
  if (!updates_.empty() && (!joins || !are_alike(*updates_[0].node, node))) emit_updates();
  each_rows_of(node, [&] {
    if (joins)
      updates_.push_back({&node, rows_});
    else
      emit(node, -1);
  });
}

bool Lowering::is_by_rows(ValueId id) const {
  return rows_ && graph_.type(id).shape == graph_.type(rows_->gradient).shape;
}

Layout Lowering::rows_in(const Layout& all, int64_t first) const {
  return sliced(all, assignment_.gradients.at(rows_->gradient).row_dim, first, rows_->range.size());
}

Operand& Lowering::rows_of(ValueId id) {
  Operand& rows = row_operands_[{id, rows_->range.begin}];
  const bool is_state_of = assignment_.row_updates.at(rows_->gradient).state.count(id) != 0;
  const Operand& all = whole_operand(id, -1);
  if (rows.buffer == kAbsent && all.buffer != kAbsent)
    rows = {all.buffer, rows_in(all.layout, is_state_of ? rows_->first : rows_->range.begin)};
  return rows;
}

TensorType Lowering::type_of(ValueId id) const {
  return is_by_rows(id) ? rows_in(Layout::contiguous(graph_.type(id)), rows_->range.begin).type
                        : graph_.type(id);
}

void Lowering::keep_rows(ValueId id, BufferSpec& spec) const {
  for (const auto& [gradient, update] : assignment_.row_updates) {
    const RankAssignment::Gradient& kept = assignment_.gradients.at(gradient);
    if (update.state.count(id) == 0 || !kept.rows) continue;
    const TensorSlice rows = TensorSlice::whole(spec.type.shape).narrowed(kept.row_dim, *kept.rows);
    if (rows.is_whole()) continue;
    spec.slice = spec.slice ? nested(*spec.slice, rows) : rows;
    spec.type.shape = rows.shape();
  }
}

void Lowering::update_rows(ValueId id, BufferSpec& spec) const {
  for (const auto& [gradient, kept] : assignment_.gradients) {
    if (kept.parameter != id || !kept.rows) continue;
    const TensorSlice rows = TensorSlice::whole(spec.type.shape).narrowed(kept.row_dim, *kept.rows);
    if (!rows.is_whole()) spec.updates = nested(slice_of(spec), rows);
  }
}

bool Lowering::can_join(const Node& node) const {
  return std::all_of(node.op->in_place.begin(), node.op->in_place.end(), [&](const auto& pair) {
    return is_state(graph_.values[node.inputs[static_cast<size_t>(pair.second)]]);
  });
}

bool Lowering::are_alike(const Node& a, const Node& b) const {
  if (a.op != b.op) return false;
  const JoinedCalls& joined = a.op->joined_as;
  const auto settings = [&](const Node& node) {
    return Attributes(node.attributes).set(std::string(joined.attribute), 0.0);
  };
  const int own = op_named(joined.op).in_place_group.second;
  return std::equal(a.inputs.begin() + own, a.inputs.end(), b.inputs.begin() + own) &&
         settings(a) == settings(b) && graph_.type(a.inputs[0]).dtype == graph_.type(b.inputs[0]).dtype;
}

void Lowering::emit_updates() {
  const std::vector<Update> updates = std::exchange(updates_, {});
  if (updates.empty()) return;
  const Node& first = *updates[0].node;
  if (updates.size() == 1) {
    rows_ = updates[0].rows;
    emit(first, -1);
    return rows_.reset();
  }
  const JoinedCalls& joined = first.op->joined_as;
  const OpDef& op = op_named(joined.op);
  const auto [results, operands] = op.in_place_group;
  std::vector<Operand> inputs, outputs;
  std::vector<double> numbers;
  const auto take = [&](ValueId id) {
    const Operand value = operand(id, -1);
    HET_REQUIRE(value.buffer != kAbsent, hint(id));
    return value.layout.is_contiguous() ? value : packed(first, value, -1);
  };
  for (const auto& [node, rows] : updates) {
    rows_ = rows;
    for (const ValueId id : node->inputs) prepare(id, *node, -1);
    for (int i = 0; i < operands; ++i) inputs.push_back(take(node->inputs[static_cast<size_t>(i)]));
    for (int o = 0; o < results; ++o) {
      outputs.push_back(operand(node->inputs[static_cast<size_t>(written_over(*node->op, o))], -1));
      const ValueId result = node->outputs[static_cast<size_t>(o)];
      if (result != kAbsent) operand(result, -1) = outputs.back();
    }
    numbers.push_back(node->attributes.get<double>(joined.attribute, 0.0));
  }
  rows_.reset();
  for (auto i = static_cast<size_t>(operands); i < first.inputs.size(); ++i)
    inputs.push_back(take(first.inputs[i]));
  Attributes attributes{{std::string(joined.list), numbers}};
  for (const auto& [name, value] : first.attributes.entries())
    if (name != joined.attribute) attributes.set(name, value);
  Node all;
  all.phase = Phase::update;
  out_.compute(all, op, std::move(attributes), std::move(inputs), std::move(outputs), 0, -1);
}

void Lowering::emit_global_norm(const Node& node) {
  std::vector<Operand> counted;
  for (const ValueId id : node.inputs) {
    const auto found = assignment_.gradients.find(gradient_behind(id));
    if (found == assignment_.gradients.end() || !found->second.counted) continue;
    const auto count = [&] {
      const Operand gradient = operand(id, -1);
      HET_REQUIRE(gradient.buffer != kAbsent, hint(id));
      counted.push_back(gradient.layout.is_contiguous() ? gradient : packed(node, gradient, -1));
    };
    assignment_.row_updates.count(found->first) != 0 ? each_rows_of(found->first, count) : count();
  }
  const TensorType scalar = graph_.type(node.outputs[0]);
  std::vector<const Output*> passengers;
  for (const Output& output : graph_.outputs)
    if (is_shared(output) && summed_.count(output.value) == 0 && graph_.type(output.value) == scalar &&
        graph_.nodes[graph_.values[output.value].producer].phase != Phase::update)
      passengers.push_back(&output);
  const int64_t ranks = static_cast<int64_t>(assignment_.groups[0].ranks.size());
  const int64_t summed = 1 + static_cast<int64_t>(passengers.size()), numbers = summed + 1;
  const Operand own = out_.add_whole({"this rank's numbers", {scalar.dtype, {numbers}}});
  const auto own_number = [&](int64_t i) {
    Operand number{own.buffer, Layout::contiguous(scalar)};
    number.layout.offset = i;
    return number;
  };
  if (counted.empty()) {
    out_.fill(node, own_number(0), 0);
  } else {
    const Operand unused = out_.add_whole({"unused", scalar});
    out_.compute(node, *node.op, {{"max_norm", 0.0}}, std::move(counted), {own_number(0), unused}, 0, -1);
  }
  out_.fill(node, own_number(summed), 0);
  for (int64_t i = 1; i < summed; ++i) {
    const Operand part = own_part(*passengers[i - 1]);
    part.buffer == kAbsent ? out_.fill(node, own_number(i), 0) : out_.copy(node, part, own_number(i), -1);
  }

  const Operand all = out_.add_whole({"all ranks' numbers", {scalar.dtype, {ranks, numbers}}});
  gather_numbers(own, all, "gradient norms");
  const bool takes_first = assignment_.shares_coefficient && node.outputs[1] != kAbsent &&
                           node.attributes.get<double>("max_norm", 0.0) > 0;
  if (!takes_first) out_.decide();
  const auto each_rank = [&](int64_t i) {
    Operand packed = out_.add_whole({"a number of each rank", {scalar.dtype, {ranks}}});
    out_.copy(node, {all.buffer, Layout{{scalar.dtype, {ranks}}, {numbers}, i}}, packed, -1);
    return packed;
  };
  std::vector<Operand> outputs;
  for (const ValueId id : node.outputs)
    outputs.push_back(id == kAbsent ? Operand{} : out_.add_whole({hint(id), graph_.type(id)}));
  out_.compute(node, *node.op, node.attributes, {each_rank(0)}, outputs, 0, -1);
  // Devices that differ may clip differently, in the last bits.
  if (takes_first) {
    const Operand clip = out_.add_whole({"this rank's coefficient", {scalar.dtype, {2}}});
    const Operand clips = out_.add_whole({"all ranks' coefficients", {scalar.dtype, {ranks, 2}}});
    out_.copy(node, outputs[1], {clip.buffer, Layout::contiguous(scalar)}, -1);
    Operand last{clip.buffer, Layout::contiguous(scalar)};  // what decides has words there
    last.layout.offset = 1;
    out_.fill(node, last, 0);
    gather_numbers(clip, clips, "clipping coefficients");
    out_.decide();
    outputs[1] = {clips.buffer, Layout::contiguous(scalar)};
  }
  for (size_t o = 0; o < outputs.size(); ++o)
    if (node.outputs[o] != kAbsent) operand(node.outputs[o], -1) = outputs[o];
  for (int64_t i = 1; i < summed; ++i) {
    const Output& output = *passengers[i - 1];
    Operand result = own_part(output);
    if (result.buffer == kAbsent) result = out_.add_whole({output.name, scalar, Home::output});
    out_.compute(node, op_named("sum"), {{"dims", std::vector<int64_t>{0}}}, {each_rank(i)}, {result}, 0, -1);
    operand(output.value, -1) = result;
    summed_.insert(output.value);
  }
}

}  // namespace het
