// Matrix products C (+)= A B for the processor: operands in f32, bf16 or f16, sums in f32.
//
// Narrow operands are widened to f32 while they are packed, unless the instruction set has something faster:
// dot products of bf16, or matrix units (amx.h), on which bf16 is multiplied, and f32 by bf16, the f32
// rounded to bf16 first. f32 by f32, and what is too small for a block of tiles, stay on vectors of f32.
// Operands are read where they lie when packing would cost more than it saves.
//
// A Gemm is prepared once for its sizes and strides; run() allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/parallel.h"
#include "core/tensor/dtype.h"

namespace het::cpu::HET_ISA {

// Sizes and strides (in elements). A is [m, k], B is [k, n], C is [m, n] with columns adjacent. Of A and of B
// one of both strides must be 1.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  DType a_type = DType::f32, b_type = DType::f32, c_type = DType::f32;
  int64_t a_row = 0, a_col = 1;
  int64_t b_row = 0, b_col = 1;
  int64_t c_row = 0;
  bool add = false;     // C += A B; C is f32 then
  bool serial = false;  // on the calling thread alone: inside a parallel loop
  int parts = 0;        // threads to use; 0: all there are when it is prepared

  int threads() const { return serial ? 1 : parts > 0 ? parts : thread_count(); }
};

// What is made of a part of C as soon as it is whole, by the thread that made it and while the part is in its
// cache. Several threads call it at once, for parts that do not overlap.
class Epilogue {
 public:
  virtual void run(Range rows, Range columns) const = 0;

 protected:
  ~Epilogue() = default;
};

#if defined(__AMX_BF16__)
// The product on matrix units.
class TileProduct {
 public:
  static bool takes(const GemmShape& shape);  // false: too small, or of a type that the units lack
  explicit TileProduct(const GemmShape& shape);

  int64_t workspace_bytes() const { return b_bytes_ + threads_ * part_bytes_; }
  void run(const void* a, const void* b, void* c, const float* bias, std::byte* workspace,
           const Epilogue* epilogue) const;

 private:
  template <typename T>
  void pack_panels(const T* b, Range columns, Range panels, bf16* packed) const;
  template <typename A, typename C>
  void multiply(const A* a, const bf16* packed, C* c, const float* bias, Range rows, Range columns,
                Range panels, std::byte* own, const Epilogue* epilogue) const;

  GemmShape shape_;
  int threads_ = 1;
  bool split_rows_ = true;                // threads share out rows of C, else columns
  bool a_in_place_ = false;               // tiles are read from A itself
  bool partial_ = false;                  // sums over some of k are kept in f32 beside a narrower C
  int64_t depth_ = 0, depth_blocks_ = 0;  // terms of k at a time
  int64_t columns_ = 0;                   // of C at a time: as many as packed B has room for
  int64_t b_bytes_ = 0, a_bytes_ = 0;     // workspace: packed B; of each thread, packed A
  int64_t part_bytes_ = 0;                // and all of a thread's
};
#endif

class Gemm {
 public:
  // `large_in_place`: whether large operands are read where they lie, too; without it as is faster on this
  // processor.
  explicit Gemm(const GemmShape& shape, std::optional<bool> large_in_place = {});

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // bias: f32[n] added to every row, or null.
  void run(const void* a, const void* b, void* c, const float* bias, std::byte* workspace,
           const Epilogue* epilogue = nullptr) const;

 private:
  void run_few_rows(const void* a, const void* b, void* c, const float* bias) const;
  Range words_of(Range blocks) const;
  void pack_b(const void* b, int64_t first, Range share, int64_t columns, Range blocks, float* packed) const;
  template <typename Word>
  void multiply(const void* a, const void* b, void* c, const float* bias, int64_t first, int64_t columns,
                Range blocks, const float* packed, std::byte* own, int64_t part,
                const Epilogue* epilogue) const;

#if defined(__AMX_BF16__)
  std::optional<TileProduct> tiles_;
#endif
  GemmShape shape_;
  bool pairs_ = false;        // operands are packed in pairs of bf16
  int64_t words_ = 0;         // of k
  int64_t depth_blocks_ = 1;  // of k: what a tile of C is kept in registers for
  int64_t chunk_blocks_ = 1;  // of these, for which B is packed at a time: all, or as many as it has room for
  int64_t chunk_words_ = 0;   // of k in them, at most
  int parts_ = 1;             // threads
  bool split_rows_ = true;    // threads share out rows of C, else columns
  bool few_rows_ = false;     // too few rows to pay for packing B
  bool a_in_place_ = false, b_in_place_ = false;
  bool shared_b_ = false;  // threads pack parts of one B for all, and wait for each other; else each its own
  // Columns of C made at a time: all, or as many as packed B has room for (a multiple of kPanel).
  int64_t columns_ = 0;
  int64_t packed_bytes_ = 0;  // workspace of packed B
  int64_t part_bytes_ = 0;    // workspace of one thread
  int64_t workspace_bytes_ = 0;
};

}  // namespace het::cpu::HET_ISA
