// Convolution of images, and its gradients.
#include "core/ops/rules.h"
#include "core/ops/windows.h"

namespace het::ops {
namespace {

constexpr std::string_view kWindowAttributes[] = {"stride", "padding", "dilation", "groups"};
constexpr int64_t kMost = int64_t{1} << 20;  // of a window's numbers, so that sizes do not overflow

std::vector<std::string_view> attributes_with(std::initializer_list<std::string_view> more) {
  std::vector<std::string_view> names(std::begin(kWindowAttributes), std::end(kWindowAttributes));
  names.insert(names.end(), more);
  return names;
}

// Everything but the batch has elements.
void require_elements(const OpCall& call, std::string_view name, const Shape& shape, size_t from) {
  for (size_t d = from; d < shape.size(); ++d)
    if (shape[d] < 1)
      refuse(call, fmt::format("{} of shape {} has no elements in dimension {}", name, to_string(shape), d));
}

// The call's sizes, from the shapes of the images and of the weights. Refuses those that do not fit.
Convolution sizes_of(const OpCall& call, const Shape& image, const Shape& weight) {
  const int64_t groups = setting<int64_t>(call, "groups", 1);
  if (groups < 1) refuse(call, fmt::format("groups = {} has to be 1 or more", groups));
  require_elements(call, "x", image, 1);
  require_elements(call, "weight", weight, 0);
  if (weight[0] % groups != 0)
    refuse(call, fmt::format("groups = {} does not divide the {} channels that the weight makes", groups,
                             weight[0]));
  if (image[1] % groups != 0 || image[1] / groups != weight[1])
    refuse(call, fmt::format("images of {} channels in {} group{}, but the weight takes {} of each group",
                             image[1], groups, groups == 1 ? "" : "s", weight[1]));
  const auto check = [&](std::string_view name, std::pair<int64_t, int64_t> pair, int64_t least) {
    for (const auto& [value, what] : {std::pair{pair.first, "rows"}, {pair.second, "columns"}})
      if (value < least || value > kMost)
        refuse(call,
               fmt::format("{} = {} of {} has to be between {} and {}", name, value, what, least, kMost));
  };
  check("kernel", {weight[2], weight[3]}, 1);
  with_context([&] { return fmt::format("operator {}", call.op.name); },
               [&] {
                 check("stride", pair_of(call.attributes, "stride", 1), 1);
                 check("padding", pair_of(call.attributes, "padding", 0), 0);
                 check("dilation", pair_of(call.attributes, "dilation", 1), 1);
               });
  const Convolution c = convolution_of(image, weight, call.attributes);
  for (const auto& [window, size, what] :
       {std::tuple{c.rows, c.height, "rows"}, {c.columns, c.width, "columns"}}) {
    if (places_of(window, size) < 1)
      refuse(call, fmt::format("a window reaches over {} {}, and with the padding images have {}",
                               extent_of(window), what, size + 2 * window.padding));
  }
  return c;
}

void require_channels(const OpCall& call, size_t input, const Convolution& c) {
  const Shape wanted{c.samples, c.groups * c.out, c.out_height, c.out_width};
  if (call[input].shape != wanted)
    refuse(call, fmt::format("{} has to have the shape {}", operand_name(call.op, input), to_string(wanted)));
}

Types infer_conv2d(const OpCall& call) {
  require_inputs(call, 2, 3);
  require_float(call, 0);
  require_rank(call, 0, 4);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 4);
  const Convolution c = sizes_of(call, call[0].shape, call[1].shape);
  require_type(call, 2, {accumulator_of(call[0].dtype), {call[1].shape[0]}});
  return {{call[0].dtype, {c.samples, c.groups * c.out, c.out_height, c.out_width}}};
}

// dx of images of `size`, whose channels are what the weight takes of each group.
Types infer_input_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank(call, 0, 4);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 4);
  const auto size = with_context([&] { return fmt::format("operator {}", call.op.name); },
                                 [&] { return pair_of(call.attributes, "size"); });
  const int64_t groups = setting<int64_t>(call, "groups", 1);
  if (groups < 1 || groups > call[1].shape[0])
    refuse(call, fmt::format("groups = {} has to be between 1 and the weight's {} channels", groups,
                             call[1].shape[0]));
  const Shape image{call[0].shape[0], groups * call[1].shape[1], size.first, size.second};
  require_channels(call, 0, sizes_of(call, image, call[1].shape));
  return {{call[0].dtype, image}};
}

Types infer_weight_gradient(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank(call, 0, 4);
  require_dtype(call, 1, call[0].dtype);
  require_rank(call, 1, 4);
  const auto kernel = with_context([&] { return fmt::format("operator {}", call.op.name); },
                                   [&] { return pair_of(call.attributes, "kernel"); });
  const int64_t groups = setting<int64_t>(call, "groups", 1);
  if (groups < 1 || call[1].shape[1] % groups != 0)
    refuse(call, fmt::format("groups = {} does not divide the {} channels of x", groups, call[1].shape[1]));
  const Shape weight{call[0].shape[1], call[1].shape[1] / groups, kernel.first, kernel.second};
  require_channels(call, 0, sizes_of(call, call[1].shape, weight));
  const DType dtype = accumulator_of(call[0].dtype);
  Types types{{dtype, weight}};
  types.push_back(setting<bool>(call, "bias", false) ? TensorType{dtype, {weight[0]}} : TensorType{});
  return types;
}

std::vector<int64_t> last_two(const Shape& shape) { return {shape[2], shape[3]}; }

std::vector<ValueId> gradient_conv2d(GradientCall& call) {
  const ValueId dy = call.output_gradients[0];
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  const bool bias = gradients.size() > 2 && call.input(2) != kAbsent && call.wanted[2];
  const Shape image = call.graph.type(call.input(0)).shape, weight = call.graph.type(call.input(1)).shape;
  if (call.wanted[0]) {
    Attributes attributes = call.node.attributes;
    attributes.set("size", last_two(image));
    gradients[0] =
        as_gradient(call, 0, call.graph.call("conv2d_input_gradient", {dy, call.input(1)}, attributes));
  }
  if (call.wanted[1]) {
    Attributes attributes = call.node.attributes;
    attributes.set("kernel", last_two(weight)).set("bias", bias);
    const auto made =
        call.graph.call_all(op_named("conv2d_weight_gradient"), {dy, call.input(0)}, attributes);
    gradients[1] = as_gradient(call, 1, made[0]);
    if (bias) gradients[2] = made[1];
  } else if (bias) {
    gradients[2] = call.graph.call("sum", {dy},
                                   {{"dims", std::vector<int64_t>{0, 2, 3}},
                                    {"dtype", dtype_name(call.graph.type(call.input(2)).dtype)}});
  }
  return gradients;
}

double elements(const TensorType& type) { return static_cast<double>(type.elements()); }

// Of results y (or dy) of a weight: each is a sum over one group's channels and a window.
double flops(const TensorType& y, const TensorType& weight) {
  return 2.0 * elements(y) * elements(weight) / static_cast<double>(weight.shape[0]);
}

// As many groups as the part has: its channels by those that a weight of one group takes.
Attributes localize(const OpCall& call, const TensorSlice& image, const TensorSlice& weight) {
  Attributes attributes = call.attributes;
  const int64_t in = weight.shape()[1];
  if (in > 0) attributes.set("groups", image.shape()[1] / in);
  return attributes;
}

const std::vector<NeverCut> kWholeImages = {
    {"h w oh ow", "windows reach into neighbouring parts, and edges are not exchanged"},
    {"kh kw", "a window is read whole"}};

}  // namespace

std::vector<OpDef> conv_ops() {
  return {
      {.name = "conv2d",
       .signature = "x[b, (g ci), h, w]:T, weight[(g co), ci, kh, kw]:T, bias?[(g co)]:A → "
                    "y[b, (g co), oh, ow]:T",
       .doc =
           "Each result is the sum of a window of x times the weight, + bias. `stride`, `padding` (zeros "
           "around the image) and `dilation` are one number or {of rows, of columns}; with `groups`, results "
           "of a group are of the group's channels alone.",
       .attributes = attributes_with({}),
       .infer = infer_conv2d,
       .gradient = gradient_conv2d,
       .flops = [](const OpCall& call, Outputs outputs) { return flops(outputs[0], call[1]); },
       .sharding = {{.cut = "b"},
                    {.cut = "g"},
                    {.cut = "co"},
                    {.cut = "ci", .sums = "y", .once = "bias"},
                    {.partial = "x y", .once = "bias"},
                    {.partial = "weight y", .once = "bias"}},
       .never_cut = kWholeImages,
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return localize(call, inputs[0], inputs[1]); },
       .multiplies_weights = true},
      {.name = "conv2d_input_gradient",
       .signature = "dy[b, (g co), oh, ow]:T, weight[(g co), ci, kh, kw]:T → dx[b, (g ci), h, w]:T",
       .doc = "The gradient of conv2d's x, images of `size` {h, w}.",
       .attributes = attributes_with({"size"}),
       .infer = infer_input_gradient,
       .flops = [](const OpCall& call, Outputs) { return flops(call[0], call[1]); },
       .sharding = {{.cut = "b"},
                    {.cut = "g"},
                    {.cut = "ci"},
                    {.cut = "co", .sums = "dx"},
                    {.partial = "dy dx"},
                    {.partial = "weight dx"}},
       .never_cut = kWholeImages,
       .localize =
           [](const OpCall& call, std::span<const TensorSlice> inputs, std::span<const TensorSlice> outputs) {
             return localize(call, outputs[0], inputs[1]);
           }},
      {.name = "conv2d_weight_gradient",
       .signature = "dy[b, (g co), oh, ow]:T, x[b, (g ci), h, w]:T → dweight[(g co), ci, kh, kw]:A +=, "
                    "dbias[(g co)]:A +=",
       .doc =
           "The gradient of conv2d's weight, whose windows are `kernel` {kh, kw}, and with `bias` the sums "
           "of dy's channels.",
       .attributes = attributes_with({"kernel", "bias"}),
       .infer = infer_weight_gradient,
       .flops = [](const OpCall& call, Outputs outputs) { return flops(call[0], outputs[0]); },
       .accumulates = 3,
       .sharding = {{.cut = "b", .sums = "dweight dbias"},
                    {.cut = "g"},
                    {.cut = "co"},
                    {.cut = "ci"},  // dbias is computed by all
                    {.partial = "dy dweight dbias"},
                    {.partial = "x dweight"}},
       .never_cut = kWholeImages,
       .localize =
           [](const OpCall& call, std::span<const TensorSlice> inputs, std::span<const TensorSlice> outputs) {
             return localize(call, inputs[1], outputs[0]);
           }},
  };
}

}  // namespace het::ops
