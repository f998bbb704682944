// What a step of a plan goes to on each of its stages, and on which of them it is slowest.
#pragma once

#include <vector>

#include "planner/policy.h"
#include "planner/simulate/parts.h"

namespace het::planner {

// Of each stage of `planned`, whose simulation has details: as Simulation::stages. Simulates the plan once.
std::vector<StepParts> parts_of_stages(const Request& request, const Planned& planned);

// The stage that computes longest, of Simulation::stages.
size_t slowest_stage(const Simulation& simulation);

}  // namespace het::planner
