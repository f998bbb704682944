// Closes an answer under small edits: as long as an edit of the best plan (autohet/edits.h) gains by the
// simulator, it is taken.
#pragma once

#include <string_view>

#include "planner/request.h"

namespace het::planner {

// Afterwards no edit of evaluator.best() is better by more than limits::refine::kGain, but for edits that are
// worse without contention between transfers. Comes last: what is submitted after it is not closed.
void refine_best(Evaluator& evaluator, std::string_view policy);

}  // namespace het::planner
