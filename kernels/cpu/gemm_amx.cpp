// The product on matrix units. B is packed whole, by all threads; each thread then takes a range of rows (or
// of columns) of C, in blocks of rows whose operand stays in the second-level cache, and makes 32 x 32 sums
// at a time.
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kDepth = 1024;                     // terms of one block of k
constexpr int64_t kBlockRows = 256;                  // of A at a time
constexpr int64_t kPackedBytes = int64_t{16} << 20;  // of B at most
constexpr int64_t kPartialColumns = 1024;            // of C kept in f32 before it is narrowed
constexpr int64_t kLeast = int64_t{1} << 16;         // multiply-adds that pay for padding and packing

// body(an element of an operand, of those that TileProduct::takes)
template <typename Body>
void with_operand(DType dtype, const Body& body) {
  if (dtype == DType::f32)
    body(float{});
  else
    body(bf16{});
}

// to[rows, columns] = sums + from + bias, where from and bias may be null.
template <typename T>
void finish(const float* sums, int64_t rows, int64_t columns, const float* from, int64_t from_row,
            const float* bias, T* to, int64_t to_row) {
  for_lanes(columns, [&](int64_t v, auto lanes) {
    const Vector start = bias == nullptr ? Vector{} : load(bias + v, lanes);
    for (int64_t r = 0; r < rows; ++r) {
      Vector x = load(sums + r * kTileBlock + v) + start;
      if (from != nullptr) x += load(from + r * from_row + v, lanes);
      store(to + r * to_row + v, x, lanes);
    }
  });
}

}  // namespace

bool TileProduct::takes(const GemmShape& s) {
  const auto fits = [](DType type) { return type == DType::bf16 || type == DType::f32; };
  return fits(s.a_type) && fits(s.b_type) && (s.a_type == DType::bf16 || s.b_type == DType::bf16) &&
         s.m >= kTileRows && s.n >= kTileRows && s.k >= kTileTerms && s.m * s.n * s.k >= kLeast;
}

TileProduct::TileProduct(const GemmShape& shape) : shape_(shape) {
  const GemmShape& s = shape_;
  threads_ = s.threads();
  split_rows_ = s.m >= threads_ * kTileBlock || s.n < threads_ * kTileBlock;
  depth_blocks_ = blocks_of(s.k, kDepth);
  depth_ = rounded(blocks_of(s.k, depth_blocks_), kTileTerms);
  depth_blocks_ = blocks_of(s.k, depth_);
  partial_ = s.c_type != DType::f32 && depth_blocks_ > 1;

  const int64_t panel = kTileBlock * rounded(s.k, kTileTerms) * 2;
  const int64_t most = partial_ ? smaller(kPackedBytes, kPartialColumns / kTileBlock * panel) : kPackedBytes;
  columns_ = smaller(rounded(s.n, kTileBlock), kTileBlock * (1 + most / panel));
  b_bytes_ = columns_ / kTileBlock * panel;
  a_bytes_ = kBlockRows * depth_ * 2;
  part_bytes_ = a_bytes_ + 4 * kTileBlockSums + (partial_ ? 4 * kBlockRows * columns_ : 0);
}

void TileProduct::run(const void* a, const void* b, void* c, const float* bias, std::byte* workspace,
                      const Epilogue* epilogue) const {
  const GemmShape& s = shape_;
  auto* packed = reinterpret_cast<bf16*>(workspace);
  for (int64_t first = 0; first < s.n; first += columns_) {
    const Range columns{first, smaller(first + columns_, s.n)};
    const int64_t panels = blocks_of(columns.end - first, kTileBlock);
    const auto pack = [&](int64_t part) {
      with_operand(s.b_type, [&](auto type) {
        pack_panels(static_cast<const decltype(type)*>(b), columns, share_of(panels, threads_, part), packed);
      });
    };
    // Threads that share out the columns pack their own.
    if (split_rows_) parallel_parts(threads_, pack);
    parallel_parts(threads_, [&](int64_t part) {
      if (!split_rows_) pack(part);
      const TileState state;
      const Range blocks = share_of(blocks_of(s.m, kTileBlock), threads_, part);
      const Range rows = split_rows_ ? Range{blocks.begin * kTileBlock, smaller(blocks.end * kTileBlock, s.m)}
                                     : Range{0, s.m};
      const Range mine = split_rows_ ? Range{0, panels} : share_of(panels, threads_, part);
      std::byte* own = workspace + b_bytes_ + part * part_bytes_;
      with_operand(s.a_type, [&](auto a_type) {
        with_type(s.c_type, [&](auto c_type) {
          multiply(static_cast<const decltype(a_type)*>(a), packed, static_cast<decltype(c_type)*>(c), bias,
                   rows, columns, mine, own, epilogue);
        });
      });
    });
  }
}

// Panels of columns, each all of k: step by step in one block of terms, and block by block.
template <typename T>
void TileProduct::pack_panels(const T* b, Range columns, Range panels, bf16* packed) const {
  const GemmShape& s = shape_;
  const int64_t steps = blocks_of(s.k, kTileTerms);
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    const int64_t at = j * kTileBlock, count = smaller(columns.end - columns.begin - at, kTileBlock);
    pack_tiles<Side::right>(b + (columns.begin + at) * s.b_col, {s.b_col, s.b_row}, count, s.k,
                            packed + j * steps * kTileStep);
  }
}

// One thread's part of C: some rows of some panels.
template <typename A, typename C>
void TileProduct::multiply(const A* a, const bf16* packed, C* c, const float* bias, Range rows, Range columns,
                           Range panels, std::byte* own, const Epilogue* epilogue) const {
  const GemmShape& s = shape_;
  auto* left = reinterpret_cast<bf16*>(own);
  auto* sums = reinterpret_cast<float*>(own + a_bytes_);
  float* partial = sums + kTileBlockSums;
  const int64_t steps = blocks_of(s.k, kTileTerms);
  const int64_t row_blocks = blocks_of(rows.end - rows.begin, kBlockRows);
  for (int64_t block = 0; block < row_blocks; ++block) {
    const int64_t top = rows.begin + block * kBlockRows, count = smaller(rows.end - top, kBlockRows);
    for (int64_t d = 0; d < depth_blocks_; ++d) {
      const int64_t from = d * depth_, terms = smaller(s.k - from, depth_),
                    terms_steps = blocks_of(terms, kTileTerms);
      const bool opens = d == 0, closes = d + 1 == depth_blocks_;
      for (int64_t i = 0; i < count; i += kTileBlock)
        pack_tiles<Side::left>(a + (top + i) * s.a_row + from * s.a_col, {s.a_row, s.a_col},
                               smaller(count - i, kTileBlock), terms,
                               left + i / kTileBlock * terms_steps * kTileStep);
      for (int64_t j = panels.begin; j < panels.end; ++j) {
        const int64_t at = columns.begin + j * kTileBlock, width = smaller(columns.end - at, kTileBlock);
        const bf16* panel = packed + (j * steps + from / kTileTerms) * kTileStep;
        const float* starts = opens && bias != nullptr ? bias + at : nullptr;
        for (int64_t i = 0; i < count; i += kTileBlock) {
          const int64_t height = smaller(count - i, kTileBlock);
          const bf16* tiles = left + i / kTileBlock * terms_steps * kTileStep;
          C* to = c + (top + i) * s.c_row + at;
          if constexpr (std::is_same_v<C, float>) {
            const bool adds = s.add || !opens;
            if (!adds && starts == nullptr && height == kTileBlock && width == kTileBlock) {
              multiply_tiles(tiles, panel, terms_steps, to, s.c_row);
              continue;
            }
            multiply_tiles(tiles, panel, terms_steps, sums, kTileBlock);
            finish(sums, height, width, adds ? to : nullptr, s.c_row, starts, to, s.c_row);
          } else {
            multiply_tiles(tiles, panel, terms_steps, sums, kTileBlock);
            float* kept = partial + i * columns_ + j * kTileBlock;
            const float* before = opens ? nullptr : kept;
            if (closes)
              finish(sums, height, width, before, columns_, starts, to, s.c_row);
            else
              finish(sums, height, width, before, columns_, starts, kept, columns_);
          }
        }
      }
    }
    if (epilogue != nullptr && panels.begin < panels.end)
      epilogue->run({top, top + count}, {columns.begin + panels.begin * kTileBlock,
                                         smaller(columns.begin + panels.end * kTileBlock, columns.end)});
  }
}

}  // namespace het::cpu::HET_ISA
