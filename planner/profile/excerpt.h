// Some layers of a training graph as a graph that runs alone: what profiles measure, so that a model need not
// fit on the device that one of its layers is measured on.
#pragma once

#include <string_view>
#include <vector>

#include "core/graph/graph.h"

namespace het {

inline constexpr std::string_view kCut = "cut ";  // names of what an excerpt adds begin with it

// Forward, backward and update of the layers that `keep` names by index. What they take from elsewhere are
// inputs called "cut N", what others take from them outputs called so. Collectives are left out: what they
// would give is taken from elsewhere. Parameters that no kept layer uses are gone.
Graph excerpt(const Graph& graph, const std::vector<bool>& keep);

}  // namespace het
