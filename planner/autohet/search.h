// The search over plans: planning.md section 1's decomposition (degrees, grouping, stages, balance), its best
// candidates simulated and then improved move by move. With all extensions off it is AutoHet's
// published decomposition.
#pragma once

#include <string_view>

#include "planner/request.h"

namespace het::planner {

// Submits what it finds to `evaluator`; `extensions` are the request's, or kPublished.
void search_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy);

// Few enough groups and layers that every grouping and every order of stages is tried.
bool is_small(const Request& request);

}  // namespace het::planner
