#include "planner/hap/frontier.h"

#include <algorithm>
#include <numeric>

namespace het::planner::hap {
namespace {

Ticks to_replace(const Slot& a, const Slot& b, const SlotContext& of) {
  const ValueCosts& costs = *of.costs;
  // Decided slots have paid for their needs.
  const auto paid = [&](const Slot& slot) {
    return slot.made == Slot::kUndecided ? 0 : costs.cost(slot.placement(), slot.needs);
  };
  const auto most = [&](PlacementId a_made, PlacementId b_made) {
    const Ticks over = costs.most_over(a_made, a.needs, b_made, b.needs, of.left);
    return over >= kNever || over <= -kNever ? over : over - paid(a) + paid(b);
  };
  if (a.made != Slot::kUndecided) {
    // State may be decided elsewhere, too, and then has to lie alike.
    if (a.made != b.made && (of.is_state || b.made == Slot::kUndecided)) return kNever;
    return most(a.placement(), b.placement());
  }
  if (b.made != Slot::kUndecided) return most(b.placement(), b.placement());  // it can be decided so, too
  Ticks worst = -kNever;
  for (size_t made = 0; made < costs.placements() && worst < kNever; ++made)
    if (const auto lies = static_cast<PlacementId>(made); costs.fills(lies))
      worst = std::max(worst, most(lies, lies));
  return worst;
}

// Which of many states cost at least as much as another one that also pays for their slots. Compares them
// slot by slot: after slot k, rivals that agree in the slots after k are one, the cheapest. So the work is
// far below all pairs.
class Dominance {
 public:
  explicit Dominance(const std::vector<Ticks>& costs)
      : costs_(costs), reach_(costs.size(), 0), ranks_(costs.size()) {}

  // A slot in which states differ.
  void add(SlotColumn column, const SlotContext& context, Replacements& replacements) {
    const size_t count = column.slots.size();
    Level level;
    level.more.reserve(count * count);
    for (const Slot& own : column.slots)
      for (const Slot& other : column.slots)
        level.more.push_back(std::max<Ticks>(replacements.cost(own, other, context), 0));
    std::vector<int64_t> free(count, 0);
    for (size_t i = 0; i < level.more.size(); ++i) free[i / count] += level.more[i] == 0 ? 1 : 0;
    for (size_t i = 0; i < costs_.size(); ++i) reach_[i] += free[column.numbers[i]];
    level.count = count;
    level.numbers = std::move(column.numbers);
    levels_.push_back(std::move(level));
  }

  // How many other slots the slots of a state replace without cost.
  int64_t reach(size_t state) const { return reach_[state]; }

  // `order`: of states that cost the same, and dominate each other, the first one stays.
  std::vector<bool> run(const std::vector<size_t>& order) {
    for (size_t i = 0; i < order.size(); ++i) ranks_[order[i]] = i;
    std::stable_sort(levels_.begin(), levels_.end(),
                     [](const Level& a, const Level& b) { return a.count < b.count; });
    number_ends();
    std::vector<size_t> states(costs_.size());
    std::iota(states.begin(), states.end(), size_t{0});
    std::sort(states.begin(), states.end(), [&](size_t a, size_t b) {
      for (const Level& level : levels_)
        if (level.numbers[a] != level.numbers[b]) return level.numbers[a] < level.numbers[b];
      return a < b;
    });
    dominated_.assign(costs_.size(), false);
    std::vector<Rival> rivals;
    for (size_t i = 0; i < costs_.size(); ++i) rivals.push_back({ends_[i], costs_[i], ranks_[i]});
    go(0, states.data(), states.data() + states.size(), rivals);
    return std::move(dominated_);
  }

 private:
  // The last slots of a state: that of a level, and the number of those after it.
  struct End {
    uint32_t slot;
    size_t rest;
  };
  // The cheapest state with these last slots, when it has paid for the first ones.
  struct Rival {
    size_t end;
    Ticks cost;
    size_t rank;
  };
  struct Level {
    std::vector<Ticks> more;  // [own * count + other]
    size_t count = 0;
    std::vector<uint32_t> numbers;  // of slots, by state
    std::vector<End> ends;
    std::vector<size_t> best;  // by number of the slots after it: a rival and one more; 0: none
    std::vector<Rival> paid;   // those that have paid for the slots up to this one
  };

  void number_ends() {
    ends_.assign(costs_.size(), 0);
    size_t count = 1;
    for (size_t l = levels_.size(); l-- > 0;) {
      Level& level = levels_[l];
      level.best.assign(count, 0);
      Numbering<uint64_t, Mixed> known;
      for (size_t i = 0; i < costs_.size(); ++i) {
        const auto [number, fresh] = known.add(ends_[i] * level.count + level.numbers[i]);
        if (fresh) level.ends.push_back({level.numbers[i], ends_[i]});
        ends_[i] = number;
      }
      count = known.size();
    }
  }

  // Of states that are alike in the slots before this level.
  void go(size_t l, const size_t* begin, const size_t* end, const std::vector<Rival>& rivals) {
    if (l == levels_.size()) {
      for (const size_t* i = begin; i != end; ++i) dominated_[*i] = rivals[0].rank != ranks_[*i];
      return;
    }
    Level& level = levels_[l];
    for (const size_t* next = begin; begin != end; begin = next) {
      const uint32_t slot = level.numbers[*begin];
      Ticks most = costs_[*begin];
      for (; next != end && level.numbers[*next] == slot; ++next) most = std::max(most, costs_[*next]);
      std::vector<Rival>& paid = level.paid;
      paid.clear();
      for (const Rival& rival : rivals) {
        const End& own = level.ends[rival.end];
        const Ticks more = level.more[own.slot * level.count + slot];
        if (more > most - rival.cost) continue;
        size_t& at = level.best[own.rest];
        const Rival made{own.rest, rival.cost + more, rival.rank};
        if (at == 0) {
          paid.push_back(made);
          at = paid.size();
        } else if (Rival& known = paid[at - 1];
                   std::pair(made.cost, made.rank) < std::pair(known.cost, known.rank)) {
          known = made;
        }
      }
      for (const Rival& each : paid) level.best[each.end] = 0;
      go(l + 1, begin, next, paid);
    }
  }

  const std::vector<Ticks>& costs_;
  std::vector<int64_t> reach_;  // by state
  std::vector<size_t> ranks_;   // by state
  std::vector<size_t> ends_;    // by state: the number of its slots from the first level on
  std::vector<Level> levels_;
  std::vector<bool> dominated_;
};

}  // namespace

void SlotColumn::add(const Slot& slot) {
  const auto [number, fresh] = known_.add(slot.bits());
  if (fresh) slots.push_back(slot);
  numbers.push_back(static_cast<uint32_t>(number));
}

size_t Replacements::Hash::operator()(const Key& key) const {
  return mixed(mixed(mixed(reinterpret_cast<uintptr_t>(key.costs), key.a), key.b), key.left);
}

Ticks Replacements::cost(const Slot& a, const Slot& b, const SlotContext& of) {
  if (a == b) return 0;
  const uint64_t left = static_cast<uint64_t>(of.left[0]) | static_cast<uint64_t>(of.left[1]) << 16 |
                        static_cast<uint64_t>(of.left[2]) << 32 | static_cast<uint64_t>(of.is_state) << 48;
  const auto [number, fresh] = known_.add(Key{of.costs, a.bits(), b.bits(), left});
  if (fresh) costs_.push_back(to_replace(a, b, of));
  return costs_[number];
}

void forget(Slot& slot, const ValueCosts& costs, const Needs& left) {
  if (slot.made != Slot::kUndecided) {
    slot.needs = costs.simplest(slot.placement(), slot.needs, left);
    return;
  }
  // Whoever has all of it can cut from it whatever else is needed, but for summands.
  for (Forms& forms : slot.needs)
    if ((forms & form(kReplicated)) != 0) forms &= form(kReplicated) | form(kPartial);
}

void Frontier::add_cost(Ticks more) {
  for (Ticks& cost : costs_) cost += more;
}

void Frontier::add(const State& state, Ticks cost, Origin origin) {
  const auto [number, fresh] = known_.add(hash_of(state.data()));
  if (fresh) with_hash_.push_back(costs_.size());
  const size_t first = with_hash_[number];
  if (!fresh && std::equal(state.begin(), state.end(), this->state(first))) {
    if (cost >= costs_[first]) return;
    costs_[first] = cost;
    origins_[first] = origin;
    return;
  }
  pool_.insert(pool_.end(), state.begin(), state.end());
  costs_.push_back(cost);
  origins_.push_back(origin);
}

Ticks Frontier::reduce(const std::vector<SlotContext>& contexts, Replacements& replacements, size_t most) {
  Dominance dominance(costs_);
  for (size_t slot = 0; slot < slots_; ++slot) {
    SlotColumn column;
    for (size_t i = 0; i < size(); ++i) column.add(state(i)[slot]);
    if (column.slots.size() > 1) dominance.add(std::move(column), contexts[slot], replacements);
  }
  // Of states that cost the same, the one that can replace more others comes first, and dominates them.
  std::vector<size_t> order(size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (costs_[a] != costs_[b]) return costs_[a] < costs_[b];
    if (dominance.reach(a) != dominance.reach(b)) return dominance.reach(a) > dominance.reach(b);
    return less(state(a), state(b));
  });
  const std::vector<bool> dominated = dominance.run(order);
  Ticks dropped = kNever;
  std::vector<size_t> kept;
  for (const size_t i : order) {
    if (dominated[i]) continue;
    if (kept.size() == most) {
      dropped = costs_[i];
      break;
    }
    kept.push_back(i);
  }
  Frontier reduced(slots_);
  for (const size_t i : kept) {
    reduced.pool_.insert(reduced.pool_.end(), state(i), state(i) + slots_);
    reduced.costs_.push_back(costs_[i]);
    reduced.origins_.push_back(origins_[i]);
  }
  *this = std::move(reduced);
  return dropped;
}

bool Frontier::is_like(const Frontier& other) const {
  if (size() != other.size() || pool_ != other.pool_) return false;
  for (size_t i = 0; i < size(); ++i)
    if (costs_[i] - costs_[0] != other.costs_[i] - other.costs_[0]) return false;
  return true;
}

uint64_t Frontier::hash_of(const Slot* state) const {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < slots_; ++i) hash = mixed(hash, state[i].bits());
  return hash;
}

bool Frontier::less(const Slot* a, const Slot* b) const {
  for (size_t i = 0; i < slots_; ++i)
    if (a[i].bits() != b[i].bits()) return a[i].bits() < b[i].bits();
  return false;
}

}  // namespace het::planner::hap
