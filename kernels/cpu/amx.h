// Matrix units of processors (AMX): tiles of 16 rows of 64 bytes, and the packing of operands into them. A
// tile product adds A B to C: A is 16 rows of 32 bf16, B is 16 rows, each of the pairs of two terms for 16
// columns, C is 16 x 16 f32.
//
// f32 goes through the same units. A value is the sum of three bf16 pieces, which hold its 24 bits exactly,
// and of the nine products of pieces the three smallest, below 2^-24 of the whole, are left out: the error of
// a sum of products is that of multiply-adds in f32. A value that is not finite makes results that are not
// finite (NaN where multiply-adds may give an infinity), so do those that round to infinity as bf16;
// denormals count as zero.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/gemm_tile.h"

namespace het::cpu::HET_ISA {

inline constexpr int kTileRows = 16;                        // of A, of C, and pairs of B
inline constexpr int kTileTerms = 32;                       // of k, in one tile product
inline constexpr int kTileValues = kTileRows * kTileTerms;  // bf16 in a tile of an operand
inline constexpr int kTileBlock = 2 * kTileRows;  // rows and columns of C in one block of 2 x 2 tiles
inline constexpr int kTileBlockSums = kTileBlock * kTileBlock;

// Pieces that a type is multiplied in.
template <typename T>
inline constexpr int kPieces = std::is_same_v<T, float> ? 3 : 1;

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
    _tile_loadconfig(&whole);
  }
  ~TileState() { _tile_release(); }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;
};

// ---- packing ----

// One tile of an operand in each piece: 16 lines of 16 words, a word being two bf16 of adjacent terms.
template <int P>
struct Words {
  Vector line[P][kTileRows];
};

// Words of the upper 16 bits of two floats.
HET_INLINE Vector join_halves(__m512i low, __m512i high) {
  return reinterpret_cast<Vector>(_mm512_or_si512(_mm512_srli_epi32(low, 16), high));
}
// Words of two vectors of bf16.
HET_INLINE Vector join_halves(__m256i low, __m256i high) {
  return reinterpret_cast<Vector>(
      _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
}

// A float to the nearest bf16, ties away from zero, as a float. A NaN may come out as any value.
HET_INLINE __m512i nearest_piece(__m512 x) {
  return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
}
// Three bf16 pieces, as floats, whose sum is x. The last is exact, and NaN where x is not finite.
struct Pieces {
  __m512i piece[3];
};
HET_INLINE Pieces pieces_of(__m512 x) {
  Pieces p;
  p.piece[0] = nearest_piece(x);
  const __m512 rest = x - _mm512_castsi512_ps(p.piece[0]);
  p.piece[1] = nearest_piece(rest);
  p.piece[2] = _mm512_and_si512(_mm512_castps_si512(rest - _mm512_castsi512_ps(p.piece[1])),
                                _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
  return p;
}

HET_INLINE __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : count <= 0 ? 0U : (1U << count) - 1);
}

// Lines along k: line i holds terms [0, 32) of row i, which lies at from + i * stride; what lies beyond
// `rows` and `terms` is zero.
template <int P, typename T>
HET_INLINE Words<P> lines_of(const T* from, int64_t stride, int64_t rows, int64_t terms) {
  Words<P> words;
  for (int i = 0; i < kTileRows; ++i) {
    const T* line = from + i * stride;
    const int64_t seen = i < rows ? terms : 0;
    if constexpr (std::is_same_v<T, float>) {
      const __m512 low = _mm512_maskz_loadu_ps(first_lanes(seen), line);
      const __m512 high = _mm512_maskz_loadu_ps(first_lanes(seen - 16), line + 16);
      if constexpr (P == 1) {
        words.line[0][i] = reinterpret_cast<Vector>(_mm512_cvtne2ps_pbh(high, low));
      } else {
        const Pieces a = pieces_of(low), b = pieces_of(high);
        for (int p = 0; p < P; ++p)  // exact: the pieces are bf16 already
          words.line[p][i] = reinterpret_cast<Vector>(
              _mm512_cvtne2ps_pbh(_mm512_castsi512_ps(b.piece[p]), _mm512_castsi512_ps(a.piece[p])));
      }
    } else {
      const auto mask = static_cast<__mmask32>(seen >= 32 ? 0xffffffffU : seen <= 0 ? 0U : (1U << seen) - 1);
      words.line[0][i] = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi16(mask, line));
    }
  }
  return words;
}

// Lines across k: line p holds terms 2 p and 2 p + 1 of 16 columns; term t of column j lies at from[t *
// stride + j].
template <int P, typename T>
HET_INLINE Words<P> pairs_of(const T* from, int64_t stride, int64_t columns, int64_t terms) {
  Words<P> words;
  const __mmask16 mask = first_lanes(columns);
  for (int i = 0; i < kTileRows; ++i) {
    const T* line = from + 2 * i * stride;
    const __mmask16 first = 2 * i < terms ? mask : 0, second = 2 * i + 1 < terms ? mask : 0;
    if constexpr (std::is_same_v<T, float>) {
      const __m512 low = _mm512_maskz_loadu_ps(first, line),
                   high = _mm512_maskz_loadu_ps(second, line + stride);
      if constexpr (P == 1) {
        words.line[0][i] = join_halves(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(low)),
                                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(high)));
      } else {
        const Pieces a = pieces_of(low), b = pieces_of(high);
        for (int p = 0; p < P; ++p) words.line[p][i] = join_halves(a.piece[p], b.piece[p]);
      }
    } else {
      words.line[0][i] =
          join_halves(_mm256_maskz_loadu_epi16(first, line), _mm256_maskz_loadu_epi16(second, line + stride));
    }
  }
  return words;
}

template <int P>
HET_INLINE void turn(Words<P>& words) {
  for (int p = 0; p < P; ++p) turn(words.line[p]);
}

// Tile p of the pieces at to + p * apart (elements of bf16).
template <int P>
HET_INLINE void store_tiles(const Words<P>& words, bf16* to, int64_t apart) {
  for (int p = 0; p < P; ++p)
    for (int i = 0; i < kTileRows; ++i)
      std::memcpy(static_cast<void*>(to + p * apart + i * kTileTerms), &words.line[p][i], sizeof(Vector));
}

// How an operand lies in memory: the line of row (or column) i at data + i * across, its terms `along` apart.
// One of both is 1.
struct Strides {
  int64_t across, along;
};

// Two tiles, side by side in each piece, of rows [0, rows) of a left operand and terms [0, terms).
template <int P, typename T>
void pack_left(const T* from, Strides s, int64_t rows, int64_t terms, bf16* to) {
  for (int half = 0; half < 2; ++half) {
    const int64_t row = half * kTileRows;
    Words<P> words;
    if (s.along == 1) {
      words = lines_of<P>(from + row * s.across, s.across, rows - row, terms);
    } else {
      words = pairs_of<P>(from + row, s.along, rows - row, terms);
      turn(words);
    }
    store_tiles(words, to + half * kTileValues, 2 * kTileValues);
  }
}
// The same of columns [0, columns) of a right operand.
template <int P, typename T>
void pack_right(const T* from, Strides s, int64_t columns, int64_t terms, bf16* to) {
  for (int half = 0; half < 2; ++half) {
    const int64_t column = half * kTileRows;
    Words<P> words;
    if (s.along == 1) {
      words = lines_of<P>(from + column * s.across, s.across, columns - column, terms);
      turn(words);
    } else {
      words = pairs_of<P>(from + column, s.along, columns - column, terms);
    }
    store_tiles(words, to + half * kTileValues, 2 * kTileValues);
  }
}

// ---- the block of 2 x 2 tiles ----

// A left operand as the tiles read it: its upper and lower 16 rows `half` elements apart, rows `row` bytes,
// steps of 32 terms `step` elements and pieces `piece` elements.
struct LeftTiles {
  const bf16* data;
  int64_t half = kTileValues, row = 64, step, piece = 2 * kTileValues;
};

// sums[32][32] (rows `stride` floats apart) = A B over `steps` times 32 terms, or += where it adds. b: as
// pack_right left it, one step behind the other.
template <int P, bool adds = false>
HET_INLINE void multiply_tiles(const LeftTiles& a, const bf16* b, int64_t steps, float* sums,
                               int64_t stride) {
  constexpr int64_t kStep = 2 * P * kTileValues;
  const auto left = [&](const bf16* tile) __attribute__((always_inline)) {
    _tile_loadd(4, tile, a.row);
    _tile_loadd(5, tile + a.half, a.row);
  };
  const auto right = [&](const bf16* tile) __attribute__((always_inline)) {
    _tile_loadd(6, tile, 64);
    _tile_loadd(7, tile + kTileValues, 64);
  };
  const auto multiply = []() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
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
  if constexpr (P == 3) {
    // The small products first, while the sums are small: they are rounded finer then.
    for (int64_t s = 0; s < steps; ++s) {
      const bf16 *x = a.data + s * a.step, *y = b + s * kStep;
      left(x + 2 * a.piece), right(y), multiply();
      left(x + a.piece), multiply();
      right(y + 2 * kTileValues), multiply();
      left(x), multiply();
      right(y + 4 * kTileValues), multiply();
    }
  }
  for (int64_t s = 0; s < steps; ++s) {
    left(a.data + s * a.step), right(b + s * kStep);
    multiply();
  }
  _tile_stored(0, corner[0], 4 * stride);
  _tile_stored(1, corner[1], 4 * stride);
  _tile_stored(2, corner[2], 4 * stride);
  _tile_stored(3, corner[3], 4 * stride);
}

#endif

}  // namespace het::cpu::HET_ISA
