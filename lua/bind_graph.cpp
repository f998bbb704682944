// native.graph, its values, and native.op on them.
#include <algorithm>

#include "core/base/nearest.h"
#include "core/graph/custom_gradient.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "lua/distributed.h"
#include "lua/objects.h"
#include "lua/state.h"

namespace het::lua {
GraphBuilder& GraphObject::open() {
  if (finished)
    fail_usage(
        "a value of a graph is computed with only while its layer is described; this graph is finished");
  return builder;
}

namespace {

GraphHandle new_graph() { return std::make_shared<GraphObject>(); }

Initial initial_at(lua_State* L, int index) {
  Initial initial;
  if (lua_isnoneornil(L, index)) return initial;
  const std::string kind = field<std::string>(L, index, "kind").value_or("zeros");
  initial.scale = field<double>(L, index, "scale").value_or(0);
  if (kind == "zeros")
    initial.kind = Initial::Kind::zeros;
  else if (kind == "ones")
    initial.kind = Initial::Kind::ones;
  else if (kind == "normal")
    initial.kind = Initial::Kind::normal;
  else if (kind == "uniform")
    initial.kind = Initial::Kind::uniform;
  else
    fail_usage("'{}' is not a way to initialise; there are zeros, ones, normal, uniform", kind);
  return initial;
}

TensorType type_at(lua_State* L, int dtype, int shape) {
  TensorType type{Convert<DType>::get(L, dtype), Convert<Shape>::get(L, shape)};
  elements_of(type.shape);
  return type;
}

int graph_input(lua_State* L) {  // graph, name, dtype, shape, per_step
  auto& graph = check_object<GraphHandle>(L, 1);
  const ValueId id =
      graph->open().input(Convert<std::string>::get(L, 2), type_at(L, 3, 4), lua_toboolean(L, 5) != 0);
  push_object(L, ValueHandle{graph, id});
  return 1;
}
int graph_parameter(lua_State* L) {  // graph, name, dtype, shape, initial, hint
  auto& graph = check_object<GraphHandle>(L, 1);
  const ValueId id =
      graph->open().parameter(Convert<std::string>::get(L, 2), type_at(L, 3, 4), initial_at(L, 5));
  if (lua_istable(L, 6)) {  // { [mesh axis] = dimension }
    std::vector<ShardingHint>& hints = graph->graph.values[static_cast<size_t>(id)].hints;
    hints.clear();
    lua_pushnil(L);
    while (lua_next(L, 6) != 0) {
      if (lua_type(L, -2) != LUA_TSTRING) fail_usage("a hint names a mesh axis");
      hints.push_back({lua_tostring(L, -2), Convert<int64_t>::get(L, lua_gettop(L))});
      lua_pop(L, 1);
    }
  }
  push_object(L, ValueHandle{graph, id});
  return 1;
}
int graph_buffer(lua_State* L) {
  auto& graph = check_object<GraphHandle>(L, 1);
  const ValueId id =
      graph->open().buffer(Convert<std::string>::get(L, 2), type_at(L, 3, 4), initial_at(L, 5));
  push_object(L, ValueHandle{graph, id});
  return 1;
}

void require_own(const GraphHandle& graph, const ValueHandle& value) {
  if (value.owner != graph) fail_usage("the value belongs to another graph");
}

void graph_output(GraphHandle& graph, std::string name, ValueHandle& value) {
  require_own(graph, value);
  graph->open().output(std::move(name), value.id);
}
int graph_begin_layer(GraphHandle& graph, std::string name) {
  return graph->open().begin_layer(std::move(name));
}
// Nodes from here on belong to the layer of this index again.
void graph_enter_layer(GraphHandle& graph, int layer) {
  GraphBuilder& builder = graph->open();
  const auto count = static_cast<int>(builder.graph().layers.size());
  if (layer < 0 || layer >= count) fail_usage("there is no layer {}; there are {}", layer, count);
  builder.set_layer(layer);
}
void graph_push_scope(GraphHandle& graph, std::string name) { graph->open().push_scope(name); }
void graph_pop_scope(GraphHandle& graph) { graph->open().pop_scope(); }
void graph_set_phase(GraphHandle& graph, std::string name) {
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::update})
    if (name_of(phase) == name) return graph->open().set_phase(phase);
  fail_usage("'{}' is not a phase; there are forward, backward, update", name);
}

int graph_differentiate(lua_State* L) {  // -> {[parameter name] = gradient}
  auto& graph = check_object<GraphHandle>(L, 1);
  auto& loss = check_object<ValueHandle>(L, 2);
  require_own(graph, loss);
  graph->open();
  const auto gradients = differentiate(graph->graph, loss.id);
  lua_newtable(L);
  for (const auto& [parameter, gradient] : gradients) {
    if (gradient == kAbsent) continue;
    Convert<std::string>::push(L, graph->graph.values[parameter].name);
    push_object(L, ValueHandle{graph, gradient});
    lua_rawset(L, -3);
  }
  return 1;
}

void graph_join_classifiers(GraphHandle& graph, std::vector<std::vector<NodeId>> apart) {
  std::vector<std::pair<NodeId, NodeId>> ranges;
  for (const std::vector<NodeId>& range : apart) {
    if (range.size() != 2) fail_usage("a range of nodes is {{ first, last }}");
    ranges.emplace_back(range[0], range[1]);
  }
  graph->open();
  join_classifiers(graph->graph, ranges);
}

// Tensors beside its values become inputs, which native.run_on_mesh gives it.
void graph_capture(GraphHandle& graph) { graph->captures = true; }

ValueId own_value(lua_State* L, const GraphHandle& graph, int index) {
  auto& value = check_object<ValueHandle>(L, index);
  require_own(graph, value);
  return value.id;
}

// Calls `backward` of the record, whose nodes then have this layer and scope.
std::vector<ValueId> call_backward(lua_State* L, const GraphHandle& graph, int record, size_t count,
                                   ValueId gradient, int32_t layer, int32_t scope) {
  GraphBuilder& builder = graph->builder;
  const Phase phase = builder.phase();
  const int32_t own_layer = builder.layer(), own_scope = builder.scope();
  builder.set_phase(Phase::backward);
  builder.set_layer(layer);
  builder.set_scope(scope);
  const int top = lua_gettop(L);
  lua_getfield(L, record, "backward");
  push_object(L, ValueHandle{graph, gradient});
  call(L, 1, static_cast<int>(count));
  builder.set_phase(phase);
  builder.set_layer(own_layer);
  builder.set_scope(own_scope);
  std::vector<ValueId> gradients;
  for (size_t i = 0; i < count; ++i) {
    const int at = top + 1 + static_cast<int>(i);
    gradients.push_back(lua_toboolean(L, at) == 0 ? kAbsent : own_value(L, graph, at));
  }
  lua_settop(L, top);
  return gradients;
}

// Of { first =, last =, inputs = {values}, output =, backward = function(gradient) } at an index.
CustomGradient custom_at(lua_State* L, const GraphHandle& graph, int record) {
  CustomGradient custom;
  custom.first = static_cast<NodeId>(field<int64_t>(L, record, "first").value_or(0));
  custom.end = static_cast<NodeId>(field<int64_t>(L, record, "last").value_or(0));
  lua_getfield(L, record, "output");
  custom.output = own_value(L, graph, lua_gettop(L));
  lua_getfield(L, record, "inputs");
  const int inputs = lua_gettop(L);
  for (int i = 1; i <= list_size(L, inputs); ++i) {
    lua_rawgeti(L, inputs, i);
    custom.inputs.push_back(own_value(L, graph, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_pop(L, 2);
  const auto nodes = static_cast<NodeId>(graph->graph.nodes.size());
  if (custom.first < 0 || custom.first >= custom.end || custom.end > nodes)
    fail_usage("a gradient of your own is of nodes {} to {}; the graph has {}", custom.first, custom.end,
               nodes);
  if (const std::string problem = problem_of(graph->graph, custom); !problem.empty())
    fail_usage("op.custom_gradient: forward: {}", problem);
  const size_t count = custom.inputs.size();
  custom.gradient = [=](ValueId gradient, int32_t layer, int32_t scope) {
    return call_backward(L, graph, record, count, gradient, layer, scope);
  };
  return custom;
}

int64_t node_count(ValueHandle& value) { return static_cast<int64_t>(value.owner->graph.nodes.size()); }

// Whether a value is computed from another one of its graph.
bool depends_on(ValueHandle& value, ValueHandle& other) {
  require_own(value.owner, other);
  const Graph& graph = value.owner->graph;
  std::vector<bool> seen(graph.values.size(), false);
  std::vector<ValueId> open{value.id};
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (id == kAbsent || seen[id]) continue;
    if (id == other.id) return true;
    seen[id] = true;
    if (const NodeId producer = graph.values[id].producer; producer >= 0)
      open.insert(open.end(), graph.nodes[producer].inputs.begin(), graph.nodes[producer].inputs.end());
  }
  return false;
}

int graph_gradients(lua_State* L) {  // graph, scalar, {values}, {records} -> {[i] = gradient}
  auto& graph = check_object<GraphHandle>(L, 1);
  auto& scalar = check_object<ValueHandle>(L, 2);
  require_own(graph, scalar);
  std::vector<ValueId> values, wanted;
  for (int i = 1; i <= list_size(L, 3); ++i) {
    lua_rawgeti(L, 3, i);
    auto& value = check_object<ValueHandle>(L, lua_gettop(L));
    require_own(graph, value);
    values.push_back(value.id);
    if (is_float(graph->graph.type(value.id).dtype)) wanted.push_back(value.id);
    lua_pop(L, 1);
  }
  graph->open();
  std::vector<CustomGradient> custom;
  const int records = lua_istable(L, 4) ? list_size(L, 4) : 0;
  luaL_checkstack(L, records + 32, "gradients of your own");
  for (int i = 1; i <= records; ++i) {  // they stay on the stack
    lua_rawgeti(L, 4, i);
    if (!lua_istable(L, lua_gettop(L))) fail_usage("a gradient of your own is a table");
    custom.push_back(custom_at(L, graph, lua_gettop(L)));
  }
  const auto gradients =
      wanted.empty() ? std::map<ValueId, ValueId>{} : differentiate(graph->graph, scalar.id, wanted, custom);
  lua_newtable(L);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto found = gradients.find(values[i]);
    if (found == gradients.end() || found->second == kAbsent) continue;
    push_object(L, ValueHandle{graph, found->second});
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

int graph_parameters(lua_State* L) {  // in order of declaration
  auto& graph = check_object<GraphHandle>(L, 1);
  lua_newtable(L);
  int count = 0;
  for (size_t i = 0; i < graph->graph.values.size(); ++i) {
    const Value& value = graph->graph.values[i];
    if (value.role != Role::parameter) continue;
    lua_newtable(L);
    set_field(L, "name", value.name);
    set_field(L, "dtype", std::string(name_of(value.type.dtype)));
    set_list(L, "shape", value.type.shape);
    push_object(L, ValueHandle{graph, static_cast<ValueId>(i)});
    lua_setfield(L, -2, "value");
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

std::vector<std::string> graph_buffers(GraphHandle& graph) {  // names of its states that are not trained
  std::vector<std::string> names;
  for (const Value& value : graph->graph.values)
    if (value.role == Role::buffer) names.push_back(value.name);
  return names;
}

std::vector<std::string> graph_layers(GraphHandle& graph) {
  std::vector<std::string> names;
  for (const Layer& layer : graph->graph.layers) names.push_back(layer.name);
  return names;
}

int graph_cost(lua_State* L) {  // of one micro-batch, forward and backward
  auto& whole = check_object<GraphHandle>(L, 1);
  const Graph graph = prune(whole->graph);
  Cost total;
  std::vector<double> by_layer(graph.layers.size(), 0.0);
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::update) continue;
    const Cost cost = cost_of(graph, node);
    total.flops += cost.flops;
    total.bytes += cost.bytes;
    if (node.layer >= 0) by_layer[node.layer] += cost.flops;
  }
  lua_newtable(L);
  set_field(L, "flops", total.flops);
  set_field(L, "bytes", total.bytes);
  set_list(L, "by_layer", by_layer);
  return 1;
}

std::string graph_to_string(GraphHandle& graph) { return to_string(graph->graph); }
std::vector<std::string> graph_verify(GraphHandle& graph) { return verify(graph->graph); }

std::string value_to_string(ValueHandle& value) {
  const Value& known = value.owner->graph.values[value.id];
  return fmt::format("{}%{} {}", known.name.empty() ? "" : known.name + " ", value.id, to_string(known.type));
}

int value_index(lua_State* L) {
  auto& value = check_object<ValueHandle>(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  const Value& known = value.owner->graph.values[value.id];
  if (name == "dtype") return Convert<DType>::push(L, known.type.dtype);
  if (name == "shape") return Convert<Shape>::push(L, known.type.shape);
  if (name == "name") return Convert<std::string>::push(L, known.name);
  return method_of(L, "a value of a graph", name,
                   {"dtype", "shape", "name"});  // its graph is not for recipes
}

// On the stack, for as many results: a split may have more than Lua can return.
void make_room_for(lua_State* L, const OpDef& op, size_t results) {
  constexpr size_t kMost = 4000;
  if (results > kMost || !lua_checkstack(L, static_cast<int>(results) + 8))
    fail_usage("{}: {} results are more than can be returned at once", op.name, results);
}

// The dtype of the first operand that has one: what a number beside it is taken as.
DType dtype_beside(const OpDef& op, const GraphHandle& graph, const std::vector<ValueId>& values,
                   const std::vector<Tensor>& tensors, const std::vector<DistributedTensor>& distributed) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (graph && values[i] != kAbsent) return graph->graph.type(values[i]).dtype;
    if (tensors[i].present()) return tensors[i].dtype();
    if (distributed[i].mesh != nullptr) return distributed[i].type.dtype;
  }
  fail_usage("{}: numbers alone were given; a tensor or a value of a graph is needed ({})", op.name,
             op.signature);
}

// native.op(name, inputs, attributes): on values, appended to their graph; on tensors, run at once. An
// operator without inputs takes the graph in place of the inputs, or nothing to run at once.
int op(lua_State* L) {
  const OpDef& definition = op_named(Convert<std::string>::get(L, 1));
  const Attributes attributes = Convert<Attributes>::get(L, 3);
  GraphHandle graph;
  if (auto* given = to_object<GraphHandle>(L, 2)) graph = *given;
  const int count = lua_istable(L, 2) ? list_size(L, 2) : 0;
  constexpr int kMostOperands = 65536;
  if (count > kMostOperands)
    fail_usage("{}: {} operands are more than {}", definition.name, count, kMostOperands);
  std::vector<ValueId> values;
  std::vector<Tensor> tensors;
  MeshHandle mesh;
  std::vector<DistributedTensor> distributed(static_cast<size_t>(count));
  std::vector<std::pair<size_t, double>> numbers;  // operands that are numbers
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 2, i);
    const int at = lua_gettop(L);
    if (auto* value = to_object<ValueHandle>(L, at)) {
      if (graph && graph != value->owner)
        fail_usage("{}: its operands belong to different graphs", definition.name);
      graph = value->owner;
      values.push_back(value->id);
      tensors.emplace_back();
    } else if (auto* tensor = to_object<Tensor>(L, at)) {
      tensors.push_back(*tensor);
      values.push_back(kAbsent);
    } else if (auto* x = to_object<DistributedHandle>(L, at)) {
      mesh = x->tensor.mesh;
      distributed[static_cast<size_t>(i) - 1] = x->tensor;
      values.push_back(kAbsent);
      tensors.emplace_back();
    } else if (lua_type(L, at) == LUA_TNUMBER) {
      numbers.emplace_back(tensors.size(), lua_tonumber(L, at));
      values.push_back(kAbsent);
      tensors.emplace_back();
    } else if (lua_type(L, at) == LUA_TBOOLEAN && !lua_toboolean(L, at)) {
      values.push_back(kAbsent);
      tensors.emplace_back();
    } else {
      fail_usage("{}: operand {} is a {}; a tensor or a value of a graph is needed ({})", definition.name, i,
                 lua_typename(L, lua_type(L, at)), definition.signature);
    }
    lua_pop(L, 1);
  }
  for (const auto& [i, number] : numbers) {
    tensors[i] = Tensor({dtype_beside(definition, graph, values, tensors, distributed), {}});
    tensors[i].set(0, number);
  }
  if (graph) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].present()) distributed[i].local = tensors[i];
      if (distributed[i].local.present())
        values[i] = capture(graph, std::move(distributed[i]), definition.name);
    }
    const auto results = graph->open().call_all(definition, std::move(values), attributes);
    make_room_for(L, definition, results.size());
    for (const ValueId id : results) {
      if (id == kAbsent)
        lua_pushboolean(L, false);
      else
        push_object(L, ValueHandle{graph, id});
    }
    return static_cast<int>(results.size());
  }
  if (mesh != nullptr) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].present()) distributed[i] = replicated(mesh, tensors[i]);
    auto results = call_distributed(L, definition, std::move(distributed), attributes);
    make_room_for(L, definition, results.size());
    for (DistributedHandle& result : results) {
      if (result.tensor.mesh != nullptr)
        push_object(L, std::move(result));
      else
        lua_pushboolean(L, false);
    }
    return static_cast<int>(results.size());
  }
  auto results = host_of(L).eager->call(definition, tensors, attributes);
  const int made = static_cast<int>(results.size());
  make_room_for(L, definition, results.size());
  for (Tensor& result : results) {
    if (result.present())
      push_tensor(L, std::move(result));
    else
      lua_pushboolean(L, false);
  }
  return made;
}

// native.operators() -> list of {name, signature, doc, elementwise, attributes}; without those of several
// calls at once, which lowering alone makes.
int operators(lua_State* L) {
  lua_newtable(L);
  int count = 0;
  for (const OpDef& definition : op_table()) {
    if (definition.in_place_group.first > 0) continue;
    lua_newtable(L);
    set_field(L, "name", std::string(definition.name));
    set_field(L, "signature", std::string(definition.signature));
    set_field(L, "doc", std::string(definition.doc));
    set_field(L, "elementwise", definition.elementwise);
    set_list(L, "attributes",
             std::vector<std::string>(definition.attributes.begin(), definition.attributes.end()));
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

}  // namespace

int method_of(lua_State* L, std::string_view what, std::string_view name, std::vector<std::string> fields) {
  const int methods = lua_upvalueindex(2);
  lua_pushlstring(L, name.data(), name.size());
  lua_rawget(L, methods);
  if (!lua_isnil(L, -1)) return 1;
  if (find_op(name)) fail_usage("{} has no '{}'; het.op.{}(x) computes it", what, name, name);
  lua_pushnil(L);
  while (lua_next(L, methods) != 0) {
    fields.emplace_back(lua_tostring(L, -2));
    lua_pop(L, 1);
  }
  std::sort(fields.begin(), fields.end());
  const std::string nearest = nearest_name(name, fields);
  fail_usage("{} has no '{}'; {}", what, name,
             nearest.empty() ? fmt::format("it has {}; operators are functions of het.op, such as op.reshape",
                                           fmt::join(fields, ", "))
                             : fmt::format("did you mean '{}'?", nearest));
}

void add_graph(lua_State* L) {
  make_class<GraphHandle>(
      L,
      {bind<&graph_input>("input"), bind<&graph_parameter>("parameter"), bind<&graph_buffer>("buffer"),
       bind<&graph_output>("output"), bind<&graph_begin_layer>("begin_layer"),
       bind<&graph_enter_layer>("enter_layer"), bind<&graph_push_scope>("push_scope"),
       bind<&graph_pop_scope>("pop_scope"), bind<&graph_set_phase>("set_phase"),
       bind<&graph_differentiate>("differentiate"), bind<&graph_gradients>("gradients"),
       bind<&graph_join_classifiers>("join_classifiers"), bind<&graph_capture>("capture"),
       bind<&graph_parameters>("parameters"), bind<&graph_buffers>("buffers"), bind<&graph_layers>("layers"),
       bind<&graph_cost>("cost"), bind<&graph_verify>("verify"), bind<&graph_to_string>("__tostring")});
  make_class<ValueHandle>(L, {bind<&value_to_string>("__tostring")}, &value_index);
  set_functions(L, "native.",
                {bind<&new_graph>("graph"), bind<&op>("op"), bind<&operators>("operators"),
                 bind<&node_count>("node_count"), bind<&depends_on>("depends_on")});
}

}  // namespace het::lua
