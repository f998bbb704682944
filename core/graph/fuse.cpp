#include "core/graph/fuse.h"

#include <algorithm>
#include <optional>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"

namespace het {
namespace {

bool changes_state(const Graph& graph, const Node& node) {
  return std::any_of(node.op->in_place.begin(), node.op->in_place.end(), [&](const auto& pair) {
    return pair.second < static_cast<int>(node.inputs.size()) && node.inputs[pair.second] != kAbsent &&
           is_state(graph.values[node.inputs[pair.second]]);
  });
}

// The same graph with the nodes for which keep[i] holds, in order.
Graph with_nodes(Graph graph, const std::vector<bool>& keep) {
  size_t kept = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!keep[n]) continue;
    for (const ValueId id : graph.nodes[n].outputs)
      if (id != kAbsent) graph.values[id].producer = static_cast<NodeId>(kept);
    if (kept != n) graph.nodes[kept] = std::move(graph.nodes[n]);
    ++kept;
  }
  graph.nodes.erase(graph.nodes.begin() + static_cast<std::ptrdiff_t>(kept), graph.nodes.end());
  return graph;
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

std::vector<bool> needed_nodes(const Graph& graph) {
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
  return keep;
}

// The same graph without results that no kept node reads in `like`, where their operators can leave them out.
Graph without_unread(Graph graph, const Graph& like, const std::vector<bool>& keep) {
  std::vector<bool> read(like.values.size());
  for (const Output& output : like.outputs) read[output.value] = true;
  for (size_t n = 0; n < like.nodes.size(); ++n)
    for (const ValueId id : like.nodes[n].inputs)
      if (keep[n] && id != kAbsent) read[id] = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const std::vector<ValueId>& known = like.nodes[n].outputs;
    for (size_t o = 0; o < known.size(); ++o)
      if (has_bit(graph.nodes[n].op->optional_outputs, o) && known[o] != kAbsent && !read[known[o]])
        graph.nodes[n].outputs[o] = kAbsent;
  }
  return graph;
}

// How many nodes read each value, and outputs name it.
std::vector<int> uses_of(const Graph& graph) {
  std::vector<int> uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    // A node that reads one value twice counts once: the whole node takes it.
    std::vector<ValueId> distinct = node.inputs;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const ValueId id : distinct)
      if (id != kAbsent) ++uses[id];
  }
  for (const Output& output : graph.outputs) ++uses[output.value];
  return uses;
}

// Whether it computes the same in all micro-batches: that is done once a step.
bool is_same_in_all(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](ValueId id) { return id == kAbsent || is_of_step(graph.values[id]); });
}

// Whether it computes this one step and nothing else.
bool is_step(const Node& node, Pointwise code) { return single_step(*node.op, node.attributes) == code; }

// Activations given to the products that they are of.
class Activations {
 public:
  explicit Activations(Graph graph)
      : graph_(std::move(graph)),
        readers_(graph_.values.size()),
        leaves_(read_by_other_layers(graph_)),
        keep_(graph_.nodes.size(), true) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent) readers_[id].push_back(static_cast<NodeId>(n));
    for (const Output& output : graph_.outputs) readers_[output.value].push_back(-1);
  }

  Graph join() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (is_step(node, Pointwise::gelu_tanh)) take(static_cast<NodeId>(n));
      if (is_step(node, Pointwise::gelu_tanh_gradient)) take_gradient(static_cast<NodeId>(n));
    }
    return with_nodes(std::move(graph_), keep_);
  }

 private:
  // The node that makes a value and could make an activation of it as well, for node n, by the pre-activation
  // that its operator has; -1: there is none.
  NodeId product(int OpDef::*preactivation, ValueId of, NodeId n) const {
    const NodeId producer = graph_.values[of].producer;
    if (producer < 0) return -1;
    const Node &made = graph_.nodes[producer], &node = graph_.nodes[n];
    const bool beside = made.op->*preactivation >= 0 && !is_activated(made) && made.phase == node.phase &&
                        made.layer == node.layer && !goes_into_a_chain(node.outputs[0]) &&
                        !is_same_in_all(graph_, made);
    return beside ? producer : -1;
  }

  bool goes_into_a_chain(ValueId id) const {
    const std::vector<NodeId>& readers = readers_[id];
    return readers.size() == 1 && readers[0] >= 0 && graph_.nodes[readers[0]].op->elementwise;
  }

  bool is_gradient_at(NodeId reader, ValueId before) const {
    if (reader < 0) return false;
    const Node& node = graph_.nodes[reader];
    return is_step(node, Pointwise::gelu_tanh_gradient) && node.inputs[0] == before &&
           node.inputs[1] != before;
  }

  // gelu(x weightᵀ + bias)
  void take(NodeId n) {
    const ValueId before = graph_.nodes[n].inputs[0], y = graph_.nodes[n].outputs[0];
    const NodeId producer = product(&OpDef::preactivation_result, before, n);
    // Recomputing a layer keeps all results of a node if another layer reads one of them.
    if (producer < 0 || leaves_[y] != leaves_[before]) return;
    bool kept = false;
    for (const NodeId reader : readers_[before]) {
      if (reader == n) continue;
      if (!is_gradient_at(reader, before)) return;
      kept = true;
    }
    Node& linear = graph_.nodes[producer];
    const int result = linear.op->preactivation_result;
    linear.attributes.set("activation", std::string("gelu"));
    linear.outputs.resize(static_cast<size_t>(result) + 1, kAbsent);
    linear.outputs[0] = y;
    linear.outputs[static_cast<size_t>(result)] = kept ? before : kAbsent;
    graph_.values[y].producer = graph_.values[before].producer = producer;
    graph_.values[y].output = 0;
    graph_.values[before].output = result;
    keep_[n] = false;
  }

  // (dy weight) gelu'(before)
  void take_gradient(NodeId n) {
    const Node& node = graph_.nodes[n];
    const ValueId before = node.inputs[0], made = node.inputs[1], dx = node.outputs[0];
    const NodeId producer = product(&OpDef::preactivation_operand, made, n);
    if (producer < 0 || readers_[made].size() != 1 || graph_.type(before) != graph_.type(made) ||
        graph_.values[before].producer >= producer)
      return;
    Node& gradient = graph_.nodes[producer];
    gradient.attributes.set("activation", std::string("gelu"));
    const auto operand = static_cast<size_t>(gradient.op->preactivation_operand);
    gradient.inputs.resize(operand + 1, kAbsent);
    gradient.inputs[operand] = before;
    gradient.outputs = {dx};
    graph_.values[dx].producer = producer;
    keep_[n] = false;
  }

  Graph graph_;
  std::vector<std::vector<NodeId>> readers_;  // of values; -1: an output
  std::vector<bool> leaves_;                  // whether another layer reads the value
  std::vector<bool> keep_;
};

}  // namespace

Graph join_activations(const Graph& graph) { return Activations(graph).join(); }

Graph join_chains(const Graph& graph) {
  Graph result = graph;
  const std::vector<int> uses = uses_of(result);
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
      // (it would be computed many times), not what is the same in all micro-batches.
      if (!chain || producer.phase != node.phase || producer.layer != node.layer ||
          value.type.shape != result.type(node.outputs[0]).shape || is_same_in_all(result, producer))
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
  return with_nodes(std::move(result), keep);
}

namespace {

// Additions of whole values of one shape that stand alone, given to the operators beside them.
class Additions {
 public:
  explicit Additions(Graph graph)
      : graph_(std::move(graph)),
        uses_(uses_of(graph_)),
        leaves_(read_by_other_layers(graph_)),
        keep_(graph_.nodes.size(), true) {}

  Graph join() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op->adds_before >= 0) take_sum(static_cast<NodeId>(n));
      if (is_step(graph_.nodes[n], Pointwise::add)) give_result(static_cast<NodeId>(n));
    }
    return with_nodes(std::move(graph_), keep_);
  }

 private:
  // Whether node n can make the addition: stages are cut between layers.
  bool can_make(NodeId n, size_t operand, const Node& add) const {
    const Node& node = graph_.nodes[n];
    const bool free = node.inputs.size() <= operand || node.inputs[operand] == kAbsent;
    const TensorType& type = graph_.type(add.outputs[0]);
    return free && node.phase == add.phase && node.layer == add.layer &&
           std::all_of(add.inputs.begin(), add.inputs.end(),
                       [&](ValueId id) { return graph_.type(id) == type; }) &&
           !is_same_in_all(graph_, add);
  }

  // Give node n an operand, and the value of an addition as its result.
  void make(NodeId n, size_t operand, ValueId added, size_t output, ValueId sum) {
    Node& node = graph_.nodes[n];
    node.inputs.resize(std::max(node.inputs.size(), operand + 1), kAbsent);
    node.inputs[operand] = added;
    node.outputs.resize(std::max(node.outputs.size(), output + 1), kAbsent);
    node.outputs[output] = sum;
    keep_[graph_.values[sum].producer] = false;
    graph_.values[sum].producer = n;
    graph_.values[sum].output = static_cast<int>(output);
  }

  // norm(a + b), where nothing reads the sum before the norm does.
  void take_sum(NodeId n) {
    Node& node = graph_.nodes[n];
    const ValueId sum = node.inputs[0];
    const NodeId producer = graph_.values[sum].producer;
    if (producer < 0) return;
    const Node& add = graph_.nodes[producer];
    const auto operand = static_cast<size_t>(node.op->adds_before);
    if (!is_step(add, Pointwise::add) || !can_make(n, operand, add)) return;
    // Recomputing a layer keeps all results of a node if another layer reads one of them.
    if (leaves_[sum] != leaves_[node.outputs[0]]) return;
    for (NodeId reader = producer + 1; reader <= n; ++reader) {
      const std::vector<ValueId>& read = graph_.nodes[reader].inputs;
      if (std::count(read.begin(), read.end(), sum) > (reader == n ? 1 : 0)) return;
    }
    node.step_scopes = {add.scope};
    node.inputs[0] = add.inputs[0];
    make(n, operand, add.inputs[1], operand, sum);
  }

  // norm_gradient(..) + skip, where only the addition reads the first and the second is there before it.
  void give_result(NodeId n) {
    const Node& add = graph_.nodes[n];
    for (const size_t i : {size_t{1}, size_t{0}}) {
      const ValueId result = add.inputs[i], skip = add.inputs[1 - i];
      const NodeId producer = graph_.values[result].producer;
      if (producer < 0 || uses_[result] != 1 || graph_.values[result].output != 0 ||
          graph_.values[skip].producer >= producer)
        continue;
      const int operand = graph_.nodes[producer].op->adds_after;
      if (operand < 0 || !can_make(producer, static_cast<size_t>(operand), add)) continue;
      make(producer, static_cast<size_t>(operand), skip, 0, add.outputs[0]);
      return;
    }
  }

  Graph graph_;
  std::vector<int> uses_;
  std::vector<bool> leaves_;  // whether another layer reads the value
  std::vector<bool> keep_;
};

}  // namespace

Graph join_additions(const Graph& graph) { return Additions(graph).join(); }

Graph prune(const Graph& graph) { return prune(graph, graph); }

Graph prune(const Graph& graph, const Graph& like) {
  HET_REQUIRE(graph.nodes.size() == like.nodes.size(), graph.nodes.size(), like.nodes.size());
  const std::vector<bool> keep = needed_nodes(like);
  return with_nodes(without_unread(graph, like, keep), keep);
}

void join_classifiers(Graph& graph, const std::vector<std::pair<NodeId, NodeId>>& apart) {
  const std::vector<int> uses = uses_of(graph);
  const auto is_apart = [&](NodeId node) {
    return std::any_of(apart.begin(), apart.end(),
                       [&](const auto& range) { return node >= range.first && node < range.second; });
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    if (node.op->with_linear.empty() || uses[node.inputs[0]] != 1) continue;
    const Value& logits = graph.values[node.inputs[0]];
    if (logits.producer < 0 || is_apart(static_cast<NodeId>(n)) || is_apart(logits.producer)) continue;
    const double rows = logits.type.shape.size() < 2 ? 1 : static_cast<double>(logits.type.shape[0]);
    if (static_cast<double>(logits.type.bytes()) < rows * node.op->with_linear_from) continue;
    const Node& linear = graph.nodes[logits.producer];
    if (!linear.op->is_linear || linear.layer != node.layer ||
        linear.attributes.get<std::string>("activation", "none") != "none")
      continue;
    std::vector<ValueId> inputs = linear.inputs;
    inputs.resize(3, kAbsent);  // x, weight and bias
    inputs.insert(inputs.end(), node.inputs.begin() + 1, node.inputs.end());
    node.op = &op_named(node.op->with_linear);
    node.inputs = std::move(inputs);
  }
}

Graph join(const Graph& graph) { return join_additions(join_chains(join_activations(graph))); }

Graph fuse(const Graph& graph) { return join(prune(graph)); }

}  // namespace het
