// Attention without tensor cores: any element type, all arithmetic f32, heads of up to 512 elements, operands
// at any address. It is what f32 runs on, and what the tensor cores' kernels are compared with. Tiles of 32
// queries and as many keys (16 for heads of more than 128) lie in shared memory as f32; 256 threads as 16 x
// 16 have 2 x 2 scores each. The threads of one row are half a warp, so that sums over a row are shuffles.
#pragma once

#include "kernels/cuda/attention.h"

namespace het::HET_CUDA {

inline constexpr int kSide = 16, kPlainThreads = kSide * kSide;

template <int kHead>
struct PlainTile {
  static constexpr int kRows = kHead > 128 ? 16 : 32;
  static constexpr int kPatch = kRows / kSide;  // rows of a thread, and columns of scores
  static constexpr int kStride = kHead + 4;     // floats between rows: eight rows lie in different banks
  static constexpr int kScoreStride = kRows + 1;
  static constexpr int kSums = kHead / kSide / 4;  // packs of four elements that a thread sums of a row
  static constexpr size_t bytes(int tiles) { return (tiles * kRows * kStride + kRows * kScoreStride) * 4; }
};

// Rows [0, count) of a tile as f32, others and elements from `head` on 0. row(i) is the address of row i <
// count.
template <int kHead, typename Row>
__device__ inline void load_tile(float* tile, int count, int head, const Row& row) {
  using Tile = PlainTile<kHead>;
  for (int i = threadIdx.x; i < Tile::kRows * kHead; i += kPlainThreads) {
    const int r = i / kHead, c = i % kHead;
    tile[r * Tile::kStride + c] = r < count && c < head ? to_float(row(r)[c]) : 0.0f;
  }
}

// s[i][j] = row ty + 16 i of a times row tx + 16 j of b.
template <int kHead, int P = PlainTile<kHead>::kPatch>
__device__ inline void multiply_plain(float (&s)[P][P], const float* a, const float* b, int head) {
  constexpr int kStride = PlainTile<kHead>::kStride;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < P; ++j) s[i][j] = 0;
  for (int c = 0; c < head; c += 4) {
    float4 x[P], y[P];
#pragma unroll
    for (int i = 0; i < P; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (ty + kSide * i) * kStride + c);
      y[i] = *reinterpret_cast<const float4*>(b + (tx + kSide * i) * kStride + c);
    }
#pragma unroll
    for (int i = 0; i < P; ++i)
#pragma unroll
      for (int j = 0; j < P; ++j)
        s[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
  }
}

// Products q . k become tanh(inner q . k).
template <int P>
__device__ inline void apply_tanh(float (&s)[P][P], float inner) {
#pragma unroll
  for (int i = 0; i < P; ++i)
#pragma unroll
    for (int j = 0; j < P; ++j) s[i][j] = tanhf(s[i][j] * inner);
}

// sums[i][n] += row ty + 16 i of p times columns 4 tx + 64 n of b. p is left in shared memory for it by the
// threads of the row.
template <int kHead, int P = PlainTile<kHead>::kPatch>
__device__ inline void accumulate_plain(float (&sums)[P][PlainTile<kHead>::kSums][4], const float (&p)[P][P],
                                        float* scores, const float* b, int head) {
  using Tile = PlainTile<kHead>;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  __syncwarp();  // what was there has been read
#pragma unroll
  for (int i = 0; i < P; ++i)
#pragma unroll
    for (int j = 0; j < P; ++j) scores[(ty + kSide * i) * Tile::kScoreStride + tx + kSide * j] = p[i][j];
  __syncwarp();
  for (int k = 0; k < Tile::kRows; ++k) {
    float x[P];
#pragma unroll
    for (int i = 0; i < P; ++i) x[i] = scores[(ty + kSide * i) * Tile::kScoreStride + k];
#pragma unroll
    for (int n = 0; n < Tile::kSums; ++n) {
      if (n * 64 >= head) continue;
      const auto y = *reinterpret_cast<const float4*>(b + k * Tile::kStride + n * 64 + tx * 4);
#pragma unroll
      for (int i = 0; i < P; ++i) {
        sums[i][n][0] += x[i] * y.x;
        sums[i][n][1] += x[i] * y.y;
        sums[i][n][2] += x[i] * y.z;
        sums[i][n][3] += x[i] * y.w;
      }
    }
  }
}

// Elements of one row that this thread sums, times `factor`, to the row at `to`.
template <int kHead, typename T>
__device__ inline void write_row(T* to, const float (&sums)[PlainTile<kHead>::kSums][4], float factor,
                                 int head) {
#pragma unroll
  for (int n = 0; n < PlainTile<kHead>::kSums; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (const int c = n * 64 + threadIdx.x % kSide * 4 + e; c < head)
        to[c] = from_float<T>(sums[n][e] * factor);
}

// Over the 16 threads of a row.
template <typename Combine>
__device__ inline float row_combine(float x, Combine combine) {
#pragma unroll
  for (int lane = kSide / 2; lane > 0; lane /= 2) x = combine(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

template <typename T, int kHead>
__global__ void __launch_bounds__(kPlainThreads)
    forward_plain(const Attention p, const T* q, const T* k, const T* v, const Results<T> results,
                  const int* position) {
  using Tile = PlainTile<kHead>;
  constexpr int R = Tile::kRows, P = Tile::kPatch;
  const int start = position_of(p, position);
  if (start < 0) return;
  const RowBlock block(p, R, start);
  const int b = block.b, h = block.h, key_head = h * p.packed / p.group();
  if (h == 0 && threadIdx.x < R) p.check_start(b, block.first + static_cast<int>(threadIdx.x));
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  float* queries = reinterpret_cast<float*>(dynamic_shared());
  float *keys = queries + R * Tile::kStride, *values = keys + R * Tile::kStride,
        *scores = values + R * Tile::kStride;
  load_tile<kHead>(queries, p.rows() - block.first, p.head, [&](int i) {
    const int row = block.first + i;
    return q + p.q.at(b, p.query_of(row), p.head_of(h, row));
  });

  float sums[P][Tile::kSums][4] = {}, row_max[P], total[P] = {};
  for (int i = 0; i < P; ++i) row_max[i] = -INFINITY;
  const float factor = p.factor();
  for (int from = block.begin; from < block.end; from += R) {
    __syncthreads();
    load_tile<kHead>(keys, block.end - from, p.head,
                     [&](int i) { return k + p.k.at(b, from + i, key_head); });
    load_tile<kHead>(values, block.end - from, p.head,
                     [&](int i) { return v + p.v.at(b, from + i, key_head); });
    __syncthreads();
    float s[P][P];
    multiply_plain<kHead>(s, queries, keys, p.head);
    if (p.cap > 0) apply_tanh(s, p.inner());
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const int row = block.first + ty + kSide * i;
      const int begin = p.begin(b, p.query_of(row), start), limit = min(block.end, p.visible(row, start));
      float now = -INFINITY;
#pragma unroll
      for (int j = 0; j < P; ++j) {
        const int key = from + tx + kSide * j;
        s[i][j] = begin <= key && key < limit ? s[i][j] * factor : -INFINITY;
        now = fmaxf(now, s[i][j]);
      }
      now = fmaxf(row_max[i], row_combine(now, [](float x, float y) { return fmaxf(x, y); }));
      const float base = now == -INFINITY ? 0.0f : now;  // the row has seen no key yet
      const float shrink = expf(row_max[i] - base);
      row_max[i] = now;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < P; ++j) total[i] += s[i][j] = expf(s[i][j] - base);
#pragma unroll
      for (int n = 0; n < Tile::kSums; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][n][e] *= shrink;
    }
    accumulate_plain<kHead>(sums, s, scores, values, p.head);
  }

  const int64_t split = block.split * static_cast<int64_t>(p.batch) * p.query_heads * p.queries;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const float sum = row_combine(total[i], [](float x, float y) { return x + y; });
    const int row = block.first + ty + kSide * i;
    if (row >= p.rows()) continue;
    const int query = p.query_of(row), head = p.head_of(h, row);
    const int64_t index = p.index(b, query, head);
    const float factor = sum == 0 ? 0.0f : 1.0f / sum;
    if (results.lse != nullptr && tx == 0)
      results.lse[split + index] = sum == 0 ? -INFINITY : row_max[i] + logf(sum);
    if (p.splits > 1)
      write_row<kHead>(results.parts + (split + index) * p.head, sums[i], factor, p.head);
    else
      write_row<kHead>(results.out + p.out.at(b, query, head), sums[i], factor, p.head);
  }
}

enum class Rows { queries, keys };

// With kOwn = queries: dQ of a tile of queries, `own` is q and `own_d` dout, and k and v pass by. With kOwn =
// keys: dK and dV of a tile of keys, `own` is k and `own_d` v, and the q and dout of all queries of the group
// pass by.
template <typename T, int kHead, Rows kOwn>
__global__ void __launch_bounds__(kPlainThreads)
    gradient_plain(const Attention p, const T* own, const T* own_d, const T* other, const T* other_d,
                   const float2* pairs, int pairs_of_head, T* to, T* to_d) {
  using Tile = PlainTile<kHead>;
  constexpr bool kQueries = kOwn == Rows::queries;
  constexpr int R = Tile::kRows, P = Tile::kPatch;
  const int own_count = kQueries ? p.queries : p.keys, other_count = kQueries ? p.keys : p.queries;
  const int own_heads = kQueries ? p.query_heads : p.key_heads;
  const int tiles = (own_count + R - 1) / R, first = static_cast<int>(blockIdx.x % tiles) * R;
  const int h = static_cast<int>(blockIdx.x / tiles % own_heads),
            b = static_cast<int>(blockIdx.x / tiles / own_heads);
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  float* mine = reinterpret_cast<float*>(dynamic_shared());
  float *mine_d = mine + R * Tile::kStride, *theirs = mine_d + R * Tile::kStride,
        *theirs_d = theirs + R * Tile::kStride, *scores = theirs_d + R * Tile::kStride;
  const Heads &at = kQueries ? p.q : p.k, &at_d = kQueries ? p.dout : p.v;
  const Heads &other_at = kQueries ? p.k : p.q, &other_at_d = kQueries ? p.v : p.dout;
  load_tile<kHead>(mine, own_count - first, p.head, [&](int i) { return own + at.at(b, first + i, h); });
  load_tile<kHead>(mine_d, own_count - first, p.head,
                   [&](int i) { return own_d + at_d.at(b, first + i, h); });

  float sums[P][Tile::kSums][4] = {}, sums_d[P][Tile::kSums][4] = {};
  const float factor = p.factor();
  const int begin = kQueries ? p.begin(b, first, 0) : p.causal ? first / R * R : 0;
  const int end =
      kQueries ? p.visible(min(own_count, first + R) - 1, 0) : p.queries_end(b, first + R - 1, first);
  for (int g = 0; g < (kQueries ? 1 : p.group()); ++g) {
    const int other_head = kQueries ? h / p.group() : h * p.group() + g;
    const float2* pair =
        pairs + (static_cast<int64_t>(b) * p.query_heads + (kQueries ? h : other_head)) * pairs_of_head;
    for (int from = begin; from < end; from += R) {
      __syncthreads();
      load_tile<kHead>(theirs, other_count - from, p.head,
                       [&](int i) { return other + other_at.at(b, from + i, other_head); });
      load_tile<kHead>(theirs_d, other_count - from, p.head,
                       [&](int i) { return other_d + other_at_d.at(b, from + i, other_head); });
      __syncthreads();
      float s[P][P], d[P][P];
      multiply_plain<kHead>(s, mine, theirs, p.head);
      multiply_plain<kHead>(d, mine_d, theirs_d, p.head);
      if (p.cap > 0) apply_tanh(s, p.inner());
#pragma unroll
      for (int i = 0; i < P; ++i)
#pragma unroll
        for (int j = 0; j < P; ++j) {
          const int row = first + ty + kSide * i, column = from + tx + kSide * j;
          const int query = kQueries ? row : column, key = kQueries ? column : row;
          const float2 two = pair[query];
          const bool seen = p.begin(b, query, 0) <= key && key < p.visible(query, 0);
          const float slope = p.cap > 0 ? 1.0f - s[i][j] * s[i][j] : 1.0f;
          s[i][j] = seen ? exp2f(fmaf(s[i][j], factor * kLog2e, -two.x)) : 0.0f;
          d[i][j] = s[i][j] * (d[i][j] - two.y) * slope;
        }
      if constexpr (!kQueries) accumulate_plain<kHead>(sums_d, s, scores, theirs_d, p.head);
      accumulate_plain<kHead>(sums, d, scores, theirs, p.head);
    }
  }
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int row = first + ty + kSide * i;
    if (row >= own_count) continue;
    write_row<kHead>(to + (kQueries ? p.dq : p.dk).at(b, row, h), sums[i], p.scale, p.head);
    if constexpr (!kQueries) write_row<kHead>(to_d + p.dv.at(b, row, h), sums_d[i], 1.0f, p.head);
  }
}

}  // namespace het::HET_CUDA
