// Windows that slide over images [b, c, h, w]: the sizes of convolutions and of pooling, read from the shapes
// and attributes of a call. Shape rules and the kernels of every device share them. Plain data.
#pragma once

#include <utility>

#include "core/base/range.h"
#include "core/graph/attributes.h"
#include "core/tensor/shape.h"

namespace het {

// Along one dimension of an image. Window i has `kernel` elements, `dilation` apart, from i * stride -
// padding on; what lies outside the image is padding.
struct Window {
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
};
// From its first to its last element.
constexpr int64_t extent_of(const Window& window) { return (window.kernel - 1) * window.dilation + 1; }
// How many an image has; 0: not even one fits.
constexpr int64_t places_of(const Window& window, int64_t size) {
  const int64_t room = size + 2 * window.padding - extent_of(window);
  return room < 0 ? 0 : room / window.stride + 1;
}

// An attribute that is one number for both dimensions, or {of rows, of columns}.
std::pair<int64_t, int64_t> pair_of(const Attributes& attributes, std::string_view name);
std::pair<int64_t, int64_t> pair_of(const Attributes& attributes, std::string_view name, int64_t fallback);

// A convolution of images [samples, groups * in, height, width] with weights [groups * out, in, rows.kernel,
// columns.kernel] to [samples, groups * out, out_height, out_width].
struct Convolution {
  int64_t samples = 0, groups = 1, in = 0, out = 0;  // in, out: channels of one group
  int64_t height = 0, width = 0, out_height = 0, out_width = 0;
  Window rows, columns;
};
// Of a call whose shapes fit, by `stride`, `padding`, `dilation` and `groups`.
Convolution convolution_of(const Shape& image, const Shape& weight, const Attributes& attributes);

// One dimension of pooling: `count` results of `size` elements. An adaptive one, whose window has the kernel
// 0, covers the image whatever its size: windows overlap where count does not divide size, and elements
// repeat where it is larger.
struct PoolAxis {
  int64_t size = 0, count = 0;
  Window window;
};
// The elements of result i that lie in the image.
constexpr Range range_of(const PoolAxis& axis, int64_t i) {
  if (axis.window.kernel == 0)
    return {i * axis.size / axis.count, ((i + 1) * axis.size + axis.count - 1) / axis.count};
  const int64_t begin = i * axis.window.stride - axis.window.padding, end = begin + axis.window.kernel;
  return {begin < 0 ? 0 : begin, end < axis.size ? end : axis.size};
}

// Pooling of images of one channel.
struct Pooling {
  int64_t planes = 0;  // images
  PoolAxis rows, columns;
  int64_t divisor = 0;  // of every mean; 0: the elements that a window has in the image
};
// By `kernel`, `stride`, `padding` and `count_include_pad`.
Pooling pooling_of(const Shape& image, const Attributes& attributes);
// Adaptive, to `height` by `width`.
Pooling adaptive_pooling_of(const Shape& image, int64_t height, int64_t width);
// Of the operator of this name: `image` before pooling, `result` after it.
Pooling pooling_of(std::string_view op, const Shape& image, const Shape& result,
                   const Attributes& attributes);

}  // namespace het
