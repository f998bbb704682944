// Pipelines before they are placed: which groups there are, in what order a pipeline's stages may stand, and
// a layout with hosts for every stage.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/autohet/group.h"
#include "planner/autohet/stages.h"
#include "planner/request.h"

namespace het::planner {

// What exists to be grouped at one degree. power: whole models a second of one group.
Pool pool_of(const Request& request, const CostTable& costs);

// Orders of a composition's groups that are worth trying: all when there are at most `limit`, else whole
// nodes in every order (or, of many nodes, by memory and by power).
std::vector<std::vector<int>> stage_orders(const Composition& composition, const CostTable& costs,
                                           size_t limit);

// One pipeline before it is placed.
struct PipelineDraft {
  std::vector<int> nodes;  // of each stage
  StageSolution solution;
  int microbatches = 1;
};

// Hosts for every stage. `packed` as in place().
PlanLayout make_layout(const Request& request, const CostTable& costs,
                       const std::vector<PipelineDraft>& drafts, bool packed);

}  // namespace het::planner
