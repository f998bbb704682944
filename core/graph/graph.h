// The single-device model as data: a list of operator calls in execution order over values of static shape.
// Forward, backward and update stand in one Graph, kept apart by phase; each node carries the layer it came
// from, which is what planners cut by. A Graph holds no tensors and computes nothing.
//
// One Graph describes one micro-batch and one step. Nodes of the forward and backward phases run once for
// each micro-batch; nodes of the update phase run once a step. A value made in a micro-batch and used in the
// update phase, or named as an output, means its *sum over the micro-batches* of the step. Nodes that depend
// on nothing but state, and perhaps on numbers of the step, run once a step whatever their phase.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/attributes.h"
#include "core/tensor/shape.h"
#include "core/tensor/slice.h"

namespace het {

struct OpDef;

using ValueId = int32_t;                // index into Graph::values
using NodeId = int32_t;                 // index into Graph::nodes
inline constexpr ValueId kAbsent = -1;  // an optional operand that is not there

enum class Phase : uint8_t { forward, backward, update };
std::string_view name_of(Phase phase);

enum class Role : uint8_t {
  intermediate,  // made by a node
  input,         // written from outside, once for each micro-batch (or once a step: per_step)
  parameter,     // state that is trained
  buffer,        // state that is not: optimizer moments, key-value caches
};

std::string_view name_of(Role role);

// How state starts. Normal draws are keyed by (seed, name), so that no plan changes them.
struct Initial {
  enum class Kind : uint8_t { zeros, ones, normal, uniform } kind = Kind::zeros;
  double scale = 0;  // standard deviation, or half-width of the uniform interval
  bool operator==(const Initial&) const = default;
};

// How a person wants a parameter to lie over the ranks of a mesh axis.
struct ShardingHint {
  std::string axis;
  int64_t dim = -1;  // which is cut; -1: none, every rank has all of it
  bool operator==(const ShardingHint&) const = default;
};

struct Value {
  TensorType type;
  Role role = Role::intermediate;
  std::string name;  // of inputs and state: unique; of intermediates: may be empty
  NodeId producer = -1;
  int output = 0;                    // which output of the producer
  Initial initial;                   // of state
  bool per_step = false;             // of inputs: the same for all micro-batches
  std::optional<TensorSlice> slice;  // of state: what of a tensor this rank has; none: all of it
  std::vector<ShardingHint> hints;   // of parameters, for whoever plans how the graph is cut
};

// State, or a single number that is given once a step: what depends on nothing else is the same in all
// micro-batches.
bool is_state(const Value& value);
bool is_of_step(const Value& value);

struct Node {
  const OpDef* op = nullptr;
  Attributes attributes;
  std::vector<ValueId> inputs;  // kAbsent for optional operands not given
  std::vector<ValueId> outputs;
  Phase phase = Phase::forward;
  int32_t layer = -1;  // index into Graph::layers; -1: no layer
  int32_t scope = 0;   // index into Graph::scopes: "blocks.3.attention"
  // Of a node made by fuse(): the scope that each step of a `fused` node's program came from, or that of the
  // addition before another operator; empty otherwise.
  std::vector<int32_t> step_scopes;
};

// Whether it makes a copy of its first operand in another precision: cast or stochastic_cast.
bool is_cast(const Node& node);

// Whether it makes an activation of its product: linear and linear_input_gradient.
bool is_activated(const Node& node);

// A unit that a plan may place: the embedding, one block, the head.
struct Layer {
  std::string name;
  bool operator==(const Layer&) const = default;
};

struct Output {
  std::string name;
  ValueId value;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Layer> layers;
  std::vector<std::string> scopes{""};
  std::vector<Output> outputs;

  const TensorType& type(ValueId id) const { return values[id].type; }
  std::optional<ValueId> find(std::string_view name) const;  // an input or state by name
};

// Types of values, absent ones with dtype none.
std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& ids);

// Of each value, whether a node of another layer reads it; the update phase aside.
std::vector<bool> read_by_other_layers(const Graph& graph);

// Appends to a Graph. Every check of shapes happens here, with both shapes and the scope in the message.
class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph) : graph_(graph) {}

  Graph& graph() { return graph_; }
  const TensorType& type(ValueId id) const { return graph_.type(id); }

  ValueId input(std::string name, TensorType type, bool per_step = false);
  // State is declared once: a second parameter of the same name and type is the same value (tied weights).
  ValueId parameter(std::string name, TensorType type, Initial initial);
  ValueId buffer(std::string name, TensorType type, Initial initial = {});
  void output(std::string name, ValueId value);

  // Append a call. Throws Error(usage) when the operator's shape rule refuses it.
  std::vector<ValueId> call_all(const OpDef& op, std::vector<ValueId> inputs, Attributes attributes = {});
  // The same by name, for operators with one output (or when only the first matters).
  ValueId call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {});

  // Nodes appended from now on belong to this phase, layer and scope.
  void set_phase(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }
  int32_t begin_layer(std::string name);  // opens a new layer; returns its index
  void set_layer(int32_t layer) { layer_ = layer; }
  int32_t layer() const { return layer_; }
  void push_scope(std::string_view name);  // "blocks.3" then "attention"
  void pop_scope();
  int32_t scope() const { return scope_stack_.back(); }
  void set_scope(int32_t scope) { scope_stack_.back() = scope; }
  const std::string& scope_path() const { return graph_.scopes[scope()]; }

 private:
  ValueId state(std::string name, TensorType type, Initial initial, Role role);

  Graph& graph_;
  Phase phase_ = Phase::forward;
  int32_t layer_ = -1;
  std::vector<int32_t> scope_stack_{0};
};

// All that is wrong with a graph (a node before its producer, a type that its rule does not give, ...); empty
// when it is sound. Passes are checked with it in tests.
std::vector<std::string> verify(const Graph& graph);

// One line for each node: `%7 bf16[12, 64, 512] = linear(%5, %w) {..}  # blocks.0.mlp, forward`.
std::string to_string(const Graph& graph);

}  // namespace het
