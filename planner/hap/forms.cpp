#include "planner/hap/forms.h"

#include <algorithm>
#include <bit>

namespace het::planner::hap {
namespace {

Forms without_whole(int forms) { return static_cast<Forms>(forms & ~int{form(kReplicated)}); }

// visit(some) for each set of some of the forms, none among them.
template <typename Visit>
void each_subset(Forms forms, const Visit& visit) {
  for (Forms some = forms;; some = static_cast<Forms>((some - 1) & forms)) {
    visit(some);
    if (some == 0) return;
  }
}

}  // namespace

ValueCosts::ValueCosts(ShardingCosts& costs, const MaybeShares& shares, ValueId id) {
  const PlacementTable& table = costs.table();
  const auto& placements = table.placements(id);
  const NodeId producer = table.graph().values[static_cast<size_t>(id)].producer;
  if (producer >= 0)
    producer_phase_ = static_cast<int>(table.graph().nodes[static_cast<size_t>(producer)].phase);
  const size_t count = std::min(placements.size(), kMostPlacements);
  for (size_t p = 0; p < count; ++p) {
    fills_.push_back(costs.fills(id, static_cast<PlacementId>(p), shares));
    held_.push_back(fills_[p] ? costs.held(id, static_cast<PlacementId>(p), shares) : 0);
  }
  for (size_t from = 0; from < count; ++from) {
    Forms whole = 0;
    for (size_t to = 0; to < count; ++to) {
      for (size_t phase = 0; phase < kPhases; ++phase) {
        Ticks ticks = kNever;
        if (fills_[from] && fills_[to])
          ticks = costs.conversion(id, static_cast<PlacementId>(from), static_cast<PlacementId>(to),
                                   static_cast<Phase>(phase), shares);
        // An update's copies are gone after it.
        if (from != to && ticks < kNever && static_cast<Phase>(phase) != Phase::update)
          ticks += costs.held_copy(id, static_cast<PlacementId>(to), shares);
        to_.push_back(ticks);
      }
      const bool alike = from > kPartial && to > kPartial && placements[from].dim == placements[to].dim;
      if (to != from && (to == kReplicated || alike)) whole |= form(static_cast<PlacementId>(to));
    }
    whole_.push_back(whole);
  }
  constexpr size_t kMostInTable = 6;
  if (count > kMostInTable) return;
  std::vector<Ticks> apart(size_t{1} << count, 0);  // an exchange for each form
  each_.reserve(count * kPhases << count);
  for (size_t from = 0; from < count; ++from)
    for (size_t phase = 0; phase < kPhases; ++phase) {
      const Ticks whole = one(static_cast<PlacementId>(from), kReplicated, phase);
      each_.push_back(0);
      for (size_t forms = 1; forms < apart.size(); ++forms) {
        const auto first = static_cast<size_t>(std::countr_zero(forms));
        apart[forms] = apart[forms & (forms - 1)] + one(static_cast<PlacementId>(from), first, phase);
        each_.push_back((forms & whole_[from]) != 0 ? whole : std::min(apart[forms], whole));
      }
    }
}

// Of one phase: one gather or sum, or an exchange for each.
Ticks ValueCosts::each_of(PlacementId from, Forms forms, size_t phase) const {
  if (forms == 0) return 0;
  const Ticks whole = one(from, kReplicated, phase);
  if ((forms & whole_[from]) != 0) return whole;
  Ticks sum = 0;
  for (; forms != 0; forms &= static_cast<Forms>(forms - 1))
    sum += one(from, static_cast<size_t>(std::countr_zero(forms)), phase);
  return std::min(sum, whole);
}

Ticks ValueCosts::each(PlacementId from, Forms forms, size_t phase) const {
  return each_.empty() ? each_of(from, forms, phase)
                       : each_[((from * kPhases + phase) << fills_.size()) | forms];
}

// What is asked of a sharded value, by the phase that converts it.
Needs ValueCosts::as_paid(PlacementId made, const Needs& needs) const {
  const Forms others = static_cast<Forms>(~form(made));
  Needs asked;
  for (size_t phase = 0; phase < kPhases; ++phase) asked[phase] = needs[phase] & others;
  const size_t update = static_cast<size_t>(Phase::update);
  if (made > kPartial && producer_phase_ >= 0 && static_cast<size_t>(producer_phase_) != update) {
    asked[static_cast<size_t>(producer_phase_)] |= asked[update];
    asked[update] = 0;
  }
  return asked;
}

Ticks ValueCosts::cost(PlacementId made, const Needs& needs) const {
  const Ticks all = converted(made, needs);
  return all >= kNever ? kNever : all + held_[made];
}

Ticks ValueCosts::converted(PlacementId made, const Needs& needs) const {
  const Needs asked = as_paid(made, needs);
  const Forms all = all_of(asked);
  if (all == 0) return 0;
  if ((all & form(kPartial)) != 0) return kNever;
  if (made == kReplicated) return 0;
  Ticks sum = 0;
  if (made > kPartial) {
    for (size_t phase = 0; phase < kPhases; ++phase) sum += each(made, asked[phase], phase);
    return sum;
  }
  // A sum is converted once, in the phase that needs it first.
  const Ticks whole = one(made, kReplicated, asked[0] != 0 ? 0 : asked[1] != 0 ? 1 : 2);
  if ((all & whole_[made]) != 0) return whole;
  Forms known = 0;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    sum += each(made, asked[phase] & static_cast<Forms>(~known), phase);
    known |= asked[phase];
  }
  return std::min(sum, whole);
}

Needs ValueCosts::simplest(PlacementId made, Needs needs, const Needs& left) const {
  const Forms others = static_cast<Forms>(~form(made));
  for (Forms& forms : needs) forms &= others;
  if (made == kReplicated || all_of(left) == 0) return {};
  if (made == kPartial) {
    // All of it costs what it costs in the first phase that asks; then nothing else costs more.
    if ((all_of(needs) & whole_[made]) == 0) return needs;
    Needs whole{};
    whole[needs[0] != 0 ? 0 : needs[1] != 0 ? 1 : 2] = form(kReplicated);
    return whole;
  }
  const bool for_update = left[static_cast<size_t>(Phase::update)] != 0;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    // An update may read what is gathered in an earlier phase.
    if (left[phase] == 0 && !for_update) needs[phase] = 0;
    if ((needs[phase] & whole_[made]) != 0) needs[phase] = form(kReplicated);
  }
  return needs;
}

Ticks ValueCosts::most_over(PlacementId a, const Needs& a_needs, PlacementId b, const Needs& b_needs,
                            const Needs& left) const {
  const auto needs_partial = [](const Needs& needs) { return (all_of(needs) & form(kPartial)) != 0; };
  if (b != kPartial && needs_partial(b_needs)) return -kNever;
  if (a != kPartial && (needs_partial(a_needs) || (b == kPartial && needs_partial(left)))) return kNever;
  if (a == kPartial && b == kPartial) return most_over_partial(a_needs, b_needs, left);
  if (a == kPartial || b == kPartial) return cost(a, united(a_needs, left)) - cost(b, b_needs);
  // Phases are paid for one by one: the most is over the forms of each.
  const Needs own = as_paid(a, a_needs), other = as_paid(b, b_needs);
  Needs more = left;
  for (Forms& forms : more) forms &= static_cast<Forms>(~form(kPartial));
  const size_t update = static_cast<size_t>(Phase::update);
  if (producer_phase_ >= 0 && static_cast<size_t>(producer_phase_) != update) {
    more[static_cast<size_t>(producer_phase_)] |= more[update];
    more[update] = 0;
  }
  const Forms without_a = static_cast<Forms>(~form(a)), without_b = static_cast<Forms>(~form(b));
  const auto paid = [&](PlacementId made, Forms forms, size_t phase) {
    return made == kReplicated ? 0 : each(made, forms, phase);
  };
  Ticks sum = held_[a] - held_[b];
  for (size_t phase = 0; phase < kPhases; ++phase) {
    const auto over = [&](Forms some) {
      return paid(a, (own[phase] | some) & without_a, phase) -
             paid(b, (other[phase] | some) & without_b, phase);
    };
    // Beside all of it nothing else costs more, nor what both need already.
    const Forms rest = without_whole(more[phase] & static_cast<Forms>(~(own[phase] & other[phase])));
    Ticks most = (more[phase] & form(kReplicated)) != 0 ? over(form(kReplicated)) : -kNever;
    each_subset(rest, [&](Forms some) { most = std::max(most, over(some)); });
    sum += most;
  }
  return sum;
}

// Sums cost the same in the forward and in the backward pass.
Ticks ValueCosts::most_over_partial(const Needs& a, const Needs& b, const Needs& left) const {
  const Forms others = static_cast<Forms>(~form(kPartial));
  const auto folded = [&](const Needs& needs) {
    return Needs{0, static_cast<Forms>((needs[0] | needs[1]) & others),
                 static_cast<Forms>(needs[2] & others)};
  };
  const Needs own = folded(a), other = folded(b), more = folded(left);
  constexpr int kMostForms = 8;
  if (std::popcount(more[1]) + std::popcount(more[2]) > kMostForms) {
    // Together needs cost no more than apart.
    Needs rest{};
    for (size_t phase = 1; phase < kPhases; ++phase)
      rest[phase] = own[phase] & static_cast<Forms>(~other[phase]);
    return converted(kPartial, rest);
  }
  // When all of it is needed with the backward pass, both cost the same.
  Ticks most = (more[1] & form(kReplicated)) != 0 ? 0 : -kNever;
  const auto least = [&](const Needs& needs, size_t phase) {
    return static_cast<Forms>(more[phase] & static_cast<Forms>(~needs[phase]));
  };
  each_subset(without_whole(least(own, 1) | least(other, 1)), [&](Forms some) {
    const auto add = [&](Forms late) {
      const Needs added{0, some, late};
      most =
          std::max(most, converted(kPartial, united(own, added)) - converted(kPartial, united(other, added)));
    };
    if ((more[2] & form(kReplicated)) != 0) add(form(kReplicated));
    each_subset(without_whole(least(own, 2) | least(other, 2)), add);
  });
  return most;
}

}  // namespace het::planner::hap
