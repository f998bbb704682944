// A slice: which elements of a tensor a rank has or needs. It is a set of indices, the product of a set for
// each dimension, and each of these may consist of several ranges: the rows of three heads, the rows of the
// queries, keys and values of one rank, a tile of rows and columns. How a tensor was cut is not part of it:
// two ways of cutting that give the same elements give equal slices (empty ones also compare their shapes).
//
// The elements of a slice are stored packed, row-major in ascending order of their indices, so where an
// element lies is a function of the slice alone.
//
// Values, safe to read from several threads. Sizes count elements unless they are called bytes.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/range.h"
#include "core/tensor/shape.h"

namespace het {

class Tensor;

// A set of whole numbers: ascending, none empty, no two that touch.
using Ranges = std::vector<Range>;

int64_t size_of(const Ranges& ranges);
int64_t shared_size(const Ranges& a, const Ranges& b);  // of their intersection
Ranges intersection(const Ranges& a, const Ranges& b);
Ranges difference(const Ranges& a, const Ranges& b);

class TensorSlice {
 public:
  TensorSlice() = default;                // of a scalar: all of it
  static TensorSlice whole(Shape shape);  // all of a tensor of this shape

  // Of what this slice has, the elements whose index in dimension `dim` is in `keep`. `keep` counts in the
  // whole tensor. Negative dimensions count from the end.
  TensorSlice narrowed(int64_t dim, const Ranges& keep) const;
  TensorSlice narrowed(int64_t dim, Range keep) const { return narrowed(dim, Ranges{keep}); }

  const Shape& whole_shape() const { return whole_; }
  Ranges ranges(int64_t dim) const;  // indices of the whole, in one dimension
  Shape shape() const;               // of the packed elements; [0, 8] when dimension 0 has none
  int64_t elements() const { return elements_of(shape()); }
  bool is_whole() const { return kept_.empty(); }
  bool is_empty() const { return elements() == 0; }

  bool operator==(const TensorSlice&) const = default;
  friend int64_t shared_elements(const TensorSlice& a, const TensorSlice& b);

 private:
  Shape whole_;
  std::vector<Ranges> kept_;  // by dimension; empty: the slice is the whole tensor
};

// Slices of tensors of one shape. nullopt: they have no element together.
std::optional<TensorSlice> intersection(const TensorSlice& a, const TensorSlice& b);
// How many elements both have: the size of their intersection, without making it.
int64_t shared_elements(const TensorSlice& a, const TensorSlice& b);
// What `a` has and `b` has not, as disjoint slices: at most one for each dimension.
std::vector<TensorSlice> difference(const TensorSlice& a, const TensorSlice& b);
// What is needed and none of `have` has, as disjoint slices; empty when they cover it.
std::vector<TensorSlice> missing(const TensorSlice& need, std::span<const TensorSlice> have);
// All that the slices have, in few parts, such that each part lies in a slice or outside of it. Disjoint; in
// an order that depends on the slices and their order alone.
std::vector<TensorSlice> refine(std::span<const TensorSlice> slices);

// Of what `held` has, the elements that are `part` of its packed ones: a slice of the whole tensor. The whole
// of `part` is held.shape().
TensorSlice nested(const TensorSlice& held, const TensorSlice& part);

// visit(byte in the packed elements of `from`, byte in those of `to`, bytes) for each run of bytes of what
// both have. Ascending in both.
void each_run(const TensorSlice& from, const TensorSlice& to, int64_t element_bytes,
              const std::function<void(int64_t, int64_t, int64_t)>& visit);
// Copy what both slices have. `from` and `to` hold the packed elements of their slices, of one dtype.
void copy(Tensor& to, const TensorSlice& to_slice, const Tensor& from, const TensorSlice& from_slice);
Tensor take(const Tensor& whole, const TensorSlice& slice);             // the packed elements, copied
void put(Tensor& whole, const Tensor& part, const TensorSlice& slice);  // copied to their place

// Where the elements of `part` lie in the packed elements of `held`, which has them all: as strided boxes.
std::vector<Layout> views(const TensorSlice& part, const TensorSlice& held, DType dtype);

// "[0:48+64:88, :]": a colon is a whole dimension, "0:0" one without elements; "[]" is a scalar.
std::string to_string(const TensorSlice& slice);
// The slice that a text says of a tensor of this shape. Throws Error(usage) for a text that is none, and for
// indices that the tensor does not have.
TensorSlice parse_slice(const Shape& whole, std::string_view text);

}  // namespace het
