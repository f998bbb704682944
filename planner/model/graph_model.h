// The Model that a planner sees of a training graph: work, sizes and traffic of each of its layers, counted
// from its nodes. Layers that count alike are one kind.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "planner/model/model.h"

namespace het::planner {

// `graph` trains on micro-batches of `samples` samples of `tokens` tokens. Memory is what hetrun's programs
// keep: the values that the backward pass reads, once each; weights with their copies in the compute
// precision.
Model model_of_graph(const Graph& graph, std::string name, int samples, int tokens);

// Of each layer the parameters that its nodes use, also through what is computed from them once a step. One
// that several layers use is in each.
std::vector<std::set<ValueId>> parameters_of_layers(const Graph& graph);

// The tensor-parallel degrees, powers of two up to `most`, that partition() can share the graph's layers out
// among.
std::vector<int> tensor_degrees_of(const Graph& graph, int most);

}  // namespace het::planner
