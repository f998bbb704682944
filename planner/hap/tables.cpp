#include "planner/hap/tables.h"

#include <set>

namespace het::planner::hap {
namespace {

class GroupSearch {
 public:
  GroupSearch(const Groups& groups, const Group& group, const SearchOptions& options,
              Replacements& replacements)
      : groups_(groups), group_(group), options_(options), replacements_(replacements) {}

  Table run(int64_t most_states, int64_t& states) {
    find_left();
    Frontier level(group_.members.size());
    level.add(State(group_.members.size()), 0, {});
    std::vector<std::vector<Origin>> origins;
    Table result;
    for (size_t s = 0; s < group_.steps.size(); ++s) {
      const Step& step = group_.steps[s];
      Frontier next(group_.members.size());
      State state;
      for (size_t i = 0; i < level.size(); ++i)
        for (size_t w = 0; w < step.ways.size(); ++w) {
          state.assign(level.state(i), level.state(i) + group_.members.size());
          const Ticks cost = apply(s, step.ways[w], state);
          if (cost >= kNever) continue;
          if (++states > most_states) return {{}, false};
          next.add(state, level.cost(i) + cost, {static_cast<uint32_t>(i), static_cast<int32_t>(w)});
        }
      if (next.reduce(contexts_after(s), replacements_, options_.most_states) < kNever)
        result.is_complete = false;
      origins.push_back(next.origins());
      level = std::move(next);
    }
    std::vector<int> outer;
    for (size_t slot = 0; slot < group_.members.size(); ++slot)
      if (group_.members[slot].is_outer) outer.push_back(static_cast<int>(slot));
    for (size_t i = 0; i < level.size(); ++i) {
      Entry entry{level.cost(i), {}, std::vector<int32_t>(group_.steps.size())};
      for (const int slot : outer) entry.outer.push_back(level.state(i)[slot]);
      size_t at = i;
      for (size_t s = group_.steps.size(); s-- > 0;) {
        entry.ways[s] = origins[s][at].way;
        at = origins[s][at].state;
      }
      result.entries.push_back(std::move(entry));
    }
    return result;
  }

 private:
  const Group::Member& member(int slot) const { return group_.members[static_cast<size_t>(slot)]; }
  const ValueCosts& costs_of(int slot) const { return groups_.of(member(slot).value); }

  // How other groups may need a value, or steps after s. What groups before need of it is paid for when the
  // group is joined to them.
  const Needs& left_after(size_t s, int slot) const { return left_[s][static_cast<size_t>(slot)]; }

  void find_left() {
    left_.resize(group_.steps.size());
    touched_.resize(group_.steps.size());
    std::vector<Needs> left;
    for (const Group::Member& each : group_.members) left.push_back(each.others);
    for (size_t s = group_.steps.size(); s-- > 0;) {
      left_[s] = left;
      const Step& step = group_.steps[s];
      touched_[s] = slots_of(step);
      for (size_t r = 0; r < step.reads.size(); ++r)
        for (const Step::Way& way : step.ways)
          left[static_cast<size_t>(step.reads[r].slot)][static_cast<size_t>(step.reads[r].phase)] |=
              form(way.reads[r]);
    }
  }

  static std::vector<int> slots_of(const Step& step) {
    std::set<int> slots(step.writes.begin(), step.writes.end());
    for (const Step::Read& read : step.reads) slots.insert(read.slot);
    if (step.wanted >= 0) slots.insert(step.wanted);
    return {slots.begin(), slots.end()};
  }

  std::vector<SlotContext> contexts_after(size_t s) const {
    std::vector<SlotContext> contexts;
    for (int slot = 0; slot < std::ssize(group_.members); ++slot)
      contexts.push_back({&costs_of(slot), member(slot).is_state, left_after(s, slot)});
    return contexts;
  }

  Ticks apply(size_t s, const Step::Way& way, State& state) const {
    const Step& step = group_.steps[s];
    Ticks cost = way.cost;
    const auto pay = [&](Ticks more) { cost = more >= kNever || cost >= kNever ? kNever : cost + more; };
    if (way.wanted) pay(decide(state[static_cast<size_t>(step.wanted)], step.wanted, *way.wanted));
    for (size_t r = 0; r < step.reads.size() && cost < kNever; ++r) {
      const Step::Read& read = step.reads[r];
      Slot& slot = state[static_cast<size_t>(read.slot)];
      const PlacementId lies = way.reads[r];
      const bool as_it_lies = read.changes || ((way.once >> r) & 1) != 0;
      if (as_it_lies) pay(decide(slot, read.slot, lies));
      if (cost < kNever) pay(need(slot, read, lies));
    }
    for (size_t w = 0; w < step.writes.size() && cost < kNever; ++w)
      pay(decide(state[static_cast<size_t>(step.writes[w])], step.writes[w], way.writes[w]));
    if (cost >= kNever) return kNever;
    for (const int slot : touched_[s]) {
      Slot& own = state[static_cast<size_t>(slot)];
      if (member(slot).is_outer || group_.last[static_cast<size_t>(slot)] != static_cast<int>(s)) {
        forget(own, costs_of(slot), left_after(s, slot));
        continue;
      }
      if (own.made == Slot::kUndecided && member(slot).is_state)
        pay(cheapest(costs_of(slot), options_, own.needs, member(slot).value));
      own = {};
    }
    return cost;
  }

  // Has a value be made so, and pays for what is needed of it; kNever: it is made otherwise.
  Ticks decide(Slot& slot, int number, PlacementId made) const {
    if (slot.made != Slot::kUndecided) return slot.made == made ? 0 : kNever;
    slot.made = made;
    return costs_of(number).cost(made, slot.needs);
  }

  Ticks need(Slot& slot, const Step::Read& read, PlacementId lies) const {
    if (slot.made == lies) return 0;
    const Needs before = slot.needs;
    slot.needs[static_cast<size_t>(read.phase)] |= form(lies);
    if (slot.made == Slot::kUndecided || slot.needs == before) return 0;
    const Ticks all = costs_of(read.slot).cost(slot.placement(), slot.needs);
    return all >= kNever ? kNever : all - costs_of(read.slot).cost(slot.placement(), before);
  }

  const Groups& groups_;
  const Group& group_;
  const SearchOptions& options_;
  Replacements& replacements_;
  std::vector<std::vector<Needs>> left_;   // by step and slot
  std::vector<std::vector<int>> touched_;  // by step: slots that it decides or needs something of
};

}  // namespace

Table table_of(const Groups& groups, const Group& group, const SearchOptions& options,
               Replacements& replacements, int64_t most_states, int64_t& states) {
  return GroupSearch(groups, group, options, replacements).run(most_states, states);
}

std::optional<PlacementId> cheapest_made(const ValueCosts& costs, const SearchOptions& options,
                                         const Needs& needs, ValueId id) {
  std::optional<PlacementId> best;
  for (size_t made = 0; made < costs.placements(); ++made) {
    const auto lies = static_cast<PlacementId>(made);
    if (lies == kPartial || !costs.fills(lies)) continue;
    if (options.allows_state && !options.allows_state(id, lies)) continue;
    if (!best || costs.cost(lies, needs) < costs.cost(*best, needs)) best = lies;
  }
  return best;
}

Ticks cheapest(const ValueCosts& costs, const SearchOptions& options, const Needs& needs, ValueId id) {
  const auto made = cheapest_made(costs, options, needs, id);
  return made ? costs.cost(*made, needs) : kNever;
}

}  // namespace het::planner::hap
