// Mixtures of experts: which experts a token is sent to, the places that it gets with them, and the way there
// and back. A slot is `expert · capacity + place`, or -1 where an expert had no place left. Places are
// counted within a sample, so that no result depends on which samples are computed together.
#include <limits>

#include "core/ops/rules.h"

namespace het::ops {
namespace {

// --- the largest entries of a row

Types infer_top_k(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_float(call, 0);
  require_rank_from(call, 0, 1);
  const int64_t k = setting<int64_t>(call, "k"), n = last(call[0].shape);
  if (k < 1 || k > n) refuse(call, fmt::format("k = {}; of {} entries 1 to {} can be chosen", k, n, n));
  return {{call[0].dtype, with_last(call[0].shape, k)}, {DType::i32, with_last(call[0].shape, k)}};
}

// --- slots

constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max();  // which are i32

int64_t positive(const OpCall& call, std::string_view name) {
  const int64_t value = setting<int64_t>(call, name);
  if (value < 1) refuse(call, fmt::format("{} = {} has to be positive", name, value));
  if (value > kMostSlots) refuse(call, fmt::format("{} = {}; {} are the most", name, value, kMostSlots));
  return value;
}

Types infer_slots(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_dtype(call, 0, DType::i32);
  require_rank(call, 0, 3);
  if (last(call[0].shape) < 1) refuse(call, "tokens choose no expert");
  const int64_t experts = positive(call, "experts");
  if (const int64_t capacity = positive(call, "capacity"); experts > kMostSlots / capacity)
    refuse(call, fmt::format("{} experts with {} places each are more than {} slots", experts, capacity,
                             kMostSlots));
  return {call[0], {DType::i32, {call[0].shape[0], experts}}};
}

// x[b, t, c], slot[b, t, k]
void require_tokens(const OpCall& call, size_t x, size_t slot) {
  require_float(call, x);
  require_rank(call, x, 3);
  require_rank(call, slot, 3);
  require_type(call, slot, {DType::i32, {call[x].shape[0], call[x].shape[1], call[slot].shape[2]}});
}

// y[e, b, cap, c] for samples of x[b, t, c] or slot[b, t, k]
void require_places(const OpCall& call, size_t y, size_t tokens) {
  require_float(call, y);
  require_rank(call, y, 4);
  if (call[y].shape[1] != call[tokens].shape[0])
    refuse(call, fmt::format("{} samples of y and {} of {}", call[y].shape[1], call[tokens].shape[0],
                             operand_name(call.op, tokens)));
  require_part(call, call[y].shape[0], "experts");
}

void require_weight(const OpCall& call) {
  if (call.has(2)) require_type(call, 2, {accumulator_of(call[0].dtype), call[1].shape});
}

Types infer_dispatch(const OpCall& call) {
  require_inputs(call, 2, 3);
  require_tokens(call, 0, 1);
  require_weight(call);
  const int64_t experts = setting<int64_t>(call, "experts"), capacity = positive(call, "capacity");
  if (experts < 0) refuse(call, fmt::format("experts = {} is negative", experts));
  if (experts > kMostSlots / capacity)
    refuse(call, fmt::format("{} experts with {} places each are more than {} slots", experts, capacity,
                             kMostSlots));
  require_part(call, experts, "experts");
  return {{call[0].dtype, {experts, call[0].shape[0], capacity, call[0].shape[2]}}};
}

Types infer_combine(const OpCall& call) {
  require_inputs(call, 2, 3);
  require_dtype(call, 1, DType::i32);
  require_rank(call, 1, 3);
  require_places(call, 0, 1);
  require_weight(call);
  return {{call[0].dtype, {call[1].shape[0], call[1].shape[1], call[0].shape[3]}}};
}

Types infer_combine_weight_gradient(const OpCall& call) {
  require_inputs(call, 3, 3);
  require_tokens(call, 0, 2);
  require_places(call, 1, 0);
  const Shape& y = call[1].shape;
  require_type(call, 1, {call[0].dtype, {y[0], y[1], y[2], call[0].shape[2]}});
  return {{accumulator_of(call[0].dtype), call[2].shape}};
}

// Which experts the call has, for another operator on the same slots.
Attributes part_of_experts(const Attributes& attributes) {
  Attributes part;
  for (const char* name : {"first", "of"})
    if (attributes.has(name)) part.set(name, attributes.get<int64_t>(name));
  return part;
}

// Tokens to experts and back are each other's gradients.
std::vector<ValueId> gradient_dispatch(GradientCall& call) {
  const bool weighted = call.node.inputs.size() > 2 && call.input(2) != kAbsent;
  const ValueId dy = call.output_gradients[0], slot = call.input(1);
  const ValueId weight = weighted ? call.input(2) : kAbsent;
  const Attributes part = part_of_experts(call.node.attributes);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  if (call.wanted[0])
    gradients[0] = as_gradient(call, 0, call.graph.call("combine", {dy, slot, weight}, part));
  if (weighted && call.wanted[2])
    gradients[2] =
        as_gradient(call, 2, call.graph.call("combine_weight_gradient", {call.input(0), dy, slot}, part));
  return gradients;
}

std::vector<ValueId> gradient_combine(GradientCall& call) {
  const bool weighted = call.node.inputs.size() > 2 && call.input(2) != kAbsent;
  const ValueId dout = call.output_gradients[0], y = call.input(0), slot = call.input(1);
  const ValueId weight = weighted ? call.input(2) : kAbsent;
  const Attributes part = part_of_experts(call.node.attributes);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  if (call.wanted[0]) {
    const Shape shape = call.graph.type(y).shape;
    Attributes attributes = part;
    attributes.set("experts", shape[0]);
    attributes.set("capacity", shape[2]);
    gradients[0] = as_gradient(call, 0, call.graph.call("dispatch", {dout, slot, weight}, attributes));
  }
  if (weighted && call.wanted[2])
    gradients[2] = as_gradient(call, 2, call.graph.call("combine_weight_gradient", {dout, y, slot}, part));
  return gradients;
}

bool is_weighted(const OpCall& call) { return call.has(2); }

// A multiplication and an addition of each feature of each choice.
double choices(const TensorType& slot, int64_t features) {
  return static_cast<double>(slot.elements()) * static_cast<double>(features);
}

}  // namespace

std::vector<OpDef> experts_ops() {
  return {
      {.name = "top_k",
       .signature = "x[..., n]:T → values[..., k]:T, index[..., k]:i32",
       .doc =
           "The `k` largest entries of each row, the largest first, and where they stand. Of equal ones the "
           "first comes first; NaN counts as -inf.",
       .attributes = {"k"},
       .infer = infer_top_k,
       .gradient =
           [](GradientCall& call) {
             const ValueId made = call.graph.call("scatter_add", {call.output_gradients[0], call.output(1)},
                                                  {{"size", last(call.graph.type(call.input(0)).shape)}});
             return std::vector{as_gradient(call, 0, made)};
           },
       .flops =
           [](const OpCall& call, Outputs outputs) {
             return static_cast<double>(call[0].elements()) * static_cast<double>(last(outputs[0].shape));
           },
       .sharding = {{.cut = "..."}},
       .never_cut = {{"n", "the largest are found among all entries"},
                     {"k", "each is the largest of what those before it leave"}}},
      {.name = "expert_slots",
       .signature = "expert[b, t, k]:i32 → slot[b, t, k]:i32, counts[b, e]:i32",
       .doc = "Places with the experts that tokens chose. Each of `experts` experts has `capacity` places a "
              "sample, given to first choices in the order of tokens, then to second ones: slot = expert · "
              "capacity + place, -1 where none is left. counts: first choices of each expert.",
       .attributes = {"experts", "capacity"},
       .infer = infer_slots,
       .sharding = {{.cut = "b"}},
       .never_cut = {{"t", "a place counts the tokens before it"},
                     {"k", "a second choice comes after all first ones"},
                     {"e", "an expert is one of all"}}},
      {.name = "dispatch",
       .signature = "x[b, t, c]:T, slot[b, t, k]:i32, weight?[b, t, k]:A → y[e, b, cap, c]:T",
       .doc =
           "Tokens, times weight, in the slots that they have: those of `experts` experts with `capacity` "
           "places each, zeros where there is no token. A slot has one token at most. With `first` and `of` "
           "the experts are `first`, `first` + 1, … of `of`; slots of others are left out.",
       .attributes = {"experts", "capacity", "first", "of"},
       .infer = infer_dispatch,
       .gradient = gradient_dispatch,
       .flops = [](const OpCall& call,
                   Outputs) { return call.has(2) ? choices(call[1], last(call[0].shape)) : 0.0; },
       .sharding = {{.cut = "b"},
                    {.cut = "e", .one_range = true},
                    {.cut = "c"},
                    {.cut = "t", .sums = "y"},
                    {.cut = "k", .sums = "y"},
                    {.partial = "x y"},
                    {.partial = "weight y", .when = is_weighted}},
       .never_cut = {{"cap", "a slot names one of all places of an expert"}},
       .localize =
           [](const OpCall& call, std::span<const TensorSlice>, std::span<const TensorSlice> outputs) {
             Attributes attributes = first_of(call, outputs[0]);
             attributes.set("experts", outputs[0].shape()[0]);
             return attributes;
           }},
      {.name = "combine",
       .signature = "y[e, b, cap, c]:T, slot[b, t, k]:i32, weight?[b, t, k]:A → out[b, t, c]:T",
       .doc =
           "For each token Σ weight · y[slot] over its slots, without -1; `first` and `of` as in dispatch.",
       .attributes = {"first", "of"},
       .infer = infer_combine,
       .gradient = gradient_combine,
       .flops = [](const OpCall& call, Outputs) { return 2.0 * choices(call[1], last(call[0].shape)); },
       .sharding = {{.cut = "b"},
                    {.cut = "e", .sums = "out", .one_range = true},
                    {.cut = "c"},
                    {.cut = "t"},
                    {.cut = "k", .sums = "out"},
                    {.partial = "y out"},
                    {.partial = "weight out", .when = is_weighted}},
       .never_cut = {{"cap", "a slot names one of all places of an expert"}},
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return first_of(call, inputs[0]); }},
      {.name = "combine_weight_gradient",
       .signature = "dout[b, t, c]:T, y[e, b, cap, c]:T, slot[b, t, k]:i32 → dweight[b, t, k]:A",
       .doc = "Σ dout · y[slot] over features, 0 for -1; `first` and `of` as in dispatch.",
       .attributes = {"first", "of"},
       .infer = infer_combine_weight_gradient,
       .flops = [](const OpCall& call, Outputs) { return 2.0 * choices(call[2], last(call[0].shape)); },
       .sharding = {{.cut = "b"},
                    {.cut = "e", .sums = "dweight", .one_range = true},
                    {.cut = "c", .sums = "dweight"},
                    {.cut = "t"},
                    {.cut = "k"},
                    {.partial = "dout dweight"},
                    {.partial = "y dweight"}},
       .never_cut = {{"cap", "a slot names one of all places of an expert"}},
       .localize = [](const OpCall& call, std::span<const TensorSlice> inputs,
                      std::span<const TensorSlice>) { return first_of(call, inputs[1]); }},
  };
}

}  // namespace het::ops
