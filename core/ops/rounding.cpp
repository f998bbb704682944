#include "core/ops/rounding.h"

#include "core/ops/rules.h"

namespace het {

RoundingPlace rounding_place(const Shape& shape, const Attributes& attributes) {
  RoundingPlace place;
  if (!attributes.has("ranges")) return place;
  const auto ranges = attributes.get<std::vector<int64_t>>("ranges");
  const auto dim = static_cast<size_t>(attributes.get<int64_t>("dim"));
  int64_t inner = 1, entries = 0;
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  place.row = shape[dim] * inner;
  place.whole_row = attributes.get<int64_t>("of") * inner;
  for (size_t i = 0; i < ranges.size(); i += 2) {
    place.begin[place.ranges] = entries * inner;
    place.moved[place.ranges++] = (ranges[i] - entries) * inner;
    entries += ranges[i + 1] - ranges[i];
  }
  return place;
}

namespace ops {
namespace {

void check_place(const OpCall& call) {
  const auto ranges = setting<std::vector<int64_t>>(call, "ranges");
  const auto dim = setting<int64_t>(call, "dim"), of = setting<int64_t>(call, "of");
  if (dim < 0 || dim >= static_cast<int64_t>(call[0].shape.size()))
    refuse(call, fmt::format("there is no dimension {} that could be divided", dim));
  Shape whole = call[0].shape;
  whole[static_cast<size_t>(dim)] = of;
  elements_of(whole);  // refuses a size whose products would overflow
  constexpr size_t kMost = 2 * RoundingPlace::kMostRanges;
  int64_t last = 0, entries = 0;
  bool ordered = !ranges.empty() && ranges.size() % 2 == 0 && ranges.size() <= kMost;
  for (size_t i = 0; ordered && i < ranges.size(); i += 2) {
    ordered = last <= ranges[i] && ranges[i] < ranges[i + 1] && ranges[i + 1] <= of;
    last = ranges[i + 1];
    entries += ranges[i + 1] - ranges[i];
  }
  if (!ordered || entries != call[0].shape[static_cast<size_t>(dim)])
    refuse(call, fmt::format("ranges = {} have to be up to {} pairs of a begin and an end, one after the "
                             "other within {} and together as many as dimension {} of x has",
                             to_string(Shape(ranges)), RoundingPlace::kMostRanges, of, dim));
}

Types infer(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_dtype(call, 0, DType::f32);
  require_type(call, 1, {DType::i64, {}});
  setting<int64_t>(call, "seed");
  setting<int64_t>(call, "stream");
  if (call.attributes.has("ranges")) check_place(call);
  return {{DType::bf16, call[0].shape}};
}

}  // namespace

std::vector<OpDef> rounding_ops() {
  return {
      {.name = "stochastic_cast",
       .signature = "x:f32, step[]:i64 → bf16",
       .doc =
           "x as bf16, rounded up or down by chance so that the expected value is x; what bf16 holds "
           "exactly, and what is beyond its largest finite number or not finite, is rounded to nearest. "
           "The draw depends on `seed`, `stream` (the parameter), step and the place of the element alone; "
           "of a dimension `dim` with `of` entries x may have the `ranges` {begin, end, ...} only. The "
           "gradient passes as through a cast.",
       .attributes = {"seed", "stream", "dim", "of", "ranges"},
       .infer = infer,
       .gradient =
           [](GradientCall& call) {
             return std::vector{as_gradient(call, 0, call.output_gradients[0]), kAbsent};
           },
       .flops = [](const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); }}};
}

}  // namespace ops
}  // namespace het
