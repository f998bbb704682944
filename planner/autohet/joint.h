// Small clusters: everything about several pipelines decided together, where deciding part by part goes
// wrong. Where memory is tight, the cut of one pipeline's layers is only as good as the optimizer state that
// it leaves to the others; so here whole combinations of cuts are walked through in the order of the time
// that they cannot beat, and state is placed for each of them.
#pragma once

#include <string_view>

#include "planner/autohet/stages.h"
#include "planner/request.h"

namespace het::planner {

// Submits what it finds to `evaluator`, whose best plan so far it takes as the one to beat. Does nothing for
// objectives other than time. At most `budget` simulations, so that its length is known and the same
// everywhere. For about 8 groups and 16 layers.
void search_jointly(Evaluator& evaluator, const Extensions& extensions, std::string_view policy,
                    int64_t budget, const StageRules& rules = {});

}  // namespace het::planner
