// Moves by chance on a plan of many stages: where a climb ends because every single move is worse, annealing
// takes a few worse ones on the way. Scored by the simulator without contention; draws are counted, so that
// the same request gives the same plan. For small clusters see joint.h.
#pragma once

#include <string_view>

#include "planner/request.h"

namespace het::planner {

// From the best plans of `evaluator` so far, of several degrees and micro-batch sizes, to better ones, which
// it submits. Starts run in parallel; each has separate draws and a separate part of the work, which is
// counted, not timed. Does nothing without Extensions::local_search, and where every order is tried anyway.
void anneal_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy);

}  // namespace het::planner
