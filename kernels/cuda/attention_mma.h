// Attention on tensor cores: bf16 and f16, heads of up to 128 elements in multiples of 8 (padded with zeros
// to 64 or 128), operands at multiples of 16 bytes. In principle as in Dao, "FlashAttention-2: faster
// attention with better parallelism and work partitioning" (arXiv 2307.08691, 2023): scores stay in
// registers, each warp has separate rows, and nothing but K and V (or Q and dO) passes through shared
// memory within the loop, two tiles of each: one arrives while the other is used.
//
// The backward pass is two kernels, one for dK and dV (a block for each tile of keys), one for dQ (a block
// for each tile of queries). They compute 7 products of matrices where one kernel computes 5, but that one
// has to add dQ from all blocks: by atomics, in an order that changes, or taking turns, 64 KiB to and from
// the L2 cache for 10 MFLOP, 2 TB/s at 300 TFLOP/s; and it passes dS through shared memory with two more
// barriers a tile. Here P and dS are made in the layout in which the next product reads them, and results
// never depend on timing.
//
// Tiles in shared memory are panels of 64 columns (128 bytes a row), the 16-byte chunk c of row r at c ^ r %
// 8: eight rows of a matrix lie in different banks. It is also the 128-byte swizzle of TMA and wgmma.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/mma.h"

namespace het::HET_CUDA {

inline constexpr int kMmaThreads = 128, kMmaWarps = kMmaThreads / kWarp;
inline constexpr int kRowBytes = 128;  // of a panel

// What blocks hold in shared memory. Rows of a warp are 16 or 32: with 32 each matrix of the other tile that
// is read from shared memory serves four products, with 16 two; but sums [rows, head] take half of the
// registers.
struct ForwardTile {
  static constexpr int kRows = 128, kKeys = 64;
  static constexpr size_t bytes(int head) { return (kRows + 4 * kKeys) * head * 2; }  // Q; two of K, V
};
struct QueryGradientTile {
  static constexpr int kRows = 128, kKeys = 32;
  static constexpr size_t bytes(int head) {
    return (2 * kRows + 4 * kKeys) * head * 2;
  }  // Q, dO; two of K, V
};
struct KeyGradientTile {
  static constexpr int kKeys = 64, kRows = 64;
  static constexpr size_t kPairBytes = kRows * sizeof(float2);  // lse and e of a tile's queries
  static constexpr size_t bytes(int head) { return (2 * kKeys + 4 * kRows) * head * 2 + 2 * kPairBytes; }
};

// Bytes from the start of a tile of kRows rows to chunk `chunk` of `row`.
template <int kRows>
__device__ inline uint32_t offset_in_tile(int row, int chunk) {
  return chunk / 8 * (kRows * kRowBytes) + row * kRowBytes + ((chunk % 8 ^ row % 8) << 4);
}

// Begin to copy rows [0, count) of a tile; others, and elements from `head` on, become 0. row(i) is the
// address of row i < count.
template <int kRows, int kHead, typename Row>
__device__ inline void copy_tile(Shared tile, int count, int head, const Row& row) {
  constexpr int kChunks = kHead / 8, kStep = kMmaThreads / kChunks;
  const int first = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const Shared to =
      tile + offset_in_tile<kRows>(first, chunk);  // kStep is a multiple of 8: the swizzle repeats
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    const bool there = first + i < count && chunk * 8 < head;
    copy_async(to + i * kRowBytes, row(there ? first + i : 0) + (there ? chunk * 8 : 0), there);
  }
}

// Begin to copy rows [token, token + kRows) of `from` [count, head], rows `step` elements apart, those from
// `count` on as 0. The loops' form: few registers, no conditions for whole tiles.
template <int kRows, int kHead, int kThreads = kMmaThreads, typename T>
__device__ inline void copy_rows(Shared tile, const T* from, int64_t step, int token, int count, int head) {
  constexpr int kChunks = kHead / 8, kStep = kThreads / kChunks;
  const int first = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const Shared to = tile + offset_in_tile<kRows>(first, chunk);
  const T* row = from + (token + first) * step + chunk * 8;
  if (token + kRows <= count && chunk * 8 < head) {
#pragma unroll
    for (int i = 0; i < kRows; i += kStep, row += kStep * step) copy_async(to + i * kRowBytes, row, true);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; i += kStep, row += kStep * step) {
      const bool there = token + first + i < count && chunk * 8 < head;
      copy_async(to + i * kRowBytes, there ? row : from, there);
    }
  }
}

// s = a b^T over the elements of a head: M times 16 rows of the tile `a` from row `a_row` on, N times 8 rows
// of the tile `b`.
template <typename T, int kHead, int kRowsA, int kRowsB, int M, int N>
__device__ inline void multiply(float (&s)[M][N][4], Shared a, int a_row, Shared b) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t a_at = offset_in_tile<kRowsA>(a_row + lane % 16, lane / 16);
  const uint32_t b_at = offset_in_tile<kRowsB>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
  for (int c = 0; c < kHead / 16; ++c) {
    const uint32_t turn = c % 4 * 32;  // of chunk 2 c within its panel
    uint32_t rows[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m)
      load_matrices(rows[m], a + (a_at ^ turn) + (c / 4 * kRowsA + m * 16) * kRowBytes);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t columns[4];
      load_matrices(columns, b + (b_at ^ turn) + (c / 4 * kRowsB + n * 8) * kRowBytes);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(s[m][n], rows[m], columns[0], columns[1]);
        multiply_add<T>(s[m][n + 1], rows[m], columns[2], columns[3]);
      }
    }
  }
}

// sums += p b, p [16 M, 8 N] as multiply() left it, b a tile of 8 N rows.
template <typename T, int kHead, int M, int N>
__device__ inline void accumulate(float (&sums)[M][kHead / 8][4], const float (&p)[M][N][4], Shared b) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t b_at = offset_in_tile<8 * N>(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    uint32_t rows[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      rows[m][0] = pair_of<T>(p[m][k][0], p[m][k][1]);
      rows[m][1] = pair_of<T>(p[m][k][2], p[m][k][3]);
      rows[m][2] = pair_of<T>(p[m][k + 1][0], p[m][k + 1][1]);
      rows[m][3] = pair_of<T>(p[m][k + 1][2], p[m][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kHead / 8; n += 2) {
      uint32_t columns[4];
      load_matrices_transposed(columns, b + (b_at ^ (n % 8 * 16)) + (n / 8 * 8 * N + k * 8) * kRowBytes);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(sums[m][n], rows[m], columns[0], columns[1]);
        multiply_add<T>(sums[m][n + 1], rows[m], columns[2], columns[3]);
      }
    }
  }
}

// Write sums [16 M, kHead] of a warp, row i times factors[i / 16][i % 16 / 8] of the lanes that hold it, to
// the addresses target(i), where those are not null; through rows [first, first + 16 M) of a tile that no
// other warp uses.
template <typename T, int kHead, int kRows, int M, typename Target>
__device__ inline void write_rows(std::byte* tile, int first, const float (&sums)[M][kHead / 8][4],
                                  const float (&factors)[M][2], int head, const Target& target) {
  const int lane = threadIdx.x % kWarp;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n)
        *reinterpret_cast<uint32_t*>(tile + offset_in_tile<kRows>(row, n) + lane % 4 * 4) =
            pair_of<T>(sums[m][n][2 * half] * factors[m][half], sums[m][n][2 * half + 1] * factors[m][half]);
    }
  __syncwarp();
  constexpr int kChunks = kHead / 8;
#pragma unroll
  for (int i = 0; i < 16 * M * kChunks / kWarp; ++i) {
    const int row = i * (kWarp / kChunks) + lane / kChunks, chunk = lane % kChunks;
    T* to = target(row);
    if (to != nullptr && chunk * 8 < head)
      *reinterpret_cast<uint4*>(to + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + offset_in_tile<kRows>(first + row, chunk));
  }
}

// ---- forward ----

// Scores of rows of sample b from `first` on and keys from `from` on that their rows do not see, or from
// `end` on, become `hidden`.
template <int M, int N>
__device__ inline void mask(const Attention& p, float (&s)[M][N][4], int b, int first, int from, int end,
                            int position, float hidden = -INFINITY) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4, column = from + lane % 4 * 2;
      const int limit = min(end, p.visible(row, position)) - column;
      const int begin = p.begin(b, p.query_of(row), position) - column;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e >= limit || n * 8 + e < begin) s[m][n][2 * half + e] = hidden;
    }
}

// The tiles of keys that the rows of a warp see: those up to begin or from end on by none of them, those
// between all_from and all_to by all.
struct WarpKeys {
  int begin, end, all_from, all_to;

  __device__ WarpKeys(const Attention& p, const RowBlock& block, int row, int rows, int position) {
    const bool exists = row < p.rows();
    begin = p.begin(block.b, p.query_of(row), position);
    end = exists ? min(block.end, p.visible(row + rows - 1, position)) : 0;
    all_from = p.begin(block.b, p.query_of(row + rows - 1), position);
    all_to = min(block.end, p.visible(row, position));
  }
  __device__ bool sees(int from, int keys) const { return from < end && from + keys > begin; }
  __device__ bool sees_all(int from, int keys) const { return from >= all_from && from + keys <= all_to; }
};

// Products q . k become tanh(inner q . k).
template <int M, int N>
__device__ inline void apply_tanh(float (&s)[M][N][4], float inner) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = fast_tanh(s[m][n][e] * inner);
}

// Online softmax: scores become exp2(c (score - row_max)), c = factor() log2(e), `row_max` being the largest
// score of a row so far, `total` the sum over the lane's columns. What was summed before has to be multiplied
// by `shrink`. True: some row of the warp has a new maximum.
template <int M, int N>
__device__ inline bool online_softmax(float (&s)[M][N][4], float (&row_max)[M][2], float (&total)[M][2],
                                      float (&shrink)[M][2], float c) {
  bool grown = false;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = row_max[m][half];
#pragma unroll
      for (int n = 0; n < N; ++n) now = fmaxf(now, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      const float base = now == -INFINITY ? 0.0f : now * c;  // the row has seen no key yet
      grown |= now > row_max[m][half];
      shrink[m][half] = fast_exp2(row_max[m][half] * c - base);
      row_max[m][half] = now;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          sum += s[m][n][e] = fast_exp2(fmaf(s[m][n][e], c, -base));
      total[m][half] = total[m][half] * shrink[m][half] + sum;
    }
  return __any_sync(~0u, grown);  // rarely, after the first tiles
}

template <int M, int D>
__device__ inline void rescale(float (&sums)[M][D][4], const float (&shrink)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < D; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] *= shrink[m][e / 2];
}

// The results of a warp's rows, through its rows of the tile of queries.
template <int kRows, typename T, int M, int D>
__device__ inline void finish(const Attention& p, const RowBlock& block, int warp_row, std::byte* query_tile,
                              const float (&sums)[M][D][4], const float (&row_max)[M][2],
                              const float (&total)[M][2], const Results<T>& results) {
  const int lane = threadIdx.x % kWarp, b = block.b, h = block.h;
  float factors[M][2];
  const int64_t split = block.split * static_cast<int64_t>(p.batch) * p.query_heads * p.queries;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factors[m][half] = sum == 0 ? 0.0f : 1.0f / sum;
      const int row = block.first + warp_row + m * 16 + half * 8 + lane / 4;
      if (row >= p.rows()) continue;
      const int64_t index = p.index(b, p.query_of(row), p.head_of(h, row));
      if (results.lse != nullptr && lane % 4 == 0)
        results.lse[split + index] = sum == 0 ? -INFINITY : row_max[m][half] * p.factor() + logf(sum);
      if (p.splits == 1) continue;
      float* to = results.parts + (split + index) * p.head;
#pragma unroll
      for (int n = 0; n < D; ++n)
        if (n * 8 < p.head)
          *reinterpret_cast<float2*>(to + n * 8 + lane % 4 * 2) = make_float2(
              sums[m][n][2 * half] * factors[m][half], sums[m][n][2 * half + 1] * factors[m][half]);
    }
  if (p.splits > 1) return;
  write_rows<T, D * 8, kRows>(query_tile, warp_row, sums, factors, p.head, [&](int i) {
    const int row = block.first + warp_row + i;
    return row >= p.rows() ? nullptr : results.out + p.out.at(b, p.query_of(row), p.head_of(h, row));
  });
}

template <typename T, int kHead, bool kCapped>
__global__ void __launch_bounds__(kMmaThreads, kHead == 64 ? 3 : 2)
    forward_mma(const Attention p, const T* q, const T* k, const T* v, const Results<T> results,
                const int* position) {
  constexpr int kRows = ForwardTile::kRows, kKeys = ForwardTile::kKeys;
  constexpr int M = kRows / kMmaWarps / 16, N = kKeys / 8;
  constexpr uint32_t kTileBytes = kKeys * kHead * 2;
  const int start = position_of(p, position);
  if (start < 0) return;
  const RowBlock block(p, kRows, start);
  const int b = block.b, h = block.h, key_head = h * p.packed / p.group();
  const int warp_row = threadIdx.x / kWarp * (16 * M);
  if (h == 0 && threadIdx.x < kRows) p.check_start(b, block.first + static_cast<int>(threadIdx.x));
  const Shared query_tile = shared_address(dynamic_shared());
  const Shared key_tiles = query_tile + kRows * kHead * 2, value_tiles = key_tiles + 2 * kTileBytes;

  const T *keys = k + p.k.at(b, 0, key_head), *values = v + p.v.at(b, 0, key_head);
  const auto copy_keys = [&](int from, int stage) {
    copy_rows<kKeys, kHead>(key_tiles + stage * kTileBytes, keys, p.k.token, from, p.keys, p.head);
    copy_rows<kKeys, kHead>(value_tiles + stage * kTileBytes, values, p.v.token, from, p.keys, p.head);
    commit_copies();
  };
  if (block.begin < block.end) {
    copy_tile<kRows, kHead>(query_tile, p.rows() - block.first, p.head, [&](int i) {
      const int row = block.first + i;
      return q + p.q.at(b, p.query_of(row), p.head_of(h, row));
    });
    copy_keys(block.begin, 0);
  }

  const float c = p.factor() * kLog2e;
  float sums[M][kHead / 8][4] = {}, row_max[M][2], total[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_max[m][half] = -INFINITY;
      total[m][half] = 0;
    }
  const WarpKeys seen(p, block, block.first + warp_row, 16 * M, start);

  int stage = 0;
  for (int from = block.begin; from < block.end; from += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has come for all, and all are done with the other one
    if (from + kKeys < block.end) copy_keys(from + kKeys, stage ^ 1);
    if (!seen.sees(from, kKeys)) continue;

    float s[M][N][4];
    multiply<T, kHead, kRows, kKeys>(s, query_tile, warp_row, key_tiles + stage * kTileBytes);
    if constexpr (kCapped) apply_tanh(s, p.inner());
    if (!seen.sees_all(from, kKeys)) mask(p, s, b, block.first + warp_row, from, block.end, start);
    float shrink[M][2];
    if (online_softmax(s, row_max, total, shrink, c)) rescale(sums, shrink);
    accumulate<T, kHead>(sums, s, value_tiles + stage * kTileBytes);
  }

  finish<kRows>(p, block, warp_row, dynamic_shared(), sums, row_max, total, results);
}

// ---- backward ----
//
// With p = exp(score - lse), e = dout . out and ds = p (dout . v - e), times 1 - (score / cap)^2 with a cap:
// dq = scale ds k, dk = scale ds^T q, dv = p^T dout. `pairs` holds (lse log2(e), e) of each query, padded
// with (infinity, 0) to whole tiles of queries (gradient_pairs).

// What the derivative by a capped score, cap t, multiplies.
template <bool kCapped>
__device__ inline float slope_of(float t) {
  return kCapped ? 1.0f - t * t : 1.0f;
}

// dQ of 128 queries: the warp's 32 rows against all keys that they see.
template <typename T, int kHead, bool kCapped>
__global__ void __launch_bounds__(kMmaThreads, 2)
    query_gradient_mma(const Attention p, const T* dout, const T* q, const T* k, const T* v,
                       const float2* pairs, int pairs_of_head, T* dq) {
  constexpr int kRows = QueryGradientTile::kRows, kKeys = QueryGradientTile::kKeys;
  constexpr int M = kRows / kMmaWarps / 16, N = kKeys / 8;
  constexpr uint32_t kOwnBytes = kRows * kHead * 2, kTileBytes = kKeys * kHead * 2;
  const RowBlock block(p, kRows, 0);
  const int b = block.b, h = block.h, key_head = h / p.group();
  const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x / kWarp * (16 * M);
  const Shared query_tile = shared_address(dynamic_shared()), dout_tile = query_tile + kOwnBytes;
  const Shared key_tiles = dout_tile + kOwnBytes, value_tiles = key_tiles + 2 * kTileBytes;

  const T *keys = k + p.k.at(b, 0, key_head), *values = v + p.v.at(b, 0, key_head);
  const auto copy_keys = [&](int from, int stage) {
    copy_rows<kKeys, kHead>(key_tiles + stage * kTileBytes, keys, p.k.token, from, p.keys, p.head);
    copy_rows<kKeys, kHead>(value_tiles + stage * kTileBytes, values, p.v.token, from, p.keys, p.head);
    commit_copies();
  };
  copy_rows<kRows, kHead>(query_tile, q + p.q.at(b, 0, h), p.q.token, block.first, p.queries, p.head);
  copy_rows<kRows, kHead>(dout_tile, dout + p.dout.at(b, 0, h), p.dout.token, block.first, p.queries, p.head);
  copy_keys(block.begin, 0);

  const float c = p.factor() * kLog2e;
  float sums[M][kHead / 8][4] = {};
  float2 pair[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = block.first + warp_row + m * 16 + half * 8 + lane / 4;
      pair[m][half] = pairs[(static_cast<int64_t>(b) * p.query_heads + h) * pairs_of_head + row];
    }
  const WarpKeys seen(p, block, block.first + warp_row, 16 * M, 0);

  int stage = 0;
  for (int from = block.begin; from < block.end; from += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (from + kKeys < block.end) copy_keys(from + kKeys, stage ^ 1);
    if (!seen.sees(from, kKeys)) continue;

    float s[M][N][4], d[M][N][4];
    multiply<T, kHead, kRows, kKeys>(s, query_tile, warp_row, key_tiles + stage * kTileBytes);
    multiply<T, kHead, kRows, kKeys>(d, dout_tile, warp_row, value_tiles + stage * kTileBytes);
    if constexpr (kCapped) apply_tanh(s, p.inner());
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float slope = slope_of<kCapped>(s[m][n][e]);
          s[m][n][e] =
              fast_exp2(fmaf(s[m][n][e], c, -pair[m][e / 2].x)) * (d[m][n][e] - pair[m][e / 2].y) * slope;
        }
    if (!seen.sees_all(from, kKeys)) mask(p, s, b, block.first + warp_row, from, block.end, 0, 0.0f);
    accumulate<T, kHead>(sums, s, key_tiles + stage * kTileBytes);
  }

  float factors[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) factors[m][0] = factors[m][1] = p.scale;
  write_rows<T, kHead, kRows>(dynamic_shared(), warp_row, sums, factors, p.head, [&](int i) {
    const int row = block.first + warp_row + i;
    return row >= p.queries ? nullptr : dq + p.dq.at(b, row, h);
  });
}

// dK and dV of 64 keys: the warp's 16 keys against all queries that see them, in all heads of the group.
// Scores are computed transposed, [keys, queries].
template <typename T, int kHead, bool kCapped>
__global__ void __launch_bounds__(kMmaThreads, 2)
    key_gradient_mma(const Attention p, const T* dout, const T* q, const T* k, const T* v,
                     const float2* pairs, int pairs_of_head, T* dk, T* dv) {
  constexpr int kKeys = KeyGradientTile::kKeys, kRows = KeyGradientTile::kRows, N = kRows / 8;
  constexpr uint32_t kOwnBytes = kKeys * kHead * 2, kTileBytes = kRows * kHead * 2;
  constexpr uint32_t kPairBytes = KeyGradientTile::kPairBytes;
  const int tiles = (p.keys + kKeys - 1) / kKeys;
  const int first = static_cast<int>(blockIdx.x % tiles) * kKeys;  // the first keys are seen by most queries
  const int key_head = static_cast<int>(blockIdx.x / tiles % p.key_heads);
  const int b = static_cast<int>(blockIdx.x / tiles / p.key_heads);
  const int lane = threadIdx.x % kWarp, warp_key = threadIdx.x / kWarp * 16;
  const Shared key_tile = shared_address(dynamic_shared()), value_tile = key_tile + kOwnBytes;
  const Shared query_tiles = value_tile + kOwnBytes, dout_tiles = query_tiles + 2 * kTileBytes;
  const Shared pair_tiles = dout_tiles + 2 * kTileBytes;
  const std::byte* pair_bytes = dynamic_shared() + 2 * kOwnBytes + 4 * kTileBytes;

  const int begin = p.causal ? first / kRows * kRows : 0;
  const int end = p.queries_end(b, first + kKeys - 1, first);
  const auto copy_queries = [&](int g, int from, int stage) {
    const int h = key_head * p.group() + g;
    copy_rows<kRows, kHead>(query_tiles + stage * kTileBytes, q + p.q.at(b, 0, h), p.q.token, from, p.queries,
                            p.head);
    copy_rows<kRows, kHead>(dout_tiles + stage * kTileBytes, dout + p.dout.at(b, 0, h), p.dout.token, from,
                            p.queries, p.head);
    const int chunk = threadIdx.x;
    if (chunk < static_cast<int>(kPairBytes / 16))
      copy_async(pair_tiles + stage * kPairBytes + chunk * 16,
                 pairs + (static_cast<int64_t>(b) * p.query_heads + h) * pairs_of_head + from + chunk * 2,
                 true);
    commit_copies();
  };
  copy_rows<kKeys, kHead>(key_tile, k + p.k.at(b, 0, key_head), p.k.token, first, p.keys, p.head);
  copy_rows<kKeys, kHead>(value_tile, v + p.v.at(b, 0, key_head), p.v.token, first, p.keys, p.head);
  copy_queries(0, begin, 0);

  const float c = p.factor() * kLog2e;
  float key_sums[1][kHead / 8][4] = {}, value_sums[1][kHead / 8][4] = {};
  int stage = 0;
  for (int g = 0, from = begin; g < p.group(); stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    const int here = from;
    from += kRows;
    if (from >= end) {
      from = begin;
      ++g;
    }
    if (g < p.group()) copy_queries(g, from, stage ^ 1);

    const auto* pair =
        reinterpret_cast<const float4*>(pair_bytes + stage * kPairBytes) + lane % 4;  // of two queries
    float s[1][N][4], d[1][N][4];
    multiply<T, kHead, kKeys, kRows>(s, key_tile, warp_key, query_tiles + stage * kTileBytes);
    float slope[N][4];
    if constexpr (kCapped) apply_tanh(s, p.inner());
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) slope[n][e] = slope_of<kCapped>(s[0][n][e]);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 two = pair[n * 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][n][e] = fast_exp2(fmaf(s[0][n][e], c, -(e % 2 == 0 ? two.x : two.z)));
    }
    if (p.causal && here < first + warp_key + 16)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (here + n * 8 + lane % 4 * 2 + e % 2 < first + warp_key + e / 2 * 8 + lane / 4) s[0][n][e] = 0;
    if (p.begin(b, here + kRows - 1, 0) > first + warp_key)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (p.begin(b, here + n * 8 + lane % 4 * 2 + e % 2, 0) > first + warp_key + e / 2 * 8 + lane / 4)
            s[0][n][e] = 0;
    accumulate<T, kHead>(value_sums, s, dout_tiles + stage * kTileBytes);
    multiply<T, kHead, kKeys, kRows>(d, value_tile, warp_key, dout_tiles + stage * kTileBytes);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 two = pair[n * 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][n][e] *= (d[0][n][e] - (e % 2 == 0 ? two.y : two.w)) * slope[n][e];
    }
    accumulate<T, kHead>(key_sums, s, query_tiles + stage * kTileBytes);
  }

  const float one[1][2] = {{1, 1}}, scales[1][2] = {{p.scale, p.scale}};
  const auto target = [&](T* to, const Heads& heads) {
    return [=, &p](int i) {
      const int key = first + warp_key + i;
      return key >= p.keys ? nullptr : to + heads.at(b, key, key_head);
    };
  };
  write_rows<T, kHead, kKeys>(dynamic_shared(), warp_key, key_sums, scales, p.head, target(dk, p.dk));
  write_rows<T, kHead, kKeys>(dynamic_shared() + kOwnBytes, warp_key, value_sums, one, p.head,
                              target(dv, p.dv));
}

}  // namespace het::HET_CUDA
