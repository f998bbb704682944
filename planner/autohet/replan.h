// The search near an old plan: what is left of it, repaired in the ways that move little, and from the plans
// that are near the best on towards those that move less. Everything is simulated, so that the evaluator
// remembers it.
#pragma once

#include <vector>

#include "planner/request.h"

namespace het::planner {

// The old plan on the devices that are left: pipelines that lost a stage dropped, run by their other stages,
// or repaired with devices that are free; and what is free beside them put to use. Layers and micro-batches
// as before where they can be; not all of them fit in memory. Empty where nothing of it is left, or its
// degree or micro-batch cannot be. One thread.
std::vector<PlanLayout> repaired_layouts(Evaluator& evaluator);

// Does nothing without an old plan, or when nothing fits.
void search_near(Evaluator& evaluator);

}  // namespace het::planner
