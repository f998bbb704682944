// A model as planning sees it: a list of layers with sizes and work, nothing of operators or kernels. Layers
// that are alike share one description. All figures are of one sample on one device before tensor
// parallelism.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "planner/cluster/cluster.h"

namespace het::planner {

struct LayerKind {
  std::string name;             // key of measured profiles: "block", "embedding", "head"
  double parameters = 0;        // elements
  double activation_bytes = 0;  // kept from forward to backward
  double checkpoint_bytes = 0;  // kept instead when the layer is recomputed: its input
  double workspace_bytes = 0;   // besides what is kept, while it runs
  double forward_flops = 0;
  double input_flops = 0;     // backward, gradient of the input
  double weight_flops = 0;    // backward, gradient of the weights
  double forward_bytes = 0;   // memory traffic of activations in one forward; a backward has twice that
  double boundary_bytes = 0;  // its output, sent to the next stage (its gradient is as large)
  // Of the above, what tensor parallelism does not divide: norms, residuals.
  double whole_parameters = 0, whole_activation_bytes = 0, whole_workspace_bytes = 0;
  int tensor_reductions = 0;  // all-reduces of its output in one forward under tensor parallelism
  // What a layer that is recomputed runs again: its last product, for one, no gradient asks for. -1: all.
  double recompute_flops = -1;
  int recompute_reductions = -1;

  double flops_again() const { return recompute_flops < 0 ? forward_flops : recompute_flops; }
  int reductions_again() const { return recompute_reductions < 0 ? tensor_reductions : recompute_reductions; }
  bool operator==(const LayerKind&) const = default;
};

// A parameter that several layers use, as a table of tokens that is the classifier, too. Each of them counts
// it among its parameters; a device that has several of them keeps it once, and all devices that keep it add
// up its gradient.
struct SharedParameter {
  std::vector<int> layers;      // that use it, in order
  double parameters = 0;        // elements
  double whole_parameters = 0;  // of these, what tensor parallelism does not divide
  bool trained = true;
  // The first of layers [first, last) that uses it; -1: none does.
  int first_user(int first, int last) const {
    const auto next = std::lower_bound(layers.begin(), layers.end(), first);
    return next != layers.end() && *next < last ? *next : -1;
  }
  bool is_used_in(int first, int last) const { return first_user(first, last) >= 0; }
  bool operator==(const SharedParameter&) const = default;
};

struct Model {
  std::string name;
  std::vector<LayerKind> kinds;
  std::vector<int> layers;  // the kind of each layer, in order
  std::vector<SharedParameter> shared;
  Precision precision = Precision::bf16;
  double weight_bytes = 2, gradient_bytes = 4, optimizer_bytes = 12;  // of one parameter, on average
  double update_flops = 0;                                            // of one parameter, on average, in f32
  double made_bytes = 0;        // of weight_bytes: copies that are made from the weights wherever these are
  double trained_share = 1;     // of the parameters; the others have no gradient, update or optimizer state
  int tokens = 1;               // in one sample
  int heads = 1, kv_heads = 1;  // a tensor-parallel degree divides both
  bool operator==(const Model&) const = default;
  const LayerKind& layer(int index) const {
    return kinds[static_cast<size_t>(layers[static_cast<size_t>(index)])];
  }
  int count() const { return static_cast<int>(layers.size()); }
};

struct Transformer {
  std::string name;
  int layers = 0, width = 0, heads = 0, kv_heads = 0, ffn = 0, vocabulary = 0, context = 0;
  bool gated = false;      // three matrices in the feed-forward block (SwiGLU) instead of two
  bool positions = false;  // learned position embedding
};

// Embedding, `layers` blocks, head: layers + 2 entries. Throws Error(usage) naming every field that cannot
// be.
Model transformer(const Transformer& shape, Precision precision = Precision::bf16);

// "bert-large", "gpt3-6.7b", "llama2-7b", "llama3-8b", "gpt3-13b".
const std::vector<Transformer>& known_transformers();
Model known_model(std::string_view name);  // throws Error(usage) naming the nearest

double total_parameters(const Model& model);  // shared ones once
std::vector<std::string> validate(const Model& model);

}  // namespace het::planner
