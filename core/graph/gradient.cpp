#include "core/graph/gradient.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/graph/custom_gradient.h"
#include "core/ops/op.h"

namespace het {
namespace {

// Values that depend on one of `roots`.
std::vector<bool> dependents(const Graph& graph, const std::vector<ValueId>& roots) {
  std::vector<bool> depends(graph.values.size());
  for (const ValueId id : roots) depends[id] = true;
  for (const Node& node : graph.nodes) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return id != kAbsent && depends[id]; });
    if (any)
      for (const ValueId id : node.outputs)
        if (id != kAbsent && is_float(graph.type(id).dtype)) depends[id] = true;
  }
  return depends;
}

// Order the nodes so that each stands after those it depends on, otherwise as they stood.
void sort_nodes(Graph& graph) {
  std::vector<int8_t> state(graph.nodes.size(), 0);  // 0 waiting, 1 placed
  std::vector<NodeId> order, stack;
  for (NodeId root = 0; root < static_cast<NodeId>(graph.nodes.size()); ++root) {
    stack.push_back(root);
    while (!stack.empty()) {
      const NodeId n = stack.back();
      bool ready = true;
      if (!state[n])
        for (const ValueId id : graph.nodes[n].inputs) {
          const NodeId producer = id == kAbsent ? -1 : graph.values[id].producer;
          if (producer >= 0 && !state[producer]) {
            stack.push_back(producer);
            ready = false;
          }
        }
      if (!ready) continue;
      stack.pop_back();
      if (!state[n]) order.push_back(n);
      state[n] = 1;
    }
  }
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  for (const NodeId n : order) {
    for (const ValueId id : graph.nodes[n].outputs)
      if (id != kAbsent) graph.values[id].producer = static_cast<NodeId>(nodes.size());
    nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
}

class Differentiator {
 public:
  Differentiator(Graph& graph, ValueId loss, const std::vector<ValueId>& wanted,
                 const std::vector<CustomGradient>& custom)
      : graph_(graph),
        builder_(graph),
        forward_nodes_(static_cast<NodeId>(graph.nodes.size())),
        loss_(loss),
        custom_(custom) {
    wanted_ = wanted;
    if (wanted_.empty())
      for (size_t i = 0; i < graph.values.size(); ++i)
        if (graph.values[i].role == Role::parameter) wanted_.push_back(static_cast<ValueId>(i));
    depends_ = dependents(graph, wanted_);
  }

  std::map<ValueId, ValueId> run() {
    const TensorType type = graph_.type(loss_);
    if (type.elements() != 1)
      fail_usage("only a scalar can be differentiated; the loss has shape {}", to_string(type.shape));
    if (!is_float(type.dtype))
      fail_usage("the loss is {}; only floating-point losses can be differentiated", type.dtype);
    builder_.set_phase(Phase::backward);
    contributions_[loss_] = {};
    for (NodeId n = forward_nodes_ - 1; n >= 0; --n) {
      if (const CustomGradient* part = ending_at(n)) {
        visit(*part);
        n = part->first;
      } else {
        visit(n);
      }
    }
    std::map<ValueId, ValueId> result;
    for (const ValueId id : wanted_) {
      const ValueId total = gradient_of(id);
      result[id] = total == kAbsent ? kAbsent : with_dtype(total, accumulator_of(graph_.type(id).dtype));
    }
    if (!replacements_.empty()) {
      const auto moved = [&](ValueId id) {
        for (const auto& [old, now] : replacements_)
          if (id == old) return now;
        return id;
      };
      for (Node& node : graph_.nodes)
        for (ValueId& id : node.inputs)
          if (id != kAbsent) id = moved(id);
      for (Output& output : graph_.outputs) output.value = moved(output.value);
      sort_nodes(graph_);
      // What the forward pass now reads belongs to it.
      for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
        if (node->phase != Phase::forward) continue;
        for (const ValueId id : node->inputs)
          if (id != kAbsent && graph_.values[id].producer >= 0)
            graph_.nodes[graph_.values[id].producer].phase = Phase::forward;
      }
    }
    return result;
  }

 private:
  ValueId with_dtype(ValueId id, DType dtype) {
    if (graph_.type(id).dtype == dtype) return id;
    return builder_.call("cast", {id}, {{"dtype", std::string(name_of(dtype))}});
  }

  int32_t first_layer(const std::vector<ValueId>& values) const {
    int32_t first = graph_.nodes[graph_.values[values[0]].producer].layer;
    for (const ValueId id : values) first = std::min(first, graph_.nodes[graph_.values[id].producer].layer);
    return first;
  }

  // The sum of all that has flowed back to `id` so far, as one value.
  ValueId gradient_of(ValueId id) {
    const auto found = contributions_.find(id);
    if (id == loss_ && found != contributions_.end() && found->second.empty()) {
      Attributes ones{{"value", 1.0},
                      {"shape", graph_.type(id).shape},
                      {"dtype", std::string(name_of(graph_.type(id).dtype))}};
      found->second.push_back(builder_.call("fill", {}, ones));
    }
    if (found == contributions_.end() || found->second.empty()) return kAbsent;
    std::vector<ValueId>& parts = found->second;
    if (parts.size() > 1) {
      ValueId total;
      if (is_weight(graph_, id)) {
        for (ValueId& part : parts) part = with_dtype(part, accumulator_of(graph_.type(id).dtype));
        total = builder_.call("add_n", parts);
      } else {
        // Summed in the first layer that uses the value, so that one tensor, not several, crosses to the
        // layer before.
        const int32_t layer = builder_.layer();
        builder_.set_layer(first_layer(parts));
        total = with_dtype(parts[0], graph_.type(id).dtype);
        for (size_t i = 1; i < parts.size(); ++i)
          total = builder_.call("add", {total, with_dtype(parts[i], graph_.type(id).dtype)});
        builder_.set_layer(layer);
      }
      parts = {total};
    }
    return parts[0];
  }

  // The outermost of those whose last node it is. Of two with the same nodes it is the later one: the inner
  // call is recorded first.
  const CustomGradient* ending_at(NodeId n) const {
    const CustomGradient* found = nullptr;
    for (const CustomGradient& part : custom_)
      if (part.end == n + 1 && (found == nullptr || part.first <= found->first)) found = &part;
    return found;
  }

  void visit(const CustomGradient& part) {
    if (contributions_.count(part.output) == 0 || !depends_[part.output]) return;
    const Node& last = graph_.nodes[part.end - 1];
    builder_.set_layer(last.layer);
    builder_.set_scope(last.scope);
    const int32_t layer = last.layer, scope = last.scope;
    const std::vector<ValueId> gradients = part.gradient(gradient_of(part.output), layer, scope);
    HET_REQUIRE(gradients.size() == part.inputs.size(), gradients.size(), part.inputs.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i] == kAbsent || !depends_[part.inputs[i]]) continue;
      const Shape &given = graph_.type(gradients[i]).shape, &wanted = graph_.type(part.inputs[i]).shape;
      if (given != wanted)
        fail_usage("op.custom_gradient: backward: the gradient has shape {}, argument {} has shape {}",
                   to_string(given), i + 1, to_string(wanted));
      contributions_[part.inputs[i]].push_back(gradients[i]);
    }
  }

  void visit(NodeId n) {
    const Node node = graph_.nodes[n];  // a copy: the list grows
    const bool reaches = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id != kAbsent && contributions_.count(id) != 0 && depends_[id];
    });
    if (!reaches) return;
    std::vector<bool> wanted;
    for (const ValueId id : node.inputs) wanted.push_back(id != kAbsent && depends_[id]);
    if (std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) return;

    builder_.set_layer(node.layer);
    builder_.set_scope(node.scope);
    if (!node.op->gradient)
      fail_usage("the loss depends on '{}'{}, which has no gradient", node.op->name,
                 graph_.scopes[node.scope].empty() ? "" : " in layer " + graph_.scopes[node.scope]);
    std::vector<ValueId> output_gradients;
    for (const ValueId id : node.outputs)
      output_gradients.push_back(id == kAbsent ? kAbsent : gradient_of(id));
    GradientCall call{builder_, node, std::move(output_gradients), wanted, replacements_};
    const std::vector<ValueId> gradients = node.op->gradient(call);
    HET_REQUIRE(gradients.size() == node.inputs.size(), node.op->name, gradients.size(), node.inputs.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!wanted[i] || gradients[i] == kAbsent) continue;
      HET_REQUIRE(graph_.type(gradients[i]).shape == graph_.type(node.inputs[i]).shape, node.op->name, i,
                  to_string(graph_.type(gradients[i])), to_string(graph_.type(node.inputs[i])));
      contributions_[node.inputs[i]].push_back(gradients[i]);
    }
  }

  Graph& graph_;
  GraphBuilder builder_;
  NodeId forward_nodes_;
  ValueId loss_;
  const std::vector<CustomGradient>& custom_;
  std::vector<ValueId> wanted_;
  std::vector<bool> depends_;
  std::map<ValueId, std::vector<ValueId>> contributions_;
  std::vector<std::pair<ValueId, ValueId>> replacements_;
};

}  // namespace

bool is_weight(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  if (value.role == Role::parameter) return true;
  if (value.role != Role::intermediate) return false;
  const Node& node = graph.nodes[value.producer];
  return is_cast(node) && graph.values[node.inputs[0]].role == Role::parameter;
}

void GradientCall::replace(ValueId old, ValueId now) { replacements.emplace_back(old, now); }

std::string problem_of(const Graph& graph, const CustomGradient& custom) {
  const auto is_inside = [&](ValueId id) {
    const NodeId producer = graph.values[id].producer;
    return producer >= custom.first && producer < custom.end;
  };
  if (!is_inside(custom.output)) return "the result is not computed by it";
  for (NodeId n = custom.first; n < custom.end; ++n)
    for (const ValueId id : graph.nodes[n].inputs) {
      if (id == kAbsent || is_inside(id) || !is_float(graph.type(id).dtype)) continue;
      const bool is_argument =
          std::find(custom.inputs.begin(), custom.inputs.end(), id) != custom.inputs.end();
      const Role role = graph.values[id].role;
      if (!is_argument && (role == Role::parameter || role == Role::intermediate))
        return "it computes with a value that is not among its arguments, so that this would get no gradient";
    }
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    if (n >= custom.first && n < custom.end) continue;
    for (const ValueId id : graph.nodes[n].inputs)
      if (id != kAbsent && id != custom.output && is_inside(id) && is_float(graph.type(id).dtype))
        return "a value that it computes, but does not return, is used outside it, which would give no "
               "gradient";
  }
  return {};
}

std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wanted,
                                         const std::vector<CustomGradient>& custom) {
  return Differentiator(graph, loss, wanted, custom).run();
}

std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wanted) {
  return differentiate(graph, loss, wanted, {});
}

}  // namespace het
