#include "planner/hap/frontier.h"

#include <algorithm>
#include <numeric>

namespace het::planner::hap {
namespace {

bool needs_partial(const Needs& needs) { return ((needs[0] | needs[1] | needs[2]) & form(kPartial)) != 0; }

// What a state has to pay, at most, to go on as well as one with `b` in place of its `a`; kNever: it may not
// be able to.
Ticks to_replace(const Slot& a, const Slot& b, const SlotContext& of) {
  if (a == b) return 0;
  const ValueCosts& costs = *of.costs;
  if (a.made == b.made && a.made != Slot::kUndecided)
    return costs.cost(a.placement(), united(a.needs, b.needs)) - costs.cost(a.placement(), a.needs);
  if (a.made == Slot::kUndecided) {
    if (b.made != Slot::kUndecided) return costs.cost(b.placement(), a.needs);  // it can be decided so, too
    Needs more;
    for (size_t phase = 0; phase < kPhases; ++phase)
      more[phase] = a.needs[phase] & static_cast<Forms>(~b.needs[phase]);
    if (needs_partial(more)) return kNever;
    return needs_partial(b.needs) ? costs.cost(kPartial, more) : costs.most(more);
  }
  // Whoever has all of a value can cut from it whatever others have of it, but for summands.
  if (of.is_state || b.made == Slot::kUndecided || b.made == kPartial) return kNever;
  if (a.made == kReplicated) return 0;
  Needs whole{};
  for (size_t phase = 0; phase < kPhases; ++phase)
    if (of.left.test(phase)) whole[phase] = form(kReplicated);
  return costs.cost(a.placement(), united(a.needs, whole)) - costs.cost(a.placement(), a.needs);
}

}  // namespace

Needs united(const Needs& a, const Needs& b) {
  return {static_cast<Forms>(a[0] | b[0]), static_cast<Forms>(a[1] | b[1]), static_cast<Forms>(a[2] | b[2])};
}

void forget(Slot& slot, std::bitset<kPhases> left) {
  if (slot.made == Slot::kUndecided) return;
  const Forms others = static_cast<Forms>(~form(slot.placement()));
  for (Forms& forms : slot.needs) forms &= others;
  if (slot.made == kReplicated || left.none()) slot.needs = {};
  // A sum is converted for all phases; an update may read what is gathered in an earlier phase.
  if (slot.made <= kPartial || left.test(static_cast<size_t>(Phase::update))) return;
  for (size_t phase = 0; phase < kPhases; ++phase)
    if (!left.test(phase)) slot.needs[phase] = 0;
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

Ticks Frontier::reduce(const std::vector<SlotContext>& contexts, size_t most, Ticks slack) {
  std::vector<size_t> order(size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (costs_[a] != costs_[b]) return costs_[a] < costs_[b];
    return less(state(a), state(b));
  });
  Ticks dropped = kNever;
  std::vector<size_t> kept;
  for (const size_t i : order) {
    if (is_dominated(i, kept, contexts, slack)) continue;
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

// By one that is kept. Few are looked at: cheap states dominate most.
bool Frontier::is_dominated(size_t i, const std::vector<size_t>& kept,
                            const std::vector<SlotContext>& contexts, Ticks slack) const {
  constexpr size_t kMostCompared = 256;
  for (size_t k = 0; k < std::min(kept.size(), kMostCompared); ++k)
    if (dominates(kept[k], i, contexts, slack)) return true;
  return false;
}

bool Frontier::dominates(size_t a, size_t b, const std::vector<SlotContext>& contexts, Ticks slack) const {
  const Ticks ahead = costs_[b] - costs_[a] + slack;
  const Slot *own = state(a), *other = state(b);
  Ticks paid = 0;
  for (size_t i = 0; i < slots_; ++i) {
    if (own[i] == other[i]) continue;
    paid += to_replace(own[i], other[i], contexts[i]);
    if (paid > ahead) return false;
  }
  return true;
}

}  // namespace het::planner::hap
