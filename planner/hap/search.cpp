#include "planner/hap/search.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/ops/op.h"
#include "planner/assignment/solve.h"
#include "planner/hap/assignment.h"
#include "planner/hap/units.h"

namespace het::planner::hap {
namespace {

// State lies as what updates it needs it, or counts it once; other state as is cheapest for its readers.
void place_state(const ShardingCosts& costs, const Groups& groups, const SearchOptions& options,
                 SearchResult& result) {
  const Graph& graph = costs.table().graph();
  std::unordered_map<ValueId, Needs> read;
  std::unordered_map<ValueId, PlacementId> made;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->any_placement) continue;
    const NodeSharding way = costs.way(static_cast<NodeId>(n), result.ways[n]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kAbsent || !is_state(graph.values[static_cast<size_t>(id)])) continue;
      if (groups.is_free(id) && graph.values[static_cast<size_t>(id)].role == Role::parameter) continue;
      read[id][static_cast<size_t>(node.phase)] |= form(way.inputs[i]);
      if (updates(node, i) || groups.is_free(id) || ((way.once >> i) & 1) != 0) made[id] = way.inputs[i];
    }
  }
  for (const auto& [id, needs] : read) {
    const auto known = made.find(id);
    result.state[static_cast<size_t>(id)] =
        known != made.end() ? known->second
                            : cheapest_made(groups.of(id), options, needs, id).value_or(kReplicated);
  }
}

// From unit to unit.
class Search {
 public:
  Search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options,
         const JoinLimits& limits)
      : costs_(costs),
        options_(options),
        most_looked_at_(limits.most_looked_at),
        units_(costs, shares, options, limits),
        list_(units_.list()) {}

  // nullopt: it looked at too many states.
  std::optional<SearchResult> run() {
    result_.states = units_.states();
    if (result_.states > most_looked_at_) return std::nullopt;
    assign_slots();
    const size_t count = list_.size();
    std::vector<Ticks> to_come(count + 1, 0);  // the heuristic
    for (size_t u = count; u-- > 0;) to_come[u] = std::min(kNever, to_come[u + 1] + least_of(list_[u]));
    if (to_come[0] > options_.limit) {
      result_.bound = options_.limit;
      return std::move(result_);
    }
    Ticks dropped = kNever;
    for (const Unit& unit : list_)
      if (!unit.table->is_complete) dropped = to_come[0];
    Frontier level(static_cast<size_t>(slots_));
    level.add(State(static_cast<size_t>(slots_)), 0, {});
    origins_.resize(count);
    result_.steps = static_cast<int>(count);
    for (size_t u = 0; u < count;) {
      if (const size_t period = repeats(u, level); period > 0) {
        // The decisions of the layer before, and its costs once more.
        for (size_t i = 0; i < period; ++i) origins_[u + i] = origins_[u + i - period];
        level.add_cost(added_);
        u += period;
        result_.repeated += static_cast<int>(period);
        continue;
      }
      Frontier next = expand(u, level);
      if (result_.states > most_looked_at_) return std::nullopt;
      const Ticks cheapest = next.reduce(contexts_after(u), units_.replacements(), options_.most_states);
      if (cheapest < kNever) dropped = std::min(dropped, cheapest + to_come[u + 1]);
      if (next.size() == 0) return finish(next, dropped);
      origins_[u] = std::make_shared<std::vector<Origin>>(next.origins());
      level = std::move(next);
      ++u;
    }
    return finish(level, dropped);
  }

 private:
  // What a unit costs at least, whatever others decide: of state whose placement two units decide, what is
  // needed counts once when they meet, so it is left out. 0 where something was dropped.
  Ticks least_of(const Unit& unit) const {
    if (!unit.table->is_complete) return 0;
    Ticks least = kNever;
    for (const Entry& entry : unit.table->entries) {
      Ticks cost = entry.cost;
      for (size_t o = 0; o < unit.outer.size(); ++o) {
        const Slot& slot = entry.outer[o];
        if (slot.made != Slot::kUndecided && units_.is_state_value(unit.outer[o]))
          cost -= units_.costs_of(unit.outer[o]).cost(slot.placement(), slot.needs);
      }
      least = std::min(least, cost);
    }
    return least;
  }

  // --- from unit to unit

  // A slot for each value that several units use, from the first to the last of them.
  void assign_slots() {
    std::unordered_map<ValueId, int> slots;
    std::vector<bool> used;
    for (size_t u = 0; u < list_.size(); ++u) {
      std::vector<Outer> own;
      for (const ValueId id : list_[u].outer) {
        auto known = slots.find(id);
        if (known == slots.end()) {
          const auto free = std::find(used.begin(), used.end(), false);
          const auto slot = static_cast<int>(free - used.begin());
          if (free == used.end()) used.push_back(false);
          used[static_cast<size_t>(slot)] = true;
          known = slots.emplace(id, slot).first;
        }
        const int unit = static_cast<int>(u);
        own.push_back({known->second, !units_.is_used_by_others(id, unit, true),
                       units_.needed_by_others(id, unit, true)});
      }
      for (size_t o = 0; o < own.size(); ++o) {
        if (!own[o].closed) continue;
        used[static_cast<size_t>(own[o].slot)] = false;
        slots.erase(list_[u].outer[o]);
      }
      outer_.push_back(std::move(own));
    }
    slots_ = static_cast<int>(used.size());
    contexts_.assign(static_cast<size_t>(slots_), {});
  }

  Frontier expand(size_t u, const Frontier& before) {
    const Unit& unit = list_[u];
    std::vector<Meeting> values;
    for (size_t o = 0; o < unit.outer.size(); ++o) {
      const Outer& outer = outer_[u][o];
      SlotColumn known, own;
      for (size_t i = 0; i < before.size(); ++i) known.add(before.state(i)[outer.slot]);
      for (const Entry& entry : unit.table->entries) own.add(entry.outer[o]);
      values.emplace_back(outer.slot, std::move(known), std::move(own), [&](Slot& slot, const Slot& other) {
        return units_.meet(slot, other, unit.outer[o], outer.closed, outer.left);
      });
    }
    Frontier next(static_cast<size_t>(slots_));
    State state;
    for (size_t i = 0; i < before.size(); ++i) {
      state.assign(before.state(i), before.state(i) + slots_);
      for (size_t e = 0; e < unit.table->entries.size(); ++e) {
        const Ticks cost = before.cost(i) + unit.table->entries[e].cost + met(values, i, e, state);
        if (cost >= kNever) continue;
        if (++result_.states > most_looked_at_) return next;  // the search is given up
        next.add(state, cost, {static_cast<uint32_t>(i), static_cast<int32_t>(e)});
      }
    }
    return next;
  }

  const std::vector<SlotContext>& contexts_after(size_t u) {
    for (size_t o = 0; o < list_[u].outer.size(); ++o) {
      const ValueId id = list_[u].outer[o];
      const Outer& outer = outer_[u][o];
      contexts_[static_cast<size_t>(outer.slot)] =
          outer.closed ? SlotContext{}
                       : SlotContext{&units_.costs_of(id), units_.is_state_value(id), outer.left};
    }
    return contexts_;
  }

  // --- layers that repeat

  struct Boundary {
    size_t unit;
    Frontier states;
  };

  // The units after which all is as it is now, but for a constant (added_) in the costs: those of a layer
  // that was decided before, when the units to come decide alike. 0: there are none.
  size_t repeats(size_t u, const Frontier& level) {
    if (u == 0 || list_[u].layer == list_[u - 1].layer) return 0;
    size_t period = 0;
    for (auto known = boundaries_.rbegin(); known != boundaries_.rend() && period == 0; ++known) {
      if (!are_alike(known->unit, u) || !level.is_like(known->states)) continue;
      period = u - known->unit;
      added_ = level.cost(0) - known->states.cost(0);
    }
    constexpr size_t kMost = 8;
    if (boundaries_.size() == kMost) boundaries_.erase(boundaries_.begin());
    boundaries_.push_back({u, level});
    return period;
  }

  bool are_alike(size_t first, size_t second) const {
    const size_t period = second - first;
    if (second + period > list_.size()) return false;
    for (size_t i = 0; i < period; ++i)
      if (list_[first + i].kind != list_[second + i].kind || outer_[first + i] != outer_[second + i])
        return false;
    return true;
  }

  // --- the end

  SearchResult finish(const Frontier& level, Ticks dropped) {
    const Graph& graph = costs_.table().graph();
    result_.state.assign(graph.values.size(), kReplicated);
    result_.ways.assign(graph.nodes.size(), 0);
    result_.bound = dropped;
    if (level.size() == 0) return std::move(result_);
    result_.found = true;
    result_.cost = level.cost(0);
    result_.bound = std::min(dropped, result_.cost);
    size_t at = 0;
    for (size_t u = list_.size(); u-- > 0;) {
      const Origin origin = (*origins_[u])[at];
      decide(list_[u], static_cast<size_t>(origin.way));
      at = origin.state;
    }
    place_state(costs_, units_.groups(), options_, result_);
    return std::move(result_);
  }

  void decide(const Unit& unit, size_t entry) {
    const std::vector<int32_t>& ways = unit.table->entries[entry].ways;
    for (size_t part = 0; part < unit.parts.size(); ++part)
      decide(unit.parts[part], static_cast<size_t>(ways[part]));
    if (!unit.parts.empty()) return;
    for (size_t s = 0; s < ways.size(); ++s) {
      const Step& step = units_.groups().list[unit.group].steps[s];
      if (step.node >= 0)
        result_.ways[static_cast<size_t>(step.node)] = step.ways[static_cast<size_t>(ways[s])].number;
    }
  }

  struct Outer {
    int slot;
    bool closed;  // no later unit uses it
    Needs left;   // how later units may need it
    bool operator==(const Outer&) const = default;
  };

  ShardingCosts& costs_;
  const SearchOptions& options_;
  const int64_t most_looked_at_;
  Units units_;
  const std::vector<Unit>& list_;
  SearchResult result_;
  int slots_ = 0;
  Ticks added_ = 0;
  std::vector<std::vector<Outer>> outer_;                      // of units, as Unit::outer
  std::vector<SlotContext> contexts_;                          // by slot
  std::vector<std::shared_ptr<std::vector<Origin>>> origins_;  // by unit; layers that repeat share them
  std::vector<Boundary> boundaries_;
};

}  // namespace

SearchResult search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options) {
  if (!costs.is_wide()) {
    JoinLimits limits;
    limits.most_looked_at = options.most_looked_at;
    if (auto found = Search(costs, shares, options, limits).run()) return *std::move(found);
    costs.set_wide();
  }
  if (!shares) return search_assignment(costs, shares, options);
  constexpr size_t kFewStates = 100;
  constexpr JoinLimits kFewJoins{20'000, 1000};
  SearchOptions few = options;
  few.most_states = std::min(few.most_states, kFewStates);
  SearchResult found = *Search(costs, shares, few, kFewJoins).run();
  return found.found ? std::move(found) : search_assignment(costs, shares, options);
}

SearchResult search_assignment(ShardingCosts& costs, const MaybeShares& shares,
                               const SearchOptions& options) {
  const Graph& graph = costs.table().graph();
  const AssignmentView view = as_assignment(costs, shares, options);
  assignment::SolveOptions limits;
  limits.steps = 5000;  // not by the clock: every rank finds the same program
  limits.gap = 1e-6;
  const assignment::AssignmentResult found = assignment::solve(view.problem, limits);
  SearchResult result;
  result.state.assign(graph.values.size(), kReplicated);
  result.ways.assign(graph.nodes.size(), 0);
  if (found.has_bound)
    result.bound = static_cast<Ticks>(std::clamp<assignment::WideCost>(found.bound, 0, kNever));
  if (!found.feasible && found.optimal) result.bound = kNever;  // proven: there is none
  if (!found.feasible || found.cost >= assignment::kForbiddenCost) return result;
  result.found = true;
  result.cost = static_cast<Ticks>(found.cost);
  result.ways = view.ways_of(found.choice, graph.nodes.size());
  place_state(costs, make_groups(costs, shares, options), options, result);
  return result;
}

ShardingHints hints_of(ShardingCosts& costs, const Shares& shares, const SearchResult& result) {
  const PlacementTable& table = costs.table();
  const Graph& graph = table.graph();
  ShardingHints hints;
  for (size_t i = 0; i < graph.values.size(); ++i)
    if (is_state(graph.values[i]) && result.state[i] != kReplicated)
      hints.given[static_cast<ValueId>(i)] = result.state[i];
  hints.axes = fillable(table, shares);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto node = static_cast<NodeId>(n);
    if (!graph.nodes[n].op->any_placement) hints.nodes[node] = costs.way(node, result.ways[n]);
  }
  return hints;
}

}  // namespace het::planner::hap
