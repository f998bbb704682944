// Moving a run's state from the layout of one plan to that of another: slices go from members that have them
// to members that need them, in rounds: several are under way at once, in bounded memory. After each
// round every tensor is whole in the old layout or in the new one, so a loss on the way only means another
// inventory. Every part is checked on its way: where it is read, and against the sender's checksum where it
// arrives. A round with a part that fails is used by no rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/program/state.h"
#include "core/run/state_part.h"
#include "core/run/tier.h"

namespace het {

struct SliceMove {
  std::string tensor;
  TensorSlice slice;
  int from = 0, to = 0;  // ranks of the group that moves; the same: read from a tier of its own
  int64_t bytes = 0;
  Tier tier = Tier::live;  // that `from` has it in
};

// Plain data; the planner makes it (planner/migrate/migrate.h).
struct MigrationPlan {
  Version version;  // that is moved
  struct Round {
    std::vector<std::string> tensors;  // that some rank needs otherwise than it has them, or needs no more
    std::vector<SliceMove> moves;      // all of what ranks need of these and have not
  };
  std::vector<Round> rounds;
};

int64_t moved_bytes(const MigrationPlan& plan);

// Memory that a rank takes for the rounds under way, at most, unless one round alone takes more.
inline constexpr int64_t kMovingBytes = int64_t{256} << 20;
// Further connections between two ranks, for much that moves.
inline constexpr int kMovingLanes = 3;

struct MigrationSetting {
  const History* history = nullptr;  // that led to the version; null: the state keeps its history
  TierReader* tiers = nullptr;  // where moves from other tiers than `live` are read; null: there are none
  // Alike on all ranks: a rank that has state of another version keeps it until all of the plan has come, in
  // memory beside the new one. Otherwise state of another version is dropped at once.
  bool keep_other = false;
  // Communicators of the same ranks over other connections, alike on all ranks: a TCP connection begins
  // slowly, above all where acknowledgements wait behind data of the other direction. Parts of the state
  // travel over these and the group.
  std::vector<Communicator*> lanes = {};
};

struct MigrationResult {
  bool whole = true;   // all has come, on every rank
  std::string damage;  // if not: what this rank found damaged, a sentence; empty: other ranks did
};

// Gives `state` the layout `needs`: of each tensor the slice that this rank needs, nothing else. Every rank
// of the group calls it with the same plan. Where something is damaged, no rank uses what came in that round,
// and the move ends: with `keep_other` a rank that had another version has it as before, others have what has
// come until then. Throws Error(peer) when a rank is lost: the state then has the version of the plan if any
// of it has come; all that it had of that version and has not handed on, and what has come.
MigrationResult migrate(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
                        StateStore& state, const MigrationSetting& setting = {});

// Gives another store the layout `needs`, and leaves `state` as it is. `into`: null on ranks that need
// nothing. Throws Error(peer) when a rank is lost, or a part was changed on its way.
void gather(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
            const StateStore& state, StateStore* into);

}  // namespace het
