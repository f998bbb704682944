// The generator of core/base/random.h for a vector of counters at a time.
#pragma once

#include <utility>

#include "core/base/random.h"
#include "kernels/cpu/simd.h"

namespace het::cpu::HET_ISA {

// One counter in each 64-bit lane; a counter gives four words.
inline constexpr int kCounters = kVectorBytes / 8;
inline constexpr int64_t kWords = 4 * kCounters;  // of a draw
using LongVector = uint64_t __attribute__((vector_size(kVectorBytes)));

// The product of the low halves of each lane.
HET_INLINE LongVector multiply_low(LongVector a, uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<LongVector>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<LongVector>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<LongVector>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(b)));
#else
  return (a & 0xffffffffu) * static_cast<uint64_t>(b);
#endif
}

template <int kHalf, size_t... I>
HET_INLINE LongVector interleave(LongVector a, LongVector b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + kHalf * (kCounters / 2) + I % 2 * kCounters)...);
}

// The words of counters first, first + 1, ..., each with the same third and fourth part, in order, as two
// vectors.
struct Words {
  WordVector first, second;
};
HET_INLINE Words draw(PhiloxKey key, int64_t first, uint32_t third, uint32_t fourth) {
  LongVector lane;
  for (int i = 0; i < kCounters; ++i) lane[i] = i;
  // The upper halves hold what is left of products: multiply_low ignores them.
  const LongVector index = lane + static_cast<uint64_t>(first);
  LongVector c0 = index, c1 = index >> 32;
  LongVector c2 = LongVector{} + third, c3 = LongVector{} + fourth;
  uint32_t low = key.low, high = key.high;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const LongVector a = multiply_low(c0, 0xD2511F53u), b = multiply_low(c2, 0xCD9E8D57u);
    c0 = (b >> 32) ^ c1 ^ static_cast<uint64_t>(low);
    c1 = b;
    c2 = (a >> 32) ^ c3 ^ static_cast<uint64_t>(high);
    c3 = a;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  const LongVector even = (c0 & 0xffffffffu) | c1 << 32, odd = (c2 & 0xffffffffu) | c3 << 32;
  constexpr auto all = std::make_index_sequence<kCounters>();
  return {reinterpret_cast<WordVector>(interleave<0>(even, odd, all)),
          reinterpret_cast<WordVector>(interleave<1>(even, odd, all))};
}

}  // namespace het::cpu::HET_ISA
