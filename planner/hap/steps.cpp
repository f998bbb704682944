#include "planner/hap/steps.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het::planner::hap {
namespace {

int phase_of(Phase phase) { return static_cast<int>(phase); }

class Maker {
 public:
  Maker(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options)
      : costs_(costs),
        table_(costs.table()),
        graph_(costs.table().graph()),
        shares_(shares),
        options_(options) {}

  Groups run() {
    find_free();
    find_partial();
    find_wanted();
    find_anchors();
    list_groups();
    find_outer();
    number_kinds();
    groups_.free = free_;
    return std::move(groups_);
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  const Node& node(NodeId n) const { return graph_.nodes[static_cast<size_t>(n)]; }

  // Values that cost nothing however they are needed: every rank has all of an input, of what is only ever
  // made whole, and, where memory has no price, of parameters that are not trained.
  void find_free() {
    readers_.assign(graph_.values.size(), 0);
    std::vector<bool> is_updated(graph_.values.size(), false);
    for (const Node& of : graph_.nodes)
      for (size_t i = 0; i < of.inputs.size(); ++i) {
        if (of.inputs[i] == kAbsent) continue;
        ++readers_[static_cast<size_t>(of.inputs[i])];
        if (updates(of, i)) is_updated[static_cast<size_t>(of.inputs[i])] = true;
      }
    const auto is_frozen = [&](ValueId id) {
      return value(id).role == Role::parameter && !is_updated[static_cast<size_t>(id)] &&
             !costs_.has_memory_prices() &&
             (!options_.allows_state || options_.allows_state(id, kReplicated));
    };
    free_.assign(graph_.values.size(), false);
    groups_.class_of.resize(graph_.values.size());
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const ValueId id = static_cast<ValueId>(i);
      groups_.class_of[i] = costs_.class_of_value(id);
      const NodeId producer = value(id).producer;
      free_[i] = value(id).role == Role::input || follows(id) || is_frozen(id) ||
                 (producer >= 0 && (node(producer).op->any_placement || !may_be_cut(producer)));
    }
  }

  // What is never cut is held whole, which has a price where memory has.
  bool may_be_cut(NodeId n) const {
    const auto& ways = table_.shardings(n);
    if (!options_.allows_node || costs_.has_memory_prices()) return !ways.empty();
    return std::any_of(ways.begin(), ways.end(),
                       [&](const NodeSharding& way) { return options_.allows_node(n, way); });
  }

  // State that one node alone reads and changes lies as that node needs it.
  bool follows(ValueId id) const {
    return value(id).role == Role::buffer && readers_[static_cast<size_t>(id)] == 1;
  }

  // Values that some way to run the nodes up to them makes partial. No other one is ever needed so.
  void find_partial() {
    partial_.assign(graph_.values.size(), false);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& of = graph_.nodes[n];
      for (const NodeSharding& way : table_.shardings(static_cast<NodeId>(n))) {
        if (options_.allows_node && !options_.allows_node(static_cast<NodeId>(n), way)) continue;
        if (!reads_what_is_made(of, way)) continue;
        for (size_t o = 0; o < of.outputs.size(); ++o)
          if (of.outputs[o] != kAbsent && way.outputs[o] == kPartial)
            partial_[static_cast<size_t>(of.outputs[o])] = true;
      }
    }
  }
  bool reads_what_is_made(const Node& of, const NodeSharding& way) const {
    for (size_t i = 0; i < of.inputs.size(); ++i)
      if (of.inputs[i] != kAbsent && way.inputs[i] == kPartial &&
          !partial_[static_cast<size_t>(of.inputs[i])])
        return false;
    return true;
  }

  // The parameter as which a gradient shall lie in the end, through operators that keep its shape: as
  // propagate() finds it.
  void find_wanted() {
    wanted_.assign(graph_.values.size(), kAbsent);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& of = graph_.nodes[n];
      ValueId state = kAbsent;
      for (size_t i = 0; of.phase == Phase::update && state == kAbsent && i < of.inputs.size(); ++i)
        if (updates(of, i)) state = of.inputs[i];
      const bool keeps =
          of.op->elementwise || of.op->adds_operands || of.op->collective == CollectiveKind::all_reduce;
      for (const ValueId id : of.inputs) {
        if (id == kAbsent || value(id).role != Role::intermediate) continue;
        const Shape& shape = graph_.type(id).shape;
        ValueId& wanted = wanted_[static_cast<size_t>(id)];
        if (state != kAbsent && graph_.type(state).shape == shape)
          wanted = state;
        else if (keeps && of.outputs[0] != kAbsent && graph_.type(of.outputs[0]).shape == shape &&
                 wanted == kAbsent)
          wanted = wanted_[static_cast<size_t>(of.outputs[0])];
      }
    }
  }

  // Beside which node of the forward pass each node is decided. The backward pass goes through the forward
  // one in reverse order, so each of its nodes belongs to the latest node, not after that of the node before
  // it, which makes or reads all activations and parameters that it reads. An update belongs to the node that
  // makes its gradient.
  void find_anchors() {
    std::vector<std::vector<NodeId>> users(graph_.values.size());  // makers and readers, ascending
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].phase != Phase::forward) continue;
      for (const auto* ids : {&graph_.nodes[n].inputs, &graph_.nodes[n].outputs})
        for (const ValueId id : *ids)
          if (id != kAbsent) users[static_cast<size_t>(id)].push_back(static_cast<NodeId>(n));
    }
    anchors_.assign(graph_.nodes.size(), 0);
    // A view costs nothing: it belongs to the node that reads it, if one does.
    std::vector<NodeId> reader(graph_.values.size(), -1);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& of = graph_.nodes[n];
      if (of.phase != Phase::forward) continue;
      NodeId own = static_cast<NodeId>(n);
      const NodeId first = of.outputs[0] == kAbsent ? -1 : reader[static_cast<size_t>(of.outputs[0])];
      if (of.op->view && first >= 0 && node(first).layer == of.layer &&
          std::all_of(of.outputs.begin(), of.outputs.end(),
                      [&](ValueId id) { return id == kAbsent || reader[static_cast<size_t>(id)] == first; }))
        own = first;
      forward_anchors_.emplace(static_cast<NodeId>(n), own);
      for (const ValueId id : of.inputs)
        if (id != kAbsent) reader[static_cast<size_t>(id)] = own;
    }
    NodeId before = static_cast<NodeId>(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& of = graph_.nodes[n];
      if (of.phase == Phase::forward) anchors_[n] = forward_anchors_.at(static_cast<NodeId>(n));
      if (of.phase == Phase::backward) {
        anchors_[n] = anchor_of(of, users, before);
        before = std::min(before, anchors_[n]);
      }
      if (of.phase != Phase::update) continue;
      for (const ValueId id : of.inputs) {
        const NodeId producer = id == kAbsent ? -1 : value(id).producer;
        if (producer >= 0 && !node(producer).op->any_placement)
          anchors_[n] = std::max(anchors_[n], anchors_[static_cast<size_t>(producer)]);
      }
    }
  }

  NodeId anchor_of(const Node& of, const std::vector<std::vector<NodeId>>& users, NodeId before) const {
    std::map<NodeId, int> shared;  // operands that a node of the forward pass makes or reads, too
    int operands = 0;
    for (const ValueId id : of.inputs) {
      if (id == kAbsent || users[static_cast<size_t>(id)].empty()) continue;
      if (value(id).role == Role::input && is_of_step(value(id))) continue;
      ++operands;
      std::vector<NodeId> each = users[static_cast<size_t>(id)];
      each.erase(std::unique(each.begin(), each.end()), each.end());
      for (const NodeId user : each) ++shared[user];
    }
    NodeId best = -1;
    int most = 0;
    for (const auto& [user, count] : shared)
      if (forward_anchors_.at(user) <= before && count >= most) {
        best = user;
        most = count;
      }
    if (best < 0 && of.op->view) {  // it costs nothing: it belongs to what makes its operand
      const NodeId producer = value(of.inputs[0]).producer;
      if (producer >= 0 && node(producer).phase == Phase::backward && node(producer).layer == of.layer)
        return anchors_[static_cast<size_t>(producer)];
    }
    if (best < 0)
      if (const NodeId mirror = mirrored(of, before); mirror >= 0) return forward_anchors_.at(mirror);
    if (best >= 0) return std::min(before, forward_anchors_.at(best));
    return std::min<NodeId>(before, static_cast<NodeId>(graph_.nodes.size()) - 1);
  }

  // For a node that reads gradients alone: the latest node of the forward pass that it reverses, a split for
  // a concat, a reshape for a reshape. Elementwise ones have the types of many others, and reverse their own
  // kind. -1: there is none.
  NodeId mirrored(const Node& of, NodeId before) const {
    const auto inputs = types_of(graph_, of.inputs), outputs = types_of(graph_, of.outputs);
    for (NodeId n = std::min<NodeId>(before, static_cast<NodeId>(graph_.nodes.size()) - 1); n >= 0; --n) {
      const Node& forward = node(n);
      if (forward.phase != Phase::forward || forward.layer != of.layer) continue;
      if (of.op->elementwise && forward.op != of.op) continue;
      if (types_of(graph_, forward.outputs) == inputs && types_of(graph_, forward.inputs) == outputs)
        return n;
    }
    return -1;
  }

  void list_groups() {
    std::vector<NodeId> order;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (!graph_.nodes[n].op->any_placement) order.push_back(static_cast<NodeId>(n));
    // Updates come right after the node that makes their gradient.
    const auto place = [&](NodeId n) {
      NodeId after = n;
      if (node(n).phase == Phase::update)
        for (const ValueId id : node(n).inputs) {
          const NodeId producer = id == kAbsent ? -1 : value(id).producer;
          if (producer >= 0 && anchor(producer) == anchor(n) && node(producer).phase == Phase::backward)
            after = producer;
        }
      // Views come after what reads them, the last one first.
      const bool is_view = node(n).phase == Phase::forward && anchor(n) != n;
      return std::tuple(anchor(n), is_view, is_view ? -n : after, n);
    };
    std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) { return place(a) < place(b); });
    std::map<ValueId, std::vector<Phase>> outputs;
    for (const Output& output : graph_.outputs) {
      const NodeId producer = value(output.value).producer;
      outputs[output.value].push_back(producer < 0 ? Phase::update : node(producer).phase);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      const NodeId n = order[i];
      if (i == 0 || anchor(order[i - 1]) != anchor(n)) {
        groups_.list.emplace_back();
        groups_.list.back().layer = node(n).layer;
        slots_.clear();
      }
      add_node(n);
      for (const ValueId id : node(n).outputs) {
        const auto wanted = id == kAbsent ? outputs.end() : outputs.find(id);
        if (wanted == outputs.end() || free_[static_cast<size_t>(id)]) continue;
        Step step;
        for (const Phase phase : wanted->second) step.reads.push_back({slot_of(id), phase_of(phase), false});
        step.ways.push_back({0, 0, std::vector<PlacementId>(step.reads.size(), kReplicated), {}, 0, {}});
        groups_.list.back().steps.push_back(std::move(step));
      }
    }
  }

  NodeId anchor(NodeId n) const { return anchors_[static_cast<size_t>(n)]; }

  int slot_of(ValueId id) {
    Group& group = groups_.list.back();
    const auto [slot, fresh] = slots_.emplace(id, static_cast<int>(group.members.size()));
    if (fresh) group.members.push_back({id, is_state(value(id)), false});
    return slot->second;
  }

  void add_node(NodeId n) {
    const Node& of = node(n);
    Step step;
    step.node = n;
    for (size_t i = 0; i < of.inputs.size(); ++i) {
      const ValueId id = of.inputs[i];
      if (id != kAbsent && !free_[static_cast<size_t>(id)])
        step.reads.push_back({slot_of(id), phase_of(of.phase), updates(of, i)});
    }
    for (const ValueId id : of.outputs)
      if (id != kAbsent && !free_[static_cast<size_t>(id)]) step.writes.push_back(slot_of(id));
    if ((adds_layers(graph_, of) || sums_parts(of)) && wanted_[static_cast<size_t>(of.outputs[0])] != kAbsent)
      step.wanted = slot_of(wanted_[static_cast<size_t>(of.outputs[0])]);
    const size_t count = table_.shardings(n).size() + 1;
    for (size_t w = 0; w < count; ++w)
      if (auto way = way_of(n, static_cast<int>(w))) step.ways.push_back(std::move(*way));
    groups_.list.back().steps.push_back(std::move(step));
  }

  std::optional<Step::Way> way_of(NodeId n, int number) {
    const Node& of = node(n);
    const NodeSharding sharding = costs_.way(n, number);
    if (options_.allows_node && !options_.allows_node(n, sharding)) return std::nullopt;
    if (!reads_what_is_made(of, sharding)) return std::nullopt;
    Step::Way way;
    way.number = number;
    way.cost = costs_.node(n, number, shares_);
    if (way.cost >= kNever) return std::nullopt;
    for (size_t i = 0; i < of.inputs.size(); ++i) {
      const ValueId id = of.inputs[i];
      if (id == kAbsent) continue;
      const PlacementId lies = sharding.inputs[i];
      const bool once = ((sharding.once >> i) & 1) != 0;
      if (lies >= kMostPlacements || !costs_.fills(id, lies, shares_)) return std::nullopt;
      if (lies == kPartial && (free_[static_cast<size_t>(id)] || leaves_layer(graph_, id, of)))
        return std::nullopt;
      if (follows(id) && options_.allows_state && !options_.allows_state(id, lies)) return std::nullopt;
      // What counts once is not brought together for one rank alone.
      if (once && value(id).role == Role::intermediate) return std::nullopt;
      if (free_[static_cast<size_t>(id)]) continue;
      if ((updates(of, i) || once) && options_.allows_state && !options_.allows_state(id, lies))
        return std::nullopt;
      if (once) way.once |= 1u << way.reads.size();
      way.reads.push_back(lies);
    }
    for (size_t o = 0; o < of.outputs.size(); ++o) {
      const ValueId id = of.outputs[o];
      if (id == kAbsent) continue;
      const PlacementId lies = sharding.outputs[o];
      if (lies >= kMostPlacements || !costs_.fills(id, lies, shares_)) return std::nullopt;
      if (!free_[static_cast<size_t>(id)]) way.writes.push_back(lies);
    }
    if (!lies_as_wanted(of, way)) return std::nullopt;
    return way;
  }

  static bool sums_parts(const Node& of) { return of.op->collective && of.phase == Phase::update; }

  // A sum over layers lies as its parameter, or is partial; one over parts, or is not sharded. False: no
  // parameter can lie so.
  bool lies_as_wanted(const Node& of, Step::Way& way) const {
    if (!adds_layers(graph_, of) && !sums_parts(of)) return true;
    if (way.writes.empty() || way.writes[0] == kPartial) return true;
    if (sums_parts(of) && way.writes[0] == kReplicated) return true;
    const ValueId sum = of.outputs[0], parameter = wanted_[static_cast<size_t>(sum)];
    if (parameter == kAbsent) return way.writes[0] == kReplicated;
    const Placement& lies = table_.placements(sum)[way.writes[0]];
    way.wanted =
        lies.is_sharded() ? table_.find(parameter, lies.dim, lies.segments) : std::optional(kReplicated);
    return way.wanted.has_value();
  }

  void find_outer() {
    std::vector<std::vector<size_t>> users(graph_.values.size());  // groups, ascending
    for (size_t g = 0; g < groups_.list.size(); ++g)
      for (const Group::Member& member : groups_.list[g].members)
        users[static_cast<size_t>(member.value)].push_back(g);
    std::vector<std::vector<std::pair<size_t, Needs>>> reads(graph_.values.size());  // by group
    for (size_t g = 0; g < groups_.list.size(); ++g) {
      const Group& group = groups_.list[g];
      for (size_t slot = 0; slot < group.members.size(); ++slot)
        reads[static_cast<size_t>(group.members[slot].value)].emplace_back(
            g, may_need(group, static_cast<int>(slot)));
    }
    for (size_t g = 0; g < groups_.list.size(); ++g) {
      Group& group = groups_.list[g];
      for (Group::Member& member : group.members) {
        const auto& groups = users[static_cast<size_t>(member.value)];
        member.is_outer = groups.size() > 1;
        member.closed = groups.back() == g;
        for (const auto& [reader, needs] : reads[static_cast<size_t>(member.value)]) {
          if (reader != g) member.others = united(member.others, needs);
          if (reader > g) member.left = united(member.left, needs);
        }
        need_costs(member.value);
      }
      group.last.assign(group.members.size(), 0);
      for (size_t s = 0; s < group.steps.size(); ++s) {
        const Step& step = group.steps[s];
        for (const Step::Read& each : step.reads)
          group.last[static_cast<size_t>(each.slot)] = static_cast<int>(s);
        for (const int slot : step.writes) group.last[static_cast<size_t>(slot)] = static_cast<int>(s);
        if (step.wanted >= 0) group.last[static_cast<size_t>(step.wanted)] = static_cast<int>(s);
      }
    }
  }

  void need_costs(ValueId id) {
    const auto of = static_cast<size_t>(groups_.class_of[static_cast<size_t>(id)]);
    if (groups_.costs.size() <= of) groups_.costs.resize(of + 1);
    if (!groups_.costs[of]) groups_.costs[of].emplace(costs_, shares_, id);
  }

  void number_kinds() {
    std::map<std::vector<int64_t>, int> numbers;
    for (Group& group : groups_.list) {
      std::vector<int64_t> key;
      for (const Group::Member& member : group.members)
        key.insert(key.end(),
                   {groups_.class_of[static_cast<size_t>(member.value)], member.is_outer, member.closed});
      for (const Group::Member& member : group.members)
        for (const Needs* needs : {&member.left, &member.others})
          key.insert(key.end(), needs->begin(), needs->end());
      for (const Step& step : group.steps) {
        key.insert(key.end(), {-2, step.node < 0 ? -1 : costs_.class_of(step.node), step.wanted});
        for (const Step::Read& read : step.reads)
          key.insert(key.end(), {read.slot, read.phase, read.changes});
        key.push_back(-3);
        key.insert(key.end(), step.writes.begin(), step.writes.end());
        key.push_back(-4);
        for (const Step::Way& way : step.ways)
          key.insert(key.end(), {way.number, way.cost, way.wanted ? *way.wanted : -1});
      }
      group.kind = numbers.emplace(std::move(key), static_cast<int>(numbers.size())).first->second;
    }
  }

  ShardingCosts& costs_;
  const PlacementTable& table_;
  const Graph& graph_;
  const MaybeShares& shares_;
  const SearchOptions& options_;
  std::vector<int> readers_;     // of values
  std::vector<bool> free_;       // values
  std::vector<bool> partial_;    // values
  std::vector<ValueId> wanted_;  // by value: a parameter
  std::vector<NodeId> anchors_;  // of nodes
  std::map<NodeId, NodeId> forward_anchors_;
  std::map<ValueId, int> slots_;  // of the group that is made
  Groups groups_;
};

}  // namespace

Needs may_need(const Group& group, int slot) {
  Needs needs{};
  for (const Step& step : group.steps)
    for (size_t r = 0; r < step.reads.size(); ++r) {
      if (step.reads[r].slot != slot) continue;
      for (const Step::Way& way : step.ways)
        needs[static_cast<size_t>(step.reads[r].phase)] |= form(way.reads[r]);
    }
  return needs;
}

Groups make_groups(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options) {
  return Maker(costs, shares, options).run();
}

}  // namespace het::planner::hap
