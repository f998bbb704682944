// The inner parts of a matrix product, shared by gemm.cpp and attention.cpp: packing of operands in words of
// 32 bits, and the register tile. A word is one f32, to which other types are widened while they are packed,
// or, in an instruction set with bf16 dot products, two bf16 of adjacent terms of k. Words of either kind lie
// in arrays of float, and are moved as bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd.h"

namespace het::cpu::HET_ISA {

inline constexpr int kRows = kLanes == 16 ? 12 : 6;  // of a register tile: 2 vectors wide, so 24 or 12 sums
inline constexpr int kPanel = 2 * kLanes;            // columns of a register tile

HET_INLINE int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
HET_INLINE int64_t rounded(int64_t value, int64_t to) { return blocks_of(value, to) * to; }
HET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// body(an element of an operand or a result)
template <typename Body>
HET_INLINE void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(bf16{});
  else if (dtype == DType::f16)
    body(f16{});
  else
    body(float{});
}

// ---- words ----

// A word is one term.
struct Single {
  static constexpr int kTerms = 1;
  static HET_INLINE Vector spread(const float* word) { return splat(*word); }
  static HET_INLINE Vector add_product(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// A word is two terms, the first one in the lower half. Denormals count as zero.
struct Pair {
  static constexpr int kTerms = 2;
  static HET_INLINE Vector spread(const float* word) {
    int32_t bits;
    std::memcpy(&bits, word, sizeof bits);
    return reinterpret_cast<Vector>(_mm512_set1_epi32(bits));
  }
  static HET_INLINE Vector add_product(Vector sum, Vector a, Vector b) {
    return reinterpret_cast<Vector>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
  }
};
#endif

// ---- packing ----

template <typename T>
void copy_row(const T* from, int64_t count, float* to) {
  for_lanes(count, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}

#if defined(__AVX512F__)
// 16 x 16 floats turned about the diagonal, in four rounds of exchanges.
HET_INLINE void turn(Vector* r) {
  __m512 t[16];
  auto* v = reinterpret_cast<__m512*>(r);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    v[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    v[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    v[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    v[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    v[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}
#elif defined(__AVX__)
// The same of 8 x 8, in three rounds.
HET_INLINE void turn(Vector* r) {
  __m256 t[8];
  auto* v = reinterpret_cast<__m256*>(r);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) v[i] = t[i];
}
#endif

// One panel of B: to[p * kPanel + j] for p in [0, depth); columns beyond `columns` are zero. Element (p, j)
// lies at b[p * row + j * column]; one of both strides is 1.
template <typename T>
void pack_panel(const T* b, int64_t row, int64_t column, int64_t depth, int64_t columns, float* to) {
  if (column == 1) {
    for (int64_t p = 0; p < depth; ++p) {
      const T* line = b + p * row;
      float* out = to + p * kPanel;
      for (int v = 0; v < 2; ++v) {
        const int64_t left = columns - v * kLanes;
        if (left >= kLanes)
          store(out + v * kLanes, load(line + v * kLanes));
        else if (left > 0)
          store(out + v * kLanes, load(line + v * kLanes, Tail{static_cast<int>(left)}));
        else
          store(out + v * kLanes, Vector{});
      }
    }
    return;
  }
  int64_t p = 0;
#if defined(__AVX__)
  for (; p + kLanes <= depth; p += kLanes)
    for (int v = 0; v < 2; ++v) {
      Vector r[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        const int64_t at = v * kLanes + j;
        r[j] = at < columns ? load(b + at * column + p) : Vector{};
      }
      turn(r);
      for (int j = 0; j < kLanes; ++j) store(to + (p + j) * kPanel + v * kLanes, r[j]);
    }
#endif
  for (; p < depth; ++p)
    for (int64_t j = 0; j < kPanel; ++j)
      to[p * kPanel + j] = j < columns ? static_cast<float>(b[j * column + p]) : 0.0F;
}

#if defined(__AVX512BF16__)
// The first `count` of 32 lanes; of 16 in its lower half.
HET_INLINE __mmask32 first_lanes(int64_t count) {
  return count >= 32 ? 0xffffffffU : count <= 0 ? 0U : (1U << count) - 1;
}

// 32 elements as bf16, f32 rounded; zero beyond the first `count`.
HET_INLINE __m512i load_bf16(const bf16* from, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(first_lanes(count), from);
}
HET_INLINE __m512i load_bf16(const float* from, int64_t count) {
  const __mmask32 lanes = first_lanes(count);
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), from);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), from + 16);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Words of a row that lies along k: `terms` elements, a zero behind an odd last one.
template <typename T>
void pack_pair_row(const T* from, int64_t terms, float* to) {
  int64_t p = 0;
  for (; p + 32 <= terms; p += 32) _mm512_storeu_si512(to + p / 2, load_bf16(from + p, 32));
  if (p < terms)
    _mm512_mask_storeu_epi32(to + p / 2, static_cast<__mmask16>(first_lanes((terms - p + 1) / 2)),
                             load_bf16(from + p, terms - p));
}

// 32 words across k: the elements of two lines, of terms p and p + 1, by turns. The second may be absent.
struct WordPair {
  __m512i low, high;
};
template <typename T>
HET_INLINE WordPair words_across(const T* first, const T* second, int64_t count) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                       38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const __m512i a = load_bf16(first, count);
  const __m512i b = second == nullptr ? _mm512_setzero_si512() : load_bf16(second, count);
  return {_mm512_permutex2var_epi16(a, low, b), _mm512_permutex2var_epi16(a, high, b)};
}

// Words of lines that lie across k, `stride` elements apart: to[p / 2 * to_stride + i] for `count` elements
// of each of `terms` lines.
template <typename T>
void pack_pair_lines(const T* from, int64_t stride, int64_t terms, int64_t count, float* to,
                     int64_t to_stride) {
  for (int64_t p = 0; p < terms; p += 2, to += to_stride) {
    const T* first = from + p * stride;
    const T* second = p + 1 < terms ? first + stride : nullptr;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const T* next = second == nullptr ? nullptr : second + i;
      const WordPair words = words_across(first + i, next, 32);
      _mm512_storeu_si512(to + i, words.low);
      _mm512_storeu_si512(to + i + 16, words.high);
    }
    if (i == count) continue;
    const WordPair words = words_across(first + i, second == nullptr ? nullptr : second + i, count - i);
    const __mmask32 lanes = first_lanes(count - i);
    _mm512_mask_storeu_epi32(to + i, static_cast<__mmask16>(lanes), words.low);
    _mm512_mask_storeu_epi32(to + i + 16, static_cast<__mmask16>(lanes >> 16), words.high);
  }
}

// One panel of B as pack_panel makes it, in words of two terms: to[p / 2 * kPanel + j].
template <typename T>
void pack_pair_panel(const T* b, int64_t row, int64_t column, int64_t depth, int64_t columns, float* to) {
  if (column == 1) {
    for (int64_t p = 0; p < depth; p += 2, to += kPanel) {
      const T* first = b + p * row;
      const WordPair words = words_across(first, p + 1 < depth ? first + row : nullptr, columns);
      _mm512_storeu_si512(to, words.low);
      _mm512_storeu_si512(to + 16, words.high);
    }
    return;
  }
  for (int64_t p = 0; p < depth; p += 32, to += 16 * kPanel)
    for (int v = 0; v < 2; ++v) {
      Vector r[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        const int64_t at = v * kLanes + j;
        r[j] = at < columns ? reinterpret_cast<Vector>(load_bf16(b + at * column + p, depth - p)) : Vector{};
      }
      turn(r);
      const int64_t words = smaller((depth - p + 1) / 2, 16);
      for (int j = 0; j < words; ++j) store(to + j * kPanel + v * kLanes, r[j]);
    }
}
#endif

// ---- the register tile ----

enum class Start : uint8_t { zero, bias, sum };  // what the sums begin with

// Where the left operand of a tile lies: row i, column p at data[i * stride + p], or at data[p * stride + i].
enum class Order : uint8_t { row, column };

// Rows of a panel of B to prefetch. With wide vectors a panel of a whole block (64 KiB) does not fit the
// first-level cache.
inline constexpr int64_t kAhead = kLanes == 16 ? 16 : 0;
HET_INLINE void prefetch_row(const float* row) {
  if constexpr (kAhead > 0)
    for (int v = 0; v < 2; ++v) __builtin_prefetch(row + v * kLanes);
}

// C[R, columns] of one panel over `depth` words of k; row p of the panel lies at b[p * b_stride]. Rows of A
// are walked by one pointer for every three, which leaves registers for the addresses of all twelve.
template <int R, Order order, typename Word, typename T>
void tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, T* c,
          int64_t c_row, int columns, Start start, const float* bias) {
  Vector sums[R][2];
  const bool whole = columns == kPanel;
  const Tail tail[2] = {{columns < kLanes ? columns : kLanes}, {columns < kLanes ? 0 : columns - kLanes}};
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < 2; ++v) {
      const int at = v * kLanes;
      if (start == Start::zero)
        sums[i][v] = Vector{};
      else if (start == Start::bias)
        sums[i][v] = whole ? load(bias + at) : load(bias + at, tail[v]);
      else
        sums[i][v] = whole ? load(c + i * c_row + at) : load(c + i * c_row + at, tail[v]);
    }
  if constexpr (order == Order::row) {
    constexpr int kPointers = (R + 2) / 3;
    const float* rows[kPointers];
    for (int g = 0; g < kPointers; ++g) rows[g] = a + 3 * g * a_stride;
    for (int64_t p = 0; p < depth; ++p) {
      const Vector b0 = load(b), b1 = load(b + kLanes);
      prefetch_row(b + kAhead * b_stride);
      b += b_stride;
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const Vector x = Word::spread(rows[i / 3] + i % 3 * a_stride);
        sums[i][0] = Word::add_product(sums[i][0], x, b0);
        sums[i][1] = Word::add_product(sums[i][1], x, b1);
      }
#pragma GCC unroll 4
      for (int g = 0; g < kPointers; ++g) ++rows[g];
    }
  } else {
    for (int64_t p = 0; p < depth; ++p) {
      const Vector b0 = load(b), b1 = load(b + kLanes);
      prefetch_row(b + kAhead * b_stride);
      b += b_stride;
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const Vector x = Word::spread(a + i);
        sums[i][0] = Word::add_product(sums[i][0], x, b0);
        sums[i][1] = Word::add_product(sums[i][1], x, b1);
      }
      a += a_stride;
    }
  }
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < 2; ++v) {
      T* out = c + i * c_row + v * kLanes;
      if (whole)
        store(out, sums[i][v]);
      else
        store(out, sums[i][v], tail[v]);
    }
}

template <typename T>
using TileFunction = void (*)(const float*, int64_t, const float*, int64_t, int64_t, T*, int64_t, int, Start,
                              const float*);

// tile<1> to tile<kRows>, so that the last rows of a block run at their own size.
template <Order order, typename Word, typename T, int... R>
HET_INLINE TileFunction<T> tile_of(int rows, std::integer_sequence<int, R...>) {
  static constexpr TileFunction<T> table[] = {&tile<R + 1, order, Word, T>...};
  return table[rows - 1];
}
template <Order order, typename Word, typename T>
HET_INLINE TileFunction<T> tile_of(int64_t rows) {
  return tile_of<order, Word, T>(static_cast<int>(rows), std::make_integer_sequence<int, kRows>());
}

}  // namespace het::cpu::HET_ISA
