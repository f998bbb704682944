// What the families of this folder share: checks for shape rules, and small pieces of gradient rules. Private
// to core/ops.
#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/tensor/slice.h"

namespace het::ops {

using Types = std::vector<TensorType>;
using Outputs = std::span<const TensorType>;

// An attribute; the error of a missing or wrong one names the operator.
template <typename T>
T setting(const OpCall& call, std::string_view name) {
  return with_context([&] { return fmt::format("operator {}", call.op.name); },
                      [&] { return call.attributes.get<T>(name); });
}
template <typename T>
T setting(const OpCall& call, std::string_view name, T fallback) {
  return call.attributes.has(name) ? setting<T>(call, name) : fallback;
}
// An attribute that names a dtype.
DType dtype_setting(const OpCall& call, std::string_view name, DType fallback);

// The name of operand i as its signature has it: "weight".
std::string operand_name(const OpDef& op, size_t i);
bool is_optional(const OpDef& op, size_t i);  // marked `?` in its signature

void require_rank(const OpCall& call, size_t input, size_t rank);
void require_rank_from(const OpCall& call, size_t input, size_t least);
void require_dtype(const OpCall& call, size_t input, DType dtype);
// Both dtype and shape; nothing is asked of an absent operand.
void require_type(const OpCall& call, size_t input, const TensorType& wanted);

// A table or classifier may be a part of a larger one: `count` of its `what` ("rows"), from attribute `first`
// on, of `of`.
void require_part(const OpCall& call, int64_t count, std::string_view what);

// The attributes of a call on a part of its table or classifier, whose rows `slice` names: those of `first`
// and `of`. The rows of a part follow one another.
Attributes first_of(const OpCall& call, const TensorSlice& slice);

// Operand 0 may be a part of a larger tensor, as the attributes `slice` and `whole` say (core/ops/part.h).
void require_slice(const OpCall& call);
// OpDef::localize of such operators: which part operand 0 is.
Attributes part_of_operand(const OpCall& call, std::span<const TensorSlice> inputs,
                           std::span<const TensorSlice>);

// The sum of sizes that are not negative; the largest number where it would overflow.
int64_t sum_of(const std::vector<int64_t>& sizes);

// The shape without its last dimension; the last dimension.
Shape leading(const Shape& shape);
inline int64_t last(const Shape& shape) { return shape.back(); }
Shape with_last(Shape shape, int64_t size);  // the same with another last dimension

// --- for gradient rules

ValueId constant(GraphBuilder& graph, const TensorType& type, double value);
ValueId to_dtype(GraphBuilder& graph, ValueId id, DType dtype);

// The dtype that the gradient of input i should have: the accumulator's for weights, else the input's own.
DType gradient_dtype(const GradientCall& call, size_t i);
// `gradient` (of input i) in that dtype.
ValueId as_gradient(GradientCall& call, size_t i, ValueId gradient);
// The same, summed over the dimensions along which input i was broadcast.
ValueId sum_to_input(GradientCall& call, size_t i, ValueId gradient);

// The single gradient that flows back to an operator whose other results have none: refuses when something
// flows back to one of them.
ValueId only_gradient(const GradientCall& call);

std::string dtype_name(DType dtype);

}  // namespace het::ops
