#include "core/plan/partition.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

// Emits the nodes in order, every collective right after what it works on, so that it runs while later nodes
// are computed.
class Partition {
 public:
  Partition(const PlacementTable& table, const ShardingProgram& program, int part, int axis, const Graph* own)
      : table_(table),
        graph_(table.graph()),
        program_(program),
        cuts_(program.shares),
        part_(part),
        axis_(axis),
        own_(own),
        builder_(result_) {
    HET_REQUIRE(program.values.size() == graph_.values.size(), program.values.size());
    HET_REQUIRE(program.nodes.size() == graph_.nodes.size(), program.nodes.size());
    HET_REQUIRE(part >= 0 && part < program.parts(), part, program.parts());
    result_.layers = graph_.layers;
    result_.scopes = graph_.scopes;
    for (size_t c = 0; c < program.conversions.size(); ++c)
      conversions_[program.conversions[c].value].push_back(c);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs) {
        const NodeId producer = id == kAbsent ? -1 : graph_.values[id].producer;
        if (producer >= 0 && node.op->adds_operands && node.phase != Phase::update &&
            graph_.nodes[producer].layer != node.layer)
          added_elsewhere_.insert(id);
      }
  }

  RankGraph run() {
    declare();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) emit(n);
    for (const Output& output : graph_.outputs) {
      const NodeId producer = graph_.values[output.value].producer;
      Node place;
      if (producer >= 0) place = graph_.nodes[producer];
      place.phase = Phase::update;
      place_at(place);
      result_.outputs.push_back({output.name, local(output.value, kReplicated)});
    }
    std::vector<Origin> origins(result_.values.size());
    for (const auto& [id, local] : gathered_) origins[static_cast<size_t>(local)] = {id.first, kReplicated};
    for (const auto& [c, local] : converted_)
      origins[static_cast<size_t>(local)] = {program_.conversions[c].value, program_.conversions[c].to};
    for (const auto& [id, local] : parts_of_inputs_)
      origins[static_cast<size_t>(local)] = {id.first, id.second};
    for (const auto& [id, local] : local_)
      origins[static_cast<size_t>(local)] = {
          id, graph_.values[static_cast<size_t>(id)].role == Role::input ? kReplicated : lies(id)};
    return {std::move(result_), std::move(origins)};
  }

 private:
  PlacementId lies(ValueId id) const { return program_.values[static_cast<size_t>(id)]; }
  const Placement& placement(ValueId id, PlacementId lies) const { return table_.placements(id)[lies]; }
  TensorSlice slice(ValueId id, PlacementId lies, int part) const {
    return table_.slice(id, lies, cuts_, part);
  }

  // --- what comes from outside

  void declare() {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      const ValueId id = static_cast<ValueId>(i);
      if (value.role == Role::intermediate) continue;
      ValueId made = kAbsent;
      if (value.role == Role::input)
        made = builder_.input(value.name, value.type, value.per_step);  // every rank gets all of it
      else
        made = declare_state(value, slice(id, lies(id), part_));
      local_[id] = made;
    }
  }

  ValueId declare_state(const Value& value, const TensorSlice& own) {
    const TensorType type{value.type.dtype, own.shape()};
    const ValueId made = value.role == Role::parameter ? builder_.parameter(value.name, type, value.initial)
                                                       : builder_.buffer(value.name, type, value.initial);
    auto& here = result_.values[made].slice;
    here = value.slice;
    if (!own.is_whole()) here = here ? nested(*here, own) : own;
    result_.values[made].hints = value.hints;
    return made;
  }

  // A call of a collective along this axis of the mesh.
  ValueId communicate(std::string_view op, ValueId value, Attributes attributes = {}) {
    if (axis_ > 0) attributes.set("axis", static_cast<int64_t>(axis_));
    return builder_.call(op, {value}, std::move(attributes));
  }

  void place_at(const Node& node) {
    builder_.set_phase(node.phase);
    builder_.set_layer(node.layer);
    builder_.set_scope(node.scope);
  }

  // --- conversions

  // The value on this rank, lying as `to`: converted now if it was not yet.
  ValueId local(ValueId id, PlacementId to) {
    if (graph_.values[static_cast<size_t>(id)].role == Role::input) return of_input(id, to);
    if (lies(id) == to) return local_.at(id);
    const bool kept = !placement(id, lies(id)).is_sharded();
    const Phase phase = phase_of_conversion(table_, program_, id, builder_.phase());
    const auto& own = conversions_.at(id);
    const auto c = std::find_if(own.begin(), own.end(), [&](size_t each) {
      const Conversion& conversion = program_.conversions[each];
      return conversion.to == to && (kept || conversion.phase == phase);
    });
    HET_REQUIRE(c != own.end(), id, to_string(placement(id, to)));
    if (const auto found = converted_.find(*c); found != converted_.end()) return found->second;
    return converted_[*c] = convert(id, to);
  }

  // A part of an input is cut from it where no layer owns it, so that each stage that needs it cuts its part.
  ValueId of_input(ValueId id, PlacementId to) {
    if (to == kReplicated) return local_.at(id);
    const auto [part, fresh] = parts_of_inputs_.emplace(std::pair{id, to}, kAbsent);
    if (!fresh) return part->second;
    const auto [phase, layer, scope] = std::tuple(builder_.phase(), builder_.layer(), builder_.scope());
    builder_.set_phase(Phase::forward);
    builder_.set_layer(-1);
    part->second = cut(local_.at(id), id, to, part_);
    builder_.set_phase(phase);
    builder_.set_layer(layer);
    builder_.set_scope(scope);
    return part->second;
  }

  ValueId convert(ValueId id, PlacementId to) {
    const Placement& from = placement(id, lies(id));
    const ValueId value = local_.at(id);
    if (from.is_replicated()) return cut(value, id, to, part_);
    if (from.is_partial() && !is_made_whole(id, to)) return scatter(value, id, to);
    if (from.is_sharded() && to != kReplicated && placement(id, to).dim != from.dim && !is_made_whole(id, to))
      return exchange(value, id, to);
    const Phase phase = from.is_partial() ? Phase::forward : builder_.phase();
    const auto [whole, fresh] = gathered_.emplace(std::pair{id, phase}, kAbsent);
    if (fresh) whole->second = from.is_partial() ? communicate("all_reduce", value) : gather(value, id);
    return to == kReplicated ? whole->second : cut(whole->second, id, to, part_);
  }

  // Whether every rank gets all of a value that has to lie as `to`: because something else needs all of it,
  // of shards in the same phase, or because that moves no more than to exchange each placement. In units of
  // the value's bytes times (n - 1) / n a rank sends 1 to gather it, 1 / n for an exchange, 2 to sum it whole
  // and 1 to scatter its sums.
  bool is_made_whole(ValueId id, PlacementId to) const {
    const Placement& from = placement(id, lies(id));
    const Phase phase = phase_of_conversion(table_, program_, id, builder_.phase());
    int exchanges = 0;
    for (const size_t c : conversions_.at(id)) {
      const Conversion& conversion = program_.conversions[c];
      if (from.is_sharded() && conversion.phase != phase) continue;
      if (conversion.to == kReplicated || (from.is_sharded() && placement(id, conversion.to).dim == from.dim))
        return true;
      ++exchanges;
    }
    return to == kReplicated || exchanges > (from.is_partial() ? 2 : program_.parts());
  }

  // What part `part` has of a whole value that lies so.
  ValueId cut(ValueId whole, ValueId id, PlacementId to, int part) {
    const int64_t dim = placement(id, to).dim;
    std::vector<ValueId> pieces;
    for (const Range& range : slice(id, to, part).ranges(dim))
      pieces.push_back(
          builder_.call("slice", {whole}, {{"dim", dim}, {"start", range.begin}, {"length", range.size()}}));
    HET_REQUIRE(!pieces.empty(), to_string(graph_.type(id)), part);
    return join(pieces, dim);
  }

  ValueId join(const std::vector<ValueId>& pieces, int64_t dim) {
    return pieces.size() == 1 ? pieces[0] : builder_.call("concat", pieces, {{"dim", dim}});
  }

  ValueId flat(ValueId value) {
    return builder_.call("reshape", {value},
                         {{"shape", std::vector<int64_t>{builder_.type(value).elements()}}});
  }

  std::vector<int64_t> counts_of(ValueId id, PlacementId lies) const {
    std::vector<int64_t> counts;
    for (int part = 0; part < program_.parts(); ++part) counts.push_back(slice(id, lies, part).elements());
    return counts;
  }

  // All parts one after the other, then every piece to its place.
  ValueId gather(ValueId value, ValueId id) {
    const auto counts = counts_of(id, lies(id));
    const ValueId all =
        communicate("all_gather", flat(value), {{"counts", counts}, {"part", static_cast<int64_t>(part_)}});
    std::vector<TensorSlice> blocks;
    for (int part = 0; part < program_.parts(); ++part) blocks.push_back(slice(id, lies(id), part));
    return joined(all, blocks, placement(id, lies(id)).dim);
  }

  // Shards of one dimension become shards of another: every rank gives each other one the block that both
  // have.
  ValueId exchange(ValueId value, ValueId id, PlacementId to) {
    const int64_t dim = placement(id, lies(id)).dim;
    HET_REQUIRE(placement(id, to).dim != dim, id);
    const TensorSlice own = slice(id, to, part_);
    std::vector<ValueId> sent;
    std::vector<TensorSlice> received;
    std::vector<int64_t> counts, across;  // across: of what a receiver gets, for each index of `dim`
    for (const int64_t count : counts_of(id, to)) across.push_back(count / own.whole_shape()[dim]);
    for (int from = 0; from < program_.parts(); ++from) {
      const Ranges ranges = slice(id, lies(id), from).ranges(dim);
      for (const int64_t count : across) counts.push_back(count * size_of(ranges));
      received.push_back(own.narrowed(dim, ranges));
    }
    for (int receiver = 0; receiver < program_.parts(); ++receiver)
      sent.push_back(flat(cut(value, id, to, receiver)));
    const ValueId all =
        communicate("all_to_all", join(sent, 0), {{"counts", counts}, {"part", static_cast<int64_t>(part_)}});
    return joined(all, received, dim);
  }

  // Packed blocks that follow each other, every piece of them in its place along `dim`.
  ValueId joined(ValueId all, const std::vector<TensorSlice>& blocks, int64_t dim) {
    struct Piece {
      int64_t begin;
      ValueId value;
    };
    std::vector<Piece> pieces;
    int64_t start = 0;
    for (const TensorSlice& of : blocks) {
      const int64_t count = of.elements();
      const ValueId own = builder_.call(
          "reshape",
          {builder_.call("slice", {all}, {{"dim", int64_t{0}}, {"start", start}, {"length", count}})},
          {{"shape", of.shape()}});
      start += count;
      const Ranges ranges = of.ranges(dim);
      int64_t at = 0;
      for (const Range& range : ranges) {
        const Attributes piece{{"dim", dim}, {"start", at}, {"length", range.size()}};
        pieces.push_back({range.begin, ranges.size() == 1 ? own : builder_.call("slice", {own}, piece)});
        at += range.size();
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    std::vector<ValueId> ordered;
    for (const Piece& piece : pieces) ordered.push_back(piece.value);
    return join(ordered, dim);
  }

  // Blocks in the order of the parts, summed and scattered.
  ValueId scatter(ValueId value, ValueId id, PlacementId to) {
    std::vector<ValueId> blocks;
    for (int part = 0; part < program_.parts(); ++part) blocks.push_back(flat(cut(value, id, to, part)));
    const ValueId own = communicate("reduce_scatter", join(blocks, 0),
                                    {{"counts", counts_of(id, to)}, {"part", static_cast<int64_t>(part_)}});
    return builder_.call("reshape", {own}, {{"shape", slice(id, to, part_).shape()}});
  }

  // What has to be converted for a later node of the same phase is so at once, in the layer that made it; a
  // part of what is replicated is cut where it is needed. A gradient that another layer adds to is converted
  // here in any case: a loss makes some in the forward pass already.
  void start_early(ValueId id, const Node& producer) {
    const auto found = id == kAbsent ? conversions_.end() : conversions_.find(id);
    if (found == conversions_.end()) return;
    const bool added_elsewhere = added_elsewhere_.count(id) != 0;
    if (lies(id) == kReplicated && !added_elsewhere) return;
    for (const size_t c : found->second) {
      const Conversion& conversion = program_.conversions[c];
      if (conversion.phase != producer.phase && !(added_elsewhere && conversion.phase == Phase::backward))
        continue;
      builder_.set_phase(conversion.phase);
      local(id, conversion.to);
    }
    builder_.set_phase(producer.phase);
  }

  // --- nodes

  // An operand that this part does not take is converted all the same: all ranks run the same collectives.
  void emit(size_t n) {
    const Node& node = graph_.nodes[n];
    const NodeSharding& way = program_.nodes[n];
    place_at(node);
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool absent = node.inputs[i] == kAbsent;
      const ValueId here = absent ? kAbsent : local(node.inputs[i], way.inputs[i]);
      const bool taken_by_first = ((way.once >> i) & 1) != 0 && part_ != 0;
      const bool taken_by_another = own_ != nullptr && own_->nodes[n].inputs[i] == kAbsent;
      inputs.push_back(taken_by_first || taken_by_another ? kAbsent : here);
    }
    const std::vector<ValueId> outputs = call(node, way, inputs);
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) local_[node.outputs[o]] = outputs[o];
    for (const ValueId id : node.outputs) start_early(id, node);
  }

  std::vector<ValueId> call(const Node& node, const NodeSharding& way, std::vector<ValueId> inputs) {
    const bool decomposed =
        way.rule >= 0 && node.op->sharding[static_cast<size_t>(way.rule)].decompose != nullptr;
    if (!decomposed && (way.rule < 0 || node.op->localize == nullptr)) {
      auto outputs = builder_.call_all(*node.op, std::move(inputs), node.attributes);
      if (!node.step_scopes.empty()) result_.nodes.back().step_scopes = node.step_scopes;
      return outputs;
    }
    const auto types = types_of(graph_, node.inputs);
    const OpCall whole{*node.op, types, node.attributes};
    const auto in = slices_of(node.inputs, way.inputs), out = slices_of(node.outputs, way.outputs);
    if (!decomposed) return builder_.call_all(*node.op, std::move(inputs), localized(whole, in, out));
    const ShardedCall call{builder_, whole, inputs, in, out, program_.parts(), part_, axis_};
    return node.op->sharding[static_cast<size_t>(way.rule)].decompose(call);
  }

  std::vector<TensorSlice> slices_of(const std::vector<ValueId>& ids,
                                     const std::vector<PlacementId>& placements) const {
    std::vector<TensorSlice> slices;
    for (size_t i = 0; i < ids.size(); ++i)
      slices.push_back(ids[i] == kAbsent ? TensorSlice() : slice(ids[i], placements[i], part_));
    return slices;
  }

  const PlacementTable& table_;
  const Graph& graph_;
  const ShardingProgram& program_;
  mutable AxisCuts cuts_;  // what was asked for is known
  int part_, axis_;
  const Graph* own_;
  Graph result_;
  GraphBuilder builder_;
  std::map<ValueId, std::vector<size_t>> conversions_;     // of values, by index
  std::set<ValueId> added_elsewhere_;                      // summands of gradients, of another layer
  std::map<ValueId, ValueId> local_;                       // values as they are made
  std::map<size_t, ValueId> converted_;                    // by conversion
  std::map<std::pair<ValueId, Phase>, ValueId> gathered_;  // shards that were gathered
  std::map<std::pair<ValueId, PlacementId>, ValueId> parts_of_inputs_;
};

}  // namespace

RankGraph partition(const PlacementTable& table, const ShardingProgram& program, int part, int axis,
                    const Graph* own) {
  return Partition(table, program, part, axis, own).run();
}

}  // namespace het
