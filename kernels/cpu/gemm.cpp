// The blocked product of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008): B is
// packed in panels as wide as a register tile, A in blocks that stay in the second-level cache, and a tile of
// C is kept in registers over a block of k.
#include "kernels/cpu/gemm.h"

#include "core/base/parallel.h"
#include "kernels/cpu/gemm_tile.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int kDepth = 512;                        // k of one block
constexpr int kBlockRows = 10 * kRows;             // rows of A packed at a time
constexpr int kRowStride = kDepth + 16;            // of packed A: off the power of two, for the cache's sets
constexpr int kColumnStride = kBlockRows + 16;     // of packed A when its columns are adjacent
constexpr int64_t kPackedBytes = int64_t{16} << 20;  // of B at most
constexpr int64_t kScratchColumns = 1024;          // of C kept in f32 before it is narrowed
constexpr int64_t kFewRows = 4;

constexpr int64_t kBlockFloats =
    int64_t{kBlockRows} * kRowStride > int64_t{kDepth} * kColumnStride ? int64_t{kBlockRows} * kRowStride
                                                                     : int64_t{kDepth} * kColumnStride;

// ---- packing ----

// Block of A: rows adjacent in k ("row" order: to[i * kRowStride + p]) or in m (to[p * kColumnStride + i]).
template <typename T>
void pack_a(const T* a, const GemmShape& s, int64_t rows, int64_t depth, float* to) {
  if (s.a_col == 1)
    for (int64_t i = 0; i < rows; ++i) copy_row(a + i * s.a_row, depth, to + i * kRowStride);
  else
    for (int64_t p = 0; p < depth; ++p) copy_row(a + p * s.a_col, rows, to + p * kColumnStride);
}

template <typename T>
TileFunction<T> tile_for(int rows, bool by_column) {
  return by_column ? tile_of<1, kColumnStride, T>(rows) : tile_of<kRowStride, 1, T>(rows);
}

// All panels over one packed block of A.
template <typename T>
void block(const float* a, bool by_column, const float* b, int64_t b_depth, int64_t rows, int64_t columns,
           int64_t depth, T* c, int64_t c_row, Start start, const float* bias) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  for (int64_t j = 0; j < columns; j += kPanel) {
    const float* panel = b + j * b_depth;
    const int width = static_cast<int>(smaller(columns - j, kPanel));
    for (int64_t t = 0; t < tiles; ++t) {
      const Range share = share_of(rows, tiles, t);
      const float* from = by_column ? a + share.begin : a + share.begin * kRowStride;
      tile_for<T>(static_cast<int>(share.end - share.begin), by_column)(
          from, panel, depth, c + share.begin * c_row + j, c_row, width, start, bias == nullptr ? nullptr : bias + j);
    }
  }
}

template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) body(bf16{});
  else if (dtype == DType::f16) body(f16{});
  else body(float{});
}

const std::byte* element(const void* data, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(data) + index * (dtype == DType::f32 ? 4 : 2);
}

}  // namespace

Gemm::Gemm(const GemmShape& shape) : shape_(shape) {
  const GemmShape& s = shape_;
  few_rows_ = s.m <= kFewRows && s.b_row == 1 && s.a_col == 1;
  if (few_rows_) return;
  parts_ = s.serial ? 1 : s.parts > 0 ? s.parts : thread_count();
  split_rows_ = s.m >= parts_ * int64_t{kRows} || s.n < parts_ * int64_t{kPanel};
  const int64_t padded = rounded(s.n, kPanel);
  columns_ = smaller(padded, rounded(kPackedBytes / (4 * (s.k > 0 ? s.k : 1)) + 1, kPanel));
  const bool narrow = s.c_type != DType::f32 && s.k > kDepth;
  if (narrow) columns_ = smaller(columns_, kScratchColumns);
  part_bytes_ = 4 * (kBlockFloats + (narrow ? kBlockRows * columns_ : 0));
  workspace_bytes_ = 4 * columns_ * s.k + parts_ * part_bytes_;
}

void Gemm::run(const void* a, const void* b, void* c, const float* bias, std::byte* workspace) const {
  const GemmShape& s = shape_;
  if (s.m == 0 || s.n == 0) return;
  if (few_rows_) return run_few_rows(a, b, c, bias);
  auto* packed = reinterpret_cast<float*>(workspace);
  std::byte* own = workspace + 4 * columns_ * s.k;
  const bool by_column = s.a_col != 1;
  const bool narrow = s.c_type != DType::f32 && s.k > kDepth;

  for (int64_t first = 0; first < s.n; first += columns_) {
    const int64_t columns = smaller(s.n - first, columns_);
    const int64_t panels = (columns + kPanel - 1) / kPanel;
    const auto pack = [&](int64_t part) {
      const Range share = share_of(panels, parts_, part);
      with_type(s.b_type, [&](auto type) {
        const auto* from = reinterpret_cast<const decltype(type)*>(element(b, s.b_type, first * s.b_col));
        for (int64_t j = share.begin; j < share.end; ++j)
          pack_panel(from + j * kPanel * s.b_col, s.b_row, s.b_col, s.k, smaller(columns - j * kPanel, kPanel),
                     packed + j * kPanel * s.k);
      });
    };
    const auto multiply = [&](int64_t part) {
      auto* packed_a = reinterpret_cast<float*>(own + part * part_bytes_);
      float* scratch = packed_a + kBlockFloats;
      const Range rows = split_rows_ ? share_of(s.m, parts_, part) : Range{0, s.m};
      const Range mine = split_rows_ ? Range{0, panels} : share_of(panels, parts_, part);
      const int64_t left = mine.begin * kPanel, width = smaller(columns, mine.end * kPanel) - left;
      if (width <= 0 || rows.begin == rows.end) return;
      // Blocks of equal size: a short last one would run at the edge's speed.
      const int64_t blocks = (rows.end - rows.begin + kBlockRows - 1) / kBlockRows;
      for (int64_t at = 0; at < blocks; ++at) {
        const Range share = share_of(rows.end - rows.begin, blocks, at);
        const int64_t i = rows.begin + share.begin, count = share.end - share.begin;
        const int64_t corner = i * s.c_row + first + left;
        for (int64_t p = 0; p < s.k || p == 0; p += kDepth) {
          const int64_t depth = smaller(s.k - p, int64_t{kDepth});
          with_type(s.a_type, [&](auto type) {
            pack_a(reinterpret_cast<const decltype(type)*>(element(a, s.a_type, i * s.a_row + p * s.a_col)), s, count,
                   depth, packed_a);
          });
          Start start = p > 0 || s.add ? Start::sum : bias != nullptr ? Start::bias : Start::zero;
          const float* own_bias = bias == nullptr ? nullptr : bias + first + left;
          const float* panel = packed + left * s.k + p * kPanel;
          if (narrow) {
            block(packed_a, by_column, panel, s.k, count, width, depth, scratch, columns_, start, own_bias);
          } else {
            with_type(s.c_type, [&](auto type) {
              block(packed_a, by_column, panel, s.k, count, width, depth,
                    reinterpret_cast<decltype(type)*>(c) + corner, s.c_row, start, own_bias);
            });
          }
        }
        if (narrow)
          with_type(s.c_type, [&](auto type) {
            auto* out = reinterpret_cast<decltype(type)*>(c) + corner;
            for (int64_t r = 0; r < count; ++r)
              for_lanes(width, [&](int64_t j, auto lanes) {
                store(out + r * s.c_row + j, load(scratch + r * columns_ + j, lanes), lanes);
              });
          });
      }
    };
    if (parts_ == 1) {
      pack(0);
      multiply(0);
    } else {
      parallel_parts(parts_, pack);
      parallel_parts(parts_, multiply);
    }
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
            for (int64_t i = 0; i < s.m; ++i) sums[i][v] += load(static_cast<const A*>(a) + i * s.a_row + p, lanes) * w;
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
  if (s.serial) columns(0, s.n);
  else parallel_for(s.n, 1 + (int64_t{1} << 16) / (s.k + 1), columns);
}

}  // namespace het::cpu::HET_ISA
