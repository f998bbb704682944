// Shapes and layouts: plain values. A layout says where each element of a tensor lies: strides count
// elements, offset counts elements from the start of the buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"

namespace het {

using Shape = std::vector<int64_t>;
using Strides = std::vector<int64_t>;

// The product; 1 for a scalar (empty shape). Throws Error(usage) for a shape that no tensor has: with a
// negative size, more than kMostDimensions, or so many elements that strides would overflow.
int64_t elements_of(const Shape& shape);
inline constexpr size_t kMostDimensions = 32;
Strides contiguous_strides(const Shape& shape);
std::string to_string(const Shape& shape);  // "[12, 64, 128]", "[]" for a scalar

std::vector<std::string> dtype_names();  // all but none: "f32", "f64", ...

// What a value is, without where it lies. dtype none marks an absent optional operand.
struct TensorType {
  DType dtype = DType::none;
  Shape shape;

  bool present() const { return dtype != DType::none; }
  int64_t elements() const { return elements_of(shape); }
  int64_t bytes() const { return elements() * bytes_of(dtype); }
  bool operator==(const TensorType&) const = default;
};
std::string to_string(const TensorType& type);  // "bf16[12, 64, 128]"

// A dimension that may count from the end (-1: the last), counted from the start.
inline int64_t from_start(int64_t dim, size_t rank) {
  return dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
}

struct Layout {
  TensorType type;
  Strides strides;     // elements, one for each dimension
  int64_t offset = 0;  // elements

  static Layout contiguous(TensorType type);
  bool is_contiguous() const;  // row-major without gaps (dimensions of size 1 do not matter)
  bool operator==(const Layout&) const = default;
};

// Views: the same elements seen otherwise. nullopt where no strides can express it.
std::optional<Layout> reshaped(const Layout& layout, const Shape& shape);
Layout permuted(const Layout& layout, const std::vector<int64_t>& order);
Layout sliced(const Layout& layout, int64_t dim, int64_t start, int64_t length);

// The shape that both broadcast to (trailing dimensions aligned, size 1 stretches); nullopt if they do not
// fit.
std::optional<Shape> broadcast_of(const Shape& a, const Shape& b);
// `layout` stretched to `shape` with stride 0 where it repeats. It must broadcast.
Layout broadcast_to(const Layout& layout, const Shape& shape);

}  // namespace het
