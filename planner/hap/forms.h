// What it takes to have a value in several placements when it is made in one.
#pragma once

#include <array>
#include <vector>

#include "planner/hap/costs.h"

namespace het::planner::hap {

inline constexpr int kPhases = 3;
inline constexpr size_t kMostPlacements = 16;  // of a value, that a search looks at
using Forms = uint16_t;                        // a set of placements
using Needs = std::array<Forms, kPhases>;      // by the phase that needs them

inline Forms form(PlacementId lies) { return static_cast<Forms>(1u << lies); }
inline Forms all_of(const Needs& needs) { return static_cast<Forms>(needs[0] | needs[1] | needs[2]); }
inline Needs united(const Needs& a, const Needs& b) {
  return {static_cast<Forms>(a[0] | b[0]), static_cast<Forms>(a[1] | b[1]), static_cast<Forms>(a[2] | b[2])};
}

// What it takes to convert a value from how it is made: for all values of a class.
class ValueCosts {
 public:
  ValueCosts(ShardingCosts& costs, const MaybeShares& shares, ValueId id);
  // All that is needed of a value that is made so, and what holding it counts (ShardingCosts::held); kNever:
  // it cannot be. Where it is made whole in a phase, its parts are cut from that; it is, when that costs
  // less. Sharded ones are gathered for an update in the phase that makes them, as phase_of_conversion()
  // says; `needs` are by the phase that uses them. Needs together cost no more than apart, and no less than
  // some of them.
  Ticks cost(PlacementId made, const Needs& needs) const;
  // The same needs, or others that cost as much, now and with any more of `left`.
  Needs simplest(PlacementId made, Needs needs, const Needs& left) const;
  // The most by which a value that is made as `a` and needed as `a_needs` costs more than one that is made as
  // `b` and needed as `b_needs`, when both are needed in any of `left` beside. kNever: the first may then be
  // impossible where the second is not. At least that, where all of `left` would take long to look at.
  Ticks most_over(PlacementId a, const Needs& a_needs, PlacementId b, const Needs& b_needs,
                  const Needs& left) const;
  size_t placements() const { return fills_.size(); }
  bool fills(PlacementId lies) const { return fills_[lies]; }

 private:
  Ticks one(PlacementId from, size_t to, size_t phase) const {
    return to_[(from * fills_.size() + to) * kPhases + phase];
  }
  Ticks converted(PlacementId made, const Needs& needs) const;
  Ticks each(PlacementId from, Forms forms, size_t phase) const;
  Ticks each_of(PlacementId from, Forms forms, size_t phase) const;
  Needs as_paid(PlacementId made, const Needs& needs) const;
  Ticks most_over_partial(const Needs& a, const Needs& b, const Needs& left) const;

  std::vector<Ticks> to_;     // [made][to][phase]
  std::vector<Ticks> held_;   // by how it is made
  std::vector<Forms> whole_;  // by how it is made: what makes it whole
  std::vector<bool> fills_;   // by placement
  std::vector<Ticks> each_;   // [made][phase][forms]; empty where there are many placements
  int producer_phase_ = -1;   // of sharded ones: where an update's conversions are made; -1: in the update
};

}  // namespace het::planner::hap
