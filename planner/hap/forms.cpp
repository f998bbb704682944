#include "planner/hap/forms.h"

#include <algorithm>

namespace het::planner::hap {
namespace {

bool has(Forms forms, PlacementId lies) { return (forms & form(lies)) != 0; }

}  // namespace

ValueCosts::ValueCosts(ShardingCosts& costs, const MaybeShares& shares, ValueId id) {
  const PlacementTable& table = costs.table();
  const auto& placements = table.placements(id);
  const NodeId producer = table.graph().values[static_cast<size_t>(id)].producer;
  if (producer >= 0) producer_phase_ = static_cast<int>(table.graph().nodes[static_cast<size_t>(producer)].phase);
  const size_t count = std::min(placements.size(), kMostPlacements);
  for (size_t from = 0; from < count; ++from) {
    Made made;
    fills_.push_back(costs.fills(id, static_cast<PlacementId>(from), shares));
    const auto made_so = static_cast<PlacementId>(from);
    for (size_t to = 0; to < count; ++to) {
      const auto lies = static_cast<PlacementId>(to);
      const bool possible = costs.fills(id, lies, shares) && costs.fills(id, made_so, shares);
      std::array<Ticks, kPhases> each{kNever, kNever, kNever};
      for (size_t phase = 0; possible && phase < kPhases; ++phase)
        each[phase] = costs.conversion(id, made_so, lies, static_cast<Phase>(phase), shares);
      made.to.push_back(each);
      if (lies == made_so) continue;
      if (lies == kReplicated || (from > kPartial && to > kPartial && placements[from].dim == placements[to].dim))
        made.whole |= form(lies);
    }
    made_.push_back(std::move(made));
  }
}

Ticks ValueCosts::cost(PlacementId made, const Needs& needs) const {
  const Forms others = static_cast<Forms>(~form(made));
  Needs asked;
  for (size_t phase = 0; phase < kPhases; ++phase) asked[phase] = needs[phase] & others;
  if ((asked[0] | asked[1] | asked[2]) == 0) return 0;
  if (has(static_cast<Forms>(asked[0] | asked[1] | asked[2]), kPartial)) return kNever;
  if (made == kReplicated) return 0;
  const Made& from = made_[made];
  const auto each = [&](Forms forms, size_t phase) {
    const Ticks whole = from.to[kReplicated][phase];
    if ((forms & from.whole) != 0) return whole;
    Ticks sum = 0;
    for (size_t to = kPartial + 1; to < from.to.size(); ++to)
      if (has(forms, static_cast<PlacementId>(to))) sum += from.to[to][phase];
    return std::min(sum, whole);
  };
  Ticks sum = 0;
  if (made > kPartial) {
    const size_t update = static_cast<size_t>(Phase::update);
    if (producer_phase_ >= 0 && static_cast<size_t>(producer_phase_) != update) {
      asked[static_cast<size_t>(producer_phase_)] |= asked[update];
      asked[update] = 0;
    }
    for (size_t phase = 0; phase < kPhases; ++phase) sum += each(asked[phase], phase);
    return sum;
  }
  // A sum is converted once, in the phase that needs it first.
  const Forms all = asked[0] | asked[1] | asked[2];
  const Ticks whole = from.to[kReplicated][asked[0] != 0 ? 0 : asked[1] != 0 ? 1 : 2];
  if ((all & from.whole) != 0) return whole;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    Forms fresh = asked[phase];
    for (size_t before = 0; before < phase; ++before) fresh &= static_cast<Forms>(~asked[before]);
    sum += each(fresh, phase);
  }
  return std::min(sum, whole);
}

Ticks ValueCosts::most(const Needs& needs) const {
  Ticks most = 0;
  for (size_t made = 0; made < made_.size(); ++made)
    if (fills_[made]) most = std::max(most, cost(static_cast<PlacementId>(made), needs));
  return most;
}

}  // namespace het::planner::hap
