// What auto is measured against, in the same run and by the same evaluator.
#pragma once

#include <cstdint>

#include "planner/request.h"

namespace het::planner {

// Symmetric tensor x pipeline x data parallelism as Megatron-LM sets it up: equal blocks in each stage
// (embedding with the first, head with the last), equal micro-batches, ranks in the order of the nodes,
// stages outermost. All degrees, micro-batch sizes, with and without recompute everywhere, with and without
// evenly sharded optimizer state. Uses every device; only where no such plan fits, the largest number that
// does. Blocks that the stages do not divide are spread as evenly as can be, though Megatron-LM refuses them.
void plan_megatron(Evaluator& evaluator);

// The same structure with Whale's balancing (Jia et al., ATC 2022), re-implemented from its description since
// its public code does not contain it: devices with most memory on the early stages, blocks between stages in
// proportion to their power, micro-batches between replicas in proportion to theirs. Sharded optimizer state
// only as its public code has it (EasyParallelLibrary, docs/en/api/config.md, "Zero Configuration"): for data
// parallelism alone and without accumulation of gradients.
void plan_whale(Evaluator& evaluator);

// Brute force over degrees, micro-batch sizes, groupings (idle devices too), stage orders, layers, recompute,
// micro-batch counts, replicated and sharded optimizer state, under 1F1B; hosts are filled in order. Leaves
// out only what a proven bound excludes: a pipeline alone is never slower than beside others. For about 8
// groups and 12 layers at most.
void plan_exhaustive(Evaluator& evaluator);
// The same with an end: false when more than `most` simulations would have been needed.
bool plan_exhaustive(Evaluator& evaluator, int64_t most);

}  // namespace het::planner
