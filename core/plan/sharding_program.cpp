#include "core/plan/sharding_program.h"

#include <algorithm>
#include <compare>
#include <optional>

#include "core/base/error.h"
#include "core/comm/communicator.h"
#include "core/ops/op.h"
#include "core/plan/plan.h"

namespace het {
namespace {

// Whether a value is a parameter, or a copy of one in another precision.
bool is_of_parameter(const Graph& graph, ValueId id) {
  while (id != kAbsent && graph.values[id].producer >= 0) {
    const Node& node = graph.nodes[graph.values[id].producer];
    if (!node.op->copies_operand) return false;
    id = node.inputs[0];
  }
  return id != kAbsent && graph.values[id].role == Role::parameter;
}

bool is_input(const PlacementTable& table, ValueId id) {
  return table.graph().values[static_cast<size_t>(id)].role == Role::input;
}

// What a rank sends, times the number of ranks, to have a value as `to` when it lies as `from`. Not for `to`
// partial.
int64_t moved(const PlacementTable& table, int parts, ValueId id, PlacementId from, PlacementId to) {
  const int64_t all = table.graph().type(id).bytes() * (parts - 1);
  if (from == to || from == kReplicated) return 0;
  if (from == kPartial) return to == kReplicated ? 2 * all : all;
  // To another dimension each part is exchanged; in the same one it is gathered and cut again.
  const auto& placements = table.placements(id);
  return to != kReplicated && placements[from].dim != placements[to].dim ? all / parts : all;
}

class Propagation {
 public:
  Propagation(const PlacementTable& table, const Shares& shares, const ShardingHints& hints)
      : table_(table),
        graph_(table.graph()),
        axes_(hints.axes),
        fixed_(hints.nodes),
        whole_inputs_(hints.whole_inputs),
        trains_(std::any_of(table.graph().nodes.begin(), table.graph().nodes.end(),
                            [](const Node& node) { return node.phase == Phase::update; })) {
    program_.shares = shares;
    program_.values.assign(graph_.values.size(), kReplicated);
    is_of_state_.assign(graph_.values.size(), false);
    is_gathered_.assign(graph_.values.size(), false);
    is_normed_.assign(graph_.values.size(), false);
    uses_.assign(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs)
        if (id != kAbsent) {
          ++uses_[static_cast<size_t>(id)];
          if (node.op->any_placement) is_normed_[static_cast<size_t>(id)] = true;
        }
    for (const auto& [id, placement] : hints.given) program_.values[static_cast<size_t>(id)] = placement;
  }

  // `followed`: each node runs as it does there; those that would have run otherwise are added to
  // `different`.
  ShardingProgram run(const ShardingProgram* followed = nullptr, std::vector<NodeId>* different = nullptr) {
    followed_ = followed;
    different_ = different;
    find_wanted();
    find_read();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) choose(static_cast<NodeId>(n));
    // A result of a micro-batch is whole there: what is summed over micro-batches, and over pipelines, is it.
    for (const Output& output : graph_.outputs) {
      const NodeId producer = graph_.values[static_cast<size_t>(output.value)].producer;
      need(output.value, kReplicated,
           producer < 0 ? Phase::update : graph_.nodes[static_cast<size_t>(producer)].phase);
    }
    return std::move(program_);
  }

 private:
  PlacementId& lies(ValueId id) { return program_.values[static_cast<size_t>(id)]; }

  // The placement of one value that is another's of the same shape.
  PlacementId same_as(ValueId id, ValueId other, PlacementId placement) const {
    const Placement& lies = table_.placements(other)[placement];
    if (!lies.is_sharded()) return placement;
    return table_.find(id, lies.dim, lies.segments).value_or(kReplicated);
  }

  // How a gradient shall lie in the end: as the parameter that it updates, through operators that keep its
  // shape.
  void find_wanted() {
    wanted_.assign(graph_.values.size(), kReplicated);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      ValueId state = kAbsent;
      for (size_t i = 0; node.phase == Phase::update && state == kAbsent && i < node.inputs.size(); ++i)
        if (updates(node, i)) state = node.inputs[i];
      const bool keeps =
          node.op->elementwise || node.op->adds_operands || node.op->collective == CollectiveKind::all_reduce;
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || graph_.values[id].role != Role::intermediate) continue;
        PlacementId& wanted = wanted_[static_cast<size_t>(id)];
        const Shape& shape = graph_.type(id).shape;
        if (state != kAbsent && graph_.type(state).shape == shape)
          wanted = same_as(id, state, lies(state));
        else if (keeps && node.outputs[0] != kAbsent && graph_.type(node.outputs[0]).shape == shape &&
                 wanted == kReplicated)
          wanted = same_as(id, node.outputs[0], wanted_[static_cast<size_t>(node.outputs[0])]);
      }
    }
  }

  void find_read() {
    read_in_step_.assign(graph_.values.size(), false);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.inputs)
        if (id != kAbsent && node.phase != Phase::update) read_in_step_[static_cast<size_t>(id)] = true;
    for (const Output& output : graph_.outputs) read_in_step_[static_cast<size_t>(output.value)] = true;
  }

  // What a rank moves: bytes of parameters, then of other values, each times the number of ranks. Integers,
  // so that all ranks decide alike. Parameters stay where they are as long as there is another way.
  struct Moved {
    int64_t parameters = 0, others = 0;
    auto operator<=>(const Moved&) const = default;
    Moved& operator+=(const Moved& more) {
      parameters += more.parameters;
      others += more.others;
      return *this;
    }
  };

  // To have a value as `to` when it lies as `from`; nullopt: it cannot.
  std::optional<Moved> moved_between(ValueId id, PlacementId from, PlacementId to) const {
    if (to == kPartial) return from == kPartial ? std::optional(Moved{}) : std::nullopt;
    if (whole_inputs_ && is_input(table_, id)) return Moved{};
    const int64_t bytes = moved(table_, program_.parts(), id, from, to);
    const bool sharded = from > kPartial;
    return sharded && is_of_parameter(graph_, id) ? Moved{bytes, 0} : Moved{0, bytes};
  }

  // To run a node so, and then to add up what it leaves as summands; nullopt: it cannot.
  std::optional<Moved> moved_by(const Node& node, const NodeSharding& way) {
    Moved moved;
    // Each stage adds to such a gradient over micro-batches, so it lies as it is updated, or partial: its
    // summands are converted where they are made.
    if (adds_layers(graph_, node) && way.outputs[0] != kPartial &&
        way.outputs[0] != wanted_[static_cast<size_t>(node.outputs[0])])
      return std::nullopt;
    // What another axis of the mesh sums in the update is exchanged over pipelines as it lies there: of its
    // parameter's size.
    if (node.op->collective && node.phase == Phase::update && way.outputs[0] > kPartial &&
        way.outputs[0] != wanted_[static_cast<size_t>(node.outputs[0])])
      return std::nullopt;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kAbsent) continue;
      const auto id = static_cast<size_t>(node.inputs[i]);
      const PlacementId given = lies(node.inputs[i]);
      const auto each = moved_between(node.inputs[i], given, way.inputs[i]);
      if (!each || (updates(node, i) && given != way.inputs[i])) return std::nullopt;
      // What counts once is not brought together for one rank alone.
      const bool once = ((way.once >> i) & 1) != 0;
      if (once && (given != kReplicated || is_gathered_[id])) return std::nullopt;
      if (way.inputs[i] == kPartial && leaves_layer(graph_, node.inputs[i], node)) return std::nullopt;
      // A gradient is added up over micro-batches as the norm takes it: updates read the same sum.
      if (node.phase == Phase::update && is_normed_[id] && way.inputs[i] != wanted_[id]) return std::nullopt;
      if (conversion_of(node.inputs[i], way.inputs[i], node.phase) == nullptr) moved += *each;
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      if (id == kAbsent) continue;
      const PlacementId wanted = wanted_[static_cast<size_t>(id)];
      if (o == 0 && wanted != kReplicated)
        moved += moved_between(id, way.outputs[o], wanted).value_or(Moved{});
      else if (way.outputs[o] == kPartial && read_in_step_[static_cast<size_t>(id)])
        moved +=
            *moved_between(id, kPartial, kReplicated);  // what updates alone read is added up once a step
    }
    return moved;
  }

  // Whether the work is shared out already: of an operand that has its part, or as a gradient shall lie.
  bool goes_on(const Node& node, const NodeSharding& way) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] != kAbsent && lies(node.inputs[i]) != kReplicated && way.inputs[i] != kReplicated)
        return true;
    const ValueId result = node.outputs.empty() ? kAbsent : node.outputs[0];
    return result != kAbsent && way.outputs[0] > kPartial &&
           way.outputs[0] == wanted_[static_cast<size_t>(result)];
  }

  void choose(NodeId n) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    const auto fixed = fixed_.find(n);
    NodeSharding best = fixed == fixed_.end() ? cheapest(n) : fixed->second;
    // What is said of a graph that trains may not fit one that evaluates, whose operands are made otherwise.
    if (fixed != fixed_.end() && trains_)
      require_runs(node, best);
    else if (fixed != fixed_.end() && !moved_by(node, best))
      best = cheapest(n);
    // The norm is of gradients that lie as their parameters do, so that each is counted once.
    if (node.op->any_placement)
      for (size_t i = 0; i < node.inputs.size(); ++i)
        best.inputs[i] = wanted_[static_cast<size_t>(node.inputs[i])];
    if (followed_ != nullptr && best != followed_->nodes[static_cast<size_t>(n)]) {
      different_->push_back(n);
      best = followed_->nodes[static_cast<size_t>(n)];
    }
    require_updates(node, best);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] != kAbsent) need(node.inputs[i], best.inputs[i], node.phase);
    note_gathered(node, best);
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) lies(node.outputs[o]) = best.outputs[o];
    program_.nodes.push_back(std::move(best));
  }

  void require_runs(const Node& node, const NodeSharding& way) {
    if (way.axis >= 0 && axes_.count(way.axis) == 0)
      fail_usage("{} cannot run as the plan's sharding says: it cuts {} units, too few for {} devices{}",
                 name_of(graph_, node), table_.axes()[static_cast<size_t>(way.axis)].units, program_.parts(),
                 show_uneven(program_.shares));
    if (!moved_by(node, way))
      fail_usage("{} cannot run as the plan's sharding says: its rule does not allow how an operand lies",
                 name_of(graph_, node));
  }

  // Which values a rank has by collectives, perhaps for them alone: where one rank does not need such a
  // value, the others would wait for it. What follows from state alone each stage makes for itself.
  void note_gathered(const Node& node, const NodeSharding& way) {
    bool of_state = node.phase != Phase::update, gathered = node.op->collective.has_value();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kAbsent) continue;
      const auto id = static_cast<size_t>(node.inputs[i]);
      of_state = of_state && (is_of_step(graph_.values[id]) || is_of_state_[id]);
      const bool for_this = uses_[id] == 1 || is_of_step(graph_.values[id]) || is_of_state_[id];
      const PlacementId given = lies(node.inputs[i]);
      const bool converts = given != kReplicated && given != way.inputs[i];
      gathered = gathered || (for_this && (converts || is_gathered_[id]));
    }
    for (const ValueId id : node.outputs) {
      if (id == kAbsent) continue;
      is_of_state_[static_cast<size_t>(id)] = of_state;
      is_gathered_[static_cast<size_t>(id)] = gathered && (of_state || uses_[static_cast<size_t>(id)] == 1);
    }
  }

  // State is updated where it is: a converted copy of it would take the update, and be lost.
  void require_updates(const Node& node, const NodeSharding& way) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kAbsent || !updates(node, i) || lies(id) == way.inputs[i]) continue;
      const auto& placements = table_.placements(id);
      fail_usage("{} cannot update '{}', which is {}: it would have to be {}, as the rest of what it updates",
                 node.op->name, graph_.values[static_cast<size_t>(id)].name, to_string(placements[lies(id)]),
                 to_string(placements[way.inputs[i]]));
    }
  }

  // The way to run a node that moves the fewest bytes.
  NodeSharding cheapest(NodeId n) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    NodeSharding best = table_.replicated(n);
    std::optional<Moved> least;
    for (const NodeSharding& way : table_.shardings(n)) {
      if (way.axis >= 0 && axes_.count(way.axis) == 0) continue;
      if (!goes_on(node, way)) continue;
      const auto moved = moved_by(node, way);
      if (!moved || (least && *moved >= *least)) continue;
      least = moved;
      best = way;
    }
    if (best.rule >= 0) {
      const auto moved = moved_by(node, table_.replicated(n));
      // A sum is added up rather sooner than later, when that costs the same.
      if (moved && (*moved < *least || (*moved == *least && best.axis < 0))) best = table_.replicated(n);
    }
    return best;
  }

  // The conversion that serves a node of phase `use`; null: there is none yet.
  Conversion* conversion_of(ValueId id, PlacementId to, Phase use) {
    const auto found = of_value_.find(id);
    if (found == of_value_.end()) return nullptr;
    const bool kept = !table_.placements(id)[lies(id)].is_sharded();
    for (const size_t c : found->second) {
      Conversion& known = program_.conversions[c];
      if (known.to == to && (kept || known.phase == phase_of_conversion(table_, program_, id, use)))
        return &known;
    }
    return nullptr;
  }

  void need(ValueId id, PlacementId to, Phase use) {
    if (lies(id) == to) return;
    const Phase phase = phase_of_conversion(table_, program_, id, use);
    if (Conversion* known = conversion_of(id, to, use)) {
      known->phase = std::min(known->phase, phase);
      return;
    }
    of_value_[id].push_back(program_.conversions.size());
    program_.conversions.push_back({id, to, phase});
  }

  const PlacementTable& table_;
  const Graph& graph_;
  const std::set<int>& axes_;
  const std::map<NodeId, NodeSharding>& fixed_;
  const bool whole_inputs_, trains_;
  const ShardingProgram* followed_ = nullptr;
  std::vector<NodeId>* different_ = nullptr;
  ShardingProgram program_;
  std::vector<PlacementId> wanted_;  // of values
  std::vector<bool> is_of_state_;    // values: made from state alone
  std::vector<bool> is_gathered_;    // values: with collectives for them alone
  std::vector<bool> is_normed_;      // values: gradients that the global norm takes
  std::vector<int> uses_;            // of values, by nodes
  std::vector<bool> read_in_step_;   // values: by nodes of the forward and backward passes, or as an output
  std::map<ValueId, std::vector<size_t>> of_value_;  // conversions, by index
};

}  // namespace

std::string show_uneven(const Shares& shares) {
  const std::string shown = show_shares(shares);
  return shown.starts_with('{') ? " with the shares " + shown : "";
}

bool fills(const LogicalAxis& axis, const Shares& shares) {
  const std::vector<int64_t> points = cut_points(axis.units, shares);
  return std::adjacent_find(points.begin(), points.end()) == points.end();
}

std::set<int> fillable(const PlacementTable& table, const Shares& shares) {
  std::set<int> axes;
  for (size_t a = 0; a < table.axes().size(); ++a)
    if (fills(table.axes()[a], shares)) axes.insert(static_cast<int>(a));
  return axes;
}

bool updates(const Node& node, size_t input) {
  return std::any_of(node.op->in_place.begin(), node.op->in_place.end(),
                     [&](const auto& pair) { return pair.second == static_cast<int>(input); });
}

bool leaves_layer(const Graph& graph, ValueId id, const Node& reader) {
  const NodeId producer = graph.values[static_cast<size_t>(id)].producer;
  if (producer < 0 || reader.phase == Phase::update || reader.op->adds_operands) return false;
  return graph.nodes[static_cast<size_t>(producer)].layer != reader.layer;
}

bool adds_layers(const Graph& graph, const Node& node) {
  return node.op->adds_operands && node.phase != Phase::update &&
         std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
           const NodeId producer = graph.values[static_cast<size_t>(id)].producer;
           return producer >= 0 && graph.nodes[static_cast<size_t>(producer)].layer != node.layer;
         });
}

std::string name_of(const Graph& graph, const Node& node) {
  const std::string& scope = graph.scopes[static_cast<size_t>(node.scope)];
  return scope.empty() ? std::string(node.op->name) : fmt::format("{} {}", scope, node.op->name);
}

Phase phase_of_conversion(const PlacementTable& table, const ShardingProgram& program, ValueId value,
                          Phase use) {
  const Graph& graph = table.graph();
  const NodeId producer = graph.values[static_cast<size_t>(value)].producer;
  const PlacementId lies = program.values[static_cast<size_t>(value)];
  const bool sharded = table.placements(value)[lies].is_sharded();
  return use == Phase::update && producer >= 0 && sharded ? graph.nodes[static_cast<size_t>(producer)].phase
                                                          : use;
}

MovedBytes moved_bytes(const PlacementTable& table, const ShardingProgram& program, Range layers) {
  const Graph& graph = table.graph();
  std::vector<int32_t> layer(graph.values.size(), -1);  // that makes a value; of state, that reads it first
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.inputs)
      if (id != kAbsent && layer[static_cast<size_t>(id)] < 0 &&
          graph.values[static_cast<size_t>(id)].producer < 0)
        layer[static_cast<size_t>(id)] = node.layer;
    for (const ValueId id : node.outputs)
      if (id != kAbsent) layer[static_cast<size_t>(id)] = node.layer;
  }
  MovedBytes bytes;
  for (const Conversion& conversion : program.conversions) {
    const auto id = static_cast<size_t>(conversion.value);
    const int32_t own = std::max(layer[id], 0);  // what no layer makes or reads counts with the first
    if (own < layers.begin || own >= layers.end || is_input(table, conversion.value)) continue;
    (conversion.phase == Phase::update ? bytes.update : bytes.microbatch) +=
        moved(table, program.parts(), conversion.value, program.values[id], conversion.to);
  }
  return bytes;
}

ShardingProgram propagate(const PlacementTable& table, const Shares& shares, const ShardingHints& hints) {
  return Propagation(table, shares, hints).run();
}

std::vector<NodeId> differences(const PlacementTable& table, const ShardingHints& hints,
                                const ShardingProgram& program) {
  std::vector<NodeId> different;
  Propagation(table, program.shares, hints).run(&program, &different);
  return different;
}

}  // namespace het
