// Scaled dot-product attention with grouped queries: query heads are hq, key and value heads hk, and query
// head h reads key head h / (hq / hk).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/ops/rules.h"

namespace het::ops {
namespace {

void require_heads(const OpCall& call, size_t q, size_t k, size_t v) {
  for (const size_t i : {q, k, v}) {
    require_float(call, i);
    require_rank(call, i, 4);
    require_dtype(call, i, call[q].dtype);
  }
  require_type(call, v, call[k]);
  const Shape &queries = call[q].shape, &keys = call[k].shape;
  for (const size_t i : {q, k})
    for (const int64_t size : call[i].shape)
      if (size < 1)
        refuse(call, fmt::format("{} is empty; every size has to be 1 or more", operand_name(call.op, i)));
  if (queries[0] != keys[0])
    refuse(call, fmt::format("q has a batch of {}, k of {}; they have to be equal", queries[0], keys[0]));
  if (queries[3] != keys[3])
    refuse(call, fmt::format("heads of q have {} elements, those of k {}; they have to be equal", queries[3],
                             keys[3]));
  if (queries[2] % keys[2] != 0)
    refuse(call,
           fmt::format(
               "{} query heads cannot be shared out among {} key heads; the latter has to divide the former",
               queries[2], keys[2]));
  const double scale = setting<double>(call, "scale", 1.0);
  if (!std::isfinite(scale)) refuse(call, fmt::format("scale = {} is no finite number", scale));
  if (!call.attributes.has("score_cap")) return;
  const double cap = setting<double>(call, "score_cap", 1.0);
  if (!(cap >= 1e-3 && cap <= 1e4))  // single precision has no tanh of what is far beyond
    refuse(call, fmt::format("score_cap = {}; it has to be from 0.001 to 10000", cap));
}

void require_causal(const OpCall& call, size_t q, size_t k) {
  if (setting<bool>(call, "causal", false) && call[q].shape[1] != call[k].shape[1])
    refuse(call, fmt::format("causal attention needs as many queries as keys; there are {} and {}",
                             call[q].shape[1], call[k].shape[1]));
}

// With `window`, a query sees so many keys at most, itself the last one.
void require_window(const OpCall& call, bool causal) {
  if (!call.attributes.has("window")) return;
  const auto window = setting<int64_t>(call, "window", 0);
  if (window < 1) refuse(call, fmt::format("window = {}; a token sees at least itself", window));
  if (!causal) refuse(call, "a window is of causal attention; causal is false");
}

// `starts`, where each token's example begins, is for causal attention.
void require_starts(const OpCall& call, size_t starts, size_t q) {
  if (!call.has(starts)) return;
  if (!setting<bool>(call, "causal", false)) refuse(call, "starts are of causal attention; causal is false");
  require_type(call, starts, {DType::i32, {call[q].shape[0], call[q].shape[1]}});
}

TensorType lse_of(const TensorType& q) {
  return {accumulator_of(q.dtype), {q.shape[0], q.shape[2], q.shape[1]}};
}

Types infer_attention(const OpCall& call) {
  require_inputs(call, 3, 4);
  require_heads(call, 0, 1, 2);
  require_causal(call, 0, 1);
  require_window(call, setting<bool>(call, "causal", false));
  require_starts(call, 3, 0);
  return {call[0], lse_of(call[0])};
}

Types infer_attention_gradient(const OpCall& call) {
  require_inputs(call, 6, 7);
  require_heads(call, 1, 2, 3);
  require_causal(call, 1, 2);
  require_window(call, setting<bool>(call, "causal", false));
  require_starts(call, 6, 1);
  require_type(call, 0, call[1]);
  require_type(call, 4, call[1]);
  require_type(call, 5, lse_of(call[1]));
  return {call[1], call[2], call[3]};
}

Types infer_attention_cached(const OpCall& call) {
  require_inputs(call, 6, 6);
  require_heads(call, 0, 1, 2);
  require_window(call, true);
  if (call[0].shape[1] != call[1].shape[1])
    refuse(call, fmt::format("as many keys as queries are added; there are {} and {}", call[1].shape[1],
                             call[0].shape[1]));
  require_rank(call, 3, 4);
  TensorType cache = call[1];
  cache.shape[1] = call[3].shape[1];
  require_type(call, 3, cache);
  require_type(call, 4, cache);
  if (cache.shape[1] < call[1].shape[1])
    refuse(call, fmt::format("{} new keys do not fit a cache of {}", call[1].shape[1], cache.shape[1]));
  require_type(call, 5, {DType::i32, {1}});
  return {call[0], cache, cache};
}

std::vector<ValueId> gradient(GradientCall& call) {
  const ValueId dout = only_gradient(call);
  std::vector<ValueId> operands{dout,          call.input(0),  call.input(1),
                                call.input(2), call.output(0), call.output(1)};
  if (call.node.inputs.size() > 3) operands.push_back(call.input(3));
  const auto made = call.graph.call_all(op_named("attention_gradient"), operands, call.node.attributes);
  std::vector<ValueId> gradients(call.node.inputs.size(), kAbsent);
  for (size_t i = 0; i < 3; ++i) gradients[i] = as_gradient(call, i, made[i]);
  return gradients;
}

// Pairs of a query and a key that it sees, in all heads, times the size of a head. What `starts` hides is
// known when it runs only: each row counts as one example.
double visible(const OpCall& call, size_t q, size_t k) {
  const Shape& queries = call[q].shape;
  const double t = static_cast<double>(queries[1]), s = static_cast<double>(call[k].shape[1]);
  const double window = std::min(s, static_cast<double>(call.attributes.get<int64_t>("window", INT64_MAX)));
  const double pairs =
      call.attributes.get<bool>("causal", false) ? window * (t - (window - 1) / 2) : t * window;
  return static_cast<double>(queries[0] * queries[2] * queries[3]) * pairs;
}

bool sees_all(const OpCall& call) { return !call.attributes.get<bool>("causal", false); }

// Query heads stay with their key head: both are cut together. Where `causal`, tokens are not cut either.
const std::vector<NeverCut> kAttention{{"s", "a softmax needs all keys"},
                                       {"d", "a score needs all elements of a head"}};

}  // namespace

std::vector<OpDef> attention_ops() {
  return {
      {.name = "attention",
       .signature = "q[b, t, hq, d]:T strided, k[b, s, hk, d]:T strided, v[b, s, hk, d]:T strided, "
                    "starts?[b, t]:i32 → out[b, t, hq, d]:T, lse[b, hq, t]:A",
       .doc = "softmax(`scale` · q kᵀ) v for each head; `causal`: token i sees 0 to i, or with starts "
              "starts[i] to i, where its example begins: starts never fall along a row. With `window` it "
              "sees the last so many of these at most. `scale` is 1/√d unless given. With `score_cap` a "
              "score s is score_cap · tanh(s / score_cap), before what a token does not see is left out; "
              "lse is the logarithm of the softmax's denominator. Its cost counts a row as one example.",
       .attributes = {"causal", "scale", "window", "score_cap"},
       .infer = infer_attention,
       .gradient = gradient,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * visible(call, 0, 1); },
       .strided_inputs = 0b111,
       .sharding = {{.cut = "b"}, {.cut = "hq hk"}, {.cut = "t", .when = sees_all}},
       .never_cut = kAttention,
       .heads_dim = 2},
      {.name = "attention_gradient",
       .signature = "dout[b, t, hq, d]:T, q[b, t, hq, d]:T strided, k[b, s, hk, d]:T strided, v[b, s, hk, "
                    "d]:T strided, "
                    "out[b, t, hq, d]:T, lse[b, hq, t]:A, starts?[b, t]:i32 → dq[b, t, hq, d]:T strided, "
                    "dk[b, s, hk, d]:T strided, "
                    "dv[b, s, hk, d]:T strided",
       .doc = "The gradients of attention with the same attributes. Its cost counts the four products of the "
              "gradient, not the scores that are computed again.",
       .attributes = {"causal", "scale", "window", "score_cap"},
       .infer = infer_attention_gradient,
       .flops = [](const OpCall& call, Outputs) { return 8.0 * visible(call, 1, 2); },
       .strided_inputs = 0b001110,
       .strided_outputs = 0b111,
       .sharding = {{.cut = "b"},
                    {.cut = "hq hk"},
                    {.cut = "t", .sums = "dk dv", .when = sees_all},
                    {.partial = "dout dq dk dv"}},
       .never_cut = kAttention},
      {.name = "attention_cached",
       .signature = "q[b, t, hq, d]:T strided, k[b, t, hk, d]:T strided, v[b, t, hk, d]:T strided, "
                    "k_cache[b, s, hk, d]:T, v_cache[b, s, hk, d]:T, position[1]:i32 → out[b, t, hq, d]:T, "
                    "k_cache[b, s, hk, d], v_cache[b, s, hk, d]",
       .doc = "Keys and values are written into the caches from `position` on; query i sees all up to "
              "position + i, of these the last `window` where it is given. `score_cap` is as of attention.",
       .attributes = {"scale", "window", "score_cap"},
       .infer = infer_attention_cached,
       .flops = [](const OpCall& call, Outputs) { return 4.0 * visible(call, 0, 3); },
       .strided_inputs = 0b000111,
       .in_place = {{1, 3}, {2, 4}},
       .sharding = {{.cut = "b"}, {.cut = "hq hk"}},
       .never_cut = {{"t", "a token sees those before it"},
                     {"s", "the place of a token in the cache counts from its beginning"},
                     {"d", "a score needs all elements of a head"}}},
  };
}

}  // namespace het::ops
