// Tensor-core and copy instructions of sm_80 and newer as functions: matrices of 8 x 8 from shared memory to
// registers (ldmatrix), products of 16 x 8 x 16 (mma.sync), copies from global to shared memory that do not
// pass through registers (cp.async). Fragments are laid out as the PTX ISA says ("Warp-level matrix
// instructions"); tests/emulated_cuda/mma.cpp writes the same in plain C++.
#pragma once

#include <cstring>

#include "kernels/cuda/vector.h"
#ifndef __CUDACC__
#include <emulated_mma.h>
#endif

namespace het::HET_CUDA {

#ifndef __CUDACC__
template <typename T>
float widen(unsigned short bits) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_float(__ushort_as_bfloat16(bits));
  else
    return to_float(__ushort_as_half(bits));
}
#endif

// An address within the block's shared memory: a number, so that it can be computed in 32 bits.
using Shared = uint32_t;

__device__ inline Shared shared_address(const void* p) {
#ifdef __CUDACC__
  return static_cast<Shared>(__cvta_generic_to_shared(p));
#else
  return emulated::shared_address(p);
#endif
}

// Four matrices of 8 x 8 elements of 16 bits. Lane l gives the address of row l % 8 (16 bytes) of matrix l
// / 8. It receives, of each matrix, elements 2 (l % 4) and the next of row l / 4.
__device__ inline void load_matrices(uint32_t (&to)[4], Shared row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
#else
  emulated::load_matrices(to, row, false);
#endif
}
// The same of the transposed matrices: rows 2 (l % 4) and the next of column l / 4.
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], Shared row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
#else
  emulated::load_matrices(to, row, true);
#endif
}

// d [16 x 8] += a [16 x 16] b [16 x 8], a and b of bf16 or f16, sums f32. With g = lane / 4 and t = lane % 4
// a lane holds of d rows g (d[0..1]) and g + 8 (d[2..3]) at columns 2t and 2t + 1; of a the same at columns
// 2t (a[0], a[1]) and 2t + 8 (a[2], a[3]); of b column g at rows 2t (b0) and 2t + 8 (b1). So two neighbouring
// d are an a.
template <typename T>
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  emulated::multiply_add(d, a, b0, b1, widen<T>);
#endif
}

// Two elements in one register, the first in the lower half.
template <typename T>
__device__ inline uint32_t pair_of(float first, float second) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, bf16>) {
    const auto pair = __floats2bfloat162_rn(first, second);
    std::memcpy(&bits, &pair, sizeof bits);
  } else {
    const auto pair = __floats2half2_rn(first, second);
    std::memcpy(&bits, &pair, sizeof bits);
  }
  return bits;
}

// Begin to copy 16 bytes, or to fill them with 0 where `there` is false (then `from` is not read). Both
// addresses are multiples of 16. What was begun belongs to the group that the thread commits next.
__device__ inline void copy_async(Shared to, const void* from, bool there) {
#ifdef __CUDACC__
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  emulated::copy_async(to, from, there);
#endif
}
__device__ inline void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulated::commit_copies();
#endif
}
// Wait until all but the thread's last kPending groups have arrived. Others see them after a barrier.
template <int kPending>
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emulated::wait_for_copies(kPending);
#endif
}

}  // namespace het::HET_CUDA
