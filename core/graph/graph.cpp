#include "core/graph/graph.h"

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {

std::string_view name_of(Role role) {
  switch (role) {
    case Role::intermediate: return "intermediate";
    case Role::input: return "input";
    case Role::parameter: return "parameter";
    case Role::buffer: return "buffer";
  }
  return "unknown";
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "unknown";
}

bool is_state(const Value& value) { return value.role == Role::parameter || value.role == Role::buffer; }

bool is_of_step(const Value& value) {
  return is_state(value) || (value.role == Role::input && value.per_step && value.type.shape.empty());
}

bool is_cast(const Node& node) { return node.op->casts; }
bool is_activated(const Node& node) {
  return (node.op->preactivation_result >= 0 || node.op->preactivation_operand >= 0) &&
         node.attributes.get<std::string>("activation", "none") != "none";
}

std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<TensorType> types;
  types.reserve(ids.size());
  for (const ValueId id : ids) types.push_back(id == kAbsent ? TensorType{} : graph.type(id));
  return types;
}

std::vector<bool> read_by_other_layers(const Graph& graph) {
  std::vector<bool> read(graph.values.size());
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::update) continue;
    for (const ValueId id : node.inputs)
      if (id != kAbsent && graph.values[id].producer >= 0 &&
          graph.nodes[graph.values[id].producer].layer != node.layer)
        read[id] = true;
  }
  return read;
}

std::optional<ValueId> Graph::find(std::string_view name) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].role != Role::intermediate && values[i].name == name) return static_cast<ValueId>(i);
  return std::nullopt;
}

ValueId GraphBuilder::input(std::string name, TensorType type, bool per_step) {
  elements_of(type.shape);  // refuses a shape that no tensor has
  if (graph_.find(name)) fail_usage("the graph already has an input or state named '{}'", name);
  Value value;
  value.type = std::move(type);
  value.role = Role::input;
  value.name = std::move(name);
  value.per_step = per_step;
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::state(std::string name, TensorType type, Initial initial, Role role) {
  elements_of(type.shape);
  if (const auto found = graph_.find(name)) {
    const Value& known = graph_.values[*found];
    if (known.role != role || known.type != type)
      fail_usage("'{}' is already {} {} of the graph; it cannot also be {} {}", name, name_of(known.role),
                 to_string(known.type), name_of(role), to_string(type));
    return *found;
  }
  Value value;
  value.type = std::move(type);
  value.role = role;
  value.name = std::move(name);
  value.initial = initial;
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::parameter(std::string name, TensorType type, Initial initial) {
  return state(std::move(name), std::move(type), initial, Role::parameter);
}

ValueId GraphBuilder::buffer(std::string name, TensorType type, Initial initial) {
  return state(std::move(name), std::move(type), initial, Role::buffer);
}

void GraphBuilder::output(std::string name, ValueId value) {
  for (const Output& output : graph_.outputs)
    if (output.name == name) fail_usage("the graph already has an output named '{}'", name);
  graph_.outputs.push_back({std::move(name), value});
}

std::vector<ValueId> GraphBuilder::call_all(const OpDef& op, std::vector<ValueId> inputs,
                                            Attributes attributes) {
  for (const ValueId id : inputs)
    HET_REQUIRE(id == kAbsent || (id >= 0 && id < static_cast<ValueId>(graph_.values.size())), id);
  const std::vector<TensorType> types = types_of(graph_, inputs);
  const auto infer = [&] { return op.infer(OpCall{op, types, attributes}); };
  std::vector<TensorType> results =
      scope_path().empty() ? infer() : with_context([&] { return "layer " + scope_path(); }, infer);

  Node node;
  node.op = &op;
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.phase = phase_;
  node.layer = layer_;
  node.scope = scope();
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].present()) {
      node.outputs.push_back(kAbsent);
      continue;
    }
    Value value;
    value.type = std::move(results[i]);
    value.producer = static_cast<NodeId>(graph_.nodes.size());
    value.output = static_cast<int>(i);
    node.outputs.push_back(static_cast<ValueId>(graph_.values.size()));
    graph_.values.push_back(std::move(value));
  }
  std::vector<ValueId> outputs = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return outputs;
}

ValueId GraphBuilder::call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  return call_all(op_named(op), std::move(inputs), std::move(attributes)).front();
}

int32_t GraphBuilder::begin_layer(std::string name) {
  graph_.layers.push_back({std::move(name)});
  layer_ = static_cast<int32_t>(graph_.layers.size()) - 1;
  return layer_;
}

void GraphBuilder::push_scope(std::string_view name) {
  const std::string path =
      scope_path().empty() ? std::string(name) : fmt::format("{}.{}", scope_path(), name);
  for (size_t i = 0; i < graph_.scopes.size(); ++i)
    if (graph_.scopes[i] == path) {
      scope_stack_.push_back(static_cast<int32_t>(i));
      return;
    }
  graph_.scopes.push_back(path);
  scope_stack_.push_back(static_cast<int32_t>(graph_.scopes.size()) - 1);
}

void GraphBuilder::pop_scope() {
  if (scope_stack_.size() == 1) fail_usage("pop_scope without a push_scope");
  scope_stack_.pop_back();
}

std::vector<std::string> verify(const Graph& graph) {
  std::vector<std::string> problems;
  const auto valid = [&](ValueId id) { return id >= 0 && id < static_cast<ValueId>(graph.values.size()); };
  std::vector<bool> made(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) made[i] = graph.values[i].role != Role::intermediate;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    std::vector<TensorType> types;
    bool sound = true;
    for (const ValueId id : node.inputs) {
      if (id != kAbsent && (!valid(id) || !made[id])) {
        problems.push_back(fmt::format("node {} ({}) uses %{} before it is made", n, node.op->name, id));
        sound = false;
      }
      types.push_back(id == kAbsent || !valid(id) ? TensorType{} : graph.type(id));
    }
    if (sound) {
      try {
        const auto results = node.op->infer(OpCall{*node.op, types, node.attributes});
        for (size_t i = 0; i < node.outputs.size(); ++i)
          if (i >= results.size() ||
              (node.outputs[i] != kAbsent && results[i] != graph.type(node.outputs[i])))
            problems.push_back(fmt::format("node {} ({}): result {} is {}, its shape rule gives {}", n,
                                           node.op->name, i, to_string(graph.type(node.outputs[i])),
                                           i < results.size() ? to_string(results[i]) : "nothing"));
      } catch (const Error& error) {
        problems.push_back(fmt::format("node {}: {}", n, error.what()));
      }
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kAbsent) continue;
      if (!valid(id) || graph.values[id].producer != static_cast<NodeId>(n) ||
          graph.values[id].output != static_cast<int>(i))
        problems.push_back(
            fmt::format("node {} ({}): result %{} does not name it as its producer", n, node.op->name, id));
      else
        made[id] = true;
    }
    if (node.layer >= static_cast<int32_t>(graph.layers.size()))
      problems.push_back(fmt::format("node {} ({}) is in layer {}, there are {}", n, node.op->name,
                                     node.layer, graph.layers.size()));
  }
  for (const Output& output : graph.outputs)
    if (!valid(output.value) || !made[output.value])
      problems.push_back(fmt::format("output '{}' is never made", output.name));
  return problems;
}

std::string to_string(const Graph& graph) {
  const auto show = [&](ValueId id) {
    if (id == kAbsent) return std::string("-");
    const Value& value = graph.values[id];
    return value.role == Role::intermediate ? fmt::format("%{}", id) : fmt::format("@{}", value.name);
  };
  std::string text;
  for (const Value& value : graph.values)
    if (value.role != Role::intermediate)
      text += fmt::format("@{}: {} {}\n", value.name,
                          value.role == Role::input       ? "input"
                          : value.role == Role::parameter ? "parameter"
                                                          : "buffer",
                          to_string(value.type));
  for (const Node& node : graph.nodes) {
    std::string results, inputs;
    for (const ValueId id : node.outputs)
      results += fmt::format("{}{} {}", results.empty() ? "" : ", ", show(id),
                             id == kAbsent ? "absent" : to_string(graph.type(id)));
    for (const ValueId id : node.inputs) inputs += fmt::format("{}{}", inputs.empty() ? "" : ", ", show(id));
    text += fmt::format("{} = {}({})", results, node.op->name, inputs);
    if (!node.attributes.entries().empty()) text += " " + to_string(node.attributes);
    text += fmt::format("  # {}{}{}\n", graph.scopes[node.scope],
                        graph.scopes[node.scope].empty() ? "" : ", ", name_of(node.phase));
  }
  for (const Output& output : graph.outputs)
    text += fmt::format("output {} = {}\n", output.name, show(output.value));
  return text;
}

}  // namespace het
