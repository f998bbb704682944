// Where a state that no member's device has whole any more is taken from: plain data. The planner makes it
// (planner/migrate/recovery.h); restore() carries it out.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/run/migration.h"
#include "core/run/tier.h"

namespace het {

struct RecoveryRequest {
  std::vector<StateSource> sources;
  Inventory inventory;  // holders are places in `sources`; every version is on one history
  std::vector<std::vector<StatePart>> needs;  // by rank
  int64_t newest_step = 0;  // that the run has come to: steps after the chosen version are repeated
  double step_seconds = 0;  // 0: not known
  std::vector<int>
      host_of;  // of each member: members of one host read each other's snapshots without a network
};

struct RecoveryPlan {
  MigrationPlan moves;
  int64_t steps_repeated = 0;
  double seconds = 0, bound_seconds = 0;  // that the moves take, and that any choice takes at least
  std::array<int64_t, kTiers> bytes{};    // read from each tier
  std::vector<std::string> why;           // sentences
};

// A function of its argument alone: all ranks find the same. Throws Error(environment) naming the slices that
// no tier has of any version.
using RecoveryPlanner = std::function<RecoveryPlan(const RecoveryRequest& request)>;

}  // namespace het
