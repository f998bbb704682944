// The graph of a whole training step, for tests that need more than a few operators.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/graph/gradient.h"
#include "core/graph/graph.h"
#include "core/ops/op.h"

namespace het::testing {

// The update of all parameters by AdamW, clipped, from the gradients of `loss`. Inputs "lr" and "step";
// output "norm".
// `trained`: which parameters; none: all.
inline void train_by_adamw(GraphBuilder& b, ValueId loss, double eps,
                           const std::vector<ValueId>& trained = {}) {
  Graph& graph = b.graph();
  const DType real = graph.type(loss).dtype;
  const auto gradients = differentiate(graph, loss, trained);
  b.set_phase(Phase::update);
  b.set_layer(-1);
  const ValueId lr = b.input("lr", {real, {}}, true), step = b.input("step", {DType::i64, {}}, true);
  std::vector<ValueId> all;
  for (const auto& [parameter, gradient] : gradients) all.push_back(gradient);
  const auto clipped = b.call_all(op_named("global_norm"), all, {{"max_norm", 0.5}});
  b.output("norm", clipped[0]);
  for (const auto& [parameter, gradient] : gradients) {
    const std::string name = graph.values[parameter].name;
    const TensorType type = graph.type(parameter);
    b.call_all(
        op_named("adamw"),
        {parameter, b.buffer(name + ".m", type), b.buffer(name + ".v", type), gradient, lr, step, clipped[1]},
        {{"beta1", 0.9}, {"beta2", 0.99}, {"eps", eps}, {"weight_decay", 0.1}});
  }
}

struct GptSizes {
  int64_t samples, context, width, heads, vocabulary;
  int blocks;
};

// A GPT trained by AdamW; embedding and head have tables of their own.
inline Graph trained_gpt(const GptSizes& s, DType real = DType::f32, double eps = 1e-8) {
  Graph graph;
  GraphBuilder b(graph);
  const auto weight = [&](const std::string& name, Shape shape) {
    return b.parameter(name, {real, std::move(shape)}, {Initial::Kind::normal, 0.1});
  };
  const auto linear = [&](const std::string& name, ValueId x, int64_t in, int64_t out) {
    return b.call("linear", {x, weight(name + ".weight", {out, in}), weight(name + ".bias", {out})});
  };
  const auto norm = [&](const std::string& name, ValueId x) {
    return b.call("layer_norm", {x, weight(name + ".weight", {s.width}), weight(name + ".bias", {s.width})},
                  {{"eps", 1e-5}});
  };
  const ValueId tokens = b.input("tokens", {DType::i32, {s.samples, s.context}});
  const ValueId labels = b.input("labels", {DType::i32, {s.samples, s.context}});
  const ValueId scale = b.input("scale", {real, {1}}, true);
  b.begin_layer("embedding");
  ValueId x = b.call("embedding", {tokens, weight("embedding", {s.vocabulary, s.width})});
  for (int block = 0; block < s.blocks; ++block) {
    const std::string name = fmt::format("blocks.{}", block);
    b.begin_layer(name);
    const auto parts =
        b.call_all(op_named("split"), {linear(name + ".qkv", norm(name + ".norm1", x), s.width, 3 * s.width)},
                   {{"dim", int64_t{2}}, {"sizes", std::vector<int64_t>{s.width, s.width, s.width}}});
    const auto heads = [&](ValueId part) {
      return b.call("reshape", {part},
                    {{"shape", std::vector<int64_t>{s.samples, s.context, s.heads, s.width / s.heads}}});
    };
    ValueId h = b.call("attention", {heads(parts[0]), heads(parts[1]), heads(parts[2])}, {{"causal", true}});
    h = b.call("reshape", {h}, {{"shape", std::vector<int64_t>{s.samples, s.context, s.width}}});
    x = b.call("add", {x, linear(name + ".out", h, s.width, s.width)});
    h = b.call("gelu", {linear(name + ".up", norm(name + ".norm2", x), s.width, 4 * s.width)});
    x = b.call("add", {x, linear(name + ".down", h, 4 * s.width, s.width)});
  }
  b.begin_layer("head");
  const ValueId loss =
      b.call("linear_cross_entropy",
             {norm("norm", x), weight("head", {s.vocabulary, s.width}), kAbsent, labels, scale});
  b.output("loss", loss);
  train_by_adamw(b, loss, eps);
  return graph;
}

}  // namespace het::testing
