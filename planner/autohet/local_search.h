// Improves one plan by moves of layers, micro-batches, stages and devices.
#pragma once

#include <cstdint>

#include "planner/request.h"

namespace het::planner {

// A plan that fits before one that does not; of these the one that lacks less.
bool is_better(const Candidate& a, const Candidate& b);

// Improves a simulated candidate by moves of layers, micro-batches and devices, as long as the simulator says
// that it gets better, within a budget of simulated stage-micro-batch pairs.
Candidate improve(Evaluator& evaluator, Candidate candidate, const Extensions& extensions, int64_t budget);

}  // namespace het::planner
