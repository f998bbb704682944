// Device code that every family shares: 16-byte loads and stores of any float type, sums over warps and
// blocks in a fixed order, and a block's dynamic shared memory.
#pragma once

#include <cstring>

#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

inline constexpr int kWarp = 32;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(f16 x) { return __half2float(x); }

template <typename T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else
    return __float2half_rn(x);
}

// N elements that move as one access; of 16 bytes when N = kPack<T>. The address must be a multiple of its
// size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

// Whether `p` and a row of n elements allow packs of N.
template <typename T>
__host__ __device__ inline bool packs(const T* p, int64_t n, int N) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * N) == 0 && n % N == 0;
}

template <typename T, int N>
__device__ inline void load(float (&to)[N], const T* from) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(pack.v[i]);
}
template <typename T, int N>
__device__ inline void store(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// A pack in stores of 16 bytes, also where the compiler, which has computed each element, would split them.
template <typename T, int N>
__device__ inline void store_whole(T* to, const Pack<T, N>& pack) {
  static_assert(sizeof pack % 16 == 0);
  uint32_t words[sizeof pack / 4];
  std::memcpy(words, &pack, sizeof pack);
#ifdef __CUDACC__
#pragma unroll
  for (size_t i = 0; i < sizeof pack / 4; i += 4)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(reinterpret_cast<std::byte*>(to) + 4 * i)),
                 "r"(words[i]), "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                 : "memory");
#else
  std::memcpy(to, words, sizeof pack);
#endif
}

// The same in every lane, added in an order that is always the same.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

// Over a block of whole warps, the result in every thread. `scratch` has one float for each warp; it may be
// used again at once. What threads wrote to shared memory before it, others see after it.
template <typename Combine>
__device__ inline float block_combine(float x, float* scratch, float neutral, Combine combine) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = combine(x, __shfl_xor_sync(~0u, x, lane));
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) {
    __syncwarp();  // shuffles do not order memory
    return x;
  }
  if (lane == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = lane < warps ? scratch[lane] : neutral;
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) x = combine(x, __shfl_xor_sync(~0u, x, other));
  __syncthreads();
  return x;
}
__device__ inline float block_sum(float x, float* scratch) {
  return block_combine(x, scratch, 0.0f, [](float a, float b) { return a + b; });
}
__device__ inline float block_max(float x, float* scratch) {
  return block_combine(x, scratch, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
}

// Leave `met` to be thrown, unless a failure is there already.
__device__ inline void report(Failure* failure, const Failure& met) {
  if (atomicCAS(&failure->kind, static_cast<int>(Failure::none), met.kind) != Failure::none) return;
  failure->position = met.position;
  failure->value = met.value;
  failure->limit = met.limit;
  failure->op = met.op;
}

// The shared memory that the launch asked for, aligned to 16 bytes.
__device__ inline std::byte* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<std::byte*>(bytes);
#else
  return emulated_shared();
#endif
}

}  // namespace het::HET_CUDA
