// Device code: packs of elements as they lie in memory, converted only when they are asked for. A conversion
// waits for its load, and the compiler puts it right behind; so a thread that has several loads in flight
// keeps them raw.
#pragma once

#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {

template <typename T, int N>
struct Raw {
  static_assert(sizeof(T) == 4 || sizeof(T) == 2);
  static constexpr int kWords = (sizeof(T) * N + 3) / 4;
  unsigned words[kWords] = {};

  // N elements; the address must be a multiple of their size.
  __device__ void load(const T* from) {
    if constexpr (sizeof(T) * N < 4) {
      load_one(from);
    } else {
      const auto pack = *reinterpret_cast<const Pack<unsigned, kWords>*>(from);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = pack.v[i];
    }
  }
  // N elements, rounded to T.
  __device__ void set(const float (&from)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(from[i]);
    std::memcpy(words, &pack, sizeof pack);
  }
  // One element, for repeat().
  __device__ void load_one(const T* from) {
    if constexpr (sizeof(T) == 4)
      words[0] = *reinterpret_cast<const unsigned*>(from);
    else
      words[0] = *reinterpret_cast<const unsigned short*>(from);
  }
  // All elements as the one that was loaded, if so.
  __device__ void repeat(bool repeats) {
    const unsigned all = sizeof(T) == 4 ? words[0] : words[0] * 0x10001u;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = repeats ? all : words[i];
  }
  __device__ float operator[](int k) const {
    if constexpr (sizeof(T) == 4)
      return __uint_as_float(words[k]);
    else if constexpr (std::is_same_v<T, bf16>)
      return __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xffff0000u);
    else
      return to_float(__ushort_as_half(static_cast<unsigned short>(words[k / 2] >> 16 * (k % 2))));
  }
};

}  // namespace het::HET_CUDA
