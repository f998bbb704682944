// Joins chains of elementwise nodes into single `fused` nodes, so that a chain reads and writes memory once.
#pragma once

#include "core/graph/graph.h"

namespace het {

// The same graph with every maximal chain of elementwise nodes (same phase, same layer, intermediate results
// used nowhere else) replaced by one `fused` node, and nodes whose results nobody uses removed.
Graph fuse(const Graph& graph);

// Only the second half: drop nodes that reach no output, no state and no update.
Graph prune(const Graph& graph);

}  // namespace het
