// What every member does when a generation has begun: they agree on the version to go on from, those behind
// finish its step, and the state moves to the layout of the new plan.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/run/migration.h"
#include "core/run/settle.h"

namespace het {

struct Restored {
  Version version;          // that the state is of now
  bool finished = false;    // this rank made the update of a decided step
  int64_t moved_bytes = 0;  // by all ranks
};

// Chooses who sends what (planner/migrate/migrate.h). All ranks choose the same.
using MovePlanner = std::function<MigrationPlan(const Inventory& inventory, Version version,
                                                std::span<const std::vector<StatePart>> needs)>;

// Every rank of the group calls it. `executor`: that trained the state in the generation before, frozen;
// null: none did. `needs`: of this rank in the new plan; empty: it only brings what it has. `generation`: the
// one that has begun; it decides the next steps. Throws Error(peer) when a rank is lost on the way: the state
// is then to be restored again; Error(environment) naming the slices that no rank has.
Restored restore(Communicator& group, StateStore& state, Executor* executor,
                 const std::vector<StatePart>& needs, const MovePlanner& plan_moves, int64_t generation);

// The whole state of a run on rank 0: its own where it has all of it, else a new one in the memory of `host`
// with every tensor. Null on the others. Every rank of the group calls it.
std::shared_ptr<StateStore> gather_state(Communicator& group, const std::shared_ptr<StateStore>& state,
                                         const std::shared_ptr<Device>& host, const MovePlanner& plan_moves);

}  // namespace het
