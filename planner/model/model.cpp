#include "planner/model/model.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"

namespace het::planner {

// Work and sizes of a transformer block with T tokens, width h, feed-forward width f, kv width g = h kv_heads
// / heads:
//   attention projections 2T h (2h + 2g), scores and values 4T^2 h (half of it when causal is not counted as
//   saved: kernels differ), feed-forward 2T h f for each of its 2 or 3 matrices.
// Kept activations per token, in elements, with tiled attention (no T x T matrix is kept): the two norms'
// inputs 2h, their outputs 2h, queries h, keys and values 2g, attention output h, feed-forward inner 2f (3f
// gated): this project's own count of what hetrun's graphs keep. The backward has the forward's work twice:
// once for the input, once for the weights; attention's scores have no weights and count wholly to the input.
Model transformer(const Transformer& shape, Precision precision) {
  std::string problems;
  const auto require = [&](const char* field, int value) {
    if (value < 1) problems += fmt::format("\n  {} = {}; it is at least 1", field, value);
  };
  require("layers", shape.layers);
  require("width", shape.width);
  require("heads", shape.heads);
  require("kv_heads", shape.kv_heads);
  require("ffn", shape.ffn);
  require("vocabulary", shape.vocabulary);
  require("context", shape.context);
  if (problems.empty() && shape.width % shape.heads != 0)
    problems += fmt::format("\n  heads = {} does not divide width = {}", shape.heads, shape.width);
  if (problems.empty() && shape.heads % shape.kv_heads != 0)
    problems += fmt::format("\n  kv_heads = {} does not divide heads = {}", shape.kv_heads, shape.heads);
  if (!problems.empty()) fail_usage("transformer {} cannot be built:{}", shape.name, problems);

  const double T = shape.context, h = shape.width, f = shape.ffn, v = shape.vocabulary;
  const double g = h * shape.kv_heads / shape.heads;
  const double matrices = shape.gated ? 3 : 2;
  Model model;
  model.name = shape.name;
  model.precision = precision;
  model.tokens = shape.context;
  model.heads = shape.heads;
  model.kv_heads = shape.kv_heads;
  const double size = precision == Precision::f32 ? 4 : 2;
  if (precision == Precision::f32) {
    model.weight_bytes = 4;
    model.optimizer_bytes = 8;
  }

  LayerKind embedding;
  embedding.name = "embedding";
  embedding.parameters = v * h + (shape.positions ? T * h : 0);
  embedding.activation_bytes = embedding.checkpoint_bytes = 4 * T;  // token numbers
  embedding.workspace_bytes = size * T * h;
  embedding.forward_bytes = 2 * size * T * h;
  embedding.weight_flops = T * h;
  embedding.boundary_bytes = size * T * h;
  embedding.tensor_reductions = 1;

  LayerKind block;
  block.name = "block";
  block.parameters = 2 * h * h + 2 * h * g + matrices * h * f + 4 * h;
  block.activation_bytes = size * T * (5 * h + 2 * g + matrices * f + h);
  block.checkpoint_bytes = size * T * h;
  block.workspace_bytes = size * T * 2 * std::max(h, f);
  const double dense = 2 * T * (2 * h * h + 2 * h * g + matrices * h * f), scores = 4 * T * T * h;
  block.forward_flops = dense + scores;
  block.input_flops = dense + 2 * scores;
  block.weight_flops = dense;
  block.forward_bytes = size * T * (14 * h + 4 * g + 3 * matrices * f);
  block.boundary_bytes = size * T * h;
  block.tensor_reductions = 2;

  LayerKind head;
  head.name = "head";
  head.parameters = v * h + 2 * h;
  head.activation_bytes = size * T * (2 * h) + size * T * v;
  head.checkpoint_bytes = size * T * h;
  head.workspace_bytes = size * T * v;
  head.forward_flops = head.input_flops = head.weight_flops = 2 * T * h * v;
  head.forward_bytes = size * T * (3 * h + 3 * v);
  head.boundary_bytes = 4;
  head.tensor_reductions = 1;

  model.kinds = {embedding, block, head};
  model.layers.assign(static_cast<size_t>(shape.layers) + 2, 1);
  model.layers.front() = 0;
  model.layers.back() = 2;
  return model;
}

const std::vector<Transformer>& known_transformers() {
  static const std::vector<Transformer> table = {
      // Devlin et al. 2018, table 1
      {"bert-large", 24, 1024, 16, 16, 4096, 30522, 512, false, true},
      // Brown et al. 2020, table 2.1 (it prints 5140 for the width of 40 heads of 128)
      {"gpt3-6.7b", 32, 4096, 32, 32, 16384, 50257, 2048, false, true},
      {"gpt3-13b", 40, 5120, 40, 40, 20480, 50257, 2048, false, true},
      // Touvron et al. 2023, model card of LLaMA-2 7B
      {"llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, true, false},
      // Model card of LLaMA-3 8B
      {"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, true, false},
  };
  return table;
}

Model known_model(std::string_view name) {
  std::vector<std::string> names;
  for (const Transformer& shape : known_transformers()) {
    if (shape.name == name) return transformer(shape);
    names.push_back(shape.name);
  }
  const std::string near = nearest_name(name, names);
  fail_usage("model \"{}\" is not known; {}", name,
             near.empty() ? fmt::format("known are {}", fmt::join(names, ", "))
                          : fmt::format("did you mean \"{}\"?", near));
}

double total_parameters(const Model& model) {
  double total = 0;
  for (const int kind : model.layers) total += model.kinds[static_cast<size_t>(kind)].parameters;
  for (const SharedParameter& shared : model.shared)
    total -= static_cast<double>(shared.layers.size() - 1) * shared.parameters;
  return total;
}

std::vector<std::string> validate(const Model& model) {
  std::vector<std::string> problems;
  if (model.layers.empty()) problems.push_back("the model has no layer");
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (model.layers[i] < 0 || model.layers[i] >= static_cast<int>(model.kinds.size()))
      problems.push_back(fmt::format("layer {}: kind {} is not described; there are {}", i, model.layers[i],
                                     model.kinds.size()));
  for (const LayerKind& kind : model.kinds) {
    const auto check = [&](const char* field, double value) {
      if (!std::isfinite(value) || value < 0)
        problems.push_back(fmt::format("layer kind {}: {} = {}; it is 0 or more", kind.name, field, value));
    };
    check("parameters", kind.parameters);
    check("activation_bytes", kind.activation_bytes);
    check("checkpoint_bytes", kind.checkpoint_bytes);
    check("workspace_bytes", kind.workspace_bytes);
    check("forward_flops", kind.forward_flops);
    check("input_flops", kind.input_flops);
    check("weight_flops", kind.weight_flops);
    check("forward_bytes", kind.forward_bytes);
    check("boundary_bytes", kind.boundary_bytes);
    check("whole_parameters", kind.whole_parameters);
    check("whole_activation_bytes", kind.whole_activation_bytes);
    check("whole_workspace_bytes", kind.whole_workspace_bytes);
  }
  for (const SharedParameter& shared : model.shared) {
    const auto& layers = shared.layers;
    if (layers.size() < 2 || layers.front() < 0 || layers.back() >= model.count() ||
        std::adjacent_find(layers.begin(), layers.end(), std::greater_equal()) != layers.end()) {
      problems.push_back(
          fmt::format("a shared parameter has layers {}; they are two or more of the model's {}, in order",
                      fmt::join(shared.layers, ", "), model.count()));
      continue;
    }
    for (const int layer : shared.layers) {
      const double all = model.layer(layer).parameters;
      if (!(shared.parameters > 0 && shared.parameters <= all && shared.whole_parameters >= 0 &&
            shared.whole_parameters <= shared.parameters))
        problems.push_back(fmt::format(
            "layers {} share {} parameters, {} of them not divided; layer {} has {}",
            fmt::join(shared.layers, ", "), shared.parameters, shared.whole_parameters, layer, all));
    }
  }
  return problems;
}

}  // namespace het::planner
