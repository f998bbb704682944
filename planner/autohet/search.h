// The search over plans: planning.md section 1's decomposition (degrees, grouping, stages, balance), its best
// candidates simulated and then improved move by move. With all extensions off it is AutoHet's
// published decomposition.
#pragma once

#include <string_view>
#include <vector>

#include "planner/autohet/group.h"
#include "planner/autohet/stages.h"
#include "planner/request.h"

namespace het::planner {

// Submits what it finds to `evaluator`; `extensions` are the request's, or kPublished.
void search_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy);

// Few enough groups and layers that every grouping and every order of stages is tried.
bool is_small(const Request& request);

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

// Improves a simulated candidate by moves of layers, micro-batches and devices, as long as the simulator says
// that it gets better, within a budget of simulated stage-micro-batch pairs.
Candidate improve(Evaluator& evaluator, Candidate candidate, const Extensions& extensions, int64_t budget);

}  // namespace het::planner
