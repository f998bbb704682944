// The products of matrices within attention: on vectors in f32, by dot products of bf16, and on matrix units
// in bf16. The latter two round probabilities and gradients of scores to bf16. All have the same form, a
// template argument of attention.cpp: operands Left and Right as the units read them, made from rows of
// [tokens, head] by rows_of() (left), by transposed() (right, for products over the head's elements) and by
// straight() (right, for products over tokens); and three products:
//
//   multiply_rows       scores[i][j] = a_i . b_j
//   accumulate_rows     out[i][:] += sum over j of p[i][j] b_j
//   accumulate_columns  out[j][:] += sum over i of p[i][j] b_i
//
// Scores and what is made of them lie in rows of kScoreStride floats. A row i takes part from lower(i) up to
// limit(i), column j has the rows from first(j) up to end(j), and none of the four ever falls. What is beside
// them in a block of rows must be 0, from column 0 up to covered(limit of the block's last row).
#pragma once

#include <type_traits>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_tile.h"

namespace het::cpu::HET_ISA {

inline constexpr int kKeys = 4 * kPanel;         // of one tile of scores
inline constexpr int kScoreStride = kKeys + 16;  // floats between its rows

HET_INLINE int64_t padded(int64_t count) { return rounded(count, kPanel); }

// The products of VectorProducts and PairProducts, over terms in the units of an operand's elements
// (gemm_tile.h).

// Tiles side by side over the columns of b: out[0..count)[:] += a b.
template <typename Element, Order order, typename Right>
HET_INLINE void accumulate_tiles(const float* a, int64_t a_stride, const Right& b, int64_t count,
                                 int64_t terms, int64_t columns, float* out, int64_t out_stride) {
  for (int64_t c = 0; c < columns; c += kPanel)
    tile_of<order, Element, float>(count)(a, a_stride, b.data + c / kPanel * b.panel, b.stride, terms,
                                          out + c, out_stride, kPanel, Start::sum, nullptr);
}

// Where a block of rows begins that takes part from column `lower` on.
HET_INLINE int64_t block_begin(int64_t lower) { return lower / kPanel * kPanel; }

template <typename Element, typename Left, typename Right, typename Lower, typename Limit>
HET_INLINE void multiply_row_tiles(const Left& a, const Right& b, int64_t rows, int64_t terms, float* scores,
                                   const Lower& lower, const Limit& limit) {
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t count = smaller(rows - i, kRows), columns = limit(i + count - 1);
    for (int64_t j = block_begin(lower(i)); j < columns; j += kPanel)
      tile_of<Order::row, Element, float>(count)(
          a.data + i * a.stride, a.stride, b.data + j / kPanel * b.panel, b.stride, terms,
          scores + i * kScoreStride + j, kScoreStride, kPanel, Start::zero, nullptr);
  }
}

// p: its lines, columns adjacent. skip(j): terms before the first that column j has; end(j): where they end.
template <typename Element, typename Right, typename Skip, typename End>
HET_INLINE void accumulate_column_tiles(const float* p, const Right& b, int64_t columns, int64_t head,
                                        float* out, int64_t out_stride, const Skip& skip_of,
                                        const End& end_of) {
  for (int64_t j = 0; j < columns; j += kRows) {
    const int64_t count = smaller(columns - j, kRows), skip = skip_of(j), terms = end_of(j + count - 1);
    if (skip >= terms) continue;
    const Right rest{b.data + skip * b.stride, b.panel, b.stride};
    accumulate_tiles<Element, Order::column>(p + skip * kScoreStride + j, kScoreStride, rest, count,
                                             terms - skip, head, out + j * out_stride, out_stride);
  }
}

template <typename T>
struct VectorProducts {
  static constexpr int kQueries = 8 * kRows;  // rows of one tile of scores
  static constexpr int kBlock = kRows;        // of them multiplied at a time
  struct State {};                            // of a thread that multiplies

  // Row i at data + i * stride.
  struct Left {
    const float* data;
    int64_t stride;
  };
  // Row p of panel j at data + j * panel + p * stride.
  struct Right {
    const float* data;
    int64_t panel, stride;
    Right from_panel(int64_t j) const { return {data + j * panel, panel, stride}; }
    Right from_row(int64_t p) const { return {data + p * stride, panel, stride}; }
  };

  // Floats of workspace for operands, and for one accumulation.
  static int64_t left_floats(int64_t rows, int64_t head) { return rows * row_stride(head); }
  static int64_t right_floats(int64_t terms, int64_t columns) { return terms * padded(columns); }
  static constexpr int64_t kScratchFloats = 0;
  static int64_t covered(int64_t columns) { return columns; }

  static Right transposed(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    for (int64_t j = 0; j < tokens; j += kPanel)
      pack_panel(from + j * stride, 1, stride, head, smaller(tokens - j, kPanel), space + j * head);
    return {space, kPanel * head, kPanel};
  }
  // f32 in whole panels where it lies, else in `space`.
  static Right straight(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    if constexpr (std::is_same_v<T, float>)
      if (head % kPanel == 0) return {from, kPanel, stride};
    for (int64_t c = 0; c < head; c += kPanel)
      pack_panel(from + c, stride, 1, tokens, smaller(head - c, kPanel), space + c * tokens);
    return {space, kPanel * tokens, kPanel};
  }
  static Left rows_of(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    if constexpr (std::is_same_v<T, float>) return {from, stride};
    for (int64_t i = 0; i < tokens; ++i) copy_row(from + i * stride, head, space + i * row_stride(head));
    return {space, row_stride(head)};
  }

  template <typename Lower, typename Limit>
  static void multiply_rows(const Left& a, const Right& b, int64_t rows, int64_t head, float* scores,
                            const Lower& lower, const Limit& limit) {
    multiply_row_tiles<Single>(a, b, rows, head, scores, lower, limit);
  }
  template <typename Lower, typename Limit>
  static void accumulate_rows(const float* p, const Right& b, int64_t rows, int64_t head, float* out,
                              int64_t out_stride, const Lower& lower, const Limit& limit,
                              float* /*scratch*/) {
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = smaller(rows - i, kRows), begin = block_begin(lower(i));
      accumulate_tiles<Single, Order::row>(p + i * kScoreStride + begin, kScoreStride, b.from_row(begin),
                                           count, limit(i + count - 1) - begin, head, out + i * out_stride,
                                           out_stride);
    }
  }
  template <typename First, typename End>
  static void accumulate_columns(const float* p, const Right& b, int64_t /*rows*/, int64_t columns,
                                 int64_t head, float* out, int64_t out_stride, const First& first,
                                 const End& end, float* /*scratch*/) {
    accumulate_column_tiles<Single>(p, b, columns, head, out, out_stride, first, end);
  }

 private:
  // Off the powers of two that heads have: they crowd few of the cache's sets.
  static int64_t row_stride(int64_t head) { return rounded(head, 16) + 16; }
};

#if defined(__AMX_BF16__)

struct TileProducts {
  static constexpr int kQueries = 3 * kTileBlock;
  static constexpr int kBlock = kTileBlock;
  using State = TileState;
  static_assert(kTileBlock == kPanel && kTileTerms == kPanel);
  static_assert(kQueries <= kKeys);  // of both, as many terms as there is scratch for

  // `steps` of 32 terms for each 32 rows or columns.
  struct Left {
    const bf16* data;
    int64_t steps;
  };
  struct Right {
    const bf16* data;
    int64_t steps;
    Right from_panel(int64_t j) const { return {data + j * steps * kTileStep, steps}; }
    Right from_row(int64_t p) const { return {data + p / kTileTerms * kTileStep, steps}; }
    const bf16* panel(int64_t column, int64_t term) const {
      return data + (column / kTileBlock * steps + term / kTileTerms) * kTileStep;
    }
  };

  static int64_t steps_of(int64_t terms) { return blocks_of(terms, kTileTerms); }
  static int64_t floats(int64_t lines, int64_t terms) {
    return blocks_of(lines, kTileBlock) * steps_of(terms) * kTileStep / 2;
  }
  static int64_t left_floats(int64_t rows, int64_t head) { return floats(rows, head); }
  static int64_t right_floats(int64_t terms, int64_t columns) { return floats(columns, terms); }
  static constexpr int64_t kScratchFloats = kKeys / kTileTerms * kTileStep / 2;
  static int64_t covered(int64_t columns) { return padded(columns); }

  static Right transposed(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    return pack(from, {stride, 1}, tokens, head, space);
  }
  static Right straight(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    return pack(from, {1, stride}, head, tokens, space);
  }
  static Left rows_of(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    auto* to = reinterpret_cast<bf16*>(space);
    const int64_t steps = steps_of(head);
    for (int64_t i = 0; i < tokens; i += kTileBlock)
      pack_tiles<Side::left>(from + i * stride, {stride, 1}, smaller(tokens - i, kTileBlock), head,
                             to + i / kTileBlock * steps * kTileStep);
    return {to, steps};
  }

  template <typename Lower, typename Limit>
  static void multiply_rows(const Left& a, const Right& b, int64_t rows, int64_t /*head*/, float* scores,
                            const Lower& lower, const Limit& limit) {
    for (int64_t i = 0; i < rows; i += kTileBlock) {
      const int64_t columns = limit(smaller(rows, i + kTileBlock) - 1);
      for (int64_t j = block_begin(lower(i)); j < columns; j += kTileBlock)
        multiply_tiles(a.data + i / kTileBlock * a.steps * kTileStep, b.panel(j, 0), a.steps,
                       scores + i * kScoreStride + j, kScoreStride);
    }
  }
  template <typename Lower, typename Limit>
  static void accumulate_rows(const float* p, const Right& b, int64_t rows, int64_t head, float* out,
                              int64_t out_stride, const Lower& lower, const Limit& limit, float* scratch) {
    auto* left = reinterpret_cast<bf16*>(scratch);
    for (int64_t i = 0; i < rows; i += kTileBlock) {
      const int64_t count = smaller(rows - i, kTileBlock), begin = block_begin(lower(i));
      const int64_t terms = padded(limit(i + count - 1)) - begin;
      if (terms <= 0) continue;
      pack_tiles<Side::left>(p + i * kScoreStride + begin, {kScoreStride, 1}, count, terms, left);
      for (int64_t c = 0; c < head; c += kTileBlock)
        multiply_tiles<true>(left, b.panel(c, begin), terms / kTileTerms, out + i * out_stride + c,
                             out_stride);
    }
  }
  template <typename First, typename End>
  static void accumulate_columns(const float* p, const Right& b, int64_t /*rows*/, int64_t columns,
                                 int64_t head, float* out, int64_t out_stride, const First& first,
                                 const End& end, float* scratch) {
    auto* left = reinterpret_cast<bf16*>(scratch);
    for (int64_t j = 0; j < columns; j += kTileBlock) {
      const int64_t count = smaller(columns - j, kTileBlock);
      const int64_t skip = first(j) / kTileTerms * kTileTerms, rows = end(j + count - 1);
      if (skip >= rows) continue;
      pack_tiles<Side::left>(p + skip * kScoreStride + j, {1, kScoreStride}, count, rows - skip, left);
      for (int64_t c = 0; c < head; c += kTileBlock)
        multiply_tiles<true>(left, b.panel(c, skip), steps_of(rows - skip), out + j * out_stride + c,
                             out_stride);
    }
  }

 private:
  static Right pack(const bf16* from, Strides s, int64_t columns, int64_t terms, float* space) {
    auto* to = reinterpret_cast<bf16*>(space);
    const int64_t steps = steps_of(terms);
    for (int64_t j = 0; j < columns; j += kTileBlock)
      pack_tiles<Side::right>(from + j * s.across, s, smaller(columns - j, kTileBlock), terms,
                              to + j / kTileBlock * steps * kTileStep);
    return {to, steps};
  }
};

template <typename T>
using Products = std::conditional_t<std::is_same_v<T, bf16>, TileProducts, VectorProducts<T>>;
#elif defined(HET_DOT_PRODUCT)

struct PairProducts {
  static constexpr int kQueries = 8 * kRows;
  static constexpr int kBlock = kRows;
  struct State {};

  // As of VectorProducts, in words of two terms (gemm_tile.h).
  struct Left {
    const float* data;
    int64_t stride;
  };
  struct Right {
    const float* data;
    int64_t panel, stride;
    Right from_panel(int64_t j) const { return {data + j * panel, panel, stride}; }
    Right from_row(int64_t p) const { return {data + p / 2 * stride, panel, stride}; }
  };

  static int64_t words_of(int64_t terms) { return blocks_of(terms, 2); }
  static int64_t left_floats(int64_t rows, int64_t head) { return rows * row_stride(head); }
  static int64_t right_floats(int64_t terms, int64_t columns) { return words_of(terms) * padded(columns); }
  static constexpr int64_t kScratchFloats = kQueries / 2 * kScoreStride;
  static int64_t covered(int64_t columns) { return columns; }

  static Right transposed(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    const int64_t words = words_of(head);
    for (int64_t j = 0; j < tokens; j += kPanel)
      pack_pair_panel(from + j * stride, 1, stride, head, smaller(tokens - j, kPanel), space + j * words);
    return {space, kPanel * words, kPanel};
  }
  static Right straight(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    const int64_t words = words_of(tokens);
    for (int64_t c = 0; c < head; c += kPanel)
      pack_pair_panel(from + c, stride, 1, tokens, smaller(head - c, kPanel), space + c * words);
    return {space, kPanel * words, kPanel};
  }
  static Left rows_of(const bf16* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
    for (int64_t i = 0; i < tokens; ++i) pack_pair_row(from + i * stride, head, space + i * row_stride(head));
    return {space, row_stride(head)};
  }

  template <typename Lower, typename Limit>
  static void multiply_rows(const Left& a, const Right& b, int64_t rows, int64_t head, float* scores,
                            const Lower& lower, const Limit& limit) {
    multiply_row_tiles<Pair>(a, b, rows, words_of(head), scores, lower, limit);
  }
  template <typename Lower, typename Limit>
  static void accumulate_rows(const float* p, const Right& b, int64_t rows, int64_t head, float* out,
                              int64_t out_stride, const Lower& lower, const Limit& limit, float* scratch) {
    constexpr int64_t kStride = kKeys / 2 + 16;
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = smaller(rows - i, kRows), begin = block_begin(lower(i));
      const int64_t terms = limit(i + count - 1) - begin;
      for (int64_t r = 0; r < count; ++r)
        pack_pair_row(p + (i + r) * kScoreStride + begin, terms, scratch + r * kStride);
      accumulate_tiles<Pair, Order::row>(scratch, kStride, b.from_row(begin), count, words_of(terms), head,
                                         out + i * out_stride, out_stride);
    }
  }
  template <typename First, typename End>
  static void accumulate_columns(const float* p, const Right& b, int64_t rows, int64_t columns, int64_t head,
                                 float* out, int64_t out_stride, const First& first, const End& end,
                                 float* scratch) {
    pack_pair_lines(p, kScoreStride, rows, columns, scratch, kScoreStride);
    accumulate_column_tiles<Pair>(
        scratch, b, columns, head, out, out_stride, [&](int64_t j) { return first(j) / 2; },
        [&](int64_t j) { return words_of(end(j)); });
  }

 private:
  static int64_t row_stride(int64_t head) { return rounded(words_of(head), 16) + 16; }
};

template <typename T>
using Products = std::conditional_t<std::is_same_v<T, bf16>, PairProducts, VectorProducts<T>>;
#else
template <typename T>
using Products = VectorProducts<T>;
#endif

}  // namespace het::cpu::HET_ISA
