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
  // Some of what is needed costs no more than all of it.
  if (united(a.needs, b.needs) == b.needs) return 0;
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
  Dominance(const std::vector<Ticks>& costs, Replacements& replacements)
      : costs_(costs), replacements_(replacements), reach_(costs.size(), kUnknown), ranks_(costs.size()) {}

  // A slot in which states differ.
  void add(SlotColumn column, const SlotContext& context) {
    Level level;
    level.count = column.slots.size();
    level.more.assign(level.count * level.count, kUnknown);
    level.slots = std::move(column.slots);
    level.numbers = std::move(column.numbers);
    level.context = context;
    levels_.push_back(std::move(level));
  }

  // How many other slots the slots of a state replace without cost.
  int64_t reach(size_t state) {
    int64_t& count = reach_[state];
    if (count != kUnknown) return count;
    count = 0;
    for (Level& level : levels_)
      for (uint32_t other = 0; other < level.count; ++other)
        count += more(level, level.numbers[state], other) == 0 ? 1 : 0;
    return count;
  }

  // Of few states each is compared with those that cost no more and stay: what a state dominates, whatever
  // dominates that state does, too. `order`: by cost.
  std::vector<bool> run_few(const std::vector<size_t>& order) {
    std::stable_sort(levels_.begin(), levels_.end(),
                     [](const Level& a, const Level& b) { return a.count < b.count; });
    const auto goes_on_as = [&](size_t own, size_t other) {  // and costs no more
      Ticks left = costs_[other] - costs_[own];
      for (size_t l = 0; l < levels_.size() && left >= 0; ++l)
        left -= more(levels_[l], levels_[l].numbers[own], levels_[l].numbers[other]);
      return left >= 0;
    };
    std::vector<bool> dominated(order.size(), false);
    std::vector<size_t> kept;
    kept.reserve(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t other = order[i];
      bool found = std::any_of(kept.begin(), kept.end(), [&](size_t own) { return goes_on_as(own, other); });
      // Of two that dominate each other the first stays.
      for (size_t r = i + 1; r < order.size() && !found && costs_[order[r]] == costs_[other]; ++r)
        found = goes_on_as(order[r], other) && !goes_on_as(other, order[r]);
      dominated[other] = found;
      if (!found) kept.push_back(other);
    }
    return dominated;
  }

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
    std::vector<Slot> slots;  // the different ones
    SlotContext context;
    std::vector<Ticks> more;  // [own * count + other]: what the one pays to go on as the other; or kUnknown
    size_t count = 0;         // of slots
    std::vector<uint32_t> numbers;  // of slots, by state
    std::vector<End> ends;
    std::vector<size_t> best;  // by number of the slots after it: a rival and one more; 0: none
    std::vector<Rival> paid;   // those that have paid for the slots up to this one
  };

  Ticks more(Level& level, uint32_t own, uint32_t other) {
    Ticks& known = level.more[own * level.count + other];
    if (known == kUnknown)
      known = std::max<Ticks>(replacements_.cost(level.slots[own], level.slots[other], level.context), 0);
    return known;
  }

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
        const Ticks added = more(level, own.slot, slot);
        if (added > most - rival.cost) continue;
        size_t& at = level.best[own.rest];
        const Rival made{own.rest, rival.cost + added, rival.rank};
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

  static constexpr int64_t kUnknown = -1;

  const std::vector<Ticks>& costs_;
  Replacements& replacements_;
  std::vector<int64_t> reach_;  // by state; or kUnknown
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
  if (size() <= 1 && size() <= most) return kNever;
  Dominance dominance(costs_, replacements);
  for (size_t slot = 0; slot < slots_; ++slot) {
    const auto is_alike = [&](size_t i) { return state(i)[slot] == state(0)[slot]; };
    size_t alike = 0;
    while (alike < size() && is_alike(alike)) ++alike;
    if (alike == size()) continue;
    SlotColumn column;
    column.numbers.reserve(size());
    for (size_t i = 0; i < size(); ++i) column.add(state(i)[slot]);
    dominance.add(std::move(column), contexts[slot]);
  }
  constexpr size_t kFew = 200;
  const bool is_few = size() <= kFew;
  // Of many states that cost the same, the one that can replace more others comes first, and dominates them.
  std::vector<size_t> order(size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (costs_[a] != costs_[b]) return costs_[a] < costs_[b];
    if (!is_few && dominance.reach(a) != dominance.reach(b)) return dominance.reach(a) > dominance.reach(b);
    return less(state(a), state(b));
  });
  const std::vector<bool> dominated = is_few ? dominance.run_few(order) : dominance.run(order);
  Ticks dropped = kNever;
  std::vector<size_t> kept;
  kept.reserve(size());
  for (const size_t i : order) {
    if (dominated[i]) continue;
    if (kept.size() == most) {
      dropped = costs_[i];
      break;
    }
    kept.push_back(i);
  }
  Frontier reduced(slots_);
  reduced.pool_.reserve(kept.size() * slots_);
  reduced.costs_.reserve(kept.size());
  reduced.origins_.reserve(kept.size());
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
