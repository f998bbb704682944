// The state of a training graph, layer by layer, as changes of plans see it.
#pragma once

#include "core/graph/graph.h"
#include "planner/migrate/model_state.h"

namespace het::planner {

// Its tensors are the graph's parameters and buffers, its slices those that the ranks of a stage hold, also
// of stages with `sharding`. A parameter that several layers use, and its optimizer state, are in each of
// them. Of sharded optimizer state, rows of a tensor are divided.
ModelState state_of(const Graph& graph);

}  // namespace het::planner
