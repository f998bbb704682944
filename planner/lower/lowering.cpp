#include "planner/lower/lowering.h"

#include <algorithm>
#include <utility>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {

Lowering::Lowering(const Graph& graph, const RankAssignment& assignment)
    : graph_(graph),
      assignment_(assignment),
      microbatches_(assignment.microbatches),
      analysis_(graph, assignment),
      out_(graph, assignment) {
  for (const auto& [gradient, update] : assignment.row_updates)
    if (assignment.gradients.at(gradient).rows)
      for (const NodeId n : update.nodes) updated_by_rows_[n] = gradient;
}

Program Lowering::run() {
  require_order();
  declare_outside();
  emit_invariant(true);
  out_.end_prologue();
  emit_invariant(false);
  buckets_->begin_step();
  for (size_t u = 0; u < assignment_.units.size(); ++u) emit_unit(u);
  if (assignment_.runtime.blocking) exchange_blocking(assignment_.units.size());
  await_all_sends();
  buckets_->end_backward();
  emit_update_phase();
  emit_outputs();
  buckets_->share_parameters();
  return out_.finish();
}

bool Lowering::changes_state(const Node& node) const {
  return node.phase == Phase::update && !node.op->in_place.empty();
}

bool Lowering::changes_state() const {
  return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                     [this](const Node& node) { return changes_state(node); });
}

void Lowering::emit_invariant(bool from_state) {
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (assignment_.assigned[n] && analysis_.invariant_node(node) && analysis_.from_state(node) == from_state)
      emit(node, -1);
  }
}

void Lowering::require_order() const {
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs) {
      if (id == kAbsent || analysis_.invariant(id)) continue;
      const Value& value = graph_.values[id];
      if (value.role == Role::input && !value.per_step && node.phase == Phase::update)
        fail_usage("'{}' of the update reads the input '{}', which differs from micro-batch to micro-batch",
                   node.op->name, value.name);
      if (value.producer >= 0 && graph_.nodes[value.producer].phase > node.phase)
        fail_usage("'{}' of the {} pass reads what '{}' of the {} pass makes, which comes later",
                   node.op->name, name_of(node.phase), graph_.nodes[value.producer].op->name,
                   name_of(graph_.nodes[value.producer].phase));
    }
  for (const Output& output : graph_.outputs) {
    const Value& value = graph_.values[output.value];
    if (value.role != Role::intermediate && !(value.role == Role::input && value.per_step))
      fail_usage("the output '{}' is the {} '{}' itself; `copy` makes a result of it", output.name,
                 name_of(value.role), value.name);
  }
}

void Lowering::declare_outside() {
  const int slots = microbatches_ + 1;
  operands_.assign(graph_.values.size() * slots, Operand{});
  std::vector<bool> used(graph_.values.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    if (assignment_.assigned[n])
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent) used[id] = true;
  for (const auto& [id, gradient] : assignment_.gradients) used[gradient.parameter] = true;
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    const Value& value = graph_.values[i];
    const ValueId id = static_cast<ValueId>(i);
    if (is_state(graph_.values[id])) {
      if (!used[i]) continue;
      BufferSpec spec{value.name, value.type, Home::state};
      spec.initial = value.initial;
      spec.slice = value.slice;
      keep_rows(id, spec);
      spec.trained = value.role == Role::parameter;
      update_rows(id, spec);
      set_everywhere(id, out_.add_whole(std::move(spec)));
    } else if (value.role == Role::input && value.per_step) {
      set_everywhere(id, out_.add_whole({value.name, value.type, Home::input}));
    } else if (value.role == Role::input) {
      for (int m = 0; m < microbatches_; ++m)
        operand(id, m) = out_.add_whole({value.name, value.type, Home::input, m});
    }
  }
  make_buckets();
  for (const Output& output : graph_.outputs)
    if (analysis_.accumulated(output.value) && assignment_.first_tensor_rank &&
        analysis_.summands().count(output.value) != 0 && sums_.count(output.value) == 0)
      sums_[output.value] = out_.add_whole({output.name, graph_.type(output.value), Home::output});
}

void Lowering::make_buckets() {
  buckets_.emplace(
      graph_, assignment_, analysis_.summands(), [this](ValueId id) { return whole_operand(id, -1); }, out_);
  for (const GradientBuckets::Place& place : buckets_->places()) {
    sums_[place.gradient] = place.operand;
    if (place.written) continue;
    begun_.insert(place.gradient);
    operand(place.gradient, -1) = place.operand;
  }
}

Operand Lowering::sum_of(ValueId id) {
  const ValueId root = analysis_.root_of(id);
  const auto [entry, fresh] = sums_.emplace(root, Operand{});
  if (fresh) entry->second = out_.add_whole({"sum of " + hint(root), graph_.type(root), Home::arena});
  return entry->second;
}

std::string Lowering::hint(ValueId id) const {
  const Value& value = graph_.values[id];
  return value.producer < 0 ? value.name : fmt::format("%{} {}", id, graph_.nodes[value.producer].op->name);
}

Lowering::Target Lowering::target(ValueId id, int microbatch, bool can_add) {
  const WriteTarget& written = analysis_.write_target(id);
  if (written.into != kAbsent && !written.adds) {
    Operand& joined = operand(written.into, microbatch);
    if (joined.buffer == kAbsent) joined = target(written.into, microbatch, false).operand;
    if (joined.layout.is_contiguous()) {
      Operand part{joined.buffer, written.layout};
      part.layout.offset += joined.layout.offset;
      return {part};
    }
  }
  if (written.into != kAbsent && written.adds) {
    Operand& sum = operand(written.into, microbatch);
    const bool first = sum.buffer == kAbsent;
    bool add = !first;
    if (first) {
      const Target whole_sum = target(written.into, microbatch, true);
      sum = whole_sum.operand;
      add = whole_sum.add;
    }
    return {sum, add};
  }
  if (analysis_.accumulated(id) &&
      (!analysis_.used_inside(id) || (microbatches_ == 1 && analysis_.root_of(id) == id))) {
    if (begun_.count(analysis_.root_of(id)) == 0) {
      begins(id);
      return {sum_of(id)};
    }
    if (can_add) return {sum_of(id), true};
  }
  BufferSpec spec{hint(id), type_of(id), analysis_.from_state(id) ? Home::persistent : Home::arena};
  return {out_.add_whole(std::move(spec)), false, analysis_.accumulated(id)};
}

Operand Lowering::packed(const Node& node, const Operand& from, int microbatch) {
  Operand result = out_.add_whole(
      {"packed", from.layout.type, analysis_.from_state(node) ? Home::persistent : Home::arena});
  out_.copy(node, from, result, microbatch);
  return result;
}

void Lowering::emit(const Node& node, int microbatch) {
  for (const ValueId id : node.inputs) prepare(id, node, microbatch);
  if (node.op->any_placement && !assignment_.groups.empty()) {
    if (node.phase != Phase::update)
      fail_usage(
          "{} is of all gradients of an update, and a plan of several devices cannot run it elsewhere; the "
          "norm of one value is op.sqrt(op.sum(op.square(x)))",
          node.op->name);
    return emit_global_norm(node);
  }
  if (node.op->collective) return emit_collective(node, microbatch);
  if (node.op->view) return emit_view(node, microbatch);
  if (node.op->concatenates) return emit_concat(node, microbatch);
  if (node.op->adds_operands && analysis_.write_target(node.inputs[0]).adds) {
    finish(node, node.outputs[0], {operand(node.outputs[0], microbatch)}, microbatch);
    return;
  }
  std::vector<Operand> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kAbsent) {
      inputs.push_back({});
      continue;
    }
    Operand value = operand(node.inputs[i], microbatch);
    HET_REQUIRE(value.buffer != kAbsent, node.op->name, node.inputs[i], microbatch);
    const bool strided = has_bit(node.op->strided_inputs, i);
    if (!value.layout.is_contiguous() && !(strided && inner_stride_is_one(value.layout)))
      value = packed(node, value, microbatch);
    inputs.push_back(std::move(value));
  }
  std::vector<Operand> outputs;
  std::vector<Target> targets;
  uint32_t accumulate = 0;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (node.outputs[o] == kAbsent) {
      outputs.push_back({});
      targets.push_back({});
      continue;
    }
    const int aliased = alias_of(node, static_cast<int>(o));
    Target where;
    if (aliased >= 0) {
      Operand& source = inputs[aliased];
      if (out_.buffer(source).home != Home::state) source = packed(node, source, microbatch);
      where.operand = source;
    } else {
      where = target(node.outputs[o], microbatch, has_bit(node.op->accumulates, o));
    }
    if (where.add) accumulate |= uint32_t{1} << o;
    outputs.push_back(where.operand);
    targets.push_back(std::move(where));
  }
  out_.compute(node, *node.op, node.attributes, std::move(inputs), std::move(outputs), accumulate,
               microbatch);
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] != kAbsent) finish(node, node.outputs[o], targets[o], microbatch);
}

void Lowering::prepare(ValueId id, const Node& user, int microbatch) {
  if (id == kAbsent) return;
  if (!user.op->view) await_collectives(operand(id, microbatch).buffer);
  const NodeId producer = graph_.values[id].producer;
  if (user.phase == Phase::update)
    buckets_->await(gradient_behind(id));
  else if (producer >= 0 && assignment_.stage[producer] == kAllStages &&
           operand(id, microbatch).buffer == kAbsent)
    emit(graph_.nodes[producer], microbatch);
}

int Lowering::alias_of(const Node& node, int output) {
  const int in = written_over(*node.op, output);
  return in >= 0 && in < static_cast<int>(node.inputs.size()) && node.inputs[in] != kAbsent ? in : -1;
}

void Lowering::finish(const Node& node, ValueId id, const Target& where, int microbatch) {
  if (analysis_.invariant(id))
    set_everywhere(id, where.operand);
  else
    operand(id, microbatch) = where.operand;
  if (!analysis_.accumulated(id)) return;
  const Operand sum = sum_of(id);
  if (where.operand.buffer != sum.buffer) {
    await_collectives(where.operand.buffer);  // a view may be of what is still on its way
    if (begins(id)) {
      out_.copy(node, where.operand, sum, microbatch);
    } else {
      if (!is_float(graph_.type(id).dtype))
        fail_usage("'{}' is {}; only floating-point results can be summed over micro-batches", hint(id),
                   graph_.type(id).dtype);
      const Operand part =
          where.operand.layout.is_contiguous() ? where.operand : packed(node, where.operand, microbatch);
      out_.compute(node, op_named("add"), {}, {sum, part}, {sum}, 0, microbatch);
    }
  }
  operand(analysis_.root_of(id), -1) = sum;
  buckets_->note_summand(analysis_.root_of(id));
}

void Lowering::emit_view(const Node& node, int microbatch) {
  Operand source = operand(node.inputs[0], microbatch);
  HET_REQUIRE(source.buffer != kAbsent, node.op->name, node.inputs[0], microbatch);
  auto layouts = node.op->view(source.layout, node.attributes);
  if (!layouts) {
    await_collectives(source.buffer);
    source = packed(node, source, microbatch);
    layouts = node.op->view(source.layout, node.attributes);
    HET_REQUIRE(layouts.has_value(), node.op->name);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] != kAbsent)
      finish(node, node.outputs[o], {{source.buffer, std::move((*layouts)[o])}}, microbatch);
}

void Lowering::emit_concat(const Node& node, int microbatch) {
  const ValueId result = node.outputs[0];
  Target where{operand(result, microbatch)};
  if (where.operand.buffer == kAbsent || analysis_.invariant(result))
    where = target(result, microbatch, false);
  int64_t dim = node.attributes.get<int64_t>("dim");
  if (dim < 0) dim += static_cast<int64_t>(graph_.type(result).shape.size());
  int64_t start = 0;
  for (const ValueId id : node.inputs) {
    const int64_t size = graph_.type(id).shape[dim];
    const Operand part{where.operand.buffer, sliced(where.operand.layout, dim, start, size)};
    const Operand source = operand(id, microbatch);
    if (source.buffer != part.buffer || source.layout != part.layout)
      out_.copy(node, source, part, microbatch);
    start += size;
  }
  finish(node, result, where, microbatch);
}

bool Lowering::is_shared(const Output& output) const {
  return analysis_.accumulated(output.value) && !assignment_.groups.empty() &&
         assignment_.gradients.count(output.value) == 0;
}

Operand Lowering::own_part(const Output& output) const {
  const auto sum = sums_.find(output.value);
  const bool speaks = sum != sums_.end() && out_.buffer(sum->second).home == Home::output;
  return speaks ? sum->second : Operand{};
}

void Lowering::emit_outputs() {
  Node node;
  node.phase = Phase::update;
  for (const Output& output : graph_.outputs) {
    Operand source = operand(output.value, -1);
    if (is_shared(output) && summed_.count(output.value) == 0) {
      Operand result = own_part(output);
      if (result.buffer == kAbsent) {
        result = out_.add_whole({output.name, graph_.type(output.value), Home::output});
        out_.fill(node, result, 0);
      }
      out_.await(out_.start(
          {0, request_for(CollectiveKind::all_reduce, result, output.name), result, result, Phase::update}));
      continue;
    }
    if (source.buffer == kAbsent && !assignment_.groups.empty()) continue;  // a gradient that others hold
    HET_REQUIRE(source.buffer != kAbsent, output.name);
    const BufferSpec& spec = out_.buffer(source);
    if (spec.home == Home::output && spec.name == output.name) continue;
    out_.copy(node, source, out_.add_whole({output.name, graph_.type(output.value), Home::output}), -1);
  }
}

void Lowering::recompute_for(const Node& node, int microbatch) {
  for (const ValueId id : node.inputs) {
    const NodeId producer = id == kAbsent ? -1 : graph_.values[id].producer;
    if (producer < 0 || !analysis_.recomputed(producer)) continue;
    const int stage = assignment_.stage[producer];
    const int32_t layer = graph_.nodes[producer].layer;
    if (again_.insert({stage, layer, microbatch}).second) recompute(stage, layer, microbatch);
  }
}

void Lowering::recompute(int stage, int32_t layer, int microbatch) {
  std::vector<size_t> nodes;
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    if (analysis_.recomputed(n) && assignment_.stage[n] == stage && graph_.nodes[n].layer == layer)
      nodes.push_back(n);
  for (const size_t n : nodes)
    for (const ValueId id : graph_.nodes[n].outputs)
      if (id != kAbsent) operand(id, microbatch) = {};
  for (const size_t n : nodes) emit(graph_.nodes[n], microbatch);
}

ValueId Lowering::gradient_behind(ValueId id) const {
  while (assignment_.gradients.count(id) == 0) {
    const NodeId producer = graph_.values[id].producer;
    if (producer < 0 || graph_.nodes[producer].phase != Phase::update) break;
    const std::vector<ValueId>& inputs = graph_.nodes[producer].inputs;
    if (inputs.empty() || inputs[0] == kAbsent) break;  // a constant
    id = inputs[0];
  }
  return id;
}

}  // namespace het
