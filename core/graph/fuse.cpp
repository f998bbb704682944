#include "core/graph/fuse.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"

namespace het {
namespace {

bool is_state(const Graph& graph, ValueId id) {
  return graph.values[id].role == Role::parameter || graph.values[id].role == Role::buffer;
}

bool changes_state(const Graph& graph, const Node& node) {
  return std::any_of(node.op->in_place.begin(), node.op->in_place.end(), [&](const auto& pair) {
    return pair.second < static_cast<int>(node.inputs.size()) && node.inputs[pair.second] != kAbsent &&
           is_state(graph, node.inputs[pair.second]);
  });
}

// The same graph with the nodes for which keep[i] holds, in order.
Graph with_nodes(const Graph& graph, const std::vector<bool>& keep) {
  Graph result = graph;
  result.nodes.clear();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!keep[n]) continue;
    for (const ValueId id : graph.nodes[n].outputs)
      if (id != kAbsent) result.values[id].producer = static_cast<NodeId>(result.nodes.size());
    result.nodes.push_back(graph.nodes[n]);
  }
  return result;
}

// An elementwise node under construction: a program over graph values.
struct Chain {
  PointwiseProgram program;
  std::vector<ValueId> inputs;
  std::vector<int32_t> scopes;  // of the steps
};

// `producer` computed inside `user` wherever `user` reads its result `value`. nullopt when the program would
// grow past what devices take.
std::optional<Chain> merge(const Chain& producer, ValueId value, const Chain& user) {
  Chain merged;
  merged.inputs = producer.inputs;
  for (const ValueId id : user.inputs)
    if (id != value && std::find(merged.inputs.begin(), merged.inputs.end(), id) == merged.inputs.end())
      merged.inputs.push_back(id);
  const int inputs = static_cast<int>(merged.inputs.size());
  const int steps = static_cast<int>(producer.program.steps.size());
  if (inputs > kMaxPointwiseInputs ||
      steps + static_cast<int>(user.program.steps.size()) > kMaxPointwiseSteps)
    return std::nullopt;

  merged.program.inputs = inputs;
  merged.scopes = producer.scopes;
  merged.scopes.insert(merged.scopes.end(), user.scopes.begin(), user.scopes.end());
  const auto append = [&](const Chain& part, const auto& source_of_input, int first_step) {
    for (PointwiseStep step : part.program.steps) {
      for (int* source : {&step.a, &step.b}) {
        if (*source < 0) continue;
        *source = *source < part.program.inputs ? source_of_input(*source)
                                                : inputs + first_step + (*source - part.program.inputs);
      }
      merged.program.steps.push_back(step);
    }
  };
  const auto place_of = [&](ValueId id) {
    return static_cast<int>(std::find(merged.inputs.begin(), merged.inputs.end(), id) -
                            merged.inputs.begin());
  };
  append(
      producer, [&](int i) { return place_of(producer.inputs[i]); }, 0);
  const int result = producer.program.results[0];
  const int made = result < producer.program.inputs ? place_of(producer.inputs[result])
                                                    : inputs + (result - producer.program.inputs);
  append(
      user, [&](int i) { return user.inputs[i] == value ? made : place_of(user.inputs[i]); }, steps);
  for (const int source : user.program.results)
    merged.program.results.push_back(
        source < user.program.inputs ? (user.inputs[source] == value ? made : place_of(user.inputs[source]))
                                     : inputs + steps + (source - user.program.inputs));
  return merged;
}

}  // namespace

Graph prune(const Graph& graph) {
  std::vector<bool> keep(graph.nodes.size());
  std::vector<bool> needed(graph.values.size());
  for (const Output& output : graph.outputs) needed[output.value] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    keep[n] =
        changes_state(graph, node) || std::any_of(node.outputs.begin(), node.outputs.end(),
                                                  [&](ValueId id) { return id != kAbsent && needed[id]; });
    if (keep[n])
      for (const ValueId id : node.inputs)
        if (id != kAbsent) needed[id] = true;
  }
  return with_nodes(graph, keep);
}

Graph fuse(const Graph& graph) {
  Graph result = prune(graph);
  std::vector<int> uses(result.values.size(), 0);
  for (const Node& node : result.nodes) {
    // A node that reads one value twice counts once: the whole node takes it.
    std::vector<ValueId> distinct = node.inputs;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const ValueId id : distinct)
      if (id != kAbsent) ++uses[id];
  }
  for (const Output& output : result.outputs) ++uses[output.value];

  std::vector<std::optional<Chain>> chains(result.nodes.size());
  std::vector<bool> keep(result.nodes.size(), true);
  for (size_t n = 0; n < result.nodes.size(); ++n) {
    Node& node = result.nodes[n];
    std::vector<TensorType> inputs, outputs;
    bool whole = true;
    for (const ValueId id : node.inputs) {
      whole = whole && id != kAbsent;
      if (id != kAbsent) inputs.push_back(result.type(id));
    }
    for (const ValueId id : node.outputs)
      if (id != kAbsent) outputs.push_back(result.type(id));
    if (!whole || node.outputs.size() != 1 || !can_fuse(*node.op, inputs, outputs)) continue;
    PointwiseProgram program = pointwise_program(*node.op, node.attributes, node.inputs.size());
    std::vector<int32_t> scopes = node.step_scopes;
    scopes.resize(program.steps.size(), node.scope);
    chains[n] = Chain{std::move(program), node.inputs, std::move(scopes)};

    bool changed = false;
    for (const ValueId id : node.inputs) {
      const Value& value = result.values[id];
      if (value.role != Role::intermediate || uses[id] != 1 || !keep[value.producer]) continue;
      const Node& producer = result.nodes[value.producer];
      const auto& chain = chains[value.producer];
      // Not across phases or layers (stages are cut there), not where the value is repeated by broadcasting
      // (it would be computed many times), not what is computed from state alone (that is done once a step).
      if (!chain || producer.phase != node.phase || producer.layer != node.layer ||
          value.type.shape != result.type(node.outputs[0]).shape ||
          std::all_of(producer.inputs.begin(), producer.inputs.end(),
                      [&](ValueId i) { return is_state(result, i); }))
        continue;
      if (auto merged = merge(*chain, id, *chains[n])) {
        chains[n] = std::move(merged);
        keep[value.producer] = false;
        changed = true;
      }
    }
    if (changed) {
      chains[n]->program.dtypes = {result.type(node.outputs[0]).dtype};
      node.op = &op_named("fused");
      node.attributes = encode(chains[n]->program);
      node.inputs = chains[n]->inputs;
      node.step_scopes = chains[n]->scopes;
    }
  }
  return with_nodes(result, keep);
}

}  // namespace het
