// Who sends which slices when the state of a run goes from one layout to another.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/run/restore.h"

namespace het::planner {

struct MigrationOptions {
  int64_t round_bytes = 64 << 20;  // that a rank takes in one round, at most; a larger tensor is one alone
  MemberLinks links;               // of the ranks; empty: all are alike
};

// Bytes a second from one member to another: the slower of the two hosts' where both are known; 1 GB/s where
// not, and 4 GB/s inside a host.
double link_rate(const MemberLinks& links, int from, int to);

// Of each slice that a rank of `needs` lacks, the holder whose port is then busy for the least time, the
// longest transfers chosen first (as Graham, "Bounds on multiprocessing timing anomalies", 1969). A port is a
// host's to the network, or a rank's inside its host. What comes in counts, although links carry both
// directions at once: its acknowledgements wait behind what goes out. What a rank has itself is not moved. A
// function of its arguments alone. Throws Error(peer) when a slice has no holder.
MigrationPlan plan_migration(const Inventory& inventory, Version version,
                             std::span<const std::vector<StatePart>> needs,
                             const MigrationOptions& options = {});

// The same as restore() takes it; the links that it is given count.
MovePlanner plan_moves(MigrationOptions options = {});

}  // namespace het::planner
