// Some layers of a training graph as a graph that runs alone: what profiles measure, so that a model need not
// fit on the device that one of its layers is measured on.
#pragma once

#include <string_view>
#include <vector>

#include "core/graph/graph.h"

namespace het {

inline constexpr std::string_view kCut = "cut ";  // how the names of added inputs and outputs begin

// Forward, backward and update of the layers that `keep` names by index. Values from other layers become
// inputs called "cut N"; values for other layers become outputs called "cut N". Collectives are left out:
// their results become inputs, too. Parameters that no kept layer uses are dropped.
Graph extract_layers(const Graph& graph, const std::vector<bool>& keep);

}  // namespace het
