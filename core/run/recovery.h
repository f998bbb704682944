// Where a state that no member's device has whole any more is taken from: plain data. The planner makes it
// (planner/migrate/recovery.h); restore() carries it out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run/migration.h"
#include "core/run/tier.h"

namespace het {

// What moves between members goes over.
struct MemberLinks {
  // Of each member: members of one host read each other's snapshots without a network, and share its links.
  // Empty: each member has a host of its own.
  std::vector<int> host_of;
  // Of each member: that its host sends and receives at once; 0: not known. Empty: of none.
  std::vector<double> bytes_per_second;
};

struct RecoveryRequest {
  std::vector<StateSource> sources;
  Inventory inventory;  // holders are places in `sources`; every version is on one history
  std::vector<std::vector<StatePart>> needs;  // by rank
  int64_t newest_step = 0;  // that the run has come to: steps after the chosen version are repeated
  double step_seconds = 0;  // 0: not known
  MemberLinks links;
};

struct RecoveryPlan {
  // Each move has its tier. From a rank to itself: a tier of its own. What is in the store each rank reads
  // itself. What a rank has live in this version is not moved.
  MigrationPlan moves;
  double seconds = 0;        // of the busiest port, link, disk or memory by these moves; without latencies
  double bound_seconds = 0;  // no choice of sources for this version takes less
  int64_t steps_repeated = 0;
  struct Candidate {
    Version version;
    std::optional<double> seconds;  // absent: something is missing, or it was not looked at
    int64_t steps_repeated = 0;
    std::vector<Inventory::Need> missing;  // disjoint
  };
  std::vector<Candidate> candidates;  // all versions in the inventory, the newest first
  std::map<Tier, int64_t> bytes;      // moved
  std::vector<std::string> why;       // sentences
};

// A function of its argument alone: all ranks find the same. Throws Error(environment) naming the slices that
// no tier has of any version.
using RecoveryPlanner = std::function<RecoveryPlan(const RecoveryRequest& request)>;

}  // namespace het
