// Calls on a part of a tensor whose result depends on the place of each element in the whole: those that draw
// at random. The attributes `slice`, as text, and `whole`, the shape, say which part operand 0 is; without
// them it is the whole.
#pragma once

#include "core/graph/attributes.h"
#include "core/tensor/shape.h"
#include "core/tensor/slice_map.h"

namespace het {

// The slice that the attributes say; all of `shape`, that of the operand, where they say none. Throws
// Error(usage).
TensorSlice part_of(const Attributes& attributes, const Shape& shape);
// Say it. The whole says nothing.
void set_part(Attributes& attributes, const TensorSlice& slice);

// For kernels: where the elements of the operand lie in the whole, and how many of the whole a sample has,
// one index of dimension 0.
SliceMap places_of(const Attributes& attributes, const Shape& shape);
int64_t whole_sample_elements(const Attributes& attributes, const Shape& shape);

}  // namespace het
