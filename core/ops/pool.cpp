// Pooling of images: the largest or the mean of each window, and the gradients.
#include "core/ops/rules.h"
#include "core/ops/windows.h"

namespace het::ops {
namespace {

constexpr int64_t kMost = int64_t{1} << 20;  // of a window's numbers, so that sizes do not overflow

void require_images(const OpCall& call, const Shape& shape, std::string_view name) {
  for (size_t d = 2; d < shape.size(); ++d)
    if (shape[d] < 1 || shape[d] > kMost)
      refuse(call, fmt::format("{} of shape {} has to have between 1 and {} elements in dimension {}", name,
                               to_string(shape), kMost, d));
}

// {rows, columns} of an attribute, both from `least` on.
std::pair<int64_t, int64_t> pair_setting(const OpCall& call, std::string_view name, int64_t least) {
  const auto pair = with_context([&] { return fmt::format("operator {}", call.op.name); },
                                 [&] { return pair_of(call.attributes, name); });
  for (const int64_t value : {pair.first, pair.second})
    if (value < least || value > kMost)
      refuse(call, fmt::format("{} = {} has to be between {} and {}", name, value, least, kMost));
  return pair;
}

// The shape that images of this shape are pooled to. Refuses windows that do not fit.
Shape pooled(const OpCall& call, const Shape& image) {
  require_images(call, image, "x");
  const auto kernel = pair_setting(call, "kernel", 1);
  if (call.attributes.has("stride")) pair_setting(call, "stride", 1);
  if (call.attributes.has("padding")) {
    const auto padding = pair_setting(call, "padding", 0);
    if (2 * padding.first > kernel.first || 2 * padding.second > kernel.second)
      refuse(call, fmt::format("padding = {{{}, {}}} can be half of kernel = {{{}, {}}} at most",
                               padding.first, padding.second, kernel.first, kernel.second));
  }
  setting<bool>(call, "count_include_pad", true);
  const Pooling p = pooling_of(image, call.attributes);
  for (const PoolAxis& axis : {p.rows, p.columns})
    if (axis.count < 1)
      refuse(call, fmt::format("a window of {} does not fit in {} elements with {} of padding on both sides",
                               axis.window.kernel, axis.size, axis.window.padding));
  return {image[0], image[1], p.rows.count, p.columns.count};
}

Types infer_pool(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  require_rank(call, 0, 4);
  return {{call[0].dtype, pooled(call, call[0].shape)}};
}

Types infer_adaptive(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  require_rank(call, 0, 4);
  require_images(call, call[0].shape, "x");
  const auto size = pair_setting(call, "output_size", 1);
  return {{call[0].dtype, {call[0].shape[0], call[0].shape[1], size.first, size.second}}};
}

void require_gradient(const OpCall& call, const Shape& wanted) {
  if (call[0].shape != wanted) refuse(call, fmt::format("dy has to have the shape {}", to_string(wanted)));
}

Types infer_max_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank(call, 0, 4);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 4);
  require_gradient(call, pooled(call, call[1].shape));
  return {call[1]};
}

// The images that dy's are pooled from.
Shape image_of(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  require_rank(call, 0, 4);
  const auto size = pair_setting(call, "size", 1);
  return {call[0].shape[0], call[0].shape[1], size.first, size.second};
}

Types infer_avg_gradient(const OpCall& call) {
  const Shape image = image_of(call);
  require_gradient(call, pooled(call, image));
  return {{call[0].dtype, image}};
}

Types infer_adaptive_gradient(const OpCall& call) {
  const Shape image = image_of(call);
  require_images(call, call[0].shape, "dy");
  return {{call[0].dtype, image}};
}

std::vector<ValueId> gradient_avg(GradientCall& call) {
  const Shape image = call.graph.type(call.input(0)).shape;
  Attributes attributes{{"size", std::vector<int64_t>{image[2], image[3]}}};
  for (const auto& [name, value] : call.node.attributes.entries())
    if (name != "output_size") attributes.set(name, value);
  return {
      call.graph.call(std::string(call.node.op->name) + "_gradient", {call.output_gradients[0]}, attributes)};
}

// An addition or a comparison for each element of each window.
double flops_of(const OpCall& call, const Shape& image, const Shape& result) {
  const Pooling p = pooling_of(call.op.name, image, result, call.attributes);
  const auto reach = [](const PoolAxis& axis) {
    return axis.window.kernel > 0 ? static_cast<double>(axis.count * axis.window.kernel)
                                  : static_cast<double>(std::max(axis.count, axis.size));
  };
  return static_cast<double>(p.planes) * reach(p.rows) * reach(p.columns);
}
double pool_flops(const OpCall& call, Outputs outputs) {
  return flops_of(call, call[0].shape, outputs[0].shape);
}
double gradient_flops(const OpCall& call, Outputs outputs) {
  return flops_of(call, outputs[0].shape, call[0].shape);
}

const std::vector<NeverCut> kWholeImages = {
    {"h w oh ow", "windows reach into neighbouring parts, and edges are not exchanged"}};
const std::vector<ShardingRule> kMaxRules = {{.cut = "b"}, {.cut = "c"}};
const std::vector<ShardingRule> kAvgRules = {{.cut = "b"}, {.cut = "c"}, {.partial = "x y"}};
const std::vector<ShardingRule> kGradientRules = {{.cut = "b"}, {.cut = "c"}, {.partial = "dy dx"}};

}  // namespace

std::vector<OpDef> pool_ops() {
  const std::vector<std::string_view> max_attributes{"kernel", "stride", "padding"},
      avg_attributes{"kernel", "stride", "padding", "count_include_pad"};
  auto avg_gradient_attributes = avg_attributes;
  avg_gradient_attributes.push_back("size");
  return {
      {.name = "max_pool2d",
       .signature = "x[b, c, h, w]:T → y[b, c, oh, ow]:T",
       .doc =
           "The largest of each window of `kernel`, `stride` apart (default: kernel), with `padding` that is "
           "never the largest; each is one number or {of rows, of columns}.",
       .attributes = max_attributes,
       .infer = infer_pool,
       .gradient =
           [](GradientCall& call) {
             return std::vector{call.graph.call(
                 "max_pool2d_gradient", {call.output_gradients[0], call.input(0)}, call.node.attributes)};
           },
       .flops = pool_flops,
       .sharding = kMaxRules,
       .never_cut = kWholeImages},
      {.name = "max_pool2d_gradient",
       .signature = "dy[b, c, oh, ow]:T, x[b, c, h, w]:T → dx[b, c, h, w]:T",
       .doc = "Each dy at the largest of its window of x, the first one of equals.",
       .attributes = max_attributes,
       .infer = infer_max_gradient,
       .flops = gradient_flops,
       .sharding = kGradientRules,
       .never_cut = kWholeImages},
      {.name = "avg_pool2d",
       .signature = "x[b, c, h, w]:T → y[b, c, oh, ow]:T",
       .doc =
           "The mean of each window of `kernel`, `stride` apart (default: kernel), with `padding` of zeros, "
           "which count unless `count_include_pad` is false; each is one number or {of rows, of columns}.",
       .attributes = avg_attributes,
       .infer = infer_pool,
       .gradient = gradient_avg,
       .flops = pool_flops,
       .sharding = kAvgRules,
       .never_cut = kWholeImages},
      {.name = "avg_pool2d_gradient",
       .signature = "dy[b, c, oh, ow]:T → dx[b, c, h, w]:T",
       .doc = "Each dy shared out over its window of images of `size` {h, w}.",
       .attributes = avg_gradient_attributes,
       .infer = infer_avg_gradient,
       .flops = gradient_flops,
       .sharding = kGradientRules,
       .never_cut = kWholeImages},
      {.name = "adaptive_avg_pool2d",
       .signature = "x[b, c, h, w]:T → y[b, c, oh, ow]:T",
       .doc = "Means of as many windows as `output_size`, one number or {rows, columns}, which cover an "
              "image of "
              "any size: window i begins at ⌊i h / oh⌋ and ends before ⌈(i + 1) h / oh⌉.",
       .attributes = {"output_size"},
       .infer = infer_adaptive,
       .gradient = gradient_avg,
       .flops = pool_flops,
       .sharding = kAvgRules,
       .never_cut = kWholeImages},
      {.name = "adaptive_avg_pool2d_gradient",
       .signature = "dy[b, c, oh, ow]:T → dx[b, c, h, w]:T",
       .doc = "Each dy shared out over its window of images of `size` {h, w}.",
       .attributes = {"size"},
       .infer = infer_adaptive_gradient,
       .flops = gradient_flops,
       .sharding = kGradientRules,
       .never_cut = kWholeImages},
  };
}

}  // namespace het::ops
