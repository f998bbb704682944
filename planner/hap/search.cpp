#include "planner/hap/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "core/ops/op.h"
#include "planner/hap/frontier.h"

namespace het::planner::hap {
namespace {

// How state that nothing updates is made at least cost; nullopt: it may not be made so that all needs are
// met.
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

// All that can be decided in a group, or in several that were joined, as far as other groups see it.
struct Entry {
  Ticks cost;
  std::vector<Slot> outer;
  std::vector<int32_t> ways;  // by step of the group; of two that were joined the entries of both
};
struct Table {
  std::vector<Entry> entries;  // the cheapest first
  bool is_complete = true;     // nothing was dropped for want of room
};

// Decides one group by itself: values that other groups make are undecided.
class GroupSearch {
 public:
  GroupSearch(const Groups& groups, const Group& group, const SearchOptions& options,
              Replacements& replacements)
      : groups_(groups), group_(group), options_(options), replacements_(replacements) {}

  Table run(int64_t& states) {
    find_left();
    Frontier level(group_.members.size());
    level.add(State(group_.members.size()), 0, {});
    std::vector<std::vector<Origin>> origins;
    Table result;
    for (size_t s = 0; s < group_.steps.size(); ++s) {
      const Step& step = group_.steps[s];
      Frontier next(group_.members.size());
      for (size_t i = 0; i < level.size(); ++i)
        for (size_t w = 0; w < step.ways.size(); ++w) {
          State state(level.state(i), level.state(i) + group_.members.size());
          const Ticks cost = apply(s, step.ways[w], state);
          if (cost >= kNever) continue;
          ++states;
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
    std::vector<Needs> left;
    for (const Group::Member& each : group_.members) left.push_back(each.others);
    for (size_t s = group_.steps.size(); s-- > 0;) {
      left_[s] = left;
      const Step& step = group_.steps[s];
      for (size_t r = 0; r < step.reads.size(); ++r)
        for (const Step::Way& way : step.ways)
          left[static_cast<size_t>(step.reads[r].slot)][static_cast<size_t>(step.reads[r].phase)] |=
              form(way.reads[r]);
    }
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
    for (int slot = 0; slot < std::ssize(group_.members); ++slot) {
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
  std::vector<std::vector<Needs>> left_;  // by step and slot
};

// A group, or several that were joined into one.
struct Unit {
  std::vector<Unit> parts;     // none or two
  size_t group = 0;            // without parts
  size_t first = 0, last = 0;  // groups
  int32_t layer = -1;
  std::vector<ValueId> outer;  // values that other units use, too
  std::shared_ptr<const Table> table;
  int kind = 0;
};

class Search {
 public:
  Search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options)
      : costs_(costs), options_(options), groups_(make_groups(costs, shares, options)) {}

  SearchResult run() {
    find_users();
    make_units();
    join_units();
    std::sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) { return a.first < b.first; });
    assign_slots();
    const size_t count = units_.size();
    std::vector<Ticks> to_come(count + 1, 0);  // the heuristic
    for (size_t u = count; u-- > 0;) to_come[u] = std::min(kNever, to_come[u + 1] + least_of(units_[u]));
    if (to_come[0] > options_.limit) {
      result_.bound = options_.limit;
      return std::move(result_);
    }
    Ticks dropped = kNever;
    for (const Unit& unit : units_)
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
      const Ticks cheapest = next.reduce(contexts_after(u), replacements_, options_.most_states);
      if (cheapest < kNever) dropped = std::min(dropped, cheapest + to_come[u + 1]);
      if (next.size() == 0) return finish(next, dropped);
      origins_[u] = std::make_shared<std::vector<Origin>>(next.origins());
      level = std::move(next);
      ++u;
    }
    return finish(level, dropped);
  }

 private:
  const ValueCosts& costs_of(ValueId id) const { return groups_.of(id); }

  // What a unit costs at least, whatever others decide: of state whose placement two units decide, what is
  // needed counts once when they meet, so it is left out. 0 where something was dropped.
  Ticks least_of(const Unit& unit) const {
    if (!unit.table->is_complete) return 0;
    Ticks least = kNever;
    for (const Entry& entry : unit.table->entries) {
      Ticks cost = entry.cost;
      for (size_t o = 0; o < unit.outer.size(); ++o) {
        const Slot& slot = entry.outer[o];
        if (slot.made != Slot::kUndecided && is_state_value(unit.outer[o]))
          cost -= costs_of(unit.outer[o]).cost(slot.placement(), slot.needs);
      }
      least = std::min(least, cost);
    }
    return least;
  }
  bool is_state_value(ValueId id) const {
    return is_state(costs_.table().graph().values[static_cast<size_t>(id)]);
  }

  // --- who uses a value

  struct Use {
    size_t group;
    Needs reads;
  };

  void find_users() {
    users_.resize(costs_.table().graph().values.size());
    for (size_t g = 0; g < groups_.list.size(); ++g) {
      const Group& group = groups_.list[g];
      for (size_t slot = 0; slot < group.members.size(); ++slot) {
        users_[static_cast<size_t>(group.members[slot].value)].push_back(
            {g, may_need(group, static_cast<int>(slot))});
      }
    }
  }

  // How units other than this one may need a value, after it or at all.
  Needs needed_by_others(ValueId id, int unit, bool later) const {
    Needs needs{};
    for (const Use& use : users_[static_cast<size_t>(id)]) {
      const int of = unit_of_[use.group];
      if (later ? of > unit : of != unit) needs = united(needs, use.reads);
    }
    return needs;
  }

  bool is_used_by_others(ValueId id, int unit, bool later) const {
    return std::any_of(
        users_[static_cast<size_t>(id)].begin(), users_[static_cast<size_t>(id)].end(),
        [&](const Use& use) { return later ? unit_of_[use.group] > unit : unit_of_[use.group] != unit; });
  }

  // --- units

  void make_units() {
    std::vector<std::shared_ptr<const Table>> tables;  // by kind
    for (size_t g = 0; g < groups_.list.size(); ++g) {
      const Group& group = groups_.list[g];
      const auto kind = static_cast<size_t>(group.kind);
      if (tables.size() <= kind) tables.resize(kind + 1);
      if (!tables[kind])
        tables[kind] =
            std::make_shared<Table>(GroupSearch(groups_, group, options_, replacements_).run(result_.states));
      Unit unit;
      unit.group = unit.first = unit.last = g;
      unit.layer = group.layer;
      for (const Group::Member& member : group.members)
        if (member.is_outer) unit.outer.push_back(member.value);
      unit.table = tables[kind];
      unit.kind = group.kind;
      units_.push_back(std::move(unit));
      kinds_ = std::max(kinds_, group.kind + 1);
      unit_of_.push_back(static_cast<int>(g));
    }
  }

  // Joins units of a layer as long as what they show to others does not grow.
  void join_units() {
    std::vector<Unit> done;
    for (size_t begin = 0; begin < units_.size();) {
      size_t end = begin + 1;
      while (end < units_.size() && units_[end].layer == units_[begin].layer) ++end;
      std::vector<Unit> own(std::make_move_iterator(units_.begin() + static_cast<std::ptrdiff_t>(begin)),
                            std::make_move_iterator(units_.begin() + static_cast<std::ptrdiff_t>(end)));
      while (join_best(own)) {
      }
      std::move(own.begin(), own.end(), std::back_inserter(done));
      begin = end;
    }
    units_ = std::move(done);
    std::sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) { return a.first < b.first; });
    for (size_t u = 0; u < units_.size(); ++u) number(units_[u], static_cast<int>(u));
  }

  void number(const Unit& unit, int as) {
    if (unit.parts.empty()) unit_of_[unit.group] = as;
    for (const Unit& part : unit.parts) number(part, as);
  }

  // Values that are left of two units' when they are one.
  std::vector<ValueId> outer_of_both(const Unit& a, const Unit& b) const {
    const int as = unit_of_[a.first], bs = unit_of_[b.first];
    std::vector<ValueId> outer;
    for (const Unit* each : {&a, &b})
      for (const ValueId id : each->outer) {
        if (std::find(outer.begin(), outer.end(), id) != outer.end()) continue;
        const auto& users = users_[static_cast<size_t>(id)];
        if (std::any_of(users.begin(), users.end(), [&](const Use& use) {
              return unit_of_[use.group] != as && unit_of_[use.group] != bs;
            }))
          outer.push_back(id);
      }
    return outer;
  }

  static bool share(const Unit& a, const Unit& b) {
    return std::any_of(a.outer.begin(), a.outer.end(), [&](ValueId id) {
      return std::find(b.outer.begin(), b.outer.end(), id) != b.outer.end();
    });
  }

  // The two units whose join shows least to others, of these with the fewest pairs of entries. A join that
  // leaves more entries than both had is not worth it.
  bool join_best(std::vector<Unit>& own) {
    constexpr size_t kMostPairs = 2'000'000, kFew = 5000;
    std::vector<std::tuple<size_t, size_t, size_t, size_t>>
        pairs;  // values left, pairs of entries, both units
    for (size_t a = 0; a < own.size(); ++a)
      for (size_t b = a + 1; b < own.size(); ++b) {
        if (!share(own[a], own[b]) || refused_.count({own[a].kind, own[b].kind}) != 0) continue;
        const size_t left = outer_of_both(own[a], own[b]).size();
        const size_t count = own[a].table->entries.size() * own[b].table->entries.size();
        if (left <= std::max(own[a].outer.size(), own[b].outer.size()) && count <= kMostPairs)
          pairs.emplace_back(left, count, a, b);
      }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, count, a, b] : pairs) {
      const Unit joined = joined_of(own[a], own[b]);
      const size_t entries = joined.table->entries.size();
      if (entries > std::max(kFew, own[a].table->entries.size() + own[b].table->entries.size())) {
        refused_.insert({own[a].kind, own[b].kind});
        continue;
      }
      number(own[b], unit_of_[own[a].first]);
      own[a] = joined;
      own.erase(own.begin() + static_cast<std::ptrdiff_t>(b));
      return true;
    }
    return false;
  }

  Unit joined_of(Unit a, Unit b) {
    Unit unit;
    unit.outer = outer_of_both(a, b);
    unit.first = std::min(a.first, b.first);
    unit.last = std::max(a.last, b.last);
    unit.layer = a.layer;
    const int b_before = unit_of_[b.first], as = unit_of_[a.first];
    number(b, as);  // while it is asked who else uses a value
    std::vector<int64_t> key{a.kind, b.kind};
    std::vector<SlotContext> contexts;
    for (const ValueId id : unit.outer) {
      contexts.push_back({&costs_of(id), is_state_value(id), needed_by_others(id, as, false)});
      key.push_back(place_in(a.outer, id));
      key.push_back(place_in(b.outer, id));
      key.insert(key.end(), contexts.back().left.begin(), contexts.back().left.end());
    }
    key.push_back(-2);
    for (const ValueId id : a.outer) key.push_back(place_in(b.outer, id));
    auto [known, fresh] = joined_.emplace(std::move(key), std::pair(kinds_, std::shared_ptr<const Table>()));
    if (fresh) {
      ++kinds_;
      known->second.second = std::make_shared<Table>(join(a, b, unit.outer, contexts));
    }
    unit.kind = known->second.first;
    unit.table = known->second.second;
    number(b, b_before);
    unit.parts.push_back(std::move(a));
    unit.parts.push_back(std::move(b));
    return unit;
  }

  static int64_t place_in(const std::vector<ValueId>& list, ValueId id) {
    const auto found = std::find(list.begin(), list.end(), id);
    return found == list.end() ? -1 : found - list.begin();
  }

  Table join(const Unit& a, const Unit& b, const std::vector<ValueId>& outer,
             const std::vector<SlotContext>& contexts) {
    std::vector<Meeting> values;
    for (const Unit* each : {&a, &b})
      for (const ValueId id : each->outer) {
        const int64_t at_a = place_in(a.outer, id), at_b = place_in(b.outer, id);
        if (each == &b && at_a >= 0) continue;
        SlotColumn of_a, of_b;
        for (const Entry& entry : a.table->entries)
          of_a.add(at_a < 0 ? Slot{} : entry.outer[static_cast<size_t>(at_a)]);
        for (const Entry& entry : b.table->entries)
          of_b.add(at_b < 0 ? Slot{} : entry.outer[static_cast<size_t>(at_b)]);
        const int64_t left = place_in(outer, id);
        values.emplace_back(left, std::move(of_a), std::move(of_b), [&](Slot& slot, const Slot& other) {
          const Needs needs = left < 0 ? Needs{} : contexts[static_cast<size_t>(left)].left;
          return meet(slot, other, id, left < 0, needs);
        });
      }
    Frontier both(outer.size());
    State state(outer.size());
    for (size_t i = 0; i < a.table->entries.size(); ++i)
      for (size_t k = 0; k < b.table->entries.size(); ++k) {
        const Ticks cost = a.table->entries[i].cost + b.table->entries[k].cost + met(values, i, k, state);
        if (cost >= kNever) continue;
        ++result_.states;
        both.add(state, cost, {static_cast<uint32_t>(i), static_cast<int32_t>(k)});
      }
    both.reduce(contexts, replacements_, std::numeric_limits<size_t>::max());
    Table table;
    table.is_complete = a.table->is_complete && b.table->is_complete;
    for (size_t i = 0; i < both.size(); ++i)
      table.entries.push_back({both.cost(i),
                               {both.state(i), both.state(i) + outer.size()},
                               {static_cast<int32_t>(both.origins()[i].state), both.origins()[i].way}});
    return table;
  }

  // Of a value that two tables, or a table and the states before it, decide something of: what that costs
  // for each pair of their slots, and what is left of it.
  struct Meeting {
    template <class Meet>
    Meeting(int64_t left, SlotColumn first, SlotColumn second, const Meet& meet)
        : place(left), a(std::move(first.numbers)), b(std::move(second.numbers)), width(second.slots.size()) {
      for (const Slot& slot : first.slots)
        for (const Slot& other : second.slots) {
          slots.push_back(slot);
          more.push_back(meet(slots.back(), other));
        }
    }
    int64_t place;               // in the states that are made; -1: it is in none
    std::vector<uint32_t> a, b;  // which slot, by entry
    size_t width;
    std::vector<Ticks> more;  // [a * width + b]; kNever: they do not fit
    std::vector<Slot> slots;
  };

  // The costs of an entry of one and an entry of the other beside their own, and the state that they make.
  static Ticks met(const std::vector<Meeting>& values, size_t i, size_t k, State& state) {
    Ticks cost = 0;
    for (const Meeting& each : values) {
      const Ticks more = each.more[each.a[i] * each.width + each.b[k]];
      if (more >= kNever) return kNever;
      cost += more;
    }
    for (const Meeting& each : values)
      if (each.place >= 0)
        state[static_cast<size_t>(each.place)] = each.slots[each.a[i] * each.width + each.b[k]];
    return cost;
  }

  // Adds to a slot what others decide of its value; when it is closed, nothing needs the value after that.
  Ticks meet(Slot& slot, const Slot& own, ValueId id, bool closes, const Needs& left) const {
    Ticks cost = add(slot, own, id);
    if (cost >= kNever) return kNever;
    if (!closes) {
      forget(slot, costs_of(id), left);
      return cost;
    }
    if (slot.made == Slot::kUndecided) {
      const Ticks more = cheapest(costs_of(id), options_, slot.needs, id);
      cost = more >= kNever ? kNever : cost + more;
    }
    slot = {};
    return cost;
  }

  // Adds to a slot what others decide of its value; returns what that costs beyond what both cost, or kNever.
  Ticks add(Slot& slot, const Slot& own, ValueId id) const {
    if (own == Slot{}) return 0;
    if (slot == Slot{}) {
      slot = own;
      return 0;
    }
    if (slot.made != Slot::kUndecided && own.made != Slot::kUndecided && slot.made != own.made) return kNever;
    const ValueCosts& costs = costs_of(id);
    const auto of = [&](const Slot& each) {
      return each.made == Slot::kUndecided ? 0 : costs.cost(each.placement(), each.needs);
    };
    const Slot both{std::min(slot.made, own.made),
                    united(slot.needs, own.needs)};  // Slot::kUndecided is the largest
    const Ticks all = of(both);
    if (all >= kNever) return kNever;
    const Ticks more = all - of(slot) - of(own);
    slot = both;
    return more;
  }

  // --- from unit to unit

  // A slot for each value that several units use, from the first to the last of them.
  void assign_slots() {
    std::unordered_map<ValueId, int> slots;
    std::vector<bool> used;
    for (size_t u = 0; u < units_.size(); ++u) {
      std::vector<Outer> own;
      for (const ValueId id : units_[u].outer) {
        auto known = slots.find(id);
        if (known == slots.end()) {
          const auto free = std::find(used.begin(), used.end(), false);
          const auto slot = static_cast<int>(free - used.begin());
          if (free == used.end()) used.push_back(false);
          used[static_cast<size_t>(slot)] = true;
          known = slots.emplace(id, slot).first;
        }
        const int unit = static_cast<int>(u);
        own.push_back({known->second, !is_used_by_others(id, unit, true), needed_by_others(id, unit, true)});
      }
      for (size_t o = 0; o < own.size(); ++o) {
        if (!own[o].closed) continue;
        used[static_cast<size_t>(own[o].slot)] = false;
        slots.erase(units_[u].outer[o]);
      }
      outer_.push_back(std::move(own));
    }
    slots_ = static_cast<int>(used.size());
    contexts_.assign(static_cast<size_t>(slots_), {});
  }

  Frontier expand(size_t u, const Frontier& before) {
    const Unit& unit = units_[u];
    std::vector<Meeting> values;
    for (size_t o = 0; o < unit.outer.size(); ++o) {
      const Outer& outer = outer_[u][o];
      SlotColumn known, own;
      for (size_t i = 0; i < before.size(); ++i) known.add(before.state(i)[outer.slot]);
      for (const Entry& entry : unit.table->entries) own.add(entry.outer[o]);
      values.emplace_back(outer.slot, std::move(known), std::move(own), [&](Slot& slot, const Slot& other) {
        return meet(slot, other, unit.outer[o], outer.closed, outer.left);
      });
    }
    Frontier next(static_cast<size_t>(slots_));
    State state;
    for (size_t i = 0; i < before.size(); ++i) {
      state.assign(before.state(i), before.state(i) + slots_);
      for (size_t e = 0; e < unit.table->entries.size(); ++e) {
        const Ticks cost = before.cost(i) + unit.table->entries[e].cost + met(values, i, e, state);
        if (cost >= kNever) continue;
        ++result_.states;
        next.add(state, cost, {static_cast<uint32_t>(i), static_cast<int32_t>(e)});
      }
    }
    return next;
  }

  const std::vector<SlotContext>& contexts_after(size_t u) {
    for (size_t o = 0; o < units_[u].outer.size(); ++o) {
      const ValueId id = units_[u].outer[o];
      const Outer& outer = outer_[u][o];
      contexts_[static_cast<size_t>(outer.slot)] =
          outer.closed ? SlotContext{} : SlotContext{&costs_of(id), is_state_value(id), outer.left};
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
    if (u == 0 || units_[u].layer == units_[u - 1].layer) return 0;
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
    if (second + period > units_.size()) return false;
    for (size_t i = 0; i < period; ++i)
      if (units_[first + i].kind != units_[second + i].kind || outer_[first + i] != outer_[second + i])
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
    for (size_t u = units_.size(); u-- > 0;) {
      const Origin origin = (*origins_[u])[at];
      decide(units_[u], static_cast<size_t>(origin.way));
      at = origin.state;
    }
    place_state();
    return std::move(result_);
  }

  void decide(const Unit& unit, size_t entry) {
    const std::vector<int32_t>& ways = unit.table->entries[entry].ways;
    for (size_t part = 0; part < unit.parts.size(); ++part)
      decide(unit.parts[part], static_cast<size_t>(ways[part]));
    if (!unit.parts.empty()) return;
    for (size_t s = 0; s < ways.size(); ++s) {
      const Step& step = groups_.list[unit.group].steps[s];
      if (step.node >= 0)
        result_.ways[static_cast<size_t>(step.node)] = step.ways[static_cast<size_t>(ways[s])].number;
    }
  }

  // State lies as what updates it needs it, or counts it once; other state as is cheapest for its readers.
  void place_state() {
    const Graph& graph = costs_.table().graph();
    std::unordered_map<ValueId, Needs> read;
    std::unordered_map<ValueId, PlacementId> made;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (node.op->any_placement) continue;
      const NodeSharding way = costs_.way(static_cast<NodeId>(n), result_.ways[n]);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId id = node.inputs[i];
        if (id == kAbsent || !is_state_value(id)) continue;
        read[id][static_cast<size_t>(node.phase)] |= form(way.inputs[i]);
        if (updates(node, i) || groups_.is_free(id) || ((way.once >> i) & 1) != 0) made[id] = way.inputs[i];
      }
    }
    for (const auto& [id, needs] : read) {
      const auto known = made.find(id);
      result_.state[static_cast<size_t>(id)] =
          known != made.end() ? known->second
                              : cheapest_made(costs_of(id), options_, needs, id).value_or(kReplicated);
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
  Groups groups_;
  SearchResult result_;
  int slots_ = 0, kinds_ = 0;
  Ticks added_ = 0;
  std::vector<std::vector<Use>> users_;  // of values, by group
  std::vector<int> unit_of_;             // of groups
  std::vector<Unit> units_;
  std::map<std::vector<int64_t>, std::pair<int, std::shared_ptr<const Table>>> joined_;  // kind and table
  std::set<std::pair<int, int>> refused_;                                                // joins, by kinds
  std::vector<std::vector<Outer>> outer_;                      // of units, as Unit::outer
  std::vector<SlotContext> contexts_;                          // by slot
  std::vector<std::shared_ptr<std::vector<Origin>>> origins_;  // by unit; layers that repeat share them
  std::vector<Boundary> boundaries_;
  Replacements replacements_;
};

}  // namespace

SearchResult search(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options) {
  return Search(costs, shares, options).run();
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
