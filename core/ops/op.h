// Everything that is asked of one operator, except its kernels: shape rule, gradient, cost. An OpDef is plain
// data; the families in this folder each return theirs, and op_table() lists them all (the list itself is in
// core/ops/meson.build).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/graph/gradient.h"
#include "core/graph/graph.h"
#include "core/ops/sharding.h"

namespace het {

enum class CollectiveKind : uint8_t;  // core/comm/communicator.h

// What shape rules and costs see: types of the operands, absent ones with dtype none.
struct OpCall {
  const OpDef& op;
  std::span<const TensorType> inputs;
  const Attributes& attributes;

  bool has(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  const TensorType& operator[](size_t i) const { return inputs[i]; }
};

// Of one call: floating-point operations (a multiply-add is two) and the bytes it must at least move.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

// Calls of an operator that differ only in their first operands and in one attribute, made by one call of
// another: its operands are a group for each call (in_place_group), then those that all calls share.
struct JoinedCalls {
  std::string_view op;         // empty: calls are not joined
  std::string_view attribute;  // the number that differs; 0 where a call does not give it
  std::string_view list;       // the attribute that has the numbers of all calls
};

struct OpDef {
  std::string_view name;
  // One line: operands with shapes, `?` for optional ones, results; and one sentence of documentation.
  std::string_view signature;
  std::string_view doc;
  // The attributes it knows; any other is refused with the nearest of these.
  std::vector<std::string_view> attributes;

  // Types of the results. Throws Error(usage) with the shapes in the sentence.
  std::function<std::vector<TensorType>(const OpCall&)> infer;
  // Gradients of the inputs, one each, kAbsent for none. Empty: not differentiable.
  std::function<std::vector<ValueId>(GradientCall&)> gradient;
  // FLOPs; default (empty): none. Bytes are those of the operands unless `bytes` says otherwise.
  std::function<double(const OpCall&, std::span<const TensorType> outputs)> flops;
  std::function<double(const OpCall&, std::span<const TensorType> outputs)> bytes;

  // A view computes nothing: results are layouts of input 0's buffer. nullopt: not expressible with these
  // strides, so the input is packed first.
  std::function<std::optional<std::vector<Layout>>(const Layout&, const Attributes&)> view;
  // Of a view that has all elements of its operand: the layout of the operand for which result 0 has the
  // layout given, so that the operand can be written where the result has to be. nullopt: there is none.
  std::optional<Layout> (*view_source)(const Layout& result, const TensorType& operand) = nullptr;

  // Bit i: kernels take operand i with any strides whose innermost is 1 (others get packed operands).
  uint32_t strided_inputs = 0, strided_outputs = 0;
  // Bit i: kernels can add into output i instead of overwriting it.
  uint32_t accumulates = 0;
  // Bit i: kernels leave output i out where it is absent, so that prune() drops it where nothing reads it.
  uint32_t optional_outputs = 0;
  // Pairs (output, input): the output is written over that input's memory; the input must be state or die
  // here.
  std::vector<std::pair<int, int>> in_place;
  // Of an operator of any number of like groups of operands: how many outputs and inputs a group has. The
  // pairs are those of the first group and hold in each.
  std::pair<int, int> in_place_group{0, 0};
  // The operator that makes several calls of this one in one pass: adamw_n.
  JoinedCalls joined_as;
  // Additions that the operator makes when the operand is given, so that fuse() can join one with it: of
  // operand adds_before to operand 0, whose place the sum takes, which is also result adds_before; of operand
  // adds_after to result 0. Both round as an `add` beside it would. -1: none.
  int adds_before = -1, adds_after = -1;
  // For operators with the attribute `activation`, which fuse() joins with a gelu. preactivation_result: the
  // result before the activation; result 0 is that result after it (linear). preactivation_operand: the
  // operand before the activation; result 0 is multiplied by the derivative there (linear_input_gradient).
  // -1: none.
  int preactivation_result = -1, preactivation_operand = -1;
  // y = x weightᵀ + bias, of its operands in this order: linear.
  bool is_linear = false;
  // The operator that computes a `linear` and this one of its result, some rows at a time: log_probability.
  // It takes the operands of both and has the same results. Its gradient multiplies once more, so that it is
  // taken only from so many bytes of the `linear`'s result on, for each index of its first dimension.
  std::string_view with_linear = {};
  double with_linear_from = 0;
  // How it runs on parts of its operands (core/ops/sharding.h): the letters of a call, where the signature
  // does not give them; the rules; letters that none of them cuts, each with the reason; the attributes of a
  // call on a part, where they differ from the whole's.
  std::string (*notation)(const OpCall&, std::span<const TensorType> outputs) = nullptr;
  std::vector<ShardingRule> sharding;
  std::vector<NeverCut> never_cut;
  Attributes (*localize)(const OpCall&, std::span<const TensorSlice> inputs,
                         std::span<const TensorSlice> outputs) = nullptr;
  // Its result is operand 0 again, perhaps in another precision: copy, cast.
  bool copies_operand = false;
  // The copy is of another dtype: cast, stochastic_cast.
  bool casts = false;
  // Its result is the sum of its operands, however many: add_n.
  bool adds_operands = false;
  // Its result is the operands one after the other along the attribute `dim`: concat.
  bool concatenates = false;
  // It takes any number of operands, however they are placed. A rank gives it those that it has; called on
  // the ranks' first results, it makes the result of all: global_norm.
  bool any_placement = false;
  // It multiplies operand 0 by a matrix of weights in the precision in which a model computes: linear.
  bool multiplies_weights = false;
  // The dimension of operands 0 (queries) and 1 (keys) that has the heads: attention. -1: none.
  int heads_dim = -1;
  // Elementwise operators can be fused into chains; others are left alone.
  bool elementwise = false;
  // The collective of the tensor-parallel group to which it is lowered: devices have no kernel for it.
  std::optional<CollectiveKind> collective;
};

// All operators, built once on first use; immutable.
const std::vector<OpDef>& op_table();
// By name; null: there is none.
const OpDef* find_op(std::string_view name);
// By name; throws Error(usage) naming the nearest one.
const OpDef& op_named(std::string_view name);

// The input over which this output is written; -1: none.
int written_over(const OpDef& op, int output);

Cost cost_of(const OpCall& call, std::span<const TensorType> outputs);
Cost cost_of(const Graph& graph, const Node& node);

// For shape rules.
void require_inputs(const OpCall& call, size_t least, size_t most);
void require_float(const OpCall& call, size_t input);
[[noreturn]] void refuse(const OpCall& call, std::string_view why);  // "linear: <why>; x is f32[2, 3], ..."
int64_t normal_dim(const OpCall& call, int64_t dim, size_t rank);    // -1 is the last

}  // namespace het
