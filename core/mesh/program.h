// How the nodes of a graph run on the tensors of a mesh. It follows from the graph and from how its inputs
// lie, before any of it runs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/distributed_tensor.h"

namespace het {

// How a value lies, and what each place has of it.
struct MeshValue {
  Placements placements;
  std::vector<TensorSlice> slices;
};

// What a sharding rule makes of a call along one axis of the mesh: a small graph of this rank, with
// collectives along that axis.
struct MeshDecomposition {
  int axis = -1;  // -1: the operator runs as it is
  Graph graph;
  std::vector<ValueId> inputs, results;
};

struct MeshNode {
  std::vector<MeshValue> inputs, outputs;
  // By operand: what each place needs. Of an operand that counts once, only the first rank that has a part
  // needs it. Bit i: operand i counts once; and not on this rank.
  std::vector<std::vector<TensorSlice>> needed;
  uint32_t once = 0, elsewhere = 0;
  bool is_constant = false;  // it follows from no input of the graph
  bool is_idle = false;      // this rank has no part: its results have no element, or are summands of zeros
  Attributes attributes;     // of the call on this rank's part
  MeshDecomposition decomposition;
  std::string way;                    // "data: x dim 0 -> y dim 0; model: x dim 1, weight dim 1 -> y partial"
  std::vector<std::string> operands;  // their names: "x", "weight"
};

// Plain data. The graph has inputs only, no state.
struct MeshProgram {
  Graph graph;
  std::vector<MeshNode> nodes;  // of this rank; placements and slices are the same on all
};

// Along each axis of the mesh each node runs as propagate() chooses for it. `inputs`: how they lie.
MeshProgram mesh_program(const DeviceMesh& mesh, Graph graph, const std::map<ValueId, Placements>& inputs);

}  // namespace het
