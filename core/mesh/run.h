// Operators and graphs on distributed tensors: each node runs on what its rank has of the operands, in a way
// that its operator's sharding rules allow, after the operands that lie otherwise were brought to lie so.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/recently_used.h"
#include "core/graph/graph.h"
#include "core/mesh/distributed_tensor.h"
#include "core/program/eager.h"

namespace het {

// What was done for a node: how it was cut along each axis of the mesh, and what travelled before.
struct MeshStep {
  std::string op;
  std::string way;  // "data: x dim 0 -> y dim 0; model: x dim 1, weight dim 1 -> y partial"
  struct Move {
    std::string operand;  // "x", as the operator's signature calls it
    Travel travel;
  };
  std::vector<Move> moves;
};

class MeshProgram;

// Runs operators on the tensors of one mesh. How one runs follows from its attributes and from the types and
// placements of its operands alone: the programs used last are kept. Used from one thread.
struct MeshEager {
  // Computes on `device`; keeps at most so many programs (one or more).
  explicit MeshEager(std::shared_ptr<Device> device, size_t most = 256)
      : local(std::move(device)), programs(most) {}

  Eager local;                                                // on what this rank has
  RecentlyUsed<std::shared_ptr<const MeshProgram>> programs;  // of operators, by what they follow from
};

// Runs a graph that has inputs only, no state. `values` has them, all on one mesh, and gets what `wanted`
// names. Ways are chosen as by propagate(), along each axis of the mesh by itself; results lie as they come
// out of the operators that make them. Called by every rank alike. `steps`, if given, gets an entry for each
// node.
void run_on_mesh(const Graph& graph, std::map<ValueId, DistributedTensor>& values,
                 const std::vector<ValueId>& wanted, std::vector<MeshStep>* steps = nullptr);

// One operator. Absent operands have no mesh. All results.
std::vector<DistributedTensor> call_on_mesh(const OpDef& op, const std::vector<DistributedTensor>& inputs,
                                            const Attributes& attributes,
                                            std::vector<MeshStep>* steps = nullptr);

std::string to_string(const std::vector<MeshStep>& steps, const DeviceMesh& mesh);

}  // namespace het
