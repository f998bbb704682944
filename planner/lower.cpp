#include "planner/lower.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/units.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "planner/facts.h"
#include "planner/gradient_buckets.h"
#include "planner/program_writer.h"
#include "planner/stage_graphs.h"
#include "planner/work.h"

namespace het {
namespace {

// Each micro-batch has instructions of its own: absurd numbers of them are refused before they are written.
void require_size(const Graph& graph, int microbatches) {
  constexpr double kMostBytes = 0x1p60;  // all sums of bytes stay far below 2^63
  double bytes = 0;
  for (const Value& value : graph.values) bytes += static_cast<double>(value.type.bytes());
  const double slots = microbatches + 1.0;
  if (bytes * slots > kMostBytes)
    fail_usage("the tensors of {} micro-batches together have {}; no machine holds them", microbatches,
               show_bytes(bytes * slots));
  constexpr double kBytesEach = 256;  // of a program, for each value of each micro-batch: rather less
  const double needed =
      static_cast<double>(graph.values.size() + graph.nodes.size() + 8) * slots * kBytesEach;
  constexpr double kSmall = 0x1p26;
  if (needed < kSmall) return;
  if (const auto available = static_cast<double>(available_memory()); needed > available)
    fail_environment("the program of {} micro-batches takes {} or more; {} are available", microbatches,
                     show_bytes(needed), show_bytes(available));
}

class Lowering {
 public:
  Lowering(const Graph& graph, const Work& work)
      : graph_(graph), work_(work), microbatches_(work.microbatches), facts_(graph, work), out_(graph, work) {
    for (const auto& [gradient, update] : work.row_updates)
      if (work.gradients.at(gradient).rows)
        for (const NodeId n : update.nodes) updated_by_rows_[n] = gradient;
  }

  Program run() {
    require_order();
    declare_outside();
    emit_invariant(true);
    out_.end_prologue();
    emit_invariant(false);
    buckets_->begin_step();
    for (size_t u = 0; u < work_.units.size(); ++u) emit_unit(u);
    settle_messages();
    emit_update_phase();
    emit_outputs();
    buckets_->share_parameters();
    return out_.finish();
  }

 private:
  // Of several ranks the norm of all gradients decides the step. Where there is none, a gathering does before
  // the first change of state, behind all that may need other ranks.
  void emit_update_phase() {
    const auto is_norm = [](const Node& node) { return node.op->any_placement; };
    const bool in_order = work_.groups.empty() || !changes_state() ||
                          std::any_of(graph_.nodes.begin(), graph_.nodes.end(), is_norm);
    const std::vector<bool> late = in_order ? std::vector<bool>(graph_.nodes.size()) : behind_changes();
    const auto emit_those = [&](bool wanted) {
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        const Node& node = graph_.nodes[n];
        if (late[n] == wanted && work_.mine[n] && node.phase == Phase::update && !facts_.invariant_node(node))
          emit_update(node);
      }
      emit_updates();
    };
    emit_those(false);
    if (in_order) return;
    decide();
    emit_those(true);
  }

  bool changes_state(const Node& node) const {
    return node.phase == Phase::update && !node.op->in_place.empty();
  }
  bool changes_state() const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                       [this](const Node& node) { return changes_state(node); });
  }

  // The nodes that change state, and all that need what these make.
  std::vector<bool> behind_changes() const {
    std::vector<bool> late(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      late[n] = changes_state(node) || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
                  return id != kAbsent && graph_.values[id].producer >= 0 && late[graph_.values[id].producer];
                });
    }
    return late;
  }

  // Each rank gives a number when it has all its gradients.
  void decide() {
    for (const auto& [id, gradient] : work_.gradients) buckets_->await(id);
    await_collectives();
    const auto ranks = static_cast<int64_t>(work_.groups[0].ranks.size());
    const Operand own = out_.add_whole({"this rank's numbers", {DType::f32, {1}}});
    const Operand all = out_.add_whole({"all ranks' numbers", {DType::f32, {ranks, 1}}});
    Node node;
    node.phase = Phase::update;
    out_.fill(node, own, 0);
    gather_numbers(own, all, "all gradients are there");
  }

  // What decides the step: from here on every rank is known to have its gradients.
  void gather_numbers(const Operand& own, const Operand& all, std::string label) {
    CollectiveRequest gather = request_for(CollectiveKind::all_gather, own, std::move(label));
    gather.counts.assign(work_.groups[0].ranks.size(), own.layout.type.elements());
    out_.await(out_.start({0, std::move(gather), own, all, Phase::update}));
    out_.decide();
  }

  // Updates that follow each other and differ only in what JoinedCalls allows are made in one pass.
  void emit_update(const Node& node) {
    const bool joins = !node.op->joined_as.op.empty() && can_join(node);
    if (!updates_.empty() && (!joins || !are_alike(*updates_[0].node, node))) emit_updates();
    each_rows_of(node, [&] {
      if (joins)
        updates_.push_back({&node, rows_});
      else
        emit(node, -1);
    });
  }

  // --- the rows of a parameter that this rank updates, of a sharded optimizer

  // Rows of the tensors of one update: [begin, end) of the parameter, which in the optimizer's state begin at
  // `first`.
  struct Rows {
    ValueId gradient = kAbsent;
    Range range{0, 0};
    int64_t first = 0;
  };

  // For each run of rows that this rank updates, the node with these; all at once where it keeps all.
  template <typename Emit>
  void each_rows_of(const Node& node, const Emit& emit) {
    const auto found = updated_by_rows_.find(id_of(node));
    found == updated_by_rows_.end() ? emit() : each_rows_of(found->second, emit);
  }
  template <typename Emit>
  void each_rows_of(ValueId gradient, const Emit& emit) {
    int64_t first = 0;
    for (const Range& range : *work_.gradients.at(gradient).rows) {
      rows_ = Rows{gradient, range, first};
      emit();
      first += range.size();
    }
    rows_.reset();
  }

  // Whether of a value the rows alone are meant, in an update that is made by rows.
  bool is_by_rows(ValueId id) const {
    return rows_ && graph_.type(id).shape == graph_.type(rows_->gradient).shape;
  }

  Layout rows_in(const Layout& all, int64_t first) const {
    return sliced(all, work_.gradients.at(rows_->gradient).row_dim, first, rows_->range.size());
  }

  // The rows of a value of the update. What the update itself makes has a place for each run of rows.
  Operand& rows_of(ValueId id) {
    Operand& rows = row_operands_[{id, rows_->range.begin}];
    const bool is_state_of = work_.row_updates.at(rows_->gradient).state.count(id) != 0;
    const Operand& all = whole_operand(id, -1);
    if (rows.buffer == kAbsent && all.buffer != kAbsent)
      rows = {all.buffer, rows_in(all.layout, is_state_of ? rows_->first : rows_->range.begin)};
    return rows;
  }

  TensorType type_of(ValueId id) const {
    return is_by_rows(id) ? rows_in(Layout::contiguous(graph_.type(id)), rows_->range.begin).type
                          : graph_.type(id);
  }

  // What of the optimizer's state this rank keeps.
  void keep_rows(ValueId id, BufferSpec& spec) const {
    for (const auto& [gradient, update] : work_.row_updates) {
      const Work::Gradient& kept = work_.gradients.at(gradient);
      if (update.state.count(id) == 0 || !kept.rows) continue;
      const TensorSlice rows = TensorSlice::whole(spec.type.shape).narrowed(kept.row_dim, *kept.rows);
      if (rows.is_whole()) continue;
      spec.slice = spec.slice ? nested(*spec.slice, rows) : rows;
      spec.type.shape = rows.shape();
    }
  }

  // What of a parameter this rank updates, where other ranks update the rest.
  void update_rows(ValueId id, BufferSpec& spec) const {
    for (const auto& [gradient, kept] : work_.gradients) {
      if (kept.parameter != id || !kept.rows) continue;
      const TensorSlice rows = TensorSlice::whole(spec.type.shape).narrowed(kept.row_dim, *kept.rows);
      if (!rows.is_whole()) spec.updates = nested(slice_of(spec), rows);
    }
  }

  // Of state that is written where it lies.
  bool can_join(const Node& node) const {
    return std::all_of(node.op->in_place.begin(), node.op->in_place.end(), [&](const auto& pair) {
      return is_state(graph_.values[node.inputs[static_cast<size_t>(pair.second)]]);
    });
  }

  bool are_alike(const Node& a, const Node& b) const {
    if (a.op != b.op) return false;
    const JoinedCalls& joined = a.op->joined_as;
    const auto settings = [&](const Node& node) {
      return Attributes(node.attributes).set(std::string(joined.attribute), 0.0);
    };
    const int own = op_named(joined.op).in_place_group.second;
    return std::equal(a.inputs.begin() + own, a.inputs.end(), b.inputs.begin() + own) &&
           settings(a) == settings(b) && graph_.type(a.inputs[0]).dtype == graph_.type(b.inputs[0]).dtype;
  }

  void emit_updates() {
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

  // What is computed before the first micro-batch: from state alone, or with numbers of the step.
  void emit_invariant(bool from_state) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (work_.mine[n] && facts_.invariant_node(node) && facts_.from_state(node) == from_state)
        emit(node, -1);
    }
  }

  // Recipes make graphs too: what no step can compute is refused in the words of the graph.
  void require_order() const {
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || facts_.invariant(id)) continue;
        const Value& value = graph_.values[id];
        if (value.role == Role::input && !value.per_step && node.phase == Phase::update)
          fail_usage("'{}' of the update reads the input '{}', which each micro-batch has its own of",
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

  // --- buffers

  void declare_outside() {
    const int slots = microbatches_ + 1;
    operands_.assign(graph_.values.size() * slots, Operand{});
    std::vector<bool> used(graph_.values.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (work_.mine[n])
        for (const ValueId id : graph_.nodes[n].inputs)
          if (id != kAbsent) used[id] = true;
    for (const auto& [id, gradient] : work_.gradients) used[gradient.parameter] = true;
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
      if (facts_.crossing(output.value) && work_.first_tensor_rank &&
          facts_.summands().count(output.value) != 0 && sums_.count(output.value) == 0)
        sums_[output.value] = out_.add_whole({output.name, graph_.type(output.value), Home::output});
  }

  void make_buckets() {
    buckets_.emplace(
        graph_, work_, facts_.summands(), [this](ValueId id) { return whole_operand(id, -1); }, out_);
    for (const GradientBuckets::Place& place : buckets_->places()) {
      sums_[place.gradient] = place.operand;
      if (place.written) continue;
      begun_.insert(place.gradient);
      operand(place.gradient, -1) = place.operand;
    }
  }

  Operand& operand(ValueId id, int microbatch) {
    return is_by_rows(id) ? rows_of(id) : whole_operand(id, microbatch);
  }
  Operand& whole_operand(ValueId id, int microbatch) {
    return operands_[id * (microbatches_ + 1) + microbatch + 1];
  }
  NodeId id_of(const Node& node) const { return static_cast<NodeId>(&node - graph_.nodes.data()); }
  void set_everywhere(ValueId id, const Operand& value) {
    for (int m = -1; m < microbatches_; ++m) operand(id, m) = value;
  }

  // Where the sum that a crossing value belongs to is kept.
  Operand sum_of(ValueId id) {
    const ValueId root = facts_.root_of(id);
    const auto [entry, fresh] = sums_.emplace(root, Operand{});
    if (fresh) entry->second = out_.add_whole({"sum of " + hint(root), graph_.type(root), Home::arena});
    return entry->second;
  }
  // Whether nothing was written to it yet: from now on something is.
  bool begins(ValueId id) { return begun_.insert(facts_.root_of(id)).second; }

  std::string hint(ValueId id) const {
    const Value& value = graph_.values[id];
    return value.producer < 0 ? value.name : fmt::format("%{} {}", id, graph_.nodes[value.producer].op->name);
  }

  // Where a node's result goes, and whether it is added to what is there.
  struct Target {
    Operand operand;
    bool add = false;
    bool spill = false;  // a crossing value that cannot be added in place: summed by an extra instruction
  };

  Target target(ValueId id, int microbatch, bool can_add) {
    const WriteTarget& written = facts_.write_target(id);
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
    if (facts_.crossing(id) &&
        (!facts_.used_inside(id) || (microbatches_ == 1 && facts_.root_of(id) == id))) {
      if (begun_.count(facts_.root_of(id)) == 0) {
        begins(id);
        return {sum_of(id)};
      }
      if (can_add) return {sum_of(id), true};
    }
    BufferSpec spec{hint(id), type_of(id), facts_.from_state(id) ? Home::persistent : Home::arena};
    return {out_.add_whole(std::move(spec)), false, facts_.crossing(id)};
  }

  // --- instructions

  Operand packed(const Node& node, const Operand& from, int microbatch) {
    Operand result = out_.add_whole(
        {"packed", from.layout.type, facts_.from_state(node) ? Home::persistent : Home::arena});
    out_.copy(node, from, result, microbatch);
    return result;
  }

  void emit(const Node& node, int microbatch) {
    for (const ValueId id : node.inputs) prepare(id, node, microbatch);
    if (node.op->any_placement && !work_.groups.empty()) return emit_global_norm(node);
    if (node.op->collective) return emit_collective(node, microbatch);
    if (node.op->view) return emit_view(node, microbatch);
    if (node.op->concatenates) return emit_concat(node, microbatch);
    if (node.op->adds_operands && facts_.write_target(node.inputs[0]).adds) {
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

  // What belongs to no stage is made when it is first needed; a gradient that others add to is waited for.
  void prepare(ValueId id, const Node& user, int microbatch) {
    if (id == kAbsent) return;
    if (!user.op->view) await_collectives(operand(id, microbatch).buffer);
    const NodeId producer = graph_.values[id].producer;
    if (user.phase == Phase::update)
      buckets_->await(gradient_behind(id));
    else if (producer >= 0 && work_.stage[producer] == kAnywhere && operand(id, microbatch).buffer == kAbsent)
      emit(graph_.nodes[producer], microbatch);
  }

  static int alias_of(const Node& node, int output) {
    const int in = written_over(*node.op, output);
    return in >= 0 && in < static_cast<int>(node.inputs.size()) && node.inputs[in] != kAbsent ? in : -1;
  }

  // Remember where a result lies; a crossing one that lies elsewhere than its sum is added to it.
  void finish(const Node& node, ValueId id, const Target& where, int microbatch) {
    if (facts_.invariant(id))
      set_everywhere(id, where.operand);
    else
      operand(id, microbatch) = where.operand;
    if (!facts_.crossing(id)) return;
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
    operand(facts_.root_of(id), -1) = sum;
    buckets_->note_summand(facts_.root_of(id));
  }

  void emit_view(const Node& node, int microbatch) {
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

  void emit_concat(const Node& node, int microbatch) {
    const ValueId result = node.outputs[0];
    Target where{operand(result, microbatch)};
    if (where.operand.buffer == kAbsent || facts_.invariant(result))
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

  // A sum over the micro-batches of all ranks, no gradient: it is added up over the ranks at the step's end.
  bool is_shared(const Output& output) const {
    return facts_.crossing(output.value) && !work_.groups.empty() && work_.gradients.count(output.value) == 0;
  }

  // What this rank adds to a shared output; absent: nothing, or another rank of its tensor group does.
  Operand own_part(const Output& output) const {
    const auto sum = sums_.find(output.value);
    const bool speaks = sum != sums_.end() && out_.buffer(sum->second).home == Home::output;
    return speaks ? sum->second : Operand{};
  }

  // Outputs that are not sums already are copied to where they can be read; sums are added up over all ranks,
  // but those that came with the norms.
  void emit_outputs() {
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
        out_.await(out_.start({0, request_for(CollectiveKind::all_reduce, result, output.name), result,
                               result, Phase::update}));
        continue;
      }
      if (source.buffer == kAbsent && !work_.groups.empty()) continue;  // a gradient that others hold
      HET_REQUIRE(source.buffer != kAbsent, output.name);
      const BufferSpec& spec = out_.buffer(source);
      if (spec.home == Home::output && spec.name == output.name) continue;
      out_.copy(node, source, out_.add_whole({output.name, graph_.type(output.value), Home::output}), -1);
    }
  }

  // --- communication

  // A collective of the devices that share the layers, along an axis of their mesh. It is awaited where its
  // result is first used; what comes between is computed meanwhile.
  void emit_collective(const Node& node, int microbatch) {
    const auto axis = static_cast<size_t>(node.attributes.get<int64_t>("axis", 0));
    if (axis >= work_.axis_groups.size())
      fail_usage("'{}' along axis {} needs devices that share a layer; a plan has them by `tensor =`",
                 node.op->name, axis);
    const ValueId source = node.inputs[0], result = node.outputs[0];
    Operand in = operand(source, microbatch);
    HET_REQUIRE(in.buffer != kAbsent, node.op->name, source, microbatch);
    if (!in.layout.is_contiguous()) in = packed(node, in, microbatch);
    const CollectiveKind kind = *node.op->collective;
    const bool reduces = kind == CollectiveKind::all_reduce;
    const bool sums = reduces || kind == CollectiveKind::reduce_scatter;
    if (sums && node.phase == Phase::update && work_.is_summed(gradient_behind(source), axis)) {
      // The sum over all ranks is here already: of a reduce-scatter this rank's block is.
      Operand sum = in;
      sum.layout = Layout::contiguous(type_of(result));
      sum.layout.offset = in.layout.offset;
      if (!reduces) {
        const auto counts = node.attributes.get<std::vector<int64_t>>("counts");
        const auto part = node.attributes.get<int64_t>("part");
        sum.layout.offset += std::accumulate(counts.begin(), counts.begin() + part, int64_t{0});
      }
      finish(node, result, {sum}, microbatch);
      return;
    }
    Target where;
    if (reduces && dies_in(source, node) && facts_.write_target(result).into == kAbsent &&
        !facts_.crossing(result))
      where.operand = in;
    else
      where = target(result, microbatch, false);
    Operand out = where.operand;
    if (!out.layout.is_contiguous()) out = out_.add_whole({hint(result), graph_.type(result)});
    await_collectives(out.buffer);  // one that writes another part of what is joined
    CollectiveRequest wanted = request_for(kind, in, label_of(source));
    if (kind == CollectiveKind::broadcast)
      wanted.peer = static_cast<int>(node.attributes.get<int64_t>("root"));
    else if (!reduces)
      wanted.counts = node.attributes.get<std::vector<int64_t>>("counts");
    Start instruction{work_.axis_groups[axis], std::move(wanted), in, out, node.phase};
    instruction.layer = node.layer;
    instruction.microbatch = microbatch;
    const int started = out_.start(std::move(instruction));
    const bool moved = out.buffer != where.operand.buffer || out.layout != where.operand.layout;
    if (moved || facts_.crossing(result) || facts_.invariant(result) || node.phase == Phase::update) {
      out_.await(started);
      if (moved) out_.copy(node, out, where.operand, microbatch);
    } else {
      running_.emplace(out.buffer, started);
    }
    finish(node, result, where, microbatch);
  }

  // Whether a value is scratch that nothing but `user` reads, in the same run.
  bool dies_in(ValueId id, const Node& user) const {
    const NodeId producer = graph_.values[id].producer;
    return facts_.same_run(id, user) && !graph_.nodes[producer].op->view &&
           graph_.nodes[producer].op->in_place.empty() && facts_.write_target(id).into == kAbsent;
  }

  void await_collectives(BufferId buffer) {
    const auto [begin, end] = running_.equal_range(buffer);
    for (auto it = begin; it != end; ++it) out_.await(it->second);
    running_.erase(begin, end);
  }
  void await_collectives() {
    for (const auto& [buffer, started] : running_) out_.await(started);
    running_.clear();
  }

  std::string label_of(ValueId id) const {
    const Value& value = graph_.values[id];
    if (value.producer < 0) return value.name;
    const Node& node = graph_.nodes[value.producer];
    const std::string& scope = graph_.scopes[node.scope];
    return fmt::format("{}{}{} of {}", name_of(node.phase), " ", node.op->name,
                       scope.empty() ? "the model" : scope);
  }

  // One stage's work on one micro-batch: what it needs from other stages was asked for a unit ahead, what
  // others need of it is sent when all is done.
  void emit_unit(size_t u) {
    const WorkUnit& unit = work_.units[u];
    const int m = unit.microbatch;
    post_receives(u);
    post_receives(u + 1);
    for (const auto& [value, instruction, place] : posted_[u]) {
      out_.await(instruction);
      const Operand got = std::get<Start>(out_.program().instructions[instruction]).out;
      if (got.buffer != place.buffer) out_.copy(Node{}, got, place, m);
      operand(value, m) = out_.whole(place.buffer);
    }
    posted_.erase(u);
    // The gradients of this micro-batch can only have come from its activations: they arrived.
    if (unit.kind == WorkUnit::Kind::backward) settle(sent_forward_[{unit.stage, m}]);

    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!work_.mine[n] || work_.stage[n] != unit.stage || node.phase == Phase::update ||
          facts_.invariant_node(node))
        continue;
      if (node.phase != (unit.kind == WorkUnit::Kind::forward ? Phase::forward : Phase::backward)) continue;
      if (work_.later[n] != (unit.kind == WorkUnit::Kind::weight_gradient)) continue;
      if (node.phase == Phase::backward && work_.recompute[unit.stage]) recompute_for(node, m);
      emit(node, m);
    }
    await_collectives();
    if (unit.kind != WorkUnit::Kind::weight_gradient)
      send(unit.stage, m, unit.kind == WorkUnit::Kind::forward ? Phase::forward : Phase::backward);
  }

  void post_receives(size_t u) {
    if (u >= work_.units.size() || posted_.count(u) != 0) return;
    auto& posted = posted_[u];
    const WorkUnit& unit = work_.units[u];
    const Phase phase = unit.kind == WorkUnit::Kind::forward ? Phase::forward : Phase::backward;
    if (unit.kind == WorkUnit::Kind::weight_gradient) return;
    for (const Work::Message& message : work_.receives) {
      if (message.stage != unit.stage || message.phase != phase) continue;
      // A value of several messages is put together from them.
      const auto of_value = std::find_if(posted.begin(), posted.end(),
                                         [&](const Posted& each) { return each.value == message.value; });
      Operand place = of_value != posted.end()
                          ? Operand{of_value->place.buffer, {}}
                          : out_.add_whole({"received " + hint(message.value), graph_.type(message.value)});
      place.layout = message.part;
      // A buffer that one message fills is received in place.
      const Operand to = message.part.type.elements() == graph_.type(message.value).elements()
                             ? place
                             : out_.add_whole({"received part of " + hint(message.value), message.part.type});
      Start receive{0, request_for(CollectiveKind::receive, to, label_of(message.value)), {}, to, phase};
      receive.request.peer = message.peer;
      receive.request.tag = message.tag;
      receive.microbatch = unit.microbatch;
      posted.push_back({message.value, out_.start(std::move(receive)), place});
    }
  }

  // At most one unit's gradients are on their way from a stage; activations are kept for the backward pass
  // anyhow.
  void send(int stage, int microbatch, Phase phase) {
    std::vector<int> sent;
    for (const Work::Message& message : work_.sends) {
      if (message.stage != stage || message.phase != phase) continue;
      Operand from = operand(message.value, microbatch);
      HET_REQUIRE(from.buffer != kAbsent, hint(message.value), stage, microbatch);
      const Node& node = graph_.nodes[graph_.values[message.value].producer];
      if (!from.layout.is_contiguous()) from = packed(node, from, microbatch);
      const int64_t start = from.layout.offset;
      from.layout = message.part;
      from.layout.offset += start;
      if (!from.layout.is_contiguous()) from = packed(node, from, microbatch);
      Start instruction{0, request_for(CollectiveKind::send, from, label_of(message.value)), from, {}, phase};
      instruction.request.peer = message.peer;
      instruction.request.tag = message.tag;
      instruction.microbatch = microbatch;
      instruction.layer = node.layer;
      sent.push_back(out_.start(std::move(instruction)));
    }
    if (phase == Phase::forward && has_backward()) {
      sent_forward_[{stage, microbatch}] = std::move(sent);
    } else {
      settle(sent_backward_[stage]);
      sent_backward_[stage] = std::move(sent);
    }
  }

  bool has_backward() const {
    return std::any_of(work_.units.begin(), work_.units.end(),
                       [](const WorkUnit& unit) { return unit.kind != WorkUnit::Kind::forward; });
  }

  void settle(std::vector<int>& instructions) {
    for (const int instruction : instructions) out_.await(instruction);
    instructions.clear();
  }
  void settle_messages() {
    for (auto& [key, instructions] : sent_forward_) settle(instructions);
    for (auto& [key, instructions] : sent_backward_) settle(instructions);
  }

  // Before a node of the backward pass: the layers whose values it uses and which are computed again are,
  // once for each micro-batch.
  void recompute_for(const Node& node, int microbatch) {
    for (const ValueId id : node.inputs) {
      const NodeId producer = id == kAbsent ? -1 : graph_.values[id].producer;
      if (producer < 0 || !facts_.recomputed(producer)) continue;
      const int stage = work_.stage[producer];
      const int32_t layer = graph_.nodes[producer].layer;
      if (again_.insert({stage, layer, microbatch}).second) recompute(stage, layer, microbatch);
    }
  }

  void recompute(int stage, int32_t layer, int microbatch) {
    std::vector<size_t> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (facts_.recomputed(n) && work_.stage[n] == stage && graph_.nodes[n].layer == layer)
        nodes.push_back(n);
    for (const size_t n : nodes)
      for (const ValueId id : graph_.nodes[n].outputs)
        if (id != kAbsent) operand(id, microbatch) = {};
    for (const size_t n : nodes) emit(graph_.nodes[n], microbatch);
  }

  // The gradient that a value of the update is, perhaps gathered or summed over a tensor-parallel group
  // since.
  ValueId gradient_behind(ValueId id) const {
    while (work_.gradients.count(id) == 0) {
      const NodeId producer = graph_.values[id].producer;
      if (producer < 0 || graph_.nodes[producer].phase != Phase::update) break;
      id = graph_.nodes[producer].inputs[0];
    }
    return id;
  }

  // Each rank takes the norm of the gradients that it counts; the norm of these norms is everybody's. Numbers
  // that are summed over all ranks, as the loss is, go round with them and are added up in the ranks' order;
  // the last one is the executor's.
  void emit_global_norm(const Node& node) {
    std::vector<Operand> counted;
    for (const ValueId id : node.inputs) {
      const auto found = work_.gradients.find(gradient_behind(id));
      if (found == work_.gradients.end() || !found->second.counted) continue;
      const auto count = [&] {
        counted.push_back(operand(id, -1));
        HET_REQUIRE(counted.back().buffer != kAbsent, hint(id));
      };
      work_.row_updates.count(found->first) != 0 ? each_rows_of(found->first, count) : count();
    }
    const TensorType scalar = graph_.type(node.outputs[0]);
    std::vector<const Output*> passengers;
    for (const Output& output : graph_.outputs)
      if (is_shared(output) && summed_.count(output.value) == 0 && graph_.type(output.value) == scalar &&
          graph_.nodes[graph_.values[output.value].producer].phase != Phase::update)
        passengers.push_back(&output);
    const int64_t ranks = static_cast<int64_t>(work_.groups[0].ranks.size());
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
    const auto each_rank = [&](int64_t i) {
      Operand packed = out_.add_whole({"a number of each rank", {scalar.dtype, {ranks}}});
      out_.copy(node, {all.buffer, Layout{{scalar.dtype, {ranks}}, {numbers}, i}}, packed, -1);
      return packed;
    };
    std::vector<Operand> outputs;
    for (const ValueId id : node.outputs)
      outputs.push_back(id == kAbsent ? Operand{} : out_.add_whole({hint(id), graph_.type(id)}));
    out_.compute(node, *node.op, node.attributes, {each_rank(0)}, outputs, 0, -1);
    for (size_t o = 0; o < outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) operand(node.outputs[o], -1) = outputs[o];
    for (int64_t i = 1; i < summed; ++i) {
      const Output& output = *passengers[i - 1];
      Operand result = own_part(output);
      if (result.buffer == kAbsent) result = out_.add_whole({output.name, scalar, Home::output});
      out_.compute(node, op_named("sum"), {{"dims", std::vector<int64_t>{0}}}, {each_rank(i)}, {result}, 0,
                   -1);
      operand(output.value, -1) = result;
      summed_.insert(output.value);
    }
  }

  const Graph& graph_;
  const Work& work_;
  int microbatches_;
  Facts facts_;
  ProgramWriter out_;
  std::vector<Operand> operands_;                  // [value][micro-batch + 1]
  std::unordered_map<ValueId, Operand> sums_;      // by root_of
  std::set<ValueId> begun_;                        // sums that hold something
  std::set<std::tuple<int, int32_t, int>> again_;  // computed again: stage, layer, micro-batch
  struct Posted {                                  // a receive
    ValueId value;
    int start;
    Operand place;  // of what comes, in the value's buffer
  };
  std::map<size_t, std::vector<Posted>> posted_;                  // by unit
  std::map<std::pair<int, int>, std::vector<int>> sent_forward_;  // by stage and micro-batch
  std::map<int, std::vector<int>> sent_backward_;                 // by stage
  std::multimap<BufferId, int> running_;  // collectives: where they write, their Start
  struct Update {
    const Node* node;
    std::optional<Rows> rows;
  };
  std::vector<Update> updates_;                                  // to be made in one pass
  std::map<NodeId, ValueId> updated_by_rows_;                    // and of which gradient
  std::optional<Rows> rows_;                                     // that are emitted now; absent: all
  std::map<std::pair<ValueId, int64_t>, Operand> row_operands_;  // by the first row
  std::set<ValueId> summed_;                // shared outputs that went round with the norms
  std::optional<GradientBuckets> buckets_;  // once all that comes from outside has its buffers
};

}  // namespace

Program lower_single(const Graph& graph, int microbatches) {
  HET_REQUIRE(microbatches >= 1, microbatches);
  require_size(graph, microbatches);
  Plan plan;
  Stage stage;
  stage.devices = {"here:0"};
  stage.layers = static_cast<int>(graph.layers.size());
  plan.pipelines.push_back({microbatches, {stage}});
  plan.schedule = Schedule::one_f_one_b;
  return Lowering(graph, work_of(graph, plan, 0)).run();
}

PlanSubject subject_of(const Graph& graph, int batch) {
  PlanSubject subject{static_cast<int>(graph.layers.size()), batch};
  for (const auto& layer : graph.layers) subject.names.push_back(layer.name);
  return subject;
}

Program lower(const Graph& graph, const Plan& plan, int rank, bool fused) {
  int64_t samples = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    samples += static_cast<int64_t>(pipeline.microbatches) * plan.microbatch;
  if (samples > std::numeric_limits<int>::max())
    fail_usage("the plan runs {} samples in a step; {} are the most", samples,
               std::numeric_limits<int>::max());
  const auto problems = validate(plan, subject_of(graph, static_cast<int>(samples)));
  if (!problems.empty()) fail_usage("the plan cannot be run:\n  {}", fmt::join(problems, "\n  "));
  for (const Pipeline& pipeline : plan.pipelines) require_size(graph, pipeline.microbatches);
  const StageCut cut = cut_of(plan, rank);
  if (has_uniform_cut(plan) && cut.parts() == 1 && !fused)
    return Lowering(graph, work_of(graph, plan, rank)).run();
  StageGraphs graphs(graph, plan, fused);
  for (size_t p = 0; p < plan.pipelines.size(); ++p)  // what one rank cannot run, all refuse
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s)
      with_context([&] { return fmt::format("pipeline {}, stage {}", p + 1, s + 1); },
                   [&] { graphs.require(cut_of(plan, plan.pipelines[p].stages[s])); });
  const Graph& own = graphs.of(cut, tensor_rank_of(plan, rank)).graph;
  return Lowering(own, work_of(own, plan, rank, &graphs)).run();
}

}  // namespace het
