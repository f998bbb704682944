// Scaled dot-product attention in tiles with an online softmax: on tensor cores where operands allow it
// (attention_mma.h), else in plain f32 (attention_plain.h). Both compute from the same arguments; which one
// runs is decided from types and strides when a kernel is prepared, and from addresses when it runs.
#include <cmath>

#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/attention_plain.h"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/kernel.h"

namespace het::HET_CUDA {
namespace {

constexpr int kMostHead = 512;   // elements of a head
constexpr int kPairRows = 128;   // queries are padded to a multiple of it in the gradient's pairs
constexpr int kLeastSpan = 256;  // keys of a split

Heads heads_of(const Layout& layout) { return {layout.strides[0], layout.strides[1], layout.strides[2]}; }

Attention attention_of(const KernelRequest& request, const Layout& q, const Layout& k) {
  const Shape &a = q.type.shape, &b = k.type.shape;
  if (a[3] > kMostHead)
    refuse(request, fmt::format("heads of {} features; at most {}: more heads of the same width are narrower",
                                a[3], kMostHead));
  for (const int64_t size : {a[0], a[1], a[2], b[1]})
    if (size > INT32_MAX / 2) refuse(request, "sizes of more than 2^30");
  Attention p;
  p.batch = static_cast<int>(a[0]);
  p.queries = static_cast<int>(a[1]);
  p.keys = static_cast<int>(b[1]);
  p.query_heads = static_cast<int>(a[2]);
  p.key_heads = static_cast<int>(b[2]);
  p.head = static_cast<int>(a[3]);
  p.scale = static_cast<float>(number(request, "scale", 1 / std::sqrt(static_cast<double>(a[3]))));
  p.cap = static_cast<float>(number(request, "score_cap", 0));
  p.causal = flag(request, "causal", false);
  p.window = static_cast<int>(std::min<int64_t>(integer(request, "window", INT_MAX), INT_MAX));
  p.q = heads_of(q);
  p.k = heads_of(k);
  return p;
}

// Whether types, sizes and strides suit the tensor cores. A scale of 0 or less would turn the order of scores
// that the online softmax relies on.
template <typename T>
bool suits_mma(const Attention& p, std::initializer_list<Heads> operands) {
  bool suits =
      sizeof(T) == 2 && p.head <= 128 && p.head % kPack<T> == 0 && p.scale > 0 && p.queries > 0 && p.keys > 0;
  for (const Heads& heads : operands)
    for (const int64_t stride : {heads.batch, heads.token, heads.head})
      suits = suits && stride % kPack<T> == 0;
  return suits;
}
template <typename... Pointers>
bool aligned(const Pointers*... operands) {
  return ((reinterpret_cast<uintptr_t>(operands) % 16 == 0) && ...);
}

template <int kHead>
using HeadSize = std::integral_constant<int, kHead>;

// Call with the size that heads are padded to, and whether scores are capped.
template <typename Call>
void for_mma(const Attention& p, const Call& call) {
  const auto with_head = [&](auto head) {
    if (p.cap > 0)
      call(head, std::true_type{});
    else
      call(head, std::false_type{});
  };
  if (p.head <= 64)
    with_head(HeadSize<64>{});
  else
    with_head(HeadSize<128>{});
}
template <typename Call>
void for_plain_head(const Attention& p, const Call& call) {
  if (p.head <= 128)
    call(HeadSize<128>{});
  else
    call(HeadSize<kMostHead>{});
}

template <typename... Parameters>
void allow(const KernelRequest& request, const Context& context, void (*kernel)(Parameters...),
           size_t bytes) {
  if (bytes > static_cast<size_t>(context.shared_bytes))
    refuse(request, "heads as large as these on this GPU, whose blocks have too little shared memory");
  allow_shared(kernel, bytes);
}

unsigned blocks_of(int64_t tokens, int tile, int64_t heads) {
  return static_cast<unsigned>(ceil_div(tokens, tile) * heads);
}

// The same of one run, where operand `which` has the starts.
Attention of_run(Attention p, const Context& context, const KernelArguments& a, size_t which,
                 const char* op) {
  p.starts = a.in<int>(which);
  p.op = op;
  p.failure = context.failure;
  return p;
}

// ---- forward ----

// Whether wgmma does the forward pass. It is Hopper's alone.
bool suits_wgmma(const Context& context, const Attention& p) {
  return context.generation == 9 && p.packed == 1 && p.splits == 1 &&
         WarpgroupTile::bytes(p.head <= 64 ? 64 : 128) <= static_cast<size_t>(context.shared_bytes);
}

template <typename T>
void prepare_forward(const KernelRequest& request, const Context& context, const Attention& p, bool mma) {
  for_plain_head(
      p, [&](auto head) { allow(request, context, forward_plain<T, head()>, PlainTile<head()>::bytes(3)); });
  if constexpr (sizeof(T) == 2)
    if (mma)
      for_mma(p, [&](auto head, auto capped) {
        allow(request, context, forward_mma<T, head(), capped()>, ForwardTile::bytes(head()));
        if (suits_wgmma(context, p))
          allow(request, context, forward_wgmma<T, head(), capped()>, WarpgroupTile::bytes(head()));
      });
}

template <typename T>
void run_forward(const Context& context, const Attention& p, bool mma, const T* q, const T* k, const T* v,
                 const Results<T>& results, const int* position) {
  const int64_t heads = static_cast<int64_t>(p.batch) * p.row_heads() * p.splits;
  if constexpr (sizeof(T) == 2)
    if (mma && aligned(q, k, v, results.out))
      return for_mma(p, [&](auto head, auto capped) {
        if (position == nullptr && suits_wgmma(context, p))
          launch(context, forward_wgmma<T, head(), capped()>,
                 blocks_of(p.rows(), WarpgroupTile::kRows, heads), WarpgroupTile::kThreads,
                 WarpgroupTile::bytes(head()), p, q, k, v, results);
        else
          launch(context, forward_mma<T, head(), capped()>, blocks_of(p.rows(), ForwardTile::kRows, heads),
                 kMmaThreads, ForwardTile::bytes(head()), p, q, k, v, results, position);
      });
  for_plain_head(p, [&](auto head) {
    using Tile = PlainTile<head()>;
    launch(context, forward_plain<T, head()>, blocks_of(p.rows(), Tile::kRows, heads), kPlainThreads,
           Tile::bytes(3), p, q, k, v, results, position);
  });
}

std::unique_ptr<Kernel> prepare_attention(const KernelRequest& request, const Context& context) {
  Attention p = attention_of(request, request.inputs[0], request.inputs[1]);
  p.v = heads_of(request.inputs[2]);
  p.out = heads_of(request.outputs[0]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const bool mma = suits_mma<T>(p, {p.q, p.k, p.v, p.out});
    const bool packed = present(request.inputs, 3);
    prepare_forward<T>(request, context, p, mma);
    return make_kernel([=, &context](const KernelArguments& a) {
      run_forward<T>(context, packed ? of_run(p, context, a, 3, "attention") : p, mma, a.in<T>(0), a.in<T>(1),
                     a.in<T>(2), {a.out<T>(0), a.out<float>(1), nullptr}, nullptr);
    });
  });
}

// ---- backward ----

// (lse log2(e), dout . out) of each query, [batch, query_heads, queries up to pairs_of_head], with (infinity,
// 0) for those that do not exist, whose p is then 0. 16 lanes take a query.
template <typename T>
__global__ void gradient_pairs(const Attention p, const T* dout, const T* out, const float* lse,
                               float2* pairs, int pairs_of_head) {
  const int lane = threadIdx.x % 16;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
  const int query = static_cast<int>(i % pairs_of_head);
  const int64_t head = i / pairs_of_head;
  const bool exists = query < p.queries && head < static_cast<int64_t>(p.batch) * p.query_heads;
  float sum = 0;
  if (exists) {
    const int b = static_cast<int>(head / p.query_heads), h = static_cast<int>(head % p.query_heads);
    if (h == 0 && lane == 0) p.check_start(b, query);
    const T *x = dout + p.dout.at(b, query, h), *y = out + p.out.at(b, query, h);
    constexpr int N = kPack<T>;
    if (packs(x, p.head, N) && packs(y, p.head, N))
      for (int c = lane * N; c < p.head; c += 16 * N) {
        float u[N], w[N];
        load(u, x + c);
        load(w, y + c);
        for (int e = 0; e < N; ++e) sum += u[e] * w[e];
      }
    else
      for (int c = lane; c < p.head; c += 16) sum += to_float(x[c]) * to_float(y[c]);
  }
#pragma unroll
  for (int other = 8; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
  if (lane == 0 && head < static_cast<int64_t>(p.batch) * p.query_heads)
    pairs[i] = exists ? make_float2(lse[head * p.queries + query] * kLog2e, sum) : make_float2(INFINITY, 0);
}

template <typename T>
struct Gradient {
  const Context& context;
  Attention p;
  bool mma, packed;

  int pairs_of_head() const { return static_cast<int>(ceil_div(p.queries, kPairRows)) * kPairRows; }
  int64_t pair_count() const { return static_cast<int64_t>(p.batch) * p.query_heads * pairs_of_head(); }
  int64_t workspace_bytes() const { return pair_count() * static_cast<int64_t>(sizeof(float2)); }

  void prepare(const KernelRequest& request) const {
    for_plain_head(p, [&](auto head) {
      using Tile = PlainTile<head()>;
      allow(request, context, gradient_plain<T, head(), Rows::queries>, Tile::bytes(4));
      allow(request, context, gradient_plain<T, head(), Rows::keys>, Tile::bytes(4));
    });
    if constexpr (sizeof(T) == 2)
      if (mma)
        for_mma(p, [&](auto head, auto capped) {
          allow(request, context, query_gradient_mma<T, head(), capped()>, QueryGradientTile::bytes(head()));
          allow(request, context, key_gradient_mma<T, head(), capped()>, KeyGradientTile::bytes(head()));
        });
  }

  void run(const KernelArguments& a) const {
    run(a, packed ? of_run(p, context, a, 6, "attention_gradient") : p);
  }
  void run(const KernelArguments& a, const Attention& p) const {
    const T *dout = a.in<T>(0), *q = a.in<T>(1), *k = a.in<T>(2), *v = a.in<T>(3);
    T *dq = a.out<T>(0), *dk = a.out<T>(1), *dv = a.out<T>(2);
    auto* pairs = reinterpret_cast<float2*>(a.workspace);
    const int padded = pairs_of_head();
    const int64_t query_heads = static_cast<int64_t>(p.batch) * p.query_heads;
    const int64_t key_heads = static_cast<int64_t>(p.batch) * p.key_heads;
    launch(context, gradient_pairs<T>, static_cast<unsigned>(pair_count() / 16), 256, 0, p, dout, a.in<T>(4),
           a.in<float>(5), pairs, padded);
    if constexpr (sizeof(T) == 2)
      if (mma && aligned(dout, q, k, v, dq, dk, dv))
        return for_mma(p, [&](auto head, auto capped) {
          launch(context, key_gradient_mma<T, head(), capped()>,
                 blocks_of(p.keys, KeyGradientTile::kKeys, key_heads), kMmaThreads,
                 KeyGradientTile::bytes(head()), p, dout, q, k, v, pairs, padded, dk, dv);
          launch(context, query_gradient_mma<T, head(), capped()>,
                 blocks_of(p.queries, QueryGradientTile::kRows, query_heads), kMmaThreads,
                 QueryGradientTile::bytes(head()), p, dout, q, k, v, pairs, padded, dq);
        });
    for_plain_head(p, [&](auto head) {
      using Tile = PlainTile<head()>;
      launch(context, gradient_plain<T, head(), Rows::keys>, blocks_of(p.keys, Tile::kRows, key_heads),
             kPlainThreads, Tile::bytes(4), p, k, v, q, dout, pairs, padded, dk, dv);
      launch(context, gradient_plain<T, head(), Rows::queries>,
             blocks_of(p.queries, Tile::kRows, query_heads), kPlainThreads, Tile::bytes(4), p, q, dout, k, v,
             pairs, padded, dq, nullptr);
    });
  }
};

std::unique_ptr<Kernel> prepare_gradient(const KernelRequest& request, const Context& context) {
  Attention p = attention_of(request, request.inputs[1], request.inputs[2]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.inputs[4]);
  p.dout = heads_of(request.inputs[0]);
  p.v = heads_of(request.inputs[3]);
  p.out = heads_of(request.inputs[4]);
  p.dq = heads_of(request.outputs[0]);
  p.dk = heads_of(request.outputs[1]);
  p.dv = heads_of(request.outputs[2]);
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    const Gradient<T> gradient{context, p, suits_mma<T>(p, {p.dout, p.q, p.k, p.v, p.dq, p.dk, p.dv}),
                               present(request.inputs, 6)};
    gradient.prepare(request);
    return make_kernel([gradient](const KernelArguments& a) { gradient.run(a); }, gradient.workspace_bytes());
  });
}

// ---- with a cache of keys and values, for generation ----

// New keys and values [batch, queries, key_heads, head], strided, to the packed caches from `position` on.
template <typename T>
__global__ void write_caches(const Attention p, Heads from_k, Heads from_v, const T* k, const T* v,
                             T* k_cache, T* v_cache, const int* position, Failure* failure) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int start = position_of(p, position);
  if (start < 0) {
    if (i == 0 && failure->kind == Failure::none)
      *failure = {Failure::bad_position, *position, p.queries, p.keys};
    return;
  }
  const int64_t row = i / p.head;
  const int c = static_cast<int>(i % p.head), h = static_cast<int>(row % p.key_heads);
  const int t = static_cast<int>(row / p.key_heads % p.queries),
            b = static_cast<int>(row / p.key_heads / p.queries);
  if (b >= p.batch) return;
  k_cache[p.k.at(b, start + t, h) + c] = k[from_k.at(b, t, h) + c];
  v_cache[p.v.at(b, start + t, h) + c] = v[from_v.at(b, t, h) + c];
}

// out = sum over splits of exp(lse_split - lse) parts_split: a warp for each query of each head.
template <typename T>
__global__ void combine(const Attention p, const float* parts, const float* lse, T* out) {
  const int64_t rows = static_cast<int64_t>(p.batch) * p.query_heads * p.queries;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (i >= rows) return;
  float row_max = -INFINITY, total = 0;
  for (int split = lane; split < p.splits; split += kWarp) row_max = fmaxf(row_max, lse[split * rows + i]);
  row_max = warp_max(row_max);
  for (int split = lane; split < p.splits; split += kWarp) total += expf(lse[split * rows + i] - row_max);
  total = warp_sum(total);
  const int query = static_cast<int>(i % p.queries), h = static_cast<int>(i / p.queries % p.query_heads);
  const int b = static_cast<int>(i / p.queries / p.query_heads);
  T* to = out + p.out.at(b, query, h);
  for (int c = lane; c < p.head; c += kWarp) {
    float sum = 0;
    for (int split = 0; split < p.splits; ++split)
      sum += expf(lse[split * rows + i] - row_max) * parts[(split * rows + i) * p.head + c];
    to[c] = from_float<T>(sum / total);
  }
}

std::unique_ptr<Kernel> prepare_cached(const KernelRequest& request, const Context& context) {
  Attention p = attention_of(request, request.inputs[0], request.inputs[3]);
  const Heads from_k = heads_of(request.inputs[1]), from_v = heads_of(request.inputs[2]);
  require_packed(request, request.inputs[3]);
  require_packed(request, request.inputs[4]);
  p.v = heads_of(request.inputs[4]);
  p.out = heads_of(request.outputs[0]);
  p.causal = true;
  p.packed = p.group();
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const bool mma = suits_mma<T>(p, {p.q, p.k, p.v, p.out});
    Attention split = p;
    const int64_t blocks = ceil_div(p.rows(), ForwardTile::kRows) * p.row_heads() * p.batch;
    const int64_t seen = std::min<int64_t>(p.keys, int64_t{p.window} + p.queries - 1);  // by a tile
    const int64_t wanted =
        std::min(ceil_div(2 * context.multiprocessors, blocks), ceil_div(seen, kLeastSpan));
    split.span = static_cast<int>(ceil_div(ceil_div(seen, wanted), ForwardTile::kKeys)) * ForwardTile::kKeys;
    split.splits = static_cast<int>(ceil_div(seen, split.span));
    prepare_forward<T>(request, context, split, mma);
    const int64_t rows = static_cast<int64_t>(p.batch) * p.query_heads * p.queries;
    const int64_t bytes = split.splits == 1 ? 0 : split.splits * rows * (p.head + 1) * 4;
    const int64_t new_elements = static_cast<int64_t>(p.batch) * p.queries * p.key_heads * p.head;
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          const int* position = a.in<int>(5);
          launch(context, write_caches<T>, static_cast<unsigned>(ceil_div(new_elements, 256)), 256, 0, split,
                 from_k, from_v, a.in<T>(1), a.in<T>(2), a.out<T>(1), a.out<T>(2), position, context.failure);
          Results<T> results{a.out<T>(0), nullptr, nullptr};
          if (split.splits > 1) {
            results.parts = reinterpret_cast<float*>(a.workspace);
            results.lse = results.parts + split.splits * rows * split.head;
          }
          run_forward<T>(context, split, mma, a.in<T>(0), a.out<T>(1), a.out<T>(2), results, position);
          if (split.splits > 1)
            launch(context, combine<T>, static_cast<unsigned>(ceil_div(rows, 8)), 256, 0, split,
                   results.parts, results.lse, a.out<T>(0));
        },
        bytes);
  });
}

}  // namespace

std::vector<Entry> attention_kernels() {
  return {{"attention", prepare_attention},
          {"attention_gradient", prepare_gradient},
          {"attention_cached", prepare_cached}};
}

}  // namespace het::HET_CUDA
