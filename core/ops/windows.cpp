#include "core/ops/windows.h"

#include "core/base/error.h"

namespace het {

std::pair<int64_t, int64_t> pair_of(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.entries().find(name);
  if (found != attributes.entries().end() && !std::holds_alternative<std::vector<int64_t>>(found->second)) {
    const auto both = attributes.get<int64_t>(name);
    return {both, both};
  }
  const auto list = attributes.get<std::vector<int64_t>>(name);
  if (list.size() != 2)
    fail_usage(
        "attribute '{}' = {{{}}} has {} numbers; one for both dimensions, or {{of rows, of columns}}, is "
        "needed",
        name, fmt::join(list, ", "), list.size());
  return {list[0], list[1]};
}

std::pair<int64_t, int64_t> pair_of(const Attributes& attributes, std::string_view name, int64_t fallback) {
  return attributes.has(name) ? pair_of(attributes, name) : std::pair{fallback, fallback};
}

Convolution convolution_of(const Shape& image, const Shape& weight, const Attributes& attributes) {
  const auto stride = pair_of(attributes, "stride", 1), padding = pair_of(attributes, "padding", 0),
             dilation = pair_of(attributes, "dilation", 1);
  Convolution c;
  c.samples = image[0];
  c.groups = attributes.get<int64_t>("groups", 1);
  c.in = weight[1];
  c.out = weight[0] / c.groups;
  c.height = image[2];
  c.width = image[3];
  c.rows = {weight[2], stride.first, padding.first, dilation.first};
  c.columns = {weight[3], stride.second, padding.second, dilation.second};
  c.out_height = places_of(c.rows, c.height);
  c.out_width = places_of(c.columns, c.width);
  return c;
}

Pooling pooling_of(const Shape& image, const Attributes& attributes) {
  const auto kernel = pair_of(attributes, "kernel"), padding = pair_of(attributes, "padding", 0);
  const auto stride = attributes.has("stride") ? pair_of(attributes, "stride") : kernel;
  const auto axis = [](int64_t size, const Window& window) {
    return PoolAxis{size, places_of(window, size), window};
  };
  Pooling p;
  p.planes = image[0] * image[1];
  p.rows = axis(image[2], {kernel.first, stride.first, padding.first, 1});
  p.columns = axis(image[3], {kernel.second, stride.second, padding.second, 1});
  if (attributes.get<bool>("count_include_pad", true)) p.divisor = kernel.first * kernel.second;
  return p;
}

Pooling adaptive_pooling_of(const Shape& image, int64_t height, int64_t width) {
  return {image[0] * image[1], {image[2], height, {0}}, {image[3], width, {0}}, 0};
}

Pooling pooling_of(std::string_view op, const Shape& image, const Shape& result,
                   const Attributes& attributes) {
  return op.starts_with("adaptive") ? adaptive_pooling_of(image, result[2], result[3])
                                    : pooling_of(image, attributes);
}

}  // namespace het
