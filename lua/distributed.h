// Distributed tensors as Lua holds them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/mesh/run.h"
#include "core/ops/elementwise.h"
#include "lua/objects.h"

namespace het::lua {

using MeshHandle = std::shared_ptr<const DeviceMesh>;

struct DistributedHandle {
  DistributedTensor tensor;
  std::shared_ptr<const std::vector<MeshStep>> steps;  // how it was made
};

// The operand at `index`; a plain tensor counts as replicated over the mesh.
DistributedHandle distributed_at(lua_State* L, int index, const MeshHandle& mesh);
// A tensor as an operand in a graph: an input where the graph captures, else a constant. A plain tensor has
// no mesh.
ValueId capture(const GraphHandle& graph, DistributedTensor tensor, std::string_view op);
// An operator on distributed tensors: all its results, absent ones without a mesh.
std::vector<DistributedHandle> call_distributed(lua_State* L, const OpDef& op,
                                                std::vector<DistributedTensor> inputs,
                                                const Attributes& attributes);
// The shares at `index`, one for each rank along the axis; equal ones where it is nil. `what`: the function,
// for messages.
Shares shares_at(lua_State* L, int index, std::string_view what, const MeshAxis& axis);
// Adds mesh:all_reduce and the other collectives to the class of meshes (bind_collectives.cpp).
void add_mesh_collectives(lua_State* L);
// + - * / ^ with a distributed tensor on either side (bind_tensor.cpp).
int distributed_arithmetic(lua_State* L, Pointwise op);

}  // namespace het::lua

HET_LUA_CLASS(het::lua::MeshHandle, "mesh");
HET_LUA_CLASS(het::lua::DistributedHandle, "distributed tensor");
