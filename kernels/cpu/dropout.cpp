// Dropout: the mask of core/ops/dropout.h, drawn for a vector of counters at a time.
#include "core/ops/dropout.h"

#include <utility>

#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// One counter in each 64-bit lane; a counter gives four words for four elements.
constexpr int kCounters = kVectorBytes / 8;
constexpr int64_t kBlock = 4 * kCounters;
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

// The words of elements 4 * quad .. 4 * quad + kBlock - 1 in order, as two vectors.
struct Words {
  WordVector first, second;
};
HET_INLINE Words draw(PhiloxKey key, uint32_t step, uint32_t sample, int64_t quad) {
  LongVector lane;
  for (int i = 0; i < kCounters; ++i) lane[i] = i;
  // The upper halves of c0 and c2 hold what is left of products: multiply_low ignores them.
  const LongVector index = lane + static_cast<uint64_t>(quad);
  LongVector c0 = index & 0xffffffffu, c1 = index >> 32;
  LongVector c2 = LongVector{} + sample, c3 = LongVector{} + step;
  uint32_t low = key.low, high = key.high;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const LongVector a = multiply_low(c0, 0xD2511F53u), b = multiply_low(c2, 0xCD9E8D57u);
    c0 = (b >> 32) ^ c1 ^ static_cast<uint64_t>(low);
    c1 = b & 0xffffffffu;
    c2 = (a >> 32) ^ c3 ^ static_cast<uint64_t>(high);
    c3 = a & 0xffffffffu;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  const LongVector even = (c0 & 0xffffffffu) | c1 << 32, odd = (c2 & 0xffffffffu) | c3 << 32;
  constexpr auto all = std::make_index_sequence<kCounters>();
  return {reinterpret_cast<WordVector>(interleave<0>(even, odd, all)),
          reinterpret_cast<WordVector>(interleave<1>(even, odd, all))};
}

// As uniform_of(word) >= p.
HET_INLINE IntVector kept(WordVector words, float p) {
  const Vector uniform = __builtin_convertvector(reinterpret_cast<IntVector>(words >> 8), Vector) * 0x1p-24f;
  return uniform >= splat(p);
}

template <typename T, typename Lanes>
HET_INLINE void drop(const T* x, T* y, IntVector keep, float scale, Lanes lanes) {
  const Vector v = load(x, lanes) * scale;
  store(y, keep ? v : Vector{}, lanes);
}

// `count` elements of a sample from element 4 * quad on; at most kBlock.
template <typename T>
HET_INLINE void drop_block(const T* x, T* y, const Words& words, float p, float scale, int64_t count) {
  const IntVector first = kept(words.first, p), second = kept(words.second, p);
  if (count == kBlock) {
    drop(x, y, first, scale, Full{});
    drop(x + kLanes, y + kLanes, second, scale, Full{});
  } else if (count > kLanes) {
    drop(x, y, first, scale, Full{});
    drop(x + kLanes, y + kLanes, second, scale, Tail{static_cast<int>(count - kLanes)});
  } else if (count == kLanes) {
    drop(x, y, first, scale, Full{});
  } else {
    drop(x, y, first, scale, Tail{static_cast<int>(count)});
  }
}

std::unique_ptr<Kernel> prepare_dropout(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const float p = static_cast<float>(number(request, "p", 0.0));
  const float scale = static_cast<float>(1.0 / (1.0 - number(request, "p", 0.0)));
  const PhiloxKey key = philox_key(static_cast<uint64_t>(integer(request, "seed", 0)),
                                   static_cast<uint64_t>(integer(request, "stream", 0)));
  const int64_t samples = type.shape[0], each = samples > 0 ? type.elements() / samples : 0;
  const int64_t blocks = (each + kBlock - 1) / kBlock, offset = integer(request, "offset", 0);
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      T* y = a.out<T>(0);
      const int64_t* counter = a.in<int64_t>(1);  // step, index of the first sample
      parallel_for(samples * blocks, row_grain(kHeavyGrain, kBlock), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t sample = i / blocks, element = i % blocks * kBlock, at = sample * each + element;
          const Words words = draw(key, static_cast<uint32_t>(counter[0]),
                                   static_cast<uint32_t>(counter[1] + sample), (offset + element) / 4);
          drop_block(x + at, y + at, words, p, scale, each - element < kBlock ? each - element : kBlock);
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> dropout_kernels() { return {{"dropout", prepare_dropout}}; }

}  // namespace het::cpu::HET_ISA
