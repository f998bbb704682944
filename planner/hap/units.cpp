#include "planner/hap/units.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace het::planner::hap {
namespace {

bool share(const Unit& a, const Unit& b) {
  return std::any_of(a.outer.begin(), a.outer.end(), [&](ValueId id) {
    return std::find(b.outer.begin(), b.outer.end(), id) != b.outer.end();
  });
}

int64_t place_in(const std::vector<ValueId>& list, ValueId id) {
  const auto found = std::find(list.begin(), list.end(), id);
  return found == list.end() ? -1 : found - list.begin();
}

}  // namespace

Ticks met(const std::vector<Meeting>& values, size_t i, size_t k, State& state) {
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

Units::Units(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options,
             const JoinLimits& limits)
    : costs_(costs), options_(options), limits_(limits), groups_(make_groups(costs, shares, options)) {
  find_users();
  make_units();
  if (states_ <= limits_.most_looked_at) join_units();
}

void Units::find_users() {
  users_.resize(costs_.table().graph().values.size());
  for (size_t g = 0; g < groups_.list.size(); ++g) {
    const Group& group = groups_.list[g];
    for (size_t slot = 0; slot < group.members.size(); ++slot) {
      users_[static_cast<size_t>(group.members[slot].value)].push_back(
          {g, may_need(group, static_cast<int>(slot))});
    }
  }
}

Needs Units::needed_by_others(ValueId id, int unit, bool later) const {
  Needs needs{};
  for (const Use& use : users_[static_cast<size_t>(id)]) {
    const int of = unit_of_[use.group];
    if (later ? of > unit : of != unit) needs = united(needs, use.reads);
  }
  return needs;
}

bool Units::is_used_by_others(ValueId id, int unit, bool later) const {
  return std::any_of(
      users_[static_cast<size_t>(id)].begin(), users_[static_cast<size_t>(id)].end(),
      [&](const Use& use) { return later ? unit_of_[use.group] > unit : unit_of_[use.group] != unit; });
}

void Units::make_units() {
  std::vector<std::shared_ptr<const Table>> tables;  // by kind
  for (size_t g = 0; g < groups_.list.size() && states_ <= limits_.most_looked_at; ++g) {
    const Group& group = groups_.list[g];
    const auto kind = static_cast<size_t>(group.kind);
    if (tables.size() <= kind) tables.resize(kind + 1);
    if (!tables[kind])
      tables[kind] = std::make_shared<Table>(
          table_of(groups_, group, options_, replacements_, limits_.most_looked_at, states_));
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
void Units::join_units() {
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

void Units::number(const Unit& unit, int as) {
  if (unit.parts.empty()) unit_of_[unit.group] = as;
  for (const Unit& part : unit.parts) number(part, as);
}

// Values that are left of two units' when they are one.
std::vector<ValueId> Units::outer_of_both(const Unit& a, const Unit& b) const {
  const int as = unit_of_[a.first], bs = unit_of_[b.first];
  std::vector<ValueId> outer;
  for (const Unit* each : {&a, &b})
    for (const ValueId id : each->outer) {
      if (std::find(outer.begin(), outer.end(), id) != outer.end()) continue;
      const auto& users = users_[static_cast<size_t>(id)];
      if (std::any_of(users.begin(), users.end(),
                      [&](const Use& use) { return unit_of_[use.group] != as && unit_of_[use.group] != bs; }))
        outer.push_back(id);
    }
  return outer;
}

// The two units whose join shows least to others, of these with the fewest pairs of entries. A join that
// leaves more entries than both had is not worth it.
bool Units::join_best(std::vector<Unit>& own) {
  std::vector<std::tuple<size_t, size_t, size_t, size_t>> pairs;  // values left, pairs of entries, both units
  for (size_t a = 0; a < own.size(); ++a)
    for (size_t b = a + 1; b < own.size(); ++b) {
      if (!share(own[a], own[b]) || refused_.count({own[a].kind, own[b].kind}) != 0) continue;
      const size_t left = outer_of_both(own[a], own[b]).size();
      const size_t count = own[a].table->entries.size() * own[b].table->entries.size();
      if (left <= std::max(own[a].outer.size(), own[b].outer.size()) && count <= limits_.most_pairs)
        pairs.emplace_back(left, count, a, b);
    }
  std::sort(pairs.begin(), pairs.end());
  for (const auto& [left, count, a, b] : pairs) {
    if (states_ > limits_.most_looked_at) return false;
    const Unit joined = joined_of(own[a], own[b]);
    const size_t entries = joined.table->entries.size();
    if (entries >
        std::max(limits_.most_entries, own[a].table->entries.size() + own[b].table->entries.size())) {
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

Unit Units::joined_of(Unit a, Unit b) {
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

Table Units::join(const Unit& a, const Unit& b, const std::vector<ValueId>& outer,
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
      ++states_;
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

Ticks Units::meet(Slot& slot, const Slot& own, ValueId id, bool closes, const Needs& left) const {
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
Ticks Units::add(Slot& slot, const Slot& own, ValueId id) const {
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

}  // namespace het::planner::hap
