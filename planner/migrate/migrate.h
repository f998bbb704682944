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
  // Of sending bytes from one rank to another; absent: all links are alike.
  std::function<double(int from, int to, int64_t bytes)> seconds;
};

// Of each slice that a rank of `needs` lacks, the holder that then sends and receives least, the longest
// transfers chosen first (as Graham, "Bounds on multiprocessing timing anomalies", 1969). What a rank
// receives counts, although links carry both directions at once: its acknowledgements wait behind what it
// sends. What a rank has itself is not moved. A function of its arguments alone. Throws Error(peer) when a
// slice has no holder.
MigrationPlan plan_migration(const Inventory& inventory, Version version,
                             std::span<const std::vector<StatePart>> needs,
                             const MigrationOptions& options = {});

// The same as restore() takes it.
MovePlanner plan_moves(MigrationOptions options = {});

}  // namespace het::planner
