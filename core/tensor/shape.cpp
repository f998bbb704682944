#include "core/tensor/shape.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"

namespace het {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DTypeRow, 9> kDTypes{{{DType::none, "none", 0},
                                           {DType::f32, "f32", 4},
                                           {DType::f64, "f64", 8},
                                           {DType::bf16, "bf16", 2},
                                           {DType::f16, "f16", 2},
                                           {DType::i32, "i32", 4},
                                           {DType::i64, "i64", 8},
                                           {DType::u8, "u8", 1},
                                           {DType::boolean, "bool", 1}}};

}  // namespace

std::string_view name_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& row : kDTypes)
    if (row.name == name && row.dtype != DType::none) return row.dtype;
  return std::nullopt;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const auto& row : kDTypes)
    if (row.dtype != DType::none) names.emplace_back(row.name);
  return names;
}

int64_t bytes_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

int64_t elements_of(const Shape& shape) {
  // No device holds so many; sums over many such tensors still fit 64 bits.
  constexpr int64_t kMost = int64_t{1} << 48;
  if (shape.size() > kMostDimensions)
    fail_usage("a tensor has at most {} dimensions, not {}", kMostDimensions, shape.size());
  int64_t count = 1;  // without sizes of 0: strides are products of the other sizes
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) fail_usage("a dimension of {} is negative", to_string(shape));
    empty = empty || size == 0;
    if (size != 0 && (__builtin_mul_overflow(count, size, &count) || count > kMost))
      fail_usage("a tensor of shape {} is too large: it has more than 2^48 elements", to_string(shape));
  }
  // Rows of nothing are walked all the same, and as lists take memory.
  constexpr int64_t kMostEmpty = int64_t{1} << 32;
  if (empty && count > kMostEmpty)
    fail_usage("a tensor of shape {} is too large: its other sizes multiply to more than 2^32",
               to_string(shape));
  return empty ? 0 : count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::string to_string(const Shape& shape) {
  if (shape.size() <= kMostDimensions) return fmt::format("[{}]", fmt::join(shape, ", "));
  const Shape first(shape.begin(), shape.begin() + 3);
  return fmt::format("[{}, ... {} in all]", fmt::join(first, ", "), shape.size());
}

std::string to_string(const TensorType& type) {
  return type.present() ? fmt::format("{}{}", name_of(type.dtype), to_string(type.shape)) : "absent";
}

Layout Layout::contiguous(TensorType type) {
  Strides strides = contiguous_strides(type.shape);
  return {std::move(type), std::move(strides), 0};
}

bool Layout::is_contiguous() const {
  if (std::find(type.shape.begin(), type.shape.end(), 0) != type.shape.end()) return true;
  int64_t step = 1;
  for (size_t i = type.shape.size(); i-- > 0;) {
    if (type.shape[i] != 1 && strides[i] != step) return false;
    step *= type.shape[i];
  }
  return true;
}

std::optional<Layout> reshaped(const Layout& layout, const Shape& shape) {
  if (elements_of(shape) != layout.type.elements()) return std::nullopt;
  Layout result{{layout.type.dtype, shape}, Strides(shape.size(), 1), layout.offset};
  if (layout.type.elements() == 0) {
    result.strides = contiguous_strides(shape);
    return result;
  }
  // Merge old dimensions that are contiguous with each other into runs, then cut each run again, from the
  // right.
  const Shape& old = layout.type.shape;
  int64_t target = static_cast<int64_t>(shape.size()) - 1;
  for (int64_t last = static_cast<int64_t>(old.size()) - 1; last >= 0;) {
    if (old[last] == 1) {
      --last;
      continue;
    }
    const int64_t step = layout.strides[last];
    int64_t run = old[last], first = last - 1;
    while (first >= 0 && (old[first] == 1 || layout.strides[first] == step * run)) run *= old[first--];
    int64_t filled = 1;
    while (target >= 0 && filled < run) {
      result.strides[target] = step * filled;
      filled *= shape[target--];
    }
    if (filled != run) return std::nullopt;
    last = first;
  }
  for (; target >= 0; --target) result.strides[target] = 1;  // leading dimensions of size 1
  return result;
}

Layout permuted(const Layout& layout, const std::vector<int64_t>& order) {
  Layout result{{layout.type.dtype, {}}, {}, layout.offset};
  for (const int64_t dim : order) {
    result.type.shape.push_back(layout.type.shape[dim]);
    result.strides.push_back(layout.strides[dim]);
  }
  return result;
}

Layout sliced(const Layout& layout, int64_t dim, int64_t start, int64_t length) {
  Layout result = layout;
  result.type.shape[dim] = length;
  result.offset += start * layout.strides[dim];
  return result;
}

std::optional<Shape> broadcast_of(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    result[result.size() - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

Layout broadcast_to(const Layout& layout, const Shape& shape) {
  Layout result{{layout.type.dtype, shape}, Strides(shape.size(), 0), layout.offset};
  const size_t lead = shape.size() - layout.type.shape.size();
  for (size_t i = 0; i < layout.type.shape.size(); ++i)
    if (layout.type.shape[i] != 1 || shape[lead + i] == 1) result.strides[lead + i] = layout.strides[i];
  return result;
}

}  // namespace het
