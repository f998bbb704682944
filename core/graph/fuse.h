// Joins nodes that pass a value on, so that it is read and written once: activations into the products before
// them, chains of elementwise nodes into single `fused` nodes, additions into the norms beside them.
#pragma once

#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace het {

// What no node needs dropped, then activations joined, then chains, then additions.
Graph fuse(const Graph& graph);

// Drop nodes that reach no output, no state and no update, and results that nothing reads, where the operator
// can leave them out; or what is so in `like`, a graph of as many nodes: so the graphs of ranks that share a
// layer keep the same ones, collectives among them, though an operand may count on one rank alone.
Graph prune(const Graph& graph);
Graph prune(const Graph& graph, const Graph& like);

// Joins a loss with the `linear` whose result it alone reads, where an operator computes both and the result
// is large enough (OpDef::with_linear): logits are then never all in memory. Call it
// before differentiate(). It leaves the nodes in the ranges `apart`, [first, second), as they are.
void join_classifiers(Graph& graph, const std::vector<std::pair<NodeId, NodeId>>& apart = {});

// fuse() of what is needed already: nothing is dropped.
Graph join(const Graph& graph);

// The same graph with `gelu` (by tanh) left to the `linear` whose result it takes, where else only its
// gradient reads that result; and the multiplication with its derivative to the `linear_input_gradient`
// before it (same phase, same layer). What a chain of elementwise nodes would take is left to it. Devices may
// compute gelu from the product before it is rounded.
Graph join_activations(const Graph& graph);

// The same graph with every maximal chain of elementwise nodes (same phase, same layer, intermediate results
// used nowhere else) replaced by one `fused` node.
Graph join_chains(const Graph& graph);

// The same graph with `add` nodes left to the operator that takes their sum, or whose result they add to,
// where it can make them (OpDef::adds_before, adds_after; same phase, same layer, operands of one shape). No
// result changes by a bit.
Graph join_additions(const Graph& graph);

}  // namespace het
