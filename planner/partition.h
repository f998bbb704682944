// Tensor parallelism: the graph of one rank of a group of devices that share each layer, from the
// single-device graph. Weights are divided as Megatron-LM does (Shoeybi et al. 2019): the projections into
// attention heads and hidden features by columns, those back by rows, so that one all-reduce forward and one
// backward serve a layer; embeddings and the classifier by vocabulary. Which weights these are is found from
// the graph, not from their names: a projection is divided when what follows can work on a part of its
// columns until a projection sums them up again. What nothing can divide, every rank computes whole.
#pragma once

#include "core/graph/graph.h"

namespace het {

// The graph of rank `part` of `parts`, with collectives (core/ops/collective.cpp) where ranks need more than
// they have. Its values carry Value::shard; its nodes are the same on all ranks but for sizes. Graphs with
// the same forward pass divide their parameters alike. With `sequence`, what lies between the projections
// (norms, dropout, residuals) is divided by tokens where these divide evenly (Korthikanti et al. 2022): a
// reduce-scatter and an all-gather take the place of each all-reduce, and activations shrink. Throws
// Error(usage) when heads or features cannot be shared out evenly among so many ranks, naming what would do.
Graph partition(const Graph& graph, int parts, int part, bool sequence = false);

}  // namespace het
