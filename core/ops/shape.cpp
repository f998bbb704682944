// Views, and the two operators that fill memory without computing.
#include <algorithm>
#include <numeric>

#include "core/base/units.h"
#include "core/ops/rules.h"

namespace het::ops {
namespace {

// The shape that `wanted` means for `shape`, its -1 worked out; nullopt when the elements do not fit.
std::optional<Shape> resolved(const Shape& shape, const Shape& wanted) {
  Shape result = wanted;
  int64_t known = 1, free = -1;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == -1) {
      if (free >= 0) return std::nullopt;
      free = static_cast<int64_t>(i);
    } else if (wanted[i] < 0) {
      return std::nullopt;
    } else if (__builtin_mul_overflow(known, wanted[i], &known)) {
      return std::nullopt;
    }
  }
  const int64_t elements = elements_of(shape);
  if (free >= 0) {
    if (known == 0 || elements % known != 0) return std::nullopt;
    result[free] = elements / known;
  } else if (known != elements) {
    return std::nullopt;
  }
  return result;
}

Types infer_reshape(const OpCall& call) {
  require_inputs(call, 1, 1);
  const Shape wanted = setting<std::vector<int64_t>>(call, "shape");
  const int64_t elements = call[0].elements();
  if (std::count(wanted.begin(), wanted.end(), -1) > 1)
    refuse(call, fmt::format("the shape {} has more than one -1; only one size can be worked out",
                             to_string(wanted)));
  const auto shape = resolved(call[0].shape, wanted);
  if (!shape)
    refuse(call, fmt::format(
                     "{} elements do not fit the shape {}; its sizes have to multiply to {}, or to a divisor "
                     "of it beside one -1",
                     elements, to_string(wanted), elements));
  return {{call[0].dtype, *shape}};
}

std::optional<std::vector<Layout>> view_reshape(const Layout& x, const Attributes& attributes) {
  const auto shape = resolved(x.type.shape, attributes.get<std::vector<int64_t>>("shape"));
  HET_REQUIRE(shape.has_value(), to_string(x.type));
  auto layout = reshaped(x, *shape);
  if (!layout) return std::nullopt;
  return std::vector{std::move(*layout)};
}

std::vector<ValueId> gradient_reshape(GradientCall& call) {
  const ValueId dy = call.output_gradients[0];
  return {call.graph.call("reshape", {dy}, {{"shape", call.graph.type(call.input(0)).shape}})};
}

std::vector<int64_t> normal_order(std::vector<int64_t> order) {
  for (int64_t& dim : order) dim = from_start(dim, order.size());
  return order;
}

Types infer_transpose(const OpCall& call) {
  require_inputs(call, 1, 1);
  const size_t rank = call[0].shape.size();
  const auto given = setting<std::vector<int64_t>>(call, "order");
  const auto order = normal_order(given);
  std::vector<int64_t> sorted = order, all(rank);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all)
    refuse(call,
           fmt::format("the order {} has to name each of the {} dimensions once", to_string(given), rank));
  Shape shape;
  for (const int64_t dim : order) shape.push_back(call[0].shape[dim]);
  return {{call[0].dtype, shape}};
}

std::vector<ValueId> gradient_transpose(GradientCall& call) {
  const auto order = normal_order(call.node.attributes.get<std::vector<int64_t>>("order"));
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
  return {call.graph.call("transpose", {call.output_gradients[0]}, {{"order", inverse}})};
}

Types infer_slice(const OpCall& call) {
  require_inputs(call, 1, 1);
  const int64_t dim = normal_dim(call, setting<int64_t>(call, "dim"), call[0].shape.size());
  const int64_t start = setting<int64_t>(call, "start"), length = setting<int64_t>(call, "length");
  const int64_t size = call[0].shape[dim];
  if (start < 0 || length < 1 || length > size - start)
    refuse(call, fmt::format("elements {} to {} of dimension {} do not exist; there are 0 to {}", start,
                             start + length - 1, dim, size - 1));
  Shape shape = call[0].shape;
  shape[dim] = length;
  return {{call[0].dtype, shape}};
}

int64_t dim_of(const Attributes& attributes, size_t rank) {
  return from_start(attributes.get<int64_t>("dim"), rank);
}

std::optional<std::vector<Layout>> view_slice(const Layout& x, const Attributes& attributes) {
  return std::vector{sliced(x, dim_of(attributes, x.type.shape.size()), attributes.get<int64_t>("start"),
                            attributes.get<int64_t>("length"))};
}

// Zeros of the type of `like`, `size` long in `dim`.
ValueId zeros(GradientCall& call, const TensorType& like, int64_t dim, int64_t size) {
  TensorType type = like;
  type.shape[dim] = size;
  return constant(call.graph, type, 0.0);
}

std::vector<ValueId> gradient_slice(GradientCall& call) {
  const ValueId dy = call.output_gradients[0];
  const TensorType type = call.graph.type(dy);
  const int64_t size = call.graph.type(call.input(0)).shape[dim_of(call.node.attributes, type.shape.size())];
  const int64_t dim = dim_of(call.node.attributes, type.shape.size());
  const int64_t start = call.node.attributes.get<int64_t>("start");
  const int64_t rest = size - start - type.shape[dim];
  std::vector<ValueId> parts;
  if (start > 0) parts.push_back(zeros(call, type, dim, start));
  parts.push_back(dy);
  if (rest > 0) parts.push_back(zeros(call, type, dim, rest));
  if (parts.size() == 1) return {dy};
  return {call.graph.call("concat", parts, {{"dim", dim}})};
}

Types infer_split(const OpCall& call) {
  require_inputs(call, 1, 1);
  const int64_t dim = normal_dim(call, setting<int64_t>(call, "dim"), call[0].shape.size());
  const auto sizes = setting<std::vector<int64_t>>(call, "sizes");
  const bool positive = !sizes.empty() && *std::min_element(sizes.begin(), sizes.end()) >= 1;
  const int64_t total = positive ? sum_of(sizes) : 0;
  if (total != call[0].shape[dim] || !positive)
    refuse(call, fmt::format("the sizes {} have to be positive and sum to {}, the size of dimension {}{}",
                             to_string(sizes), call[0].shape[dim], dim,
                             positive ? fmt::format("; they sum to {}", total) : ""));
  Types types;
  for (const int64_t size : sizes) {
    types.push_back(call[0]);
    types.back().shape[dim] = size;
  }
  return types;
}

std::optional<std::vector<Layout>> view_split(const Layout& x, const Attributes& attributes) {
  const int64_t dim = dim_of(attributes, x.type.shape.size());
  std::vector<Layout> parts;
  int64_t start = 0;
  for (const int64_t size : attributes.get<std::vector<int64_t>>("sizes")) {
    parts.push_back(sliced(x, dim, start, size));
    start += size;
  }
  return parts;
}

std::vector<ValueId> gradient_split(GradientCall& call) {
  const TensorType whole = call.graph.type(call.input(0));
  const int64_t dim = dim_of(call.node.attributes, whole.shape.size());
  TensorType like = whole;
  for (const ValueId dy : call.output_gradients)
    if (dy != kAbsent) like.dtype = call.graph.type(dy).dtype;
  std::vector<ValueId> parts;
  for (size_t i = 0; i < call.output_gradients.size(); ++i) {
    const ValueId dy = call.output_gradients[i];
    parts.push_back(dy == kAbsent ? zeros(call, like, dim, call.graph.type(call.output(i)).shape[dim])
                                  : to_dtype(call.graph, dy, like.dtype));
  }
  if (parts.size() == 1) return parts;
  return {call.graph.call("concat", parts, {{"dim", dim}})};
}

Types infer_concat(const OpCall& call) {
  require_inputs(call, 1, static_cast<size_t>(-1));
  const int64_t dim = normal_dim(call, setting<int64_t>(call, "dim"), call[0].shape.size());
  TensorType result = call[0];
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    TensorType fitting = call[0];
    if (call[i].shape.size() == fitting.shape.size()) fitting.shape[dim] = call[i].shape[dim];
    if (call[i] != fitting)
      refuse(
          call,
          fmt::format("{} cannot be joined to {} along dimension {}: dtype and all other sizes must be equal",
                      to_string(call[i]), to_string(call[0]), dim));
    result.shape[dim] += call[i].shape[dim];
    elements_of(result.shape);  // before the sum of many could overflow
  }
  return {result};
}

std::vector<ValueId> gradient_concat(GradientCall& call) {
  const ValueId dy = call.output_gradients[0];
  const int64_t dim = dim_of(call.node.attributes, call.graph.type(dy).shape.size());
  std::vector<int64_t> sizes;
  for (const ValueId id : call.node.inputs) sizes.push_back(call.graph.type(id).shape[dim]);
  return call.graph.call_all(op_named("split"), {dy}, {{"dim", dim}, {"sizes", sizes}});
}

Types infer_fill(const OpCall& call) {
  require_inputs(call, 0, 0);
  setting<double>(call, "value");
  const Shape shape = setting<std::vector<int64_t>>(call, "shape");
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; }))
    refuse(call, fmt::format("the shape {} has a negative size", to_string(shape)));
  return {{dtype_setting(call, "dtype", DType::f32), shape}};
}

Types infer_constant(const OpCall& call) {
  require_inputs(call, 0, 0);
  const Shape shape = setting<std::vector<int64_t>>(call, "shape");
  const auto values = setting<std::vector<double>>(call, "values");
  const bool negative = std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; });
  if (negative || elements_of(shape) != static_cast<int64_t>(values.size()))
    refuse(call, fmt::format("{} values do not fill the shape {}", values.size(), to_string(shape)));
  return {{dtype_setting(call, "dtype", DType::f32), shape}};
}

// The values of a part.
Attributes localize_constant(const OpCall& call, std::span<const TensorSlice>,
                             std::span<const TensorSlice> outputs) {
  const auto all = call.attributes.get<std::vector<double>>("values");
  std::vector<double> part(static_cast<size_t>(outputs[0].elements()));
  each_run(TensorSlice::whole(outputs[0].whole_shape()), outputs[0], 1,
           [&](int64_t from, int64_t to, int64_t count) {
             std::copy_n(all.begin() + from, count, part.begin() + to);
           });
  Attributes attributes = call.attributes;
  attributes.set("values", part).set("shape", outputs[0].shape());
  return attributes;
}

std::string notation_of_made(const OpCall&, std::span<const TensorType> outputs) {
  return fmt::format(" → y{}", aligned_dims(outputs[0].shape, outputs[0].shape));
}

// --- notation

// A letter for each dimension, "...0", or a number in place of dimension `dim`, or what is given for it.
std::string dims_of(const Shape& shape, std::optional<size_t> dim = std::nullopt,
                    std::string_view in_its_place = "") {
  std::string text;
  for (size_t d = 0; d < shape.size(); ++d) {
    text += d > 0 ? ", " : "";
    if (dim != d)
      text += fmt::format("...{}", d);
    else if (in_its_place.empty())
      text += fmt::format("{}", shape[d]);
    else
      text += in_its_place;
  }
  return "[" + text + "]";
}

// The coarsest factors whose products are the dimensions of both shapes, by their ends: where the elements
// that lie further in are as many in both. Dimensions between two common ends that do not divide each other
// have none.
std::string notation_of_reshape(const OpCall& call, std::span<const TensorType> outputs) {
  const Shape* shapes[2]{&call[0].shape, &outputs[0].shape};
  if (call[0].elements() == 0) {
    const auto numbers = [](const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); };
    return fmt::format("x{} → y{}", numbers(*shapes[0]), numbers(*shapes[1]));
  }
  // Dimensions from the last on, as ends of what lies within them: [4, 6] has 1, 6, 24.
  std::vector<std::string> texts[2];
  size_t left[2]{shapes[0]->size(), shapes[1]->size()};
  int letters = 0;
  const auto next = [&](int side) { return (*shapes[side])[left[side] - 1]; };
  while (left[0] > 0 || left[1] > 0) {
    // A group: the fewest dimensions of both with equally many elements.
    std::vector<int64_t> group[2];
    int64_t product[2]{1, 1};
    do {
      const int side = left[0] == 0 || (left[1] > 0 && product[1] < product[0]) ? 1 : 0;
      const int64_t size = next(side);
      --left[side];
      group[side].push_back(size);
      product[side] *= size;
    } while (product[0] != product[1]);
    // Its factors: cut at every end of either side, and each end has to divide the next.
    std::vector<int64_t> ends{1};
    for (const auto& sizes : group) {
      int64_t end = 1;
      for (const int64_t size : sizes) ends.push_back(end *= size);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    const bool divides = std::adjacent_find(ends.begin(), ends.end(),
                                            [](int64_t a, int64_t b) { return b % a != 0; }) == ends.end();
    for (int side = 0; side < 2; ++side) {
      int64_t end = 1;
      size_t factor = 0;
      for (const int64_t size : group[side]) {
        if (!divides || size == 1) {
          texts[side].push_back(fmt::format("{}", size));
          end *= size;
          continue;
        }
        std::vector<std::string> merged;  // innermost first
        for (end *= size; ends[factor] < end; ++factor)
          merged.push_back(fmt::format("...{}", letters + static_cast<int>(factor)));
        std::reverse(merged.begin(), merged.end());
        texts[side].push_back(merged.size() == 1 ? merged[0] : fmt::format("({})", fmt::join(merged, " ")));
      }
    }
    letters += static_cast<int>(ends.size());
  }
  for (auto& side : texts) std::reverse(side.begin(), side.end());
  return fmt::format("x[{}] → y[{}]", fmt::join(texts[0], ", "), fmt::join(texts[1], ", "));
}

std::string notation_of_transpose(const OpCall& call, std::span<const TensorType>) {
  std::string result;
  for (const int64_t d : normal_order(call.attributes.get<std::vector<int64_t>>("order")))
    result += fmt::format("{}...{}", result.empty() ? "" : ", ", d);
  return fmt::format("x{} → y[{}]", dims_of(call[0].shape), result);
}

std::string notation_of_slice(const OpCall& call, std::span<const TensorType> outputs) {
  const auto dim = static_cast<size_t>(dim_of(call.attributes, call[0].shape.size()));
  return fmt::format("x{} → y{}", dims_of(call[0].shape, dim), dims_of(outputs[0].shape, dim));
}

// The parts of a dimension, each a letter "p0", "p1"; and the operands that have them.
std::string parts_notation(const Shape& whole, size_t dim, size_t count, std::string_view name, bool joins) {
  std::string sum, parts;
  for (size_t i = 0; i < count; ++i) {
    sum += fmt::format("{}p{}", i > 0 ? " + " : "", i);
    parts += fmt::format("{}{}{}{}", i > 0 ? ", " : "", name, i, dims_of(whole, dim, fmt::format("p{}", i)));
  }
  const std::string joined = fmt::format("{}{}", joins ? "y" : "x", dims_of(whole, dim, sum));
  return joins ? parts + " → " + joined : joined + " → " + parts;
}

std::string notation_of_split(const OpCall& call, std::span<const TensorType> outputs) {
  const auto dim = static_cast<size_t>(dim_of(call.attributes, call[0].shape.size()));
  return parts_notation(call[0].shape, dim, outputs.size(), "y", false);
}

std::string notation_of_concat(const OpCall& call, std::span<const TensorType>) {
  const auto dim = static_cast<size_t>(dim_of(call.attributes, call[0].shape.size()));
  return parts_notation(call[0].shape, dim, call.inputs.size(), "x", true);
}

}  // namespace

std::vector<OpDef> shape_ops() {
  return {
      {.name = "reshape",
       .signature = "x → same elements",
       .doc = "The same elements in another `shape`; one size may be -1.",
       .attributes = {"shape"},
       .infer = infer_reshape,
       .gradient = gradient_reshape,
       .view = view_reshape,
       .view_source = [](const Layout& y, const TensorType& x) { return reshaped(y, x.shape); },
       .notation = notation_of_reshape,
       .sharding = {{.cut = "..."}, {.partial = "x y"}},
       .localize =
           [](const OpCall& call, std::span<const TensorSlice>, std::span<const TensorSlice> outputs) {
             Attributes attributes = call.attributes;
             attributes.set("shape", outputs[0].shape());
             return attributes;
           }},
      {.name = "transpose",
       .signature = "x → permuted",
       .doc = "Dimension i of the result is dimension `order[i]` of x.",
       .attributes = {"order"},
       .infer = infer_transpose,
       .gradient = gradient_transpose,
       .view =
           [](const Layout& x, const Attributes& attributes) {
             return std::optional(
                 std::vector{permuted(x, normal_order(attributes.get<std::vector<int64_t>>("order")))});
           },
       .notation = notation_of_transpose,
       .sharding = {{.cut = "..."}, {.partial = "x y"}}},
      {.name = "slice",
       .signature = "x → part",
       .doc = "`length` entries of `dim` from `start` on.",
       .attributes = {"dim", "start", "length"},
       .infer = infer_slice,
       .gradient = gradient_slice,
       .view = view_slice,
       .notation = notation_of_slice,
       .sharding = {{.cut = "..."}, {.partial = "x y"}}},
      {.name = "split",
       .signature = "x → parts along dim",
       .doc = "x cut along `dim` into parts of the given `sizes`.",
       .attributes = {"dim", "sizes"},
       .infer = infer_split,
       .gradient = gradient_split,
       .view = view_split,
       .notation = notation_of_split,
       .sharding = {{.cut = "..."}, {.cut = "p*"}, {.partial = "x y*"}},
       .localize =
           [](const OpCall& call, std::span<const TensorSlice>, std::span<const TensorSlice> outputs) {
             const int64_t dim = dim_of(call.attributes, call[0].shape.size());
             std::vector<int64_t> sizes;
             for (const TensorSlice& part : outputs) sizes.push_back(part.shape()[dim]);
             Attributes attributes = call.attributes;
             attributes.set("sizes", sizes);
             return attributes;
           }},
      {.name = "concat",
       .signature = "a, b, … → joined along dim",
       .doc =
           "The operands one after the other along `dim`. Lowered to copies, or to nothing where they can be "
           "written in place: devices have no kernel for it.",
       .attributes = {"dim"},
       .infer = infer_concat,
       .gradient = gradient_concat,
       .notation = notation_of_concat,
       .sharding = {{.cut = "..."}, {.cut = "p*"}, {.partial = "x* y"}},
       .concatenates = true},
      {.name = "copy",
       .signature = "x[...]:T strided → y[...]:T strided",
       .doc = "The same elements at another place; any strides on both sides, also innermost ones.",
       .infer =
           [](const OpCall& call) {
             require_inputs(call, 1, 1);
             return Types{call[0]};
           },
       .gradient = [](GradientCall& call) { return std::vector{call.output_gradients[0]}; },
       .strided_inputs = 1,
       .strided_outputs = 1,
       .sharding = {{.cut = "..."}, {.partial = "x y"}},
       .copies_operand = true},
      {.name = "fill",
       .signature = "→ constant",
       .doc = "`value` in every element.",
       .attributes = {"value", "shape", "dtype"},
       .infer = infer_fill,
       .notation = notation_of_made,
       .sharding = {{.cut = "..."}},
       .localize =
           [](const OpCall& call, std::span<const TensorSlice>, std::span<const TensorSlice> outputs) {
             Attributes attributes = call.attributes;
             attributes.set("shape", outputs[0].shape());
             return attributes;
           }},
      {.name = "constant",
       .signature = "→ constant",
       .doc = "A tensor of these `values`, row by row; made once for a run.",
       .attributes = {"values", "shape", "dtype"},
       .infer = infer_constant,
       .notation = notation_of_made,
       .sharding = {{.cut = "..."}},
       .localize = localize_constant},
  };
}

}  // namespace het::ops
