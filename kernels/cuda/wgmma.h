// Products of matrices by a warpgroup (four warps), of sm_90a alone: wgmma reads its operands from shared
// memory and runs beside the threads that asked for it. The layouts are those of the PTX ISA ("Asynchronous
// warpgroup level matrix multiply-accumulate instructions"), here always tiles of panels of 64 columns with
// the 128-byte swizzle of attention_mma.h, each panel at a multiple of 1024 bytes.
#pragma once

#include "kernels/cuda/mma.h"

// What compiles for sm_90a, and for the emulation; elsewhere kernels made of it are empty.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HET_HAS_WGMMA
#endif

namespace het::HET_CUDA {

// A matrix in shared memory for wgmma: an address, and two distances that matter only where a matrix spans
// several panels or groups of eight rows. Read along its rows (as a, or as b^T): `rows` rows, the 16 elements
// from `at` on in each; at most one panel.
__device__ inline uint64_t matrix_by_rows(Shared at) {
  return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// Read along its columns (as b): the 16 rows from `at` on, in panels `panel_bytes` apart.
__device__ inline uint64_t matrix_by_columns(Shared at, uint32_t panel_bytes) {
  return static_cast<uint64_t>((at & 0x3FFFF) >> 4) | uint64_t{panel_bytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Registers that a product uses must have been written before this, those of its results read.
__device__ inline void begin_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void commit_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulated::commit_products();
#endif
}
// Wait until all but the last kPending groups that were committed are done; then say for each result
// hold_registers(d), so that it is not read earlier.
template <int kPending>
__device__ inline void wait_for_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#else
  emulated::wait_for_products(kPending);
#endif
}
template <int N>
__device__ inline void hold_registers(float (&d)[N][4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
#endif
}
// What this thread wrote to shared memory, or wait_for_copies() brought, becomes visible to products that
// begin after the next barrier.
__device__ inline void show_to_products() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if defined(__CUDACC__) && defined(HET_HAS_WGMMA)
#define HET_SUMS(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define HET_SUMS8(d, n)                                                                           \
  HET_SUMS(d, n), HET_SUMS(d, n + 1), HET_SUMS(d, n + 2), HET_SUMS(d, n + 3), HET_SUMS(d, n + 4), \
      HET_SUMS(d, n + 5), HET_SUMS(d, n + 6), HET_SUMS(d, n + 7)
#define HET_LIST32                                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, "                                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define HET_LIST64                                                                                         \
  HET_LIST32                                                                                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, "                                                                                             \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#endif

// d [64 x 128] = (or +=) a [64 x 16] b^T with b [128 x 16], both matrix_by_rows. d is laid out as sixteen d
// of mma.h's multiply_add, warp w of the warpgroup having rows 16 w to 16 w + 15.
template <typename T>
__device__ inline void multiply_tiles(float (&d)[16][4], uint64_t a, uint64_t b, bool accumulate) {
#ifndef __CUDACC__
  emulated::multiply_tiles(d[0], a, b, accumulate, widen<T>);
#elif defined(HET_HAS_WGMMA)
#define HET_PRODUCT(type)                                                          \
  asm volatile(                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" HET_LIST64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                             \
      : HET_SUMS8(d, 0), HET_SUMS8(d, 8)                                           \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<T, bf16>)
    HET_PRODUCT("bf16");
  else
    HET_PRODUCT("f16");
#undef HET_PRODUCT
#endif
}

// d [64 x 8 N] += a [64 x 16] b [16 x 8 N]: a in registers, as mma.h's multiply_add has it, b
// matrix_by_columns.
template <typename T, int N>
__device__ inline void multiply_rows(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 8 || N == 16);
#ifndef __CUDACC__
  emulated::multiply_rows(d[0], N, a, b, widen<T>);
#elif defined(HET_HAS_WGMMA)
#define HET_PRODUCT64(type)                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" HET_LIST32 \
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                 \
               : HET_SUMS8(d, 0)                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define HET_PRODUCT128(type)                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" HET_LIST64 \
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                  \
               : HET_SUMS8(d, 0), HET_SUMS8(d, 8)                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  if constexpr (N == 8 && std::is_same_v<T, bf16>)
    HET_PRODUCT64("bf16");
  else if constexpr (N == 8)
    HET_PRODUCT64("f16");
  else if constexpr (std::is_same_v<T, bf16>)
    HET_PRODUCT128("bf16");
  else
    HET_PRODUCT128("f16");
#undef HET_PRODUCT64
#undef HET_PRODUCT128
#endif
}

#undef HET_SUMS
#undef HET_SUMS8
#undef HET_LIST32
#undef HET_LIST64

}  // namespace het::HET_CUDA
