// Moving a run's state from the layout of one plan to that of another: slices go from members that have them
// to members that need them, in rounds of bounded memory. After each round every tensor is whole in the old
// layout or in the new one, so a loss on the way only means another inventory.
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

// Gives `state` the layout `needs`: of each tensor the slice that this rank needs, nothing else. Every rank
// of the group calls it with the same plan. State of another version is dropped before. `tiers`: where moves
// from other tiers than `live` are read; null: the plan has none. Throws Error(peer) when a rank is lost: the
// state then still has all that it had and has not handed on, and what has come.
void migrate(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
             StateStore& state, TierReader* tiers = nullptr);

// Gives another store the layout `needs`, and leaves `state` as it is. `into`: null on ranks that need
// nothing.
void gather(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
            const StateStore& state, StateStore* into);

}  // namespace het
