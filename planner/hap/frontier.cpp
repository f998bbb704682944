#include "planner/hap/frontier.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace het::planner::hap {
namespace {

constexpr Ticks kUnknown = std::numeric_limits<Ticks>::min();

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

}  // namespace

void SlotColumn::add(const Slot& slot) {
  const auto [entry, fresh] = known_.emplace(slot.bits(), static_cast<uint32_t>(slots.size()));
  if (fresh) slots.push_back(slot);
  numbers.push_back(entry->second);
}

size_t Replacements::Hash::operator()(const Key& key) const {
  uint64_t hash = reinterpret_cast<uintptr_t>(key.costs);
  for (const uint64_t part : {key.a, key.b, key.left}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

Ticks Replacements::cost(const Slot& a, const Slot& b, const SlotContext& of) {
  if (a == b) return 0;
  const uint64_t left = static_cast<uint64_t>(of.left[0]) | static_cast<uint64_t>(of.left[1]) << 16 |
                        static_cast<uint64_t>(of.left[2]) << 32 | static_cast<uint64_t>(of.is_state) << 48;
  const auto [entry, fresh] = known_.emplace(Key{of.costs, a.bits(), b.bits(), left}, 0);
  if (fresh) entry->second = to_replace(a, b, of);
  return entry->second;
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
  const auto [entry, fresh] = known_.emplace(hash_of(state.data()), costs_.size());
  if (!fresh && std::equal(state.begin(), state.end(), this->state(entry->second))) {
    if (cost >= costs_[entry->second]) return;
    costs_[entry->second] = cost;
    origins_[entry->second] = origin;
    return;
  }
  pool_.insert(pool_.end(), state.begin(), state.end());
  costs_.push_back(cost);
  origins_.push_back(origin);
}

Ticks Frontier::reduce(const std::vector<SlotContext>& contexts, Replacements& replacements, size_t most) {
  std::vector<size_t> order(size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (costs_[a] != costs_[b]) return costs_[a] < costs_[b];
    return less(state(a), state(b));
  });
  struct Compared {
    size_t slot;
    SlotColumn column;
    std::vector<Ticks> replaced;  // [own * different ones + other]
  };
  std::vector<Compared> columns;
  for (size_t slot = 0; slot < slots_; ++slot) {
    SlotColumn column;
    for (size_t i = 0; i < size(); ++i) column.add(state(i)[slot]);
    const size_t count = column.slots.size();
    if (count > 1) columns.push_back({slot, std::move(column), std::vector<Ticks>(count * count, kUnknown)});
  }
  const auto dominates = [&](size_t a, size_t b) {
    const Ticks ahead = costs_[b] - costs_[a];
    Ticks paid = 0;
    for (Compared& each : columns) {
      const SlotColumn& column = each.column;
      const uint32_t own = column.numbers[a], other = column.numbers[b];
      if (own == other) continue;
      Ticks& more = each.replaced[own * column.slots.size() + other];
      if (more == kUnknown)
        more = replacements.cost(column.slots[own], column.slots[other], contexts[each.slot]);
      if (more >= kNever) return false;
      paid += std::max<Ticks>(more, 0);
      if (paid > ahead) return false;
    }
    return true;
  };
  Ticks dropped = kNever;
  std::vector<size_t> kept;
  for (const size_t i : order) {
    if (std::any_of(kept.begin(), kept.end(), [&](size_t k) { return dominates(k, i); })) continue;
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
  for (size_t i = 0; i < slots_; ++i) {
    hash = (hash ^ state[i].bits()) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

bool Frontier::less(const Slot* a, const Slot* b) const {
  for (size_t i = 0; i < slots_; ++i)
    if (a[i].bits() != b[i].bits()) return a[i].bits() < b[i].bits();
  return false;
}

}  // namespace het::planner::hap
