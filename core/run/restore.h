// What every member does when a generation has begun: they agree on the version to go on from, those behind
// finish its step, and the state moves to the layout of the new plan. Where members have lost too much of it,
// the state of an older step is read from snapshots.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run/migration.h"
#include "core/run/recovery.h"
#include "core/run/settle.h"

namespace het {

struct Restored {
  Version version;          // that the state is of now
  bool finished = false;    // this rank made the update of a decided step
  int64_t moved_bytes = 0;  // by all ranks
  // Of a state that was read from snapshots.
  std::optional<RecoveryPlan> recovery;
  std::string about;                    // TierState::about of its version
  std::vector<std::string> damaged;     // sentences, of all ranks: what counted no longer
  std::vector<std::string> other_runs;  // sentences: snapshots that are not of the run that goes on
};

// Chooses who sends what (planner/migrate/migrate.h). All ranks choose the same.
using MovePlanner =
    std::function<MigrationPlan(const Inventory& inventory, Version version,
                                std::span<const std::vector<StatePart>> needs, const MemberLinks& links)>;

struct RestoreOptions {
  MovePlanner plan_moves;
  RecoveryPlanner plan_recovery;     // needed with `tiers`
  int64_t generation = 0;            // the one that has begun
  TierReader* tiers = nullptr;       // what this member can read beside its device; null: nothing
  double step_seconds = 0;           // of the run; 0: not known
  std::string host;                  // of this member
  double link_bytes_per_second = 0;  // that it sends and receives; 0: not known
  // Communicators of the same ranks over other connections, for much that moves (MigrationSetting::lanes).
  // Every rank has it or none; null: none.
  std::function<std::vector<Communicator*>()> connect_lanes;
};

// All ranks have found that nothing has all of the run's state; the sentence names the slices that lack.
class StateLost : public Error {
 public:
  explicit StateLost(std::string sentence) : Error(ErrorKind::environment, std::move(sentence)) {}
};

// Every rank of the group calls it. `executor`: that trained the state in the generation before, frozen;
// null: none did. `needs`: of this rank in the new plan; empty: it only brings what it has. The next steps
// are decided by the generation that has begun, under a number above all that the state was ever decided by.
// Throws Error(peer) when a rank is lost on the way: the state is then to be restored again;
// StateLost. Nothing: no rank has any of the state, and no
// snapshot either.
std::optional<Restored> restore(Communicator& group, StateStore& state, Executor* executor,
                                const std::vector<StatePart>& needs, const RestoreOptions& options);

// The whole state of a run on rank 0: its own where it has all of it, else a new one in the memory of `host`
// with every tensor. Null on the others. Every rank of the group calls it.
std::shared_ptr<StateStore> gather_state(Communicator& group, const std::shared_ptr<StateStore>& state,
                                         const std::shared_ptr<Device>& host, const MovePlanner& plan_moves);

}  // namespace het
