// The blocked product of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008): B
// is packed in panels as wide as a register tile, A in blocks that stay in the second-level cache, and a tile
// of C is kept in registers over a block of k. Depths, strides of packed operands and blocks of k are in
// words (gemm_tile.h).
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/elapsed.h"
#include "core/base/parallel.h"
#include "kernels/cpu/gemm_tile.h"

namespace het::cpu::HET_ISA {
namespace {

// Wide vectors hide what comes from the second-level cache. With narrow ones a panel of B stays in the first,
// beside the rows of A that go with it, and an operand that is read in place, a line for each k, would push
// it out.
constexpr bool kWide = kLanes == 16;
constexpr int kDepth = kWide ? 512 : 256;  // words of k of one block
constexpr int kBlockRows = 240;            // rows of A at a time: at most 480 KiB, in the second-level cache
constexpr int kRowStride = kDepth + 16;    // of packed A: off the power of two, for the cache's sets
constexpr int kPairStride = kBlockRows + 32;         // of A packed in pairs, its columns adjacent
constexpr int64_t kPackedBytes = int64_t{16} << 20;  // of B at most
constexpr int64_t kChunkBytes = int64_t{1} << 20;    // of B, where it is packed some of k at a time
constexpr int64_t kMostColumns = 2048;               // of C at a time, so that packed B stays in a cache
constexpr int64_t kScratchColumns = 1024;            // of C kept in f32 before it is narrowed
constexpr int64_t kFewRows = 4;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kOwnCopies = int64_t{1} << 19;  // bytes of packed B up to which every thread makes a copy
constexpr int64_t kInPlace = kWide ? 1024 : 64;   // an operand used for no more rows or columns is not packed
constexpr int64_t kLarge = int64_t{4} << 20;      // bytes of an operand: more than a second-level cache has
constexpr int64_t kManyTimes = 256;               // rows or columns for which a large operand is worth a copy
constexpr int64_t kInPlaceStride = 1024;  // of rows walked in place: the hardware looks ahead within a page

constexpr int64_t kBlockFloats =
    std::max(int64_t{kBlockRows} * kRowStride, int64_t{kDepth} * (kWide ? kPairStride : kBlockRows));
static_assert(kBlockRows % kRows == 0);  // tiles of fewer rows take no more room

// ---- packing ----

// body(the kind of word)
template <typename Body>
HET_INLINE void with_word([[maybe_unused]] bool pairs, const Body& body) {
#if defined(HET_DOT_PRODUCT)
  if (pairs) return body(Pair{});
#endif
  body(Single{});
}

// body(an element of an operand that is packed in such words)
template <typename Word, typename Body>
HET_INLINE void with_operand(DType dtype, const Body& body) {
  if constexpr (Word::kTerms == 1)
    with_type(dtype, body);
  else if (dtype == DType::f32)
    body(float{});
  else
    body(bf16{});
}

// The rows of the register tiles of a block: all of nearly equal size.
HET_INLINE Range rows_of_tile(int64_t rows, int64_t tile) {
  return share_of(rows, blocks_of(rows, kRows), tile);
}

// Lines of A across k, tile by tile, so that a tile reads all of each line of the cache:
// to[tile * kRows * terms + p * kRows + i].
template <typename T>
void pack_tiles(const T* a, int64_t stride, int64_t terms, int64_t rows, float* to) {
  constexpr int64_t kTogether = 16;  // lines of A, which stay in the first-level cache from tile to tile
  for (int64_t first = 0; first < terms; first += kTogether) {
    const int64_t end = smaller(terms, first + kTogether);
    for (int64_t tile = 0; tile < blocks_of(rows, kRows); ++tile) {
      const Range share = rows_of_tile(rows, tile);
      const T* from = a + first * stride + share.begin;
      float* out = to + (tile * terms + first) * kRows;
      int64_t p = first;
      if (kLanes >= kRows &&
          share.begin + kLanes <= rows)  // lanes beyond the tile: the next line writes over them
        for (; p + 1 < end; ++p, from += stride, out += kRows) store(out, load(from));
      for (; p < end; ++p, from += stride, out += kRows)
        for (int64_t i = 0; i < share.end - share.begin; ++i) out[i] = static_cast<float>(from[i]);
    }
  }
}

// Block of A: rows adjacent in k ("row" order: to[i * kRowStride + p]) or in m (tile by tile, or in pairs:
// to[p * kPairStride + i]).
template <typename Word, typename T>
void pack_a(const T* a, const GemmShape& s, int64_t rows, int64_t terms, float* to) {
  if constexpr (Word::kTerms == 1) {
    if (s.a_col == 1)
      for (int64_t i = 0; i < rows; ++i) copy_row(a + i * s.a_row, terms, to + i * kRowStride);
    else
      pack_tiles(a, s.a_col, terms, rows, to);
  }
#if defined(HET_DOT_PRODUCT)
  if constexpr (Word::kTerms == 2) {
    if (s.a_col == 1)
      for (int64_t i = 0; i < rows; ++i) pack_pair_row(a + i * s.a_row, terms, to + i * kRowStride);
    else
      pack_pair_lines(a, s.a_col, terms, rows, to, kPairStride);
  }
#endif
}

template <typename Word, typename T>
void pack_b_panel(const T* b, const GemmShape& s, int64_t terms, int64_t columns, float* to) {
  if constexpr (Word::kTerms == 1) pack_panel(b, s.b_row, s.b_col, terms, columns, to);
#if defined(HET_DOT_PRODUCT)
  if constexpr (Word::kTerms == 2) pack_pair_panel(b, s.b_row, s.b_col, terms, columns, to);
#endif
}

// Whether A and B are packed in pairs: bf16, or one of both f32, which is rounded then.
bool takes_pairs([[maybe_unused]] const GemmShape& s) {
#if defined(HET_DOT_PRODUCT)
  const auto fits = [](DType type) { return type == DType::bf16 || type == DType::f32; };
  return fits(s.a_type) && fits(s.b_type) && (s.a_type == DType::bf16 || s.b_type == DType::bf16);
#else
  return false;
#endif
}

// An operand as the tiles read it. Left: see Order; where `tile` is given, so far apart are the tiles. Right:
// row p of panel j at data + j * panel + p * stride.
struct Left {
  const float* data;
  int64_t stride;
  Order order;
  int64_t tile = 0;
};
struct Right {
  const float* data;
  int64_t panel, stride;
};

// C[rows, panels of columns] of one block of A.
template <typename Word, typename T>
void block(const Left& a, const Right& b, int64_t rows, int64_t columns, int64_t depth, T* c, int64_t c_row,
           Start start, const float* bias) {
  // Upwards from the first row and downwards from the last, to the middle: the processor looks ahead by many
  // tiles for lines to write, and at an end it would take those of the thread that has the rows beyond it.
  const int64_t tiles = blocks_of(rows, kRows), upper = tiles / 2;
  const auto tile_at = [&](int64_t n) { return n < upper ? tiles - 1 - n : n - upper; };
  const int64_t row_stride = a.order == Order::row ? a.stride : 1;
  for (int64_t j = 0; j < columns; j += kPanel) {
    const float* panel = b.data + j / kPanel * b.panel;
    const int width = static_cast<int>(smaller(columns - j, kPanel));
    for (int64_t n = 0; n < tiles; ++n) {
      const Range share = rows_of_tile(rows, tile_at(n));
      if (n + 1 < tiles) {  // the lines of the next one are on their way meanwhile
        const Range next = rows_of_tile(rows, tile_at(n + 1));
        for (int64_t i = next.begin; i < next.end; ++i)
          for (int64_t at = 0; at < kPanel; at += kLineBytes / sizeof(T))
            __builtin_prefetch(c + i * c_row + j + at, 1);
      }
      const int64_t count = share.end - share.begin;
      const auto run = a.order == Order::row ? tile_of<Order::row, Word, T>(count)
                                             : tile_of<Order::column, Word, T>(count);
      run(a.data + (a.tile > 0 ? tile_at(n) * a.tile : share.begin * row_stride), a.stride, panel, b.stride,
          depth, c + share.begin * c_row + j, c_row, width, start, bias == nullptr ? nullptr : bias + j);
    }
  }
}

const std::byte* element(const void* data, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(data) + index * (dtype == DType::f32 ? 4 : 2);
}

// Lines at multiples of a large power of two fall into few sets of the first-level cache, and push each other
// out.
bool crowds_cache(int64_t stride, int64_t bytes) { return stride * 4 % bytes == 0; }

// Large operands whose copy would be used many times.
bool is_large_a(const GemmShape& s) { return s.a_col != 1 && 4 * s.m * s.k >= kLarge && s.n >= kManyTimes; }
bool is_large_b(const GemmShape& s) { return 4 * s.n * s.k >= kLarge && s.m >= kManyTimes; }

// Whether this processor is faster where it reads large operands in place, and fetches their lines again for
// each panel, than where it packs them. Both give the same bits. Measured once, by one thread: a weight
// gradient, by turns, the best of each.
bool reads_large_in_place() {
  static const bool result = [] {
    constexpr int kRuns = 4;
    constexpr double kGain = 1.03;  // the least for which operands are read in place
    constexpr int64_t kSize = 544, kTerms = 2048, kOperand = 4 * kSize * kTerms, kResult = 4 * kSize * kSize;
    GemmShape shape;
    shape.m = shape.n = shape.a_col = shape.b_row = shape.c_row = kSize;
    shape.k = kTerms;
    shape.a_row = 1;
    shape.serial = true;
    const Gemm ways[] = {Gemm(shape, false), Gemm(shape, true)};
    const int64_t workspace = std::max(ways[0].workspace_bytes(), ways[1].workspace_bytes());
    const int64_t bytes = rounded(2 * kOperand + kResult + workspace, kLineBytes);
    const std::unique_ptr<void, decltype(&std::free)> memory(
        std::aligned_alloc(kLineBytes, static_cast<size_t>(bytes)), &std::free);
    if (memory == nullptr) return true;
    auto* const a = static_cast<std::byte*>(memory.get());
    std::byte *const b = a + kOperand, *const c = b + kOperand;
    std::memset(a, 0, 2 * kOperand);
    double least[] = {0, 0};
    for (int run = 0; run < kRuns; ++run)
      for (int way = 0; way < 2; ++way) {
        const double began = steady_seconds();
        ways[way].run(a, b, c, nullptr, c + kResult);
        const double seconds = steady_seconds() - began;
        if (run == 0 || seconds < least[way]) least[way] = seconds;
      }
    return least[1] * kGain < least[0];
  }();
  return result;
}

}  // namespace

Gemm::Gemm(const GemmShape& shape, std::optional<bool> large_in_place) : shape_(shape) {
  const GemmShape& s = shape_;
  few_rows_ = s.m <= kFewRows && s.b_row == 1 && s.a_col == 1;
  if (few_rows_) return;
#if defined(__AMX_BF16__)
  if (TileProduct::takes(s)) {
    tiles_.emplace(s);
    workspace_bytes_ = tiles_->workspace_bytes();
    return;
  }
#endif
  pairs_ = takes_pairs(s);
  words_ = pairs_ ? blocks_of(s.k, 2) : s.k;
  depth_blocks_ = chunk_blocks_ = s.k == 0 ? 1 : blocks_of(words_, kDepth);
  chunk_words_ = words_;
  parts_ = s.threads();
  split_rows_ = s.m >= parts_ * int64_t{kRows} || s.n < parts_ * int64_t{kPanel};
  if (pairs_)
    a_in_place_ = s.a_type == DType::bf16 && s.n <= kInPlace && s.a_col == 1 && s.a_row % 2 == 0 &&
                  s.k % 2 == 0 && !crowds_cache(s.a_row / 2, 4096);
  else
    a_in_place_ = s.a_type == DType::f32 && s.n <= kInPlace &&
                  (s.a_col == 1 ? !crowds_cache(s.a_row, 4096)
                                : s.a_col <= kInPlaceStride && !crowds_cache(s.a_col, 2048));
  b_in_place_ =
      !pairs_ && s.b_type == DType::f32 && s.b_col == 1 && s.b_row <= kInPlaceStride && s.m <= kInPlace;
  const bool large_a = kWide && a_in_place_ && is_large_a(s), large_b = kWide && b_in_place_ && is_large_b(s);
  const bool packs = (large_a || large_b) && !(large_in_place ? *large_in_place : reads_large_in_place());
  if (large_a && packs) a_in_place_ = false;
  if (large_b && packs) b_in_place_ = false;
  const bool narrow = s.c_type != DType::f32 && words_ > kDepth;
  if (b_in_place_) {
    columns_ = s.n;
    packed_bytes_ = s.n % kPanel == 0 ? 0 : 4 * kPanel * s.k * parts_;  // the last, narrow panel
  } else {
    columns_ = smaller(rounded(s.n, kPanel), kMostColumns);
    if (narrow) {  // its sums are narrowed once: all of k at a time
      columns_ =
          smaller(smaller(columns_, kScratchColumns), rounded(kPackedBytes / (4 * words_) + 1, kPanel));
    } else if (4 * columns_ * words_ > kPackedBytes) {
      // Some of k at a time, of all columns: with few columns A would be packed, and read, for each few.
      chunk_blocks_ = std::max<int64_t>(kChunkBytes / (4 * columns_ * kDepth), 1);
      chunk_words_ = smaller(words_, chunk_blocks_ * blocks_of(words_, depth_blocks_));
    }
    // Packing all of a small B in every thread is cheaper than waiting for each other's parts and fetching
    // them.
    const int64_t most = parts_ > 1 && split_rows_ ? kOwnCopies : kPackedBytes;
    shared_b_ = split_rows_ && 4 * columns_ * words_ > most;
    packed_bytes_ = 4 * columns_ * chunk_words_ * (shared_b_ || !split_rows_ ? 1 : parts_);
  }
  part_bytes_ =
      4 * ((a_in_place_ ? 0 : kBlockFloats) + (narrow ? kBlockRows * rounded(columns_, kPanel) : 0));
  workspace_bytes_ = packed_bytes_ + parts_ * part_bytes_;
}

void Gemm::run(const void* a, const void* b, void* c, const float* bias, std::byte* workspace,
               const Epilogue* epilogue) const {
  const GemmShape& s = shape_;
  if (s.m == 0 || s.n == 0) return;
  if (few_rows_) {
    run_few_rows(a, b, c, bias);
    if (epilogue != nullptr) epilogue->run({0, s.m}, {0, s.n});
    return;
  }
#if defined(__AMX_BF16__)
  if (tiles_) return tiles_->run(a, b, c, bias, workspace, epilogue);
#endif
  auto* packed = reinterpret_cast<float*>(workspace);
  std::byte* own = workspace + packed_bytes_;
  for (int64_t first = 0; first < s.n; first += columns_) {
    const int64_t columns = smaller(s.n - first, columns_);
    for (int64_t block = 0; block < depth_blocks_; block += chunk_blocks_) {
      const Range blocks{block, smaller(block + chunk_blocks_, depth_blocks_)};
      if (shared_b_)
        parallel_parts(parts_, [&](int64_t part) {
          pack_b(b, first, share_of(blocks_of(columns, kPanel), parts_, part), columns, blocks, packed);
        });
      with_word(pairs_, [&]<typename Word>(Word) {
        parallel_parts(parts_, [&](int64_t part) {
          multiply<Word>(a, b, c, bias, first, columns, blocks, packed, own, part, epilogue);
        });
      });
    }
  }
}

// The words of k in blocks of it.
Range Gemm::words_of(Range blocks) const {
  return {share_of(words_, depth_blocks_, blocks.begin).begin,
          share_of(words_, depth_blocks_, blocks.end - 1).end};
}

// Some panels of columns [first, first + columns), of these blocks of k.
void Gemm::pack_b(const void* b, int64_t first, Range share, int64_t columns, Range blocks,
                  float* packed) const {
  const GemmShape& s = shape_;
  const Range words = words_of(blocks);
  with_word(pairs_, [&]<typename Word>(Word) {
    const int64_t term = words.begin * Word::kTerms, terms = smaller(words.end * Word::kTerms, s.k) - term;
    with_operand<Word>(s.b_type, [&](auto type) {
      const auto* from =
          reinterpret_cast<const decltype(type)*>(element(b, s.b_type, first * s.b_col + term * s.b_row));
      for (int64_t j = share.begin; j < share.end; ++j)
        pack_b_panel<Word>(from + j * kPanel * s.b_col, s, terms, smaller(columns - j * kPanel, kPanel),
                           packed + j * kPanel * chunk_words_);
    });
  });
}

// One thread's share of columns [first, first + columns) of C, of these blocks of k.
template <typename Word>
void Gemm::multiply(const void* a, const void* b, void* c, const float* bias, int64_t first, int64_t columns,
                    Range blocks, const float* packed, std::byte* own, int64_t part,
                    const Epilogue* epilogue) const {
  const GemmShape& s = shape_;
  auto* packed_a = reinterpret_cast<float*>(own + part * part_bytes_);
  float* scratch = packed_a + (a_in_place_ ? 0 : kBlockFloats);
  const int64_t scratch_row = rounded(columns_, kPanel);
  const bool narrow = s.c_type != DType::f32 && words_ > kDepth;
  const int64_t panels = blocks_of(columns, kPanel);
  const Range rows = split_rows_ ? share_of(s.m, parts_, part) : Range{0, s.m};
  const Range mine = split_rows_ ? Range{0, panels} : share_of(panels, parts_, part);
  const int64_t left = mine.begin * kPanel, width = smaller(columns, mine.end * kPanel) - left;
  if (width <= 0 || rows.begin == rows.end) return;

  const bool copy = split_rows_ && !shared_b_ && !b_in_place_;
  float* panel_data = const_cast<float*>(packed) + (copy ? part * columns_ * chunk_words_ : 0);
  if (!shared_b_ && !b_in_place_) pack_b(b, first, mine, columns, blocks, panel_data);

  // In place, panels that are whole are read from B itself, and a narrow last one from a packed copy.
  const int64_t whole = b_in_place_ ? width / kPanel * kPanel : width;
  float* last = const_cast<float*>(packed) + part * kPanel * s.k;
  if (whole < width)
    pack_panel(static_cast<const float*>(b) + first + left + whole, s.b_row, 1, s.k, width - whole, last);

  // Blocks of equal size: a short last one would run at the edge's speed.
  const int64_t row_blocks = blocks_of(rows.end - rows.begin, kBlockRows);
  const int64_t first_word = words_of(blocks).begin;
  for (int64_t at = 0; at < row_blocks; ++at) {
    const Range share = share_of(rows.end - rows.begin, row_blocks, at);
    const int64_t i = rows.begin + share.begin, count = share.end - share.begin;
    const int64_t corner = i * s.c_row + first + left;
    for (int64_t d = blocks.begin; d < blocks.end; ++d) {
      const Range words = share_of(words_, depth_blocks_, d);
      const int64_t p = words.begin, depth = words.end - words.begin;
      const int64_t term = p * Word::kTerms, terms = smaller(words.end * Word::kTerms, s.k) - term;
      const std::byte* corner_of_a = element(a, s.a_type, i * s.a_row + term * s.a_col);
      Left left_operand{packed_a, kRowStride, s.a_col == 1 ? Order::row : Order::column};
      if (a_in_place_) {
        left_operand.data = reinterpret_cast<const float*>(corner_of_a);
        left_operand.stride = s.a_col == 1 ? s.a_row / Word::kTerms : s.a_col;
      } else {
        if (s.a_col != 1) {
          left_operand.stride = Word::kTerms == 1 ? kRows : kPairStride;
          left_operand.tile = Word::kTerms == 1 ? kRows * terms : 0;
        }
        with_operand<Word>(s.a_type, [&](auto type) {
          pack_a<Word>(reinterpret_cast<const decltype(type)*>(corner_of_a), s, count, terms, packed_a);
        });
      }
      const Start start = p > 0 || s.add ? Start::sum : bias != nullptr ? Start::bias : Start::zero;
      const auto make = [&](auto* to, int64_t to_row) {
        const auto part_of = [&](const Right& right, int64_t from, int64_t size) {
          block<Word>(left_operand, right, count, size, depth, to + from, to_row, start,
                      bias == nullptr ? nullptr : bias + first + left + from);
        };
        if (!b_in_place_) {
          part_of(
              {panel_data + left * chunk_words_ + (p - first_word) * kPanel, kPanel * chunk_words_, kPanel},
              0, width);
          return;
        }
        const float* from = static_cast<const float*>(b) + p * s.b_row + first + left;
        if (whole > 0) part_of({from, kPanel, s.b_row}, 0, whole);
        if (whole < width) part_of({last + p * kPanel, 0, kPanel}, whole, width - whole);
      };
      if (narrow)
        make(scratch, scratch_row);
      else
        with_type(s.c_type, [&](auto type) { make(reinterpret_cast<decltype(type)*>(c) + corner, s.c_row); });
    }
    if (narrow)
      with_type(s.c_type, [&](auto type) {
        auto* out = reinterpret_cast<decltype(type)*>(c) + corner;
        for (int64_t r = 0; r < count; ++r)
          for_lanes(width, [&](int64_t j, auto lanes) {
            store(out + r * s.c_row + j, load(scratch + r * scratch_row + j, lanes), lanes);
          });
      });
    const bool is_whole = blocks.end == depth_blocks_;
    if (epilogue != nullptr && is_whole) epilogue->run({i, i + count}, {first + left, first + left + width});
  }
}

// One to four rows, as when a model generates text: every row of B^T is read once and multiplied as it comes.
void Gemm::run_few_rows(const void* a, const void* b, void* c, const float* bias) const {
  const GemmShape& s = shape_;
  const auto columns = [&](int64_t begin, int64_t end) {
    with_type(s.a_type, [&](auto a_type) {
      using A = decltype(a_type);
      with_type(s.b_type, [&](auto b_type) {
        using B = decltype(b_type);
        for (int64_t j = begin; j < end; ++j) {
          Vector sums[kFewRows][2] = {};
          const B* column = static_cast<const B*>(b) + j * s.b_col;
          const auto step = [&](int64_t p, auto lanes, int v) {
            const Vector w = load(column + p, lanes);
            for (int64_t i = 0; i < s.m; ++i)
              sums[i][v] += load(static_cast<const A*>(a) + i * s.a_row + p, lanes) * w;
          };
          int64_t p = 0;
          for (; p + 2 * kLanes <= s.k; p += 2 * kLanes) {
            step(p, Full{}, 0);
            step(p + kLanes, Full{}, 1);
          }
          for (; p + kLanes <= s.k; p += kLanes) step(p, Full{}, 0);
          if (p < s.k) step(p, Tail{static_cast<int>(s.k - p)}, 1);
          for (int64_t i = 0; i < s.m; ++i) {
            float value = sum_of(sums[i][0] + sums[i][1]) + (bias == nullptr ? 0.0F : bias[j]);
            with_type(s.c_type, [&](auto c_type) {
              using C = decltype(c_type);
              C* out = static_cast<C*>(c) + i * s.c_row + j;
              if (s.add) value += static_cast<float>(*out);
              *out = C(value);
            });
          }
        }
      });
    });
  };
  if (s.serial)
    columns(0, s.n);
  else
    parallel_for(s.n, 1 + (int64_t{1} << 16) / (s.k + 1), columns);
}

}  // namespace het::cpu::HET_ISA
