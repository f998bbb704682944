#include "planner/hap/forms.h"

#include <algorithm>
#include <bit>

namespace het::planner::hap {
ValueCosts::ValueCosts(ShardingCosts& costs, const MaybeShares& shares, ValueId id) {
  const PlacementTable& table = costs.table();
  const auto& placements = table.placements(id);
  const NodeId producer = table.graph().values[static_cast<size_t>(id)].producer;
  if (producer >= 0)
    producer_phase_ = static_cast<int>(table.graph().nodes[static_cast<size_t>(producer)].phase);
  const size_t count = std::min(placements.size(), kMostPlacements);
  for (size_t p = 0; p < count; ++p) fills_.push_back(costs.fills(id, static_cast<PlacementId>(p), shares));
  for (size_t from = 0; from < count; ++from) {
    Forms whole = 0;
    for (size_t to = 0; to < count; ++to) {
      for (size_t phase = 0; phase < kPhases; ++phase)
        to_.push_back(fills_[from] && fills_[to]
                          ? costs.conversion(id, static_cast<PlacementId>(from), static_cast<PlacementId>(to),
                                             static_cast<Phase>(phase), shares)
                          : kNever);
      const bool alike = from > kPartial && to > kPartial && placements[from].dim == placements[to].dim;
      if (to != from && (to == kReplicated || alike)) whole |= form(static_cast<PlacementId>(to));
    }
    whole_.push_back(whole);
  }
}

// Of one phase: one gather or sum, or an exchange for each.
Ticks ValueCosts::each(PlacementId from, Forms forms, size_t phase) const {
  if (forms == 0) return 0;
  const Ticks whole = one(from, kReplicated, phase);
  if ((forms & whole_[from]) != 0) return whole;
  Ticks sum = 0;
  for (; forms != 0; forms &= static_cast<Forms>(forms - 1))
    sum += one(from, static_cast<size_t>(std::countr_zero(forms)), phase);
  return std::min(sum, whole);
}

Ticks ValueCosts::cost(PlacementId made, const Needs& needs) const {
  const Forms others = static_cast<Forms>(~form(made));
  Needs asked;
  for (size_t phase = 0; phase < kPhases; ++phase) asked[phase] = needs[phase] & others;
  const Forms all = asked[0] | asked[1] | asked[2];
  if (all == 0) return 0;
  if ((all & form(kPartial)) != 0) return kNever;
  if (made == kReplicated) return 0;
  Ticks sum = 0;
  if (made > kPartial) {
    const size_t update = static_cast<size_t>(Phase::update);
    if (producer_phase_ >= 0 && static_cast<size_t>(producer_phase_) != update) {
      asked[static_cast<size_t>(producer_phase_)] |= asked[update];
      asked[update] = 0;
    }
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

Ticks ValueCosts::most(const Needs& needs) const {
  Ticks most = 0;
  for (size_t made = 0; made < placements(); ++made)
    if (fills_[made]) most = std::max(most, cost(static_cast<PlacementId>(made), needs));
  return most;
}

}  // namespace het::planner::hap
