// Nested loops on the device: from the number of an element, or of a pack of them, to its place in every
// operand. Prepared on the host from kernels::Loops; plain data that kernels take by value.
#pragma once

#include "core/base/error.h"
#include "kernels/cuda/runtime.h"
#include "kernels/request.h"

namespace het::HET_CUDA {

// Division by a size that is fixed when a kernel is prepared, of numbers below `limit`: one multiplication by
// 2^64 / size, rounded up, which is exact when limit * size <= 2^64 (Granlund and Montgomery, "Division by
// invariant integers using multiplication", 1994).
struct Divisor {
  uint64_t size = 1, magic = 0;  // 0: size is 1

  Divisor() = default;
  // Throws Error(usage) beyond that: a loop of 2^30 rounds or more, many times.
  Divisor(int64_t divisor, int64_t limit) {
    if (divisor <= 1) return;
    size = static_cast<uint64_t>(divisor);
    magic = ~uint64_t{0} / size + 1;
    if (limit > 0 && static_cast<uint64_t>(limit) > ~uint64_t{0} / size)
      fail_usage("the GPU's kernels do not repeat {} elements up to {}: split the tensor", divisor, limit);
  }
  __device__ uint64_t quotient(uint64_t n) const { return magic == 0 ? n : __umul64hi(n, magic); }
};

// The loops of up to K operands, the outermost first.
template <int K>
struct Walk {
  int rank = 0;
  Divisor size[kernels::kMaxRank];
  int64_t stride[K][kernels::kMaxRank] = {};

  // The next loop inside those before, of so many rounds, and `limit` rounds of the innermost in all. What is
  // left for the outermost is not divided.
  void add(int64_t count, int64_t limit) {
    size[rank] = rank == 0 ? Divisor() : Divisor(count, limit);
    ++rank;
  }

  // Where element n is in the first kUsed operands.
  template <int kUsed = K>
  __device__ void at(uint64_t n, int64_t (&offset)[kUsed]) const {
#pragma unroll
    for (int i = 0; i < kUsed; ++i) offset[i] = 0;
#pragma unroll 1
    for (int d = rank - 1; d > 0; --d) {
      const uint64_t outside = size[d].quotient(n);
      const auto here = static_cast<int64_t>(n - outside * size[d].size);
#pragma unroll
      for (int i = 0; i < kUsed; ++i) offset[i] += here * stride[i][d];
      n = outside;
    }
    if (rank == 0) return;
#pragma unroll
    for (int i = 0; i < kUsed; ++i) offset[i] += static_cast<int64_t>(n) * stride[i][0];
  }
};

// All loops of `operands` operands in units of `pack` elements of the innermost loop, which it must divide.
template <int K>
Walk<K> walk_of(const kernels::Loops& loops, int operands, int64_t pack = 1) {
  Walk<K> walk;
  const int64_t units = loops.elements();
  for (int d = 0; d < loops.rank; ++d) {
    const int64_t step = d == loops.rank - 1 ? pack : 1;
    for (int i = 0; i < operands; ++i) walk.stride[i][d] = loops.stride[i][d] * step;
    walk.add(loops.size[d] / step, units);
  }
  return walk;
}

}  // namespace het::HET_CUDA
