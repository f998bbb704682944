// Device meshes and distributed tensors: het.mesh, tensor:shard, and what `het.op` does with them.
#include <algorithm>
#include <chrono>

#include "core/base/elapsed.h"
#include "core/base/units.h"
#include "core/ops/op.h"
#include "core/run/cluster.h"
#include "lua/distributed.h"
#include "lua/state.h"

namespace het::lua {
namespace {

using Distributed = DistributedHandle;

const DeviceMesh& mesh_of(const Distributed& x) { return *x.tensor.mesh; }

// --- meshes

// native.mesh(cluster or nil, {axes, sizes, ranks, devices, device, links}): names and sizes of the axes;
// ranks and names of devices by place, or nil; what this rank computes on and how slow links are, of a mesh
// that is slowed down.
int new_mesh(lua_State* L) {
  using Names = std::vector<std::string>;
  using Numbers = std::vector<int>;
  const auto names = field<Names>(L, 2, "axes").value_or(Names{});
  const auto sizes = field<Numbers>(L, 2, "sizes").value_or(Numbers{});
  constexpr size_t kMostAxes = 2;
  if (names.size() != sizes.size() || names.empty() || names.size() > kMostAxes)
    fail_usage("mesh: {} names and {} sizes of axes; one or two of each are needed", names.size(),
               sizes.size());
  MeshLayout layout;
  layout.ranks = field<Numbers>(L, 2, "ranks").value_or(Numbers{});
  layout.devices = field<Names>(L, 2, "devices").value_or(Names{});
  for (size_t a = 0; a < names.size(); ++a) layout.axes.push_back({names[a], sizes[a]});
  lua_getfield(L, 2, "device");
  auto* device = to_object<DeviceHandle>(L, lua_gettop(L));
  const auto eager = std::make_shared<MeshEager>(device != nullptr ? *device : host_of(L).cpu);
  std::shared_ptr<Groups> groups;
  std::shared_ptr<Agreement> agreement;
  if (auto* cluster = to_object<ClusterHandle>(L, 1)) {
    groups = device != nullptr ? (*cluster)->paced_groups(links_at(L, 2)) : (*cluster)->groups();
    agreement = (*cluster)->agreement();
  }
  push_object(L, MeshHandle(std::make_shared<const DeviceMesh>(std::move(groups), std::move(agreement), eager,
                                                               std::move(layout))));
  return 1;
}

std::string show_mesh(MeshHandle& mesh) { return to_string(*mesh); }

int mesh_index(lua_State* L) {
  auto& mesh = check_object<MeshHandle>(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  if (name == "rank") return Convert<int>::push(L, mesh->ranks()[static_cast<size_t>(mesh->place())]);
  if (name == "size") return Convert<int>::push(L, mesh->size());
  if (name == "axes") {
    lua_createtable(L, 0, static_cast<int>(mesh->axes().size()));
    for (const MeshAxis& axis : mesh->axes()) set_field(L, axis.name.c_str(), static_cast<double>(axis.size));
    return 1;
  }
  if (name == "devices") {
    if (mesh->devices().empty()) lua_pushnil(L);
    return mesh->devices().empty() ? 1 : Convert<std::vector<std::string>>::push(L, mesh->devices());
  }
  return method_of(L, "a mesh", name, {"rank", "size", "axes", "devices"});
}

int mesh_coordinate(MeshHandle& mesh, std::string axis) {
  return mesh->coordinate(mesh->place(), mesh->axis_named(axis));
}

// mesh:time(f): seconds from when all ranks begin f() to when the last has done it.
int mesh_time(lua_State* L) {
  const MeshHandle mesh = check_object<MeshHandle>(L, 1);
  if (!lua_isfunction(L, 2))
    fail_usage("mesh:time: a function is needed, not a {}", lua_typename(L, lua_type(L, 2)));
  mesh->agree_on("mesh:time");
  const auto begin = std::chrono::steady_clock::now();
  lua_pushvalue(L, 2);
  lua_call(L, 0, 0);
  mesh->agree_on("the end of mesh:time");
  const double own = seconds_since(begin);
  return Convert<double>::push(
      L, all_reduce(*mesh, -1, Tensor::of<double>({own}, {1}), Reduction::max, "mesh:time").at(0));
}

// Each x.mesh is a separate object.
bool same_mesh(MeshHandle& a, MeshHandle& b) { return a == b; }

// --- placements

// The dimension at the top of the stack, along which an axis of the mesh cuts. `what`: the function, for
// messages.
int64_t cut_dim_at(lua_State* L, const char* what, const MeshAxis& axis, const TensorType& type) {
  const auto rank = static_cast<int64_t>(type.shape.size());
  if (lua_type(L, -1) != LUA_TNUMBER)
    fail_usage("{}: {} = {}; a dimension, from 0, or {{ dim =, shares = }} is needed", what, axis.name,
               lua_isnil(L, -1) ? "{ }" : luaL_typename(L, -1));
  const double given = lua_tonumber(L, -1);
  const auto dim = integer_of<int64_t>(given);
  if (!dim) fail_usage("{}: {} = {}; a dimension is a whole number, from 0", what, axis.name, given);
  if (rank == 0)
    fail_usage("{}: {} = {}; {} has no dimension to cut", what, axis.name, given, to_string(type));
  if (*dim < -rank || *dim >= rank)
    fail_usage("{}: {} = {}; {} has the dimensions 0 to {}", what, axis.name, *dim, to_string(type),
               rank - 1);
  return *dim < 0 ? *dim + rank : *dim;
}

// How an axis of the mesh cuts, from what is at the top of the stack: 0, or { dim = 0, shares = { 3, 1 } }.
AxisPlacement placement_at(lua_State* L, const char* what, const MeshAxis& axis, const TensorType& type) {
  const int value = lua_gettop(L);
  if (!lua_istable(L, value))
    return sharded_by(type.shape, cut_dim_at(L, what, axis, type), Shares(static_cast<size_t>(axis.size), 1));
  lua_pushnil(L);
  while (lua_next(L, value) != 0) {
    const std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "[number]";
    if (key != "dim" && key != "shares")
      fail_usage("{}: {} = {{ {} }}; a placement has dim and shares", what, axis.name, key);
    lua_pop(L, 1);
  }
  lua_getfield(L, value, "dim");
  if (lua_isnil(L, -1)) fail_usage("{}: {} = {{ dim = ... }} says which dimension is cut", what, axis.name);
  const int64_t dim = cut_dim_at(L, what, axis, type);
  lua_getfield(L, value, "shares");
  Shares shares = shares_at(L, lua_gettop(L), what, axis);
  lua_pop(L, 2);
  return sharded_by(type.shape, dim, std::move(shares));
}

// How a tensor shall lie, from { data = 0, model = { dim = 1, shares = { 3, 1 } } } at `index`; axes that are
// not named have it replicated.
Placements placements_at(lua_State* L, int index, const char* what, const DeviceMesh& mesh,
                         const TensorType& type) {
  Placements placements(mesh.axes().size());
  if (lua_isnoneornil(L, index)) return placements;
  if (!lua_istable(L, index)) wrong_argument(L, index, "a table such as { data = 0 }: axis = dimension");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING)
      fail_usage("{}: a placement names an axis of the mesh and a dimension, as in {{ {} = 0 }}", what,
                 mesh.axes().empty() ? "model" : mesh.axes()[0].name);
    const auto a = static_cast<size_t>(mesh.axis_named(lua_tostring(L, -2)));
    placements[a] = placement_at(L, what, mesh.axes()[a], type);
    lua_pop(L, 1);
  }
  return placements;
}

// Of two axes that cut one dimension, the second cuts the parts of the first.
DistributedTensor lying_as(const DistributedTensor& x, const Placements& placements, const char* label,
                           std::vector<Travel>* travels) {
  if (!slices_of(*x.mesh, x.type.shape, placements))
    fail_usage("{} cannot be cut so: a part of one axis has no whole number of rows for another",
               to_string(x.type));
  return redistribute(x, placements, label, travels);
}

// What ranks have to ask alike, for DeviceMesh::agree_on.
std::string text_of(const Placements& placements) {
  std::string text;
  for (const AxisPlacement& each : placements)
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", to_string(each.lies),
                        fmt::join(each.shares, ":"));
  return text;
}

int push_distributed(lua_State* L, DistributedTensor tensor, std::vector<MeshStep> steps) {
  push_object(
      L, Distributed{std::move(tensor), std::make_shared<const std::vector<MeshStep>>(std::move(steps))});
  return 1;
}

int shard(lua_State* L) {  // tensor:shard(mesh, placements)
  auto& tensor = check_object<Tensor>(L, 1);
  if (to_object<MeshHandle>(L, 2) == nullptr)
    fail_usage("tensor:shard: the mesh comes first, as in x:shard(mesh, {{ model = 0 }})");
  auto& mesh = check_object<MeshHandle>(L, 2);
  const Placements placements = placements_at(L, 3, "shard", *mesh, tensor.type());
  mesh->agree_on(fmt::format("shard of {}", to_string(tensor.type())), text_of(placements));
  return push_distributed(L, lying_as(replicated(mesh, tensor.clone()), placements, "shard", nullptr),
                          {{"shard", "every rank keeps its part of what it has whole", {}}});
}

int redistribute_to(lua_State* L) {  // x:redistribute([mesh,] placements)
  auto& x = check_object<Distributed>(L, 1);
  auto* other = to_object<MeshHandle>(L, 2);
  const MeshHandle mesh = other != nullptr ? *other : x.tensor.mesh;
  const Placements placements =
      placements_at(L, other != nullptr ? 3 : 2, "redistribute", *mesh, x.tensor.type);
  MeshStep step{"redistribute", "", {}};
  std::vector<Travel> travels;
  mesh->agree_on(fmt::format("redistribute of {}", to_string(x.tensor.type)),
                 text_of(x.tensor.placements) + " to " + text_of(placements));
  DistributedTensor from = x.tensor;
  if (mesh != x.tensor.mesh) from = replicated(mesh, gather(x.tensor));
  DistributedTensor result = lying_as(from, placements, "redistribute", &travels);
  step.way = describe_placements(x.tensor) + " -> " + describe_placements(result);
  for (Travel& travel : travels) step.moves.push_back({"it", std::move(travel)});
  return push_distributed(L, std::move(result), {std::move(step)});
}

Tensor gather_all(const Distributed& x) {
  mesh_of(x).agree_on(fmt::format("gather of {}", to_string(x.tensor.type)), text_of(x.tensor.placements));
  return gather(x.tensor).clone();  // Lua may write into it
}
Tensor gather_it(Distributed& x) { return gather_all(x); }
Tensor local_part(Distributed& x) { return x.tensor.local.clone(); }
double item(Distributed& x) {
  if (x.tensor.type.elements() != 1)
    fail_usage("item: the tensor is {}; only a single element is a number", to_string(x.tensor.type));
  return gather_all(x).at(0);
}
int64_t numel(Distributed& x) { return x.tensor.type.elements(); }

std::string show(Distributed& x) {
  const Tensor whole = gather_all(x);
  const std::string drawn = picture(x.tensor);
  if (drawn.empty()) return fmt::format("{}\non every rank of {}", to_string(whole), to_string(mesh_of(x)));
  return fmt::format("{}\n{}{} over {}", to_string(whole), drawn, describe_placements(x.tensor),
                     to_string(mesh_of(x)));
}

int distributed_index(lua_State* L) {
  auto& x = check_object<Distributed>(L, 1);
  if (lua_type(L, 2) == LUA_TNUMBER)
    fail_usage(
        "a distributed tensor has no rows to index; :gather() has it whole, :local_part() this rank's");
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  if (name == "dtype") return Convert<DType>::push(L, x.tensor.type.dtype);
  if (name == "shape") return Convert<Shape>::push(L, x.tensor.type.shape);
  if (name == "placements") return Convert<std::string>::push(L, describe_placements(x.tensor));
  if (name == "mesh") {
    push_object(L, MeshHandle(x.tensor.mesh));
    return 1;
  }
  if (name == "data" || name == "at" || name == "tolist")
    fail_usage(
        "a distributed tensor has no '{}': take :gather() for all of it, :local_part() for this rank's",
        name);
  return method_of(L, "a distributed tensor", name, {"dtype", "shape", "mesh", "placements"});
}

int refuse_to_set(lua_State* L) {
  fail_usage("nothing of a mesh or a distributed tensor can be set; x:gather() is a tensor that can");
}

int add(lua_State* L) { return distributed_arithmetic(L, Pointwise::add); }
int sub(lua_State* L) { return distributed_arithmetic(L, Pointwise::sub); }
int mul(lua_State* L) { return distributed_arithmetic(L, Pointwise::mul); }
int div(lua_State* L) { return distributed_arithmetic(L, Pointwise::div); }
int unm(lua_State* L) {
  auto results = call_distributed(L, op_named("neg"), {check_object<Distributed>(L, 1).tensor}, {});
  push_object(L, std::move(results.front()));
  return 1;
}

int power(lua_State* L) { return distributed_arithmetic(L, Pointwise::power); }

// native.explain(x): what its making took.
std::string explain(Distributed& x) {
  std::string text = to_string(*x.steps, mesh_of(x));
  if (!text.empty()) text.pop_back();
  return text;
}

// The mesh without axes.
MeshHandle mesh_of_this_rank(Host& host) {
  if (host.alone == nullptr)
    host.alone = std::make_shared<const DeviceMesh>(nullptr, nullptr, std::make_shared<MeshEager>(host.cpu),
                                                    MeshLayout{});
  return host.alone;
}

// The values of `graph` in the list at `index`.
std::vector<ValueId> values_at(lua_State* L, int index, const GraphHandle& graph) {
  std::vector<ValueId> ids;
  for (int i = 1; i <= list_size(L, index); ++i) {
    lua_rawgeti(L, index, i);
    const auto& value = check_object<ValueHandle>(L, lua_gettop(L));
    if (value.owner != graph) fail_usage("the value belongs to another graph");
    ids.push_back(value.id);
    lua_pop(L, 1);
  }
  return ids;
}

void require_given(const Graph& graph, const std::map<ValueId, DistributedTensor>& values) {
  for (const Node& node : graph.nodes)
    for (const ValueId id : node.inputs)
      if (id != kAbsent && graph.values[static_cast<size_t>(id)].producer < 0 && !values.contains(id))
        fail_usage("the graph reads {}, which was not given", graph.values[static_cast<size_t>(id)].name);
}

// native.run_on_mesh(graph, inputs, values, wanted, like) -> list of tensors. `values`: of the graph, which
// the inputs are; `like`: by result, the number of the input that it shall lie as; 0: as it is made.
int run_graph(lua_State* L) {
  auto& graph = check_object<GraphHandle>(L, 1);
  const std::vector<ValueId> ids = values_at(L, 3, graph), wanted = values_at(L, 4, graph);
  const auto like = Convert<std::vector<int>>::get(L, 5);
  if (list_size(L, 2) != static_cast<int>(ids.size()) || like.size() != wanted.size())
    fail_usage("run_on_mesh: {} inputs for {} values", list_size(L, 2), ids.size());
  MeshHandle mesh;
  for (size_t i = 0; i < ids.size(); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i) + 1);
    if (auto* x = to_object<Distributed>(L, lua_gettop(L))) mesh = x->tensor.mesh;
    lua_pop(L, 1);
  }
  for (const auto& [id, tensor] : graph->captured)
    if (tensor->mesh != nullptr) mesh = tensor->mesh;
  const bool on_mesh = mesh != nullptr;
  if (!on_mesh) mesh = mesh_of_this_rank(host_of(L));
  std::vector<DistributedTensor> inputs;
  std::map<ValueId, DistributedTensor> values;
  for (size_t i = 0; i < ids.size(); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i) + 1);
    inputs.push_back(distributed_at(L, lua_gettop(L), mesh).tensor);
    if (inputs.back().type != graph->graph.type(ids[i]))
      fail_usage("run_on_mesh: an input is {}, its value {}", to_string(inputs.back().type),
                 to_string(graph->graph.type(ids[i])));
    values.insert_or_assign(ids[i], inputs.back());
    lua_pop(L, 1);
  }
  for (const auto& [id, tensor] : graph->captured)
    values.insert_or_assign(id, tensor->mesh != nullptr ? *tensor : replicated(mesh, tensor->local));
  if (values.empty()) fail_usage("run_on_mesh: no inputs");
  require_given(graph->graph, values);
  std::vector<MeshStep> steps;
  run_on_mesh(graph->graph, values, wanted, &steps);
  const auto shared_steps = std::make_shared<const std::vector<MeshStep>>(std::move(steps));
  lua_createtable(L, static_cast<int>(wanted.size()), 0);
  for (size_t w = 0; w < wanted.size(); ++w) {
    const auto made = values.find(wanted[w]);
    if (made == values.end()) fail_usage("run_on_mesh: a value that is wanted was not made");
    DistributedTensor result = made->second;
    if (like[w] > 0 && like[w] <= static_cast<int>(inputs.size())) {
      Placements placements = inputs[static_cast<size_t>(like[w]) - 1].placements;
      for (AxisPlacement& each : placements)
        if (each.lies.is_partial()) each = {};
      if (!slices_of(*mesh, result.type.shape, placements))
        fail_usage("run_on_mesh: {} cannot lie as an input does", to_string(result.type));
      mesh->agree_on("het.gradient");
      result = redistribute(result, placements, "a gradient");
    }
    if (on_mesh)
      push_object(L, Distributed{std::move(result), shared_steps});
    else
      push_tensor(L, std::move(result.local));
    lua_rawseti(L, -2, static_cast<int>(w) + 1);
  }
  return 1;
}

}  // namespace

Distributed distributed_at(lua_State* L, int index, const MeshHandle& mesh) {
  if (auto* x = to_object<Distributed>(L, index)) return *x;
  return {replicated(mesh, check_object<Tensor>(L, index)), nullptr};
}

// Constants are attributes of a graph, of eight bytes for each number.
constexpr int64_t kMostConstants = 65536;

// A tensor as a constant of the graph.
ValueId constant_of(const GraphHandle& graph, const DistributedTensor& tensor, std::string_view op) {
  if (tensor.mesh != nullptr)
    fail_usage(
        "cannot {} a distributed tensor and a graph value inside `forward`; make it an input or a parameter",
        op);
  const Tensor& values = tensor.local;
  if (values.elements() > kMostConstants)
    fail_usage(
        "cannot {} {} and a graph value inside `forward`: constants have {} numbers at most; "
        "nn.constant makes it one of a layer, of any size",
        op, to_string(values.type()), kMostConstants);
  std::vector<double> numbers;
  for (int64_t i = 0; i < values.elements(); ++i) numbers.push_back(values.at(i));
  return graph->open().call(
      "constant", {},
      {{"values", numbers}, {"shape", values.shape()}, {"dtype", std::string(name_of(values.dtype()))}});
}

ValueId capture(const GraphHandle& graph, DistributedTensor tensor, std::string_view op) {
  if (!graph->captures) return constant_of(graph, tensor, op);
  const TensorType type = tensor.mesh != nullptr ? tensor.type : tensor.local.type();
  const ValueId id = graph->open().input(fmt::format("constant {}", graph->captured.size() + 1), type);
  graph->captured.emplace_back(id, std::make_shared<const DistributedTensor>(std::move(tensor)));
  return id;
}

std::vector<Distributed> call_distributed(lua_State* L, const OpDef& op,
                                          std::vector<DistributedTensor> inputs,
                                          const Attributes& attributes) {
  std::vector<MeshStep> steps;
  auto results = call_on_mesh(op, inputs, attributes, &steps);
  const auto shared_steps = std::make_shared<const std::vector<MeshStep>>(std::move(steps));
  std::vector<Distributed> handles;
  for (DistributedTensor& result : results) handles.push_back({std::move(result), shared_steps});
  return handles;
}

void add_mesh(lua_State* L) {
  make_class<MeshHandle>(
      L,
      {bind<&mesh_coordinate>("coordinate"), bind<&show_mesh>("__tostring"), bind<&mesh_time>("time"),
       bind<&same_mesh>("__eq"), bind<&refuse_to_set>("__newindex")},
      &mesh_index);
  add_mesh_collectives(L);
  make_class<Distributed>(
      L,
      {bind<&redistribute_to>("redistribute"), bind<&redistribute_to>("shard"), bind<&gather_it>("gather"),
       bind<&local_part>("local_part"), bind<&item>("item"), bind<&numel>("numel"), bind<&show>("__tostring"),
       bind<&add>("__add"), bind<&sub>("__sub"), bind<&mul>("__mul"), bind<&div>("__div"),
       bind<&unm>("__unm"), bind<&power>("__pow"), bind<&refuse_to_set>("__newindex")},
      &distributed_index);
  luaL_getmetatable(L, ClassName<Tensor>::value);
  lua_getfield(L, -1, "methods");
  set_functions(L, "tensor:", {bind<&shard>("shard")});
  lua_pop(L, 2);
  set_functions(L, "native.",
                {bind<&new_mesh>("mesh"), bind<&explain>("explain"), bind<&run_graph>("run_on_mesh")});
}

}  // namespace het::lua
