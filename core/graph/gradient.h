// Differentiation as a graph-to-graph transformation: backward nodes are appended, each with the layer
// and scope of the forward node it differentiates.
#pragma once

#include <map>
#include <vector>

#include "core/graph/graph.h"

namespace het {

// What an operator's gradient rule sees.
struct GradientCall {
  GraphBuilder& graph;
  const Node& node;                       // a copy: appending nodes does not move it
  std::vector<ValueId> output_gradients;  // one for each output; kAbsent where nothing flows back
  std::vector<bool> wanted;               // one for each input: is its gradient needed?
  // The forward value `old` shall be read from `now` instead, everywhere (a fused forward and backward
  // kernel also makes the forward's results).
  void replace(ValueId old, ValueId now);
  std::vector<std::pair<ValueId, ValueId>>& replacements;

  ValueId input(size_t i) const { return node.inputs[i]; }
  ValueId output(size_t i) const { return node.outputs[i]; }
};

// Append the backward pass of the scalar `loss` and return the gradient value of each of `wanted` (or of
// every parameter when `wanted` is empty), in accumulator_of its dtype; kAbsent where the loss does not
// depend on it. Throws Error(usage) for an operator without a gradient on the way, naming it and its layer.
std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wanted = {});

// A parameter, or its copy in the compute precision: its gradient is kept in the accumulator type.
bool is_weight(const Graph& graph, ValueId id);

}  // namespace het
