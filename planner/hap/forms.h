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

// What it takes to convert a value from how it is made: for all values of a class.
class ValueCosts {
 public:
  ValueCosts(ShardingCosts& costs, const MaybeShares& shares, ValueId id);
  // All that is needed of a value that is made so; kNever: it cannot be. Where it is made whole in a phase,
  // its parts are cut from that; it is, when that costs less. Sharded ones are gathered for an update in the
  // phase that makes them, as phase_of_conversion() says; `needs` are by the phase that uses them. Needs
  // together cost no more than apart, and no less than some of them.
  Ticks cost(PlacementId made, const Needs& needs) const;
  // The most that these cost, however the value is made.
  Ticks most(const Needs& needs) const;
  size_t placements() const { return fills_.size(); }
  bool fills(PlacementId lies) const { return fills_[lies]; }

 private:
  Ticks one(PlacementId from, size_t to, size_t phase) const {
    return to_[(from * fills_.size() + to) * kPhases + phase];
  }
  Ticks each(PlacementId from, Forms forms, size_t phase) const;

  std::vector<Ticks> to_;     // [made][to][phase]
  std::vector<Forms> whole_;  // by how it is made: what makes it whole
  std::vector<bool> fills_;   // by placement
  int producer_phase_ = -1;   // of sharded ones: where an update's conversions are made; -1: in the update
};

}  // namespace het::planner::hap
