// Attention's forward pass for Hopper (sm_90a), with the tiles of attention_mma.h: mma.sync reaches about 0.6
// of the rate of wgmma there. Two warpgroups have 64 queries each and read the same tiles of 128 keys. The
// scores of the next tile are computed while the softmax of this one runs (the pipelining within a warpgroup
// of Shah et al., "FlashAttention-3", arXiv 2407.08608, 2024).
#pragma once

#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/wgmma.h"

namespace het::HET_CUDA {

struct WarpgroupTile {
  static constexpr int kRows = 128, kKeys = 128, kThreads = 256;
  static constexpr size_t bytes(int head) { return (kRows + 4 * kKeys) * head * 2 + 1024; }  // Q; two of K, V
};

// Probabilities, as accumulators of one product, to the left operand of the next.
template <typename T, int N>
__device__ inline void to_operand(const float (&s)[1][N][4], uint32_t (&rows)[N / 2][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    rows[n / 2][0] = pair_of<T>(s[0][n][0], s[0][n][1]);
    rows[n / 2][1] = pair_of<T>(s[0][n][2], s[0][n][3]);
    rows[n / 2][2] = pair_of<T>(s[0][n + 1][0], s[0][n + 1][1]);
    rows[n / 2][3] = pair_of<T>(s[0][n + 1][2], s[0][n + 1][3]);
  }
}

template <typename T, int kHead, bool kCapped>
__global__ void __launch_bounds__(WarpgroupTile::kThreads, 1)
    forward_wgmma(const Attention p, const T* q, const T* k, const T* v, const Results<T> results) {
#ifdef HET_HAS_WGMMA
  constexpr int kRows = WarpgroupTile::kRows, kKeys = WarpgroupTile::kKeys,
                kThreads = WarpgroupTile::kThreads;
  constexpr int N = kKeys / 8, D = kHead / 8;
  constexpr uint32_t kTileBytes = kKeys * kHead * 2, kPanelBytes = kKeys * kRowBytes;
  const RowBlock block(p, kRows, 0);
  const int b = block.b, h = block.h, key_head = h / p.group();
  const int warp_row = threadIdx.x / kWarp * 16;
  if (h == 0 && threadIdx.x < kRows) p.check_start(b, block.first + static_cast<int>(threadIdx.x));
  const Shared start = shared_address(dynamic_shared());
  const Shared query_tile = (start + 1023) / 1024 * 1024;  // what the swizzle asks for
  const Shared key_tiles = query_tile + kRows * kHead * 2, value_tiles = key_tiles + 2 * kTileBytes;
  const Shared group_queries = query_tile + threadIdx.x / 128 * (64 * kRowBytes);

  const T *keys = k + p.k.at(b, 0, key_head), *values = v + p.v.at(b, 0, key_head);
  const auto copy_keys = [&](int tile) {
    copy_rows<kKeys, kHead, kThreads>(key_tiles + tile % 2 * kTileBytes, keys, p.k.token, tile * kKeys,
                                      p.keys, p.head);
  };
  const auto copy_values = [&](int tile) {
    copy_rows<kKeys, kHead, kThreads>(value_tiles + tile % 2 * kTileBytes, values, p.v.token, tile * kKeys,
                                      p.keys, p.head);
  };
  const auto multiply_keys = [&](float(&s)[1][N][4], int tile) {
#pragma unroll
    for (int c = 0; c < kHead / 16; ++c) {
      const uint32_t at = c / 4 * kPanelBytes + c % 4 * 32;  // kRows is kKeys: panels are alike
      multiply_tiles<T>(s[0], matrix_by_rows(group_queries + at),
                        matrix_by_rows(key_tiles + tile % 2 * kTileBytes + at), c > 0);
    }
    commit_products();
  };
  const auto multiply_values = [&](float(&sums)[1][D][4], const uint32_t(&rows)[N / 2][4], int tile) {
#pragma unroll
    for (int n = 0; n < N / 2; ++n)
      multiply_rows<T>(
          sums[0], rows[n],
          matrix_by_columns(value_tiles + tile % 2 * kTileBytes + n * 16 * kRowBytes, kPanelBytes));
    commit_products();
  };

  const int first_tile = block.begin / kKeys, tiles = (block.end + kKeys - 1) / kKeys;
  copy_rows<kRows, kHead, kThreads>(query_tile, q + p.q.at(b, 0, h), p.q.token, block.first, p.queries,
                                    p.head);
  copy_keys(first_tile);
  commit_copies();

  const float c = p.factor() * kLog2e;
  float sums[1][D][4] = {}, row_max[1][2] = {{-INFINITY, -INFINITY}}, total[1][2] = {};
  const WarpKeys seen(p, block, block.first + warp_row, 16, 0);

  uint32_t rows[N / 2][4];  // probabilities of the last tile
  const auto softmax_tile = [&](float(&s)[1][N][4], float(&shrink)[1][2], int tile) {
    if constexpr (kCapped) apply_tanh(s, p.inner());
    if (!seen.sees_all(tile * kKeys, kKeys))
      mask(p, s, b, block.first + warp_row, tile * kKeys, block.end, 0);
    return online_softmax(s, row_max, total, shrink, c);
  };
  const auto next_tile = [&](int tile) {
    wait_for_copies<0>();
    show_to_products();
    __syncthreads();  // keys of this tile and values of the last have come, and all are done with those
                      // before
    if (tile + 1 < tiles) copy_keys(tile + 1);
    if (tile < tiles) copy_values(tile);
    commit_copies();
    begin_products();
  };
  {
    float s[1][N][4], shrink[1][2];
    next_tile(first_tile);
    multiply_keys(s, first_tile);
    wait_for_products<0>();
    hold_registers(s[0]);
    softmax_tile(s, shrink, first_tile);
    to_operand<T>(s, rows);
  }
  for (int tile = first_tile + 1; tile < tiles; ++tile) {
    float s[1][N][4], shrink[1][2];
    next_tile(tile);
    multiply_keys(s, tile);
    multiply_values(sums, rows, tile - 1);
    wait_for_products<1>();
    hold_registers(s[0]);
    const bool grown = softmax_tile(s, shrink, tile);
    wait_for_products<0>();
    hold_registers(sums[0]);
    if (grown) rescale(sums, shrink);
    to_operand<T>(s, rows);
  }
  next_tile(tiles);
  multiply_values(sums, rows, tiles - 1);
  wait_for_products<0>();
  hold_registers(sums[0]);
  finish<kRows>(p, block, warp_row, dynamic_shared() + (query_tile - start), sums, row_max, total, results);
#endif
}

}  // namespace het::HET_CUDA
