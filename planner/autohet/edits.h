// The neighbours of a plan: plans that one small edit makes of it, as a person would try them by hand. An
// answer is closed under them when none is faster (autohet/refine.h).
#pragma once

#include <string>
#include <vector>

#include "planner/request.h"

namespace het::planner {

struct Edit {
  std::string name;  // "micro-batches of 2 instead of 4", "a layer of pipeline 3 from stage 1 to 2"
  PlanLayout layout;
};

// Every edit that the request allows, each a whole plan of the request's batch, most far-reaching first:
// micro-batch size (halved, doubled, a quarter, four times), schedule, warm-up and chunks, alone and together
// with the size; recompute of all stages; sharded optimizer state; tensor-parallel degree halved and doubled;
// a host, a stage's devices or a pipeline left out; a micro-batch moved to another pipeline; a layer moved to
// another stage; recompute of one stage. Of pipelines that are alike the first stands for all, and where that
// makes sense all change at once, too. Where an edit changes what stages have to do, there is a second one
// with the layers cut again. Whether they fit in memory is the simulator's to say. Stages that have a
// TensorGroup stay as they are. Time: about 10 us for each edit.
std::vector<Edit> edits_of(const PlanLayout& layout, Evaluator& evaluator);

}  // namespace het::planner
