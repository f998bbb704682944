// Which version of the state a run goes on from, and where every byte of it comes from: live members,
// snapshots in memory and on disk, the store. For members that were lost and plans that changed; between live
// members alone, plan_migration does the same. Plain data: all ranks compute the same plan from the same
// arguments, whatever the order in which the inventory was filled.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run/recovery.h"
#include "planner/migrate/flow.h"

namespace het::planner {

struct RecoveryOptions {
  int64_t round_bytes = 64 << 20;  // that a rank takes in one round, at most; a larger tensor is one alone
  int64_t newest_step = 0;         // that was decided: what comes after a version's step is trained again
  double step_seconds = 0;         // in the plan before; 0: unknown, and the newest whole version is chosen
  // Of the link between two members, above 0; infinite: it takes no time; absent: as link_rate() has it where
  // nothing is known.
  std::function<double(int from, int to)> bytes_per_second;
  double store_bytes_per_second = 0;  // of the store in all; 0: only each member's own rate limits
  // Of each member, 0 and up. Members of one host read the memory and disk tier of each other without a
  // network link, and share the host's ports. Empty: each member has a host of its own.
  std::vector<int> host_of;
  // Read from the store also what a nearer tier has, where that is faster. Off: reading from the store costs
  // money, and its rate is the least certain of all, since other runs share it; a slow download would keep
  // all members waiting for bytes that one of them has. With it a download is never the reason for a delay,
  // except for bytes that are nowhere else.
  bool store_may_help = false;
  size_t exact_choices = kExactChoices;  // of least_time_flow
};

// Of the candidates, one whose seconds are absent though nothing is missing was not looked at: repeating its
// steps takes longer than all of the chosen version, or a newer one is whole and the seconds of a step are
// unknown. The bound counts 64 sources of more.
//
// The whole version with the least seconds to move and to repeat steps, the newest on a tie (1e-9 of it). The
// seconds to move are a min-max flow over what each source reads, what each host sends and receives, and the
// store; at equal time a nearer tier wins: live, own memory, a peer's, own disk, a peer's, the store. Slices
// are cut at rows (of their first dimension longer than 1) to meet the flow.
// `sources`: the holders of the inventory are places in it; of one member at most one live and one store.
// Members are ranks of `needs`, which are empty for those outside of the plan. What one member lists of the
// store, every member with a store source can read.
// Throws Error(environment) when no version has all needs: the version that lacks least, what it lacks, and
// the tiers; Error(usage) for a need of another type than the inventory has.
RecoveryPlan plan_recovery(std::span<const StateSource> sources, const Inventory& inventory,
                           std::span<const std::vector<StatePart>> needs, const RecoveryOptions& options);

// The same as restore() takes it; what the request says counts.
RecoveryPlanner recovery_planner(RecoveryOptions options = {});

}  // namespace het::planner
