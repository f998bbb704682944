#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer_embedding(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_dtype(call, 0, DType::i32);
  require_float(call, 1);
  require_rank(call, 1, 2);
  require_part(call, call[1].shape[0], "rows");
  Shape shape = call[0].shape;
  shape.push_back(call[1].shape[1]);
  return {{call[1].dtype, shape}};
}

Types infer_embedding_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  require_type(call, 1, {DType::i32, leading(call[0].shape)});
  const int64_t rows = setting<int64_t>(call, "rows");
  if (rows < 1) refuse(call, fmt::format("rows = {} has to be positive: the rows of the table", rows));
  require_part(call, rows, "rows");
  return {{accumulator_of(call[0].dtype), {rows, last(call[0].shape)}}};
}

}  // namespace

std::vector<OpDef> embedding_ops() {
  return {
      {.name = "embedding",
       .signature = "ids[...]:i32, table[v, c]:T → y[..., c]:T",
       .doc = "Row ids of the table. With `first` and `of` the table is rows `first`, `first` + 1, … of one "
              "of `of` "
              "rows; ids of others give zeros.",
       .attributes = {"first", "of"},
       .infer = infer_embedding,
       .gradient =
           [](GradientCall& call) {
             Attributes attributes = call.node.attributes;
             attributes.set("rows", call.graph.type(call.input(1)).shape[0]);
             const ValueId made =
                 call.graph.call("embedding_gradient", {call.output_gradients[0], call.input(0)}, attributes);
             return std::vector{kAbsent, as_gradient(call, 1, made)};
           },
       // The rows that are read, not the table.
       .bytes = [](const OpCall& call,
                   Outputs outputs) { return static_cast<double>(call[0].bytes() + 2 * outputs[0].bytes()); },
       .sharding = {{.cut = "..."},
                    {.cut = "c"},
                    {.cut = "v", .sums = "y", .one_range = true},
                    {.partial = "table y"}},
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return first_of(call, inputs[1]); }},
      {.name = "embedding_gradient",
       .signature = "dy[..., c]:T, ids[...]:i32 → dtable[v, c]:A +=",
       .doc =
           "Rows of dy added to the rows `ids` of a table of `rows` rows; `first` and `of` as in embedding.",
       .attributes = {"rows", "first", "of"},
       .infer = infer_embedding_gradient,
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); },
       .accumulates = 1,
       .sharding = {{.cut = "...", .sums = "dtable"},
                    {.cut = "c"},
                    {.cut = "v", .one_range = true},
                    {.partial = "dy dtable"}},
       .localize =
           [](const OpCall& call, std::span<const TensorSlice>, std::span<const TensorSlice> outputs) {
             Attributes attributes = first_of(call, outputs[0]);
             attributes.set("rows", outputs[0].shape()[0]);
             return attributes;
           }},
  };
}

}  // namespace het::ops
