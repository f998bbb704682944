// Single stages of the best plans found get degrees and shares of their own: devices that a plan leaves idle
// join a stage or become one, neighbouring stages become one, a stage becomes two. AutoHet forbids different
// degrees, because gradients are then exchanged in pieces; here the simulator counts those, and a plan is
// taken only when it is better all the same.
#pragma once

#include <string_view>

#include "planner/request.h"

namespace het::planner {

// Submits what it finds to `evaluator`. Does nothing without Extensions::mixed_stages, for models that no
// tensor parallelism divides, and beyond 64 devices.
void mix_stages(Evaluator& evaluator, const Extensions& extensions, std::string_view policy);

}  // namespace het::planner
