// The decisions of a search in the order in which it makes them: tables of groups, joined within a layer as
// long as they stay small.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "planner/hap/tables.h"

namespace het::planner::hap {

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
Ticks met(const std::vector<Meeting>& values, size_t i, size_t k, State& state);

// How far units are joined.
struct JoinLimits {
  size_t most_pairs = 2'000'000;  // of entries, in one join
  size_t most_entries = 5000;     // that a join leaves, unless both had more together
  int64_t most_looked_at = std::numeric_limits<int64_t>::max();  // states; then the list is of no use
};

// All groups of a graph in units. Keeps costs and options by reference.
class Units {
 public:
  Units(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options,
        const JoinLimits& limits);

  const std::vector<Unit>& list() const { return units_; }  // by their first groups
  const Groups& groups() const { return groups_; }
  int64_t states() const { return states_; }  // that were looked at
  Replacements& replacements() { return replacements_; }

  const ValueCosts& costs_of(ValueId id) const { return groups_.of(id); }
  bool is_state_value(ValueId id) const {
    return is_state(costs_.table().graph().values[static_cast<size_t>(id)]);
  }
  // How units other than this one may need a value, after it or at all.
  Needs needed_by_others(ValueId id, int unit, bool later) const;
  bool is_used_by_others(ValueId id, int unit, bool later) const;

  // Adds to a slot what others decide of its value; when it is closed, nothing needs the value after that.
  // Returns what both cost together beyond what each does.
  Ticks meet(Slot& slot, const Slot& own, ValueId id, bool closes, const Needs& left) const;

 private:
  struct Use {
    size_t group;
    Needs reads;
  };
  void find_users();
  void make_units();
  void join_units();
  void number(const Unit& unit, int as);
  std::vector<ValueId> outer_of_both(const Unit& a, const Unit& b) const;
  bool join_best(std::vector<Unit>& own);
  Unit joined_of(Unit a, Unit b);
  Table join(const Unit& a, const Unit& b, const std::vector<ValueId>& outer,
             const std::vector<SlotContext>& contexts);
  Ticks add(Slot& slot, const Slot& own, ValueId id) const;

  const ShardingCosts& costs_;
  const SearchOptions& options_;
  const JoinLimits limits_;
  const Groups groups_;
  Replacements replacements_;
  int64_t states_ = 0;
  int kinds_ = 0;
  std::vector<std::vector<Use>> users_;  // of values, by group
  std::vector<int> unit_of_;             // of groups
  std::vector<Unit> units_;
  std::map<std::vector<int64_t>, std::pair<int, std::shared_ptr<const Table>>> joined_;  // kind and table
  std::set<std::pair<int, int>> refused_;                                                // joins, by kinds
};

}  // namespace het::planner::hap
