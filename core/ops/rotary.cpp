#include <cmath>

#include "core/ops/rules.h"

namespace het::ops {
namespace {

Types infer(const OpCall& call) {
  require_inputs(call, 2, 2);
  require_float(call, 0);
  require_rank(call, 0, 4);
  const int64_t tokens = call[0].shape[1], size = call[0].shape[3];
  if (size % 2 != 0)
    refuse(call, fmt::format("heads of {} elements cannot be rotated in pairs; {} or {} would do", size,
                             size - 1, size + 1));
  require_type(call, 1, {DType::i32, {tokens}});
  const double base = setting<double>(call, "base", 10000.0);
  if (!(base > 0)) refuse(call, fmt::format("base = {} has to be positive; 10000 is usual", base));
  if (call.attributes.has("frequencies")) {
    const auto frequencies = setting<std::vector<double>>(call, "frequencies", {});
    if (static_cast<int64_t>(frequencies.size()) != size / 2)
      refuse(call, fmt::format("{} frequencies are given; heads of {} elements have {} pairs",
                               frequencies.size(), size, size / 2));
    for (const double frequency : frequencies)
      if (!std::isfinite(frequency)) refuse(call, fmt::format("a frequency is {}", frequency));
  }
  setting<bool>(call, "interleaved", false);
  setting<bool>(call, "inverse", false);
  return {call[0]};
}

std::vector<ValueId> gradient(GradientCall& call) {
  Attributes attributes = call.node.attributes;
  attributes.set("inverse", !attributes.get<bool>("inverse", false));
  const ValueId dx = call.graph.call("rotary", {call.output_gradients[0], call.input(1)}, attributes);
  return {as_gradient(call, 0, dx), kAbsent};
}

}  // namespace

std::vector<OpDef> rotary_ops() {
  return {{.name = "rotary",
           .signature = "x[b, t, heads, d]:T strided, positions[t]:i32 → y[b, t, heads, d]:T strided",
           .doc =
               "Pair i of each head turned by positions · `base`^(-2i/d), or by positions · `frequencies`[i] "
               "where these are given: elements i and i + d/2, or with `interleaved` 2i and 2i + 1. "
               "`inverse` turns back, which is also the gradient.",
           .attributes = {"base", "frequencies", "interleaved", "inverse"},
           .infer = infer,
           .gradient = gradient,
           .flops = [](const OpCall& call, Outputs) { return 3.0 * static_cast<double>(call[0].elements()); },
           .strided_inputs = 1,
           .strided_outputs = 1,
           .sharding = {{.cut = "b"}, {.cut = "t"}, {.cut = "heads"}, {.partial = "x y"}},
           .never_cut = {{"d", "elements of a head are turned in pairs"}}}};
}

}  // namespace het::ops
