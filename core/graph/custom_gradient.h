// Differentiation where some parts of the forward pass have a gradient that somebody else writes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace het {

// Nodes [first, end) of the forward pass that have another gradient than that of their operators. They
// compute `output`, the only value of theirs that other nodes read, from `inputs`.
struct CustomGradient {
  NodeId first = 0, end = 0;
  std::vector<ValueId> inputs;
  ValueId output = kAbsent;
  // Appends the gradients of the inputs to the graph, as nodes of the backward phase with this layer and
  // scope; kAbsent where nothing flows back.
  std::function<std::vector<ValueId>(ValueId output_gradient, int32_t layer, int32_t scope)> gradient;
};

// All that is wrong with such nodes, as the end of a sentence; empty when they are sound.
std::string problem_of(const Graph& graph, const CustomGradient& custom);

// As differentiate() of core/graph/gradient.h.
std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wanted,
                                         const std::vector<CustomGradient>& custom);

}  // namespace het
