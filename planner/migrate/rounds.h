// What a change of layout is about, tensor by tensor, and its moves in rounds of bounded memory. Shared by
// those who choose the senders: migrate, from ranks alone; recovery, from tiers, too. Plain data, computed
// alike on all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/run/migration.h"

namespace het::planner {

// A tensor that some rank needs otherwise than it has it, or needs no more.
struct ChangedTensor {
  struct Need {
    int rank = 0;
    TensorSlice slice;
  };
  std::string name;
  TensorType type;          // of the whole
  std::vector<Need> needs;  // of the ranks that have not exactly what they need, ascending
};

// By name. `holders`: of each rank of `needs`, its place among the holders of the inventory; -1: it has
// nothing. Throws Error(usage) for a need of another type than the inventory has.
std::vector<ChangedTensor> changed_tensors(const Inventory& inventory, Version version,
                                           std::span<const std::vector<StatePart>> needs,
                                           std::span<const int> holders);

using MovesByTensor = std::map<std::string, std::vector<SliceMove>>;

// The moves in rounds, each tensor wholly in one. Tensors are ordered so that each pair of ranks moves about
// the same part of its bytes in every round: all links are busy all the time. No rank takes more than
// `round_bytes` in a round to send and to receive, unless one tensor alone takes more.
std::vector<MigrationPlan::Round> in_rounds(std::span<const ChangedTensor> changed, MovesByTensor moves,
                                            size_t ranks, int64_t round_bytes);

}  // namespace het::planner
