// Matrix units of processors (AMX): tiles of 16 rows of 64 bytes, and the packing of operands into them. A
// tile product adds A B to C: A is 16 rows of 32 bf16, B is 16 rows, each of the pairs of two terms for 16
// columns, C is 16 x 16 f32. Operands in f32 are rounded to bf16 as they are packed. Denormals count as zero.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/gemm_tile.h"

namespace het::cpu::HET_ISA {

inline constexpr int kTileRows = 16;                        // of A, of C, and pairs of B
inline constexpr int kTileTerms = 32;                       // of k, in one tile product
inline constexpr int kTileValues = kTileRows * kTileTerms;  // bf16 in a tile of an operand
inline constexpr int kTileBlock = 2 * kTileRows;   // rows and columns of C in one block of 2 x 2 tiles
inline constexpr int kTileStep = 2 * kTileValues;  // bf16 of an operand in 32 terms of a block
inline constexpr int kTileBlockSums = kTileBlock * kTileBlock;

#if defined(__AMX_BF16__)

// The units' configuration, for as long as this lives: 8 tiles of 16 rows of 64 bytes. Each thread has its
// own.
class TileState {
 public:
  TileState() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const whole;
    __asm__ volatile("ldtilecfg %0" : : "m"(whole));  // the intrinsic of GCC 12 declares 8 bytes only
  }
  ~TileState() { _tile_release(); }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;
};

// ---- packing ----

// One tile of an operand: 16 lines of 16 words, a word being two bf16 of adjacent terms.
struct TileLines {
  Vector line[kTileRows];
};

// Lines along k: line i holds terms [0, 32) of row i, which lies at from + i * stride; what lies beyond
// `rows` and `terms` is zero.
template <typename T>
HET_INLINE TileLines lines_of(const T* from, int64_t stride, int64_t rows, int64_t terms) {
  TileLines tile;
  for (int i = 0; i < kTileRows; ++i) {
    const T* line = from + i * stride;
    const int64_t seen = i < rows ? terms : 0;
    if constexpr (std::is_same_v<T, float>) {
      const __mmask32 lanes = first_lanes(seen);
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), line);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), line + 16);
      tile.line[i] = reinterpret_cast<Vector>(_mm512_cvtne2ps_pbh(high, low));
    } else {
      tile.line[i] = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi16(first_lanes(seen), line));
    }
  }
  return tile;
}

// Lines across k: line p holds terms 2 p and 2 p + 1 of 16 columns; term t of column j lies at from[t *
// stride + j].
template <typename T>
HET_INLINE TileLines pairs_of(const T* from, int64_t stride, int64_t columns, int64_t terms) {
  TileLines tile;
  const auto term = [&](int64_t t) __attribute__((always_inline)) {
    const auto mask = static_cast<__mmask16>(t < terms ? first_lanes(columns) : 0);
    if constexpr (std::is_same_v<T, float>)
      return _mm512_cvtepu16_epi32(
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from + t * stride))));
    else
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + t * stride));
  };
  for (int i = 0; i < kTileRows; ++i)
    tile.line[i] =
        reinterpret_cast<Vector>(_mm512_or_si512(term(2 * i), _mm512_slli_epi32(term(2 * i + 1), 16)));
  return tile;
}

// How an operand lies in memory: the line of row (or column) i at data + i * across, its terms `along` apart.
// One of both is 1.
struct Strides {
  int64_t across, along;
};

enum class Side : uint8_t { left, right };

// Up to 32 rows of a left operand, or columns of a right one, over all `terms`: two tiles for every 32 terms,
// one behind the other. A left operand's tiles have lines along k, a right one's across it.
template <Side side, typename T>
void pack_tiles(const T* from, Strides s, int64_t count, int64_t terms, bf16* to) {
  const bool along = s.along == 1;
  for (int64_t t = 0; t < terms; t += kTileTerms)
    for (int64_t i = 0; i < kTileBlock; i += kTileRows, to += kTileValues) {
      const T* corner = from + i * s.across + t * s.along;
      TileLines tile = along ? lines_of(corner, s.across, count - i, terms - t)
                             : pairs_of(corner, s.along, count - i, terms - t);
      if (along != (side == Side::left)) turn(tile.line);
      std::memcpy(static_cast<void*>(to), tile.line, sizeof tile.line);
    }
}

// ---- the block of 2 x 2 tiles ----

// sums[32][32] (rows `stride` floats apart) = A B over `steps` times 32 terms, or += where it adds. a and
// b: as pack_tiles leaves them.
template <bool adds = false>
HET_INLINE void multiply_tiles(const bf16* a, const bf16* b, int64_t steps, float* sums, int64_t stride) {
  // GCC 12's loads of tiles do not tell that they read memory: what was written before must have been.
  __asm__ volatile("" : : : "memory");
  float* corner[] = {sums, sums + kTileRows, sums + kTileRows * stride,
                     sums + kTileRows * stride + kTileRows};
  if constexpr (adds) {
    _tile_loadd(0, corner[0], 4 * stride);
    _tile_loadd(1, corner[1], 4 * stride);
    _tile_loadd(2, corner[2], 4 * stride);
    _tile_loadd(3, corner[3], 4 * stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const bf16 *left = a + s * kTileStep, *right = b + s * kTileStep;
    _tile_loadd(4, left, 64);
    _tile_loadd(6, right, 64);
    _tile_loadd(7, right + kTileValues, 64);
    _tile_loadd(5, left + kTileValues, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, corner[0], 4 * stride);
  _tile_stored(1, corner[1], 4 * stride);
  _tile_stored(2, corner[2], 4 * stride);
  _tile_stored(3, corner[3], 4 * stride);
}

#endif

}  // namespace het::cpu::HET_ISA
