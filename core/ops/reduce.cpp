#include <algorithm>

#include "core/ops/rules.h"

namespace het::ops {
namespace {

// Which dimensions to reduce: all when `dims` is missing or empty.
std::vector<bool> reduced(const Attributes& attributes, size_t rank) {
  const auto dims = attributes.get<std::vector<int64_t>>("dims", {});
  std::vector<bool> chosen(rank, dims.empty());
  for (const int64_t dim : dims) chosen[from_start(dim, rank)] = true;
  return chosen;
}

Shape reduced_shape(const Shape& shape, const std::vector<bool>& chosen, bool keep) {
  Shape result;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!chosen[d]) result.push_back(shape[d]);
    if (chosen[d] && keep) result.push_back(1);
  }
  return result;
}

Types infer(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  const size_t rank = call[0].shape.size();
  std::vector<bool> seen(rank);
  for (const int64_t given : setting<std::vector<int64_t>>(call, "dims", {})) {
    const int64_t dim = normal_dim(call, given, rank);
    if (seen[dim]) refuse(call, fmt::format("dimension {} is named twice", dim));
    seen[dim] = true;
  }
  const DType dtype = dtype_setting(call, "dtype", call[0].dtype);
  if (!is_float(dtype)) refuse(call, fmt::format("the result cannot be {}; it has to be a float", dtype));
  return {{dtype,
           reduced_shape(call[0].shape, reduced(call.attributes, rank), setting<bool>(call, "keep", false))}};
}

// dy repeated over the dimensions that were reduced; divided by their size for the mean. Repeated by ones of
// a single dimension each, the longest last: constants are kept for the whole run, so none may be of the full
// shape.
std::vector<ValueId> gradient(GradientCall& call) {
  const TensorType type = call.graph.type(call.input(0));
  const auto chosen = reduced(call.node.attributes, type.shape.size());
  double factor = 1;
  if (call.node.op->name == "mean")
    for (size_t d = 0; d < chosen.size(); ++d)
      if (chosen[d]) factor /= static_cast<double>(type.shape[d]);
  ValueId dy = to_dtype(call.graph, call.output_gradients[0], type.dtype);
  const Shape kept = reduced_shape(type.shape, chosen, true);
  if (call.graph.type(dy).shape != kept) dy = call.graph.call("reshape", {dy}, {{"shape", kept}});
  std::vector<size_t> repeated;
  for (size_t d = 0; d < chosen.size(); ++d)
    if (chosen[d] && type.shape[d] != 1) repeated.push_back(d);
  std::stable_sort(repeated.begin(), repeated.end(),
                   [&](size_t a, size_t b) { return type.shape[a] < type.shape[b]; });
  for (const size_t d : repeated) {
    Shape ones(type.shape.size() - d, 1);
    ones[0] = type.shape[d];
    dy = call.graph.call("mul", {constant(call.graph, {type.dtype, ones}, factor), dy});
    factor = 1;
  }
  return {dy};
}

// Letters of dimensions that stay are "...0", of those that are reduced "r0".
std::string notation(const OpCall& call, Outputs) {
  const std::vector<bool> chosen = reduced(call.attributes, call[0].shape.size());
  const bool keep = call.attributes.get<bool>("keep", false);
  std::vector<std::string> operand, result;
  for (size_t d = 0; d < chosen.size(); ++d) {
    operand.push_back(fmt::format("{}{}", chosen[d] ? "r" : "...", d));
    if (!chosen[d]) result.push_back(operand.back());
    if (chosen[d] && keep) result.push_back("1");
  }
  return fmt::format("x[{}] → y[{}]", fmt::join(operand, ", "), fmt::join(result, ", "));
}

// The mean of a part has to divide by the size of the whole: the sum of the part does, by that.
std::vector<ValueId> mean_of_part(const ShardedCall& call) {
  const Shape& shape = call.whole[0].shape;
  const auto chosen = reduced(call.whole.attributes, shape.size());
  double size = 1;
  for (size_t d = 0; d < chosen.size(); ++d)
    if (chosen[d]) size *= static_cast<double>(shape[d]);
  const ValueId sum = call.graph.call("sum", call.inputs, call.whole.attributes);
  return {call.graph.call("scale", {sum}, {{"factor", 1 / size}})};
}

double flops(const OpCall& call, Outputs) { return static_cast<double>(call[0].elements()); }

OpDef reduction(std::string_view name, std::string_view doc) {
  return {.name = name,
          .signature = "x:T → dtype",
          .doc = doc,
          .attributes = {"dims", "keep", "dtype"},
          .infer = infer,
          .gradient = gradient,
          .flops = flops,
          .accumulates = 1,
          .notation = notation,
          .sharding = {{.cut = "..."}, {.partial = "x y"}}};
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  OpDef sum = reduction("sum", "The sum over `dims` (all when not given), kept as size 1 with `keep`.");
  sum.sharding.push_back({.cut = "r?", .sums = "y"});
  OpDef mean = reduction("mean", "The mean over `dims` (all when not given), kept as size 1 with `keep`.");
  mean.sharding.push_back({.cut = "r?", .sums = "y", .decompose = mean_of_part});
  return {sum, mean};
}

}  // namespace het::ops
