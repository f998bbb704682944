// After a generation has ended: what each survivor has, and the version that they go on from. A step is
// decided for all ranks or none, so survivors differ by one step at most: those behind make the update by the
// numbers of the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/inventory.h"
#include "core/program/executor.h"
#include "core/run/tier.h"

namespace het {

// What a member has when its generation has ended. Plain data.
struct MemberState {
  std::optional<Version> version;  // of `parts`; absent: it has no state
  std::vector<StatePart> parts;
  std::optional<StepDecision> decision;  // of the last step that was decided here
  // Of a member whose step only awaits its decision: what it has of the version after that when it finishes.
  std::optional<std::vector<StatePart>> after_step;
  History history;                   // that led to `version`
  std::vector<TierState> tiers;      // what else it can read
  std::string host;                  // that it runs on
  double link_bytes_per_second = 0;  // of that; 0: not known
  double step_seconds = 0;           // of the run; 0: not known
};

// `executor`: that trained the state, frozen; null: none did since it was moved or read.
MemberState member_state_of(const StateStore& state, const Executor* executor);

// As text, for other members. Throws Error(peer) naming `who` ("rank 3") for a text that is none.
std::string to_text(const MemberState& member);
MemberState parse_member_state(std::string_view text, const std::string& who);

// Of the members in a list of what each has; holders in the inventory, too, are places in that list.
struct Settlement {
  Version version;                       // of the state to go on from
  std::vector<int> finish;               // who first makes the update by `decision`
  std::optional<StepDecision> decision;  // absent: no member does
  Inventory inventory;                   // who has what, once they have
  std::vector<Inventory::Need> missing;  // of `version`, what no member has: these alone cannot go on
};
// The newest version for which the members have all of `needs`; if they have all of none, the newest one and
// what of it is missing. A function of its arguments alone, so that all members find the same. Throws
// Error(peer) when members' steps differ by more than one, Error(usage) when a tensor has several types.
Settlement settle(std::span<const MemberState> members, std::span<const Inventory::Need> needs);

// The first few in words: "blocks.3.weight [0:48, :], head and 12 others".
std::string show(std::span<const Inventory::Need> slices);

}  // namespace het
