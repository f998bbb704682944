// Micro-batches over pipelines, and optimizer state over replicas: planning.md section 1, step 5 and the
// extensions.
#pragma once

#include <vector>

#include "planner/plan_layout.h"
#include "planner/simulate/costs.h"

namespace het::planner {

// Pipelines that are alike: m micro-batches take sum + (m - 1) longest.
struct PipelineRate {
  double sum = 0, longest = 0;
  int copies = 1;
};

// Micro-batches of each pipeline, copies after one another, so that the slowest is as fast as can be: exact,
// the fill and drain term counted. At least one each; empty when there are fewer micro-batches than
// pipelines.
std::vector<int> balance_microbatches(const std::vector<PipelineRate>& rates, int microbatches);

PipelineRate rate_of(const PipelineLayout& pipeline, const CostTable& costs);

// Gives the pipelines their micro-batches: `uneven` ones as above, else as many to each. False when there are
// fewer than pipelines, or they cannot be divided.
bool balance(PlanLayout& layout, const CostTable& costs, int microbatches, bool uneven);

// Shares of optimizer state for a layout whose state is sharded: even where that fits in memory, else more
// for the stages with free memory. False when not even that fits.
bool place_optimizer(PlanLayout& layout, const CostTable& costs);

}  // namespace het::planner
