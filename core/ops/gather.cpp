// Entries of a row by index, and back: each operator is the gradient of the other.
#include "core/ops/rules.h"

namespace het::ops {
namespace {

// An index for each entry of operand 0 or of the result, in rows of operand 0's leading dimensions.
void require_index(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  require_rank_from(call, 1, 1);
  require_type(call, 1, {DType::i32, with_last(call[0].shape, last(call[1].shape))});
}

Types infer_gather(const OpCall& call) {
  require_index(call);
  return {{call[0].dtype, call[1].shape}};
}

Types infer_scatter_add(const OpCall& call) {
  require_index(call);
  require_type(call, 1, {DType::i32, call[0].shape});
  const int64_t size = setting<int64_t>(call, "size");
  if (size < 1) refuse(call, fmt::format("size = {} has to be positive: the entries of a row", size));
  return {{call[0].dtype, with_last(call[0].shape, size)}};
}

std::vector<ValueId> gradient_gather(GradientCall& call) {
  const ValueId made = call.graph.call("scatter_add", {call.output_gradients[0], call.input(1)},
                                       {{"size", last(call.graph.type(call.input(0)).shape)}});
  return {as_gradient(call, 0, made), kAbsent};
}

std::vector<ValueId> gradient_scatter_add(GradientCall& call) {
  const ValueId made = call.graph.call("gather", {call.output_gradients[0], call.input(1)});
  return {as_gradient(call, 0, made), kAbsent};
}

}  // namespace

std::vector<OpDef> gather_ops() {
  return {
      {.name = "gather",
       .signature = "x[..., n]:T, index[..., k]:i32 → y[..., k]:T",
       .doc = "Of each row the entries at `index`, as PyTorch's gather along the last dimension.",
       .infer = infer_gather,
       .gradient = gradient_gather,
       // The entries that are read, not the rows.
       .bytes = [](const OpCall& call,
                   Outputs outputs) { return static_cast<double>(call[1].bytes() + 2 * outputs[0].bytes()); },
       .sharding = {{.cut = "..."}, {.cut = "k"}, {.partial = "x y"}},
       .never_cut = {{"n", "an index names one of all entries"}}},
      {.name = "scatter_add",
       .signature = "x[..., k]:T, index[..., k]:i32 → y[..., n]:T",
       .doc = "Rows of `size` zeros to which the entries of x are added at `index`, in order, in f32.",
       .attributes = {"size"},
       .infer = infer_scatter_add,
       .gradient = gradient_scatter_add,
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
       .sharding = {{.cut = "..."}, {.cut = "k", .sums = "y"}, {.partial = "x y"}},
       .never_cut = {{"n", "an index names one of all entries"}}},
  };
}

}  // namespace het::ops
