#include "planner/lower.h"

#include <algorithm>
#include <unordered_map>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

// Where a value shall be written instead of into a buffer of its own.
struct Placement {
  ValueId into = kAbsent;   // the result of a concat, or of an add_n
  Layout layout;            // of the value inside that result's buffer
  bool adds = false;        // into an add_n: the first producer writes, later ones add
};

class Lowering {
 public:
  Lowering(const Graph& graph, int microbatches) : graph_(graph), microbatches_(microbatches) {
    program_.microbatches = microbatches;
    program_.scopes = graph.scopes;
    program_.layers = graph.layers;
  }

  Program run() {
    count_uses();
    find_invariant();
    find_crossing();
    find_placements();
    declare_outside();
    for (const Node& node : graph_.nodes)
      if (invariant_node(node)) emit(node, -1);
    program_.prologue = static_cast<int>(program_.instructions.size());
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch)
      for (const Node& node : graph_.nodes)
        if (node.phase != Phase::update && !invariant_node(node)) emit(node, microbatch);
    for (const Node& node : graph_.nodes)
      if (node.phase == Phase::update && !invariant_node(node)) emit(node, -1);
    emit_outputs();
    place_buffers(program_);
    return std::move(program_);
  }

 private:
  // --- what is known of each value before anything is emitted

  void count_uses() {
    uses_.assign(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs)
        if (id != kAbsent) ++uses_[id];
    for (const Output& output : graph_.outputs) ++uses_[output.value];
  }

  bool is_state(ValueId id) const {
    return graph_.values[id].role == Role::parameter || graph_.values[id].role == Role::buffer;
  }

  // Values that depend on state alone, and not on state that a micro-batch changes: computed once.
  void find_invariant() {
    std::vector<bool> changed(graph_.values.size());
    for (const Node& node : graph_.nodes)
      if (node.phase != Phase::update)
        for (const auto& [output, input] : node.op->in_place)
          if (input < static_cast<int>(node.inputs.size()) && node.inputs[input] != kAbsent) changed[node.inputs[input]] = true;
    invariant_.assign(graph_.values.size(), false);
    for (size_t i = 0; i < graph_.values.size(); ++i)
      if (is_state(static_cast<ValueId>(i))) invariant_[i] = !changed[i];
    for (const Node& node : graph_.nodes) {
      if (node.phase == Phase::update || !node.op->in_place.empty()) continue;
      const bool all = std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return id == kAbsent || invariant_[id]; });
      for (const ValueId id : node.outputs)
        if (id != kAbsent) invariant_[id] = all;
    }
  }

  bool invariant_node(const Node& node) const {
    for (const ValueId id : node.outputs)
      if (id != kAbsent) return invariant_[id];
    return false;
  }

  // Values made in a micro-batch and used once a step: summed over the micro-batches.
  void find_crossing() {
    crossing_.assign(graph_.values.size(), false);
    used_inside_.assign(graph_.values.size(), false);
    const auto crosses = [&](ValueId id) {
      const Value& value = graph_.values[id];
      return value.role == Role::intermediate && !invariant_[id] &&
             graph_.nodes[value.producer].phase != Phase::update;
    };
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs) {
        if (id == kAbsent) continue;
        if (node.phase == Phase::update)
          crossing_[id] = crossing_[id] || crosses(id);
        else
          used_inside_[id] = true;
      }
    for (const Output& output : graph_.outputs) crossing_[output.value] = crosses(output.value);
  }

  // Results that may be written straight into the concat or the sum that is their only use.
  void find_placements() {
    placements_.resize(graph_.values.size());
    for (const Node& node : graph_.nodes) {
      if (invariant_node(node)) continue;
      if (node.op->name == "concat") {
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
      } else if (node.op->name == "add_n" && all_can_add(node)) {
        for (const ValueId id : node.inputs) {
          placements_[id] = {node.outputs[0], Layout::contiguous(graph_.type(id)), true};
        }
      }
    }
  }

  bool same_run(ValueId id, const Node& user) const {
    const Value& value = graph_.values[id];
    if (value.role != Role::intermediate || uses_[id] != 1 || crossing_[id] || invariant_[id]) return false;
    const bool update = graph_.nodes[value.producer].phase == Phase::update;
    return update == (user.phase == Phase::update);
  }

  void place(ValueId id, const Node& concat, Layout layout) {
    if (!same_run(id, concat)) return;
    const Node& producer = graph_.nodes[graph_.values[id].producer];
    if (producer.op->name == "reshape") {
      if (const auto before = reshaped(layout, graph_.type(producer.inputs[0]).shape)) {
        place(producer.inputs[0], concat, *before);
        if (placements_[producer.inputs[0]].into != kAbsent)
          placements_[id] = {concat.outputs[0], std::move(layout), false};
      }
      return;
    }
    if (producer.op->view || producer.op->name == "concat" || !producer.op->in_place.empty()) return;
    const int output = graph_.values[id].output;
    const bool strided = (producer.op->strided_outputs >> output) & 1;
    if (!layout.is_contiguous() && !(strided && inner_stride_is_one(layout))) return;
    placements_[id] = {concat.outputs[0], std::move(layout), false};
  }

  bool all_can_add(const Node& sum) const {
    return std::all_of(sum.inputs.begin(), sum.inputs.end(), [&](ValueId id) {
      if (!same_run(id, sum)) return false;
      const Value& value = graph_.values[id];
      return ((graph_.nodes[value.producer].op->accumulates >> value.output) & 1) != 0;
    });
  }

  static bool inner_stride_is_one(const Layout& layout) {
    return layout.strides.empty() || layout.strides.back() == 1 || layout.type.shape.back() == 1;
  }

  // --- buffers

  BufferId add_buffer(BufferSpec spec) {
    program_.buffers.push_back(std::move(spec));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  Operand whole(BufferId buffer) const { return {buffer, Layout::contiguous(program_.buffers[buffer].type)}; }

  void declare_outside() {
    const int slots = microbatches_ + 1;
    operands_.assign(graph_.values.size() * slots, Operand{});
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      const ValueId id = static_cast<ValueId>(i);
      if (is_state(id)) {
        BufferSpec spec{value.name, value.type, Home::state};
        spec.initial = value.initial;
        spec.trained = value.role == Role::parameter;
        set_everywhere(id, whole(add_buffer(std::move(spec))));
      } else if (value.role == Role::input && value.per_step) {
        set_everywhere(id, whole(add_buffer({value.name, value.type, Home::input})));
      } else if (value.role == Role::input) {
        for (int m = 0; m < microbatches_; ++m)
          operand(id, m) = whole(add_buffer({value.name, value.type, Home::input, m}));
      }
    }
    for (const Output& output : graph_.outputs)
      if (crossing_[output.value] && sums_.count(output.value) == 0)
        sums_[output.value] = add_buffer({output.name, graph_.type(output.value), Home::output});
  }

  Operand& operand(ValueId id, int microbatch) { return operands_[id * (microbatches_ + 1) + microbatch + 1]; }
  void set_everywhere(ValueId id, const Operand& value) {
    for (int m = -1; m < microbatches_; ++m) operand(id, m) = value;
  }

  // The buffer in which a crossing value is summed.
  BufferId sum_buffer(ValueId id) {
    const auto [entry, fresh] = sums_.emplace(id, kAbsent);
    if (fresh) entry->second = add_buffer({"sum of " + hint(id), graph_.type(id), Home::arena});
    return entry->second;
  }

  std::string hint(ValueId id) const {
    const Value& value = graph_.values[id];
    return value.producer < 0 ? value.name : fmt::format("%{} {}", id, graph_.nodes[value.producer].op->name);
  }

  // Where a node's result goes, and whether it is added to what is there.
  struct Target {
    Operand operand;
    bool add = false;
    bool spill = false;   // a crossing value that cannot be added in place: summed by an extra instruction
  };

  Target target(ValueId id, int microbatch, bool can_add) {
    const Placement& placement = placements_[id];
    if (placement.into != kAbsent && !placement.adds) {
      Operand& joined = operand(placement.into, microbatch);
      if (joined.buffer == kAbsent) joined = target(placement.into, microbatch, false).operand;
      if (joined.layout.is_contiguous()) {
        Operand part{joined.buffer, placement.layout};
        part.layout.offset += joined.layout.offset;
        return {part};
      }
    }
    if (placement.into != kAbsent && placement.adds) {
      Operand& sum = operand(placement.into, microbatch);
      const bool first = sum.buffer == kAbsent;
      bool add = !first;
      if (first) {
        const Target whole_sum = target(placement.into, microbatch, true);
        sum = whole_sum.operand;
        add = whole_sum.add;
      }
      return {sum, add};
    }
    if (crossing_[id] && (!used_inside_[id] || microbatches_ == 1)) {
      const BufferId sum = sum_buffer(id);
      if (microbatch <= 0) return {whole(sum)};
      if (can_add) return {whole(sum), true};
    }
    BufferSpec spec{hint(id), graph_.type(id), invariant_[id] ? Home::pinned : Home::arena};
    return {whole(add_buffer(std::move(spec))), false, crossing_[id]};
  }

  // --- instructions

  void push(const Node& node, const OpDef& op, Attributes attributes, std::vector<Operand> inputs,
            std::vector<Operand> outputs, uint32_t accumulate, int microbatch) {
    Compute compute;
    compute.op = &op;
    compute.attributes = std::move(attributes);
    compute.inputs = std::move(inputs);
    compute.outputs = std::move(outputs);
    compute.accumulate = accumulate;
    compute.phase = node.phase;
    compute.layer = node.layer;
    compute.scope = node.scope;
    if (&op == node.op) compute.step_scopes = node.step_scopes;
    compute.microbatch = microbatch;
    program_.instructions.push_back(std::move(compute));
  }

  void copy(const Node& node, const Operand& from, const Operand& to, int microbatch) {
    push(node, op_named("copy"), {}, {from}, {to}, 0, microbatch);
  }

  Operand packed(const Node& node, const Operand& from, int microbatch) {
    const Operand result =
        whole(add_buffer({"packed", from.layout.type, invariant_node(node) ? Home::pinned : Home::arena}));
    copy(node, from, result, microbatch);
    return result;
  }

  void emit(const Node& node, int microbatch) {
    if (node.op->view) return emit_view(node, microbatch);
    if (node.op->name == "concat") return emit_concat(node, microbatch);
    if (node.op->name == "add_n" && placements_[node.inputs[0]].adds) {
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
      const bool strided = i < 32 && ((node.op->strided_inputs >> i) & 1);
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
        if (program_.buffers[source.buffer].home != Home::state) source = packed(node, source, microbatch);
        where.operand = source;
      } else {
        where = target(node.outputs[o], microbatch, ((node.op->accumulates >> o) & 1) != 0);
      }
      if (where.add) accumulate |= uint32_t{1} << o;
      outputs.push_back(where.operand);
      targets.push_back(std::move(where));
    }
    push(node, *node.op, node.attributes, std::move(inputs), std::move(outputs), accumulate, microbatch);
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) finish(node, node.outputs[o], targets[o], microbatch);
  }

  static int alias_of(const Node& node, int output) {
    for (const auto& [out, in] : node.op->in_place)
      if (out == output && in < static_cast<int>(node.inputs.size()) && node.inputs[in] != kAbsent) return in;
    return -1;
  }

  // Remember where a result lies; a crossing one that lies elsewhere than its sum is added to it.
  void finish(const Node& node, ValueId id, const Target& where, int microbatch) {
    if (invariant_[id])
      set_everywhere(id, where.operand);
    else
      operand(id, microbatch) = where.operand;
    if (!crossing_[id]) return;
    const Operand sum = whole(sum_buffer(id));
    if (where.operand.buffer != sum.buffer) {
      if (microbatch <= 0) {
        copy(node, where.operand, sum, microbatch);
      } else {
        if (!is_float(graph_.type(id).dtype))
          fail_usage("'{}' is {}; only floating-point results can be summed over micro-batches", hint(id),
                     graph_.type(id).dtype);
        const Operand part =
            where.operand.layout.is_contiguous() ? where.operand : packed(node, where.operand, microbatch);
        push(node, op_named("add"), {}, {sum, part}, {sum}, 0, microbatch);
      }
    }
    operand(id, -1) = sum;
  }

  void emit_view(const Node& node, int microbatch) {
    Operand source = operand(node.inputs[0], microbatch);
    HET_REQUIRE(source.buffer != kAbsent, node.op->name, node.inputs[0], microbatch);
    auto layouts = node.op->view(source.layout, node.attributes);
    if (!layouts) {
      source = packed(node, source, microbatch);
      layouts = node.op->view(source.layout, node.attributes);
      HET_REQUIRE(layouts.has_value(), node.op->name);
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent)
        finish(node, node.outputs[o], {{source.buffer, std::move((*layouts)[o])}}, microbatch);
  }

  void emit_concat(const Node& node, int microbatch) {
    const ValueId result = node.outputs[0];
    Target where{operand(result, microbatch)};
    if (where.operand.buffer == kAbsent || invariant_[result]) where = target(result, microbatch, false);
    int64_t dim = node.attributes.get<int64_t>("dim");
    if (dim < 0) dim += static_cast<int64_t>(graph_.type(result).shape.size());
    int64_t start = 0;
    for (const ValueId id : node.inputs) {
      const int64_t size = graph_.type(id).shape[dim];
      const Operand part{where.operand.buffer, sliced(where.operand.layout, dim, start, size)};
      const Operand source = operand(id, microbatch);
      if (source.buffer != part.buffer || source.layout != part.layout) copy(node, source, part, microbatch);
      start += size;
    }
    finish(node, result, where, microbatch);
  }

  // Outputs that are not sums already are copied to where they can be read.
  void emit_outputs() {
    std::vector<BufferId> taken;
    for (const Output& output : graph_.outputs) {
      Operand source = operand(output.value, -1);
      HET_REQUIRE(source.buffer != kAbsent, output.name);
      BufferSpec& spec = program_.buffers[source.buffer];
      if (spec.home == Home::output && spec.name == output.name) continue;
      const Operand result = whole(add_buffer({output.name, graph_.type(output.value), Home::output}));
      Node node;
      node.phase = Phase::update;
      copy(node, source, result, -1);
    }
  }

  const Graph& graph_;
  int microbatches_;
  Program program_;
  std::vector<int> uses_;
  std::vector<bool> invariant_, crossing_, used_inside_;
  std::vector<Placement> placements_;
  std::vector<Operand> operands_;                    // [value][micro-batch + 1]
  std::unordered_map<ValueId, BufferId> sums_;
};

}  // namespace

Program lower_single(const Graph& graph, int microbatches) {
  HET_REQUIRE(microbatches >= 1, microbatches);
  return Lowering(graph, microbatches).run();
}

Program lower(const Graph& graph, const Plan& plan, int rank) {
  int samples = 0;
  for (const Pipeline& pipeline : plan.pipelines) samples += pipeline.microbatches * plan.microbatch;
  const auto problems = validate(plan, {static_cast<int>(graph.layers.size()), samples});
  if (!problems.empty()) fail_usage("the plan cannot be run:\n  {}", fmt::join(problems, "\n  "));
  const Pipeline& pipeline = plan.pipelines[0];
  if (plan.tensor != 1 || plan.pipelines.size() != 1 || pipeline.stages.size() != 1 || rank != 0)
    fail_usage("the plan spreads the model over several devices; this build runs plans of one device");
  return lower_single(graph, pipeline.microbatches);
}

}  // namespace het
