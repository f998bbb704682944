// Stochastic rounding of core/ops/rounding.h, drawn for a vector of counters at a time.
#include "core/ops/rounding.h"

#include "core/ops/part.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/philox.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kGroup = 8;           // elements of a counter
constexpr int64_t kBlock = 2 * kWords;  // of a draw: half a word each

// To the bf16 below or above by chance; what would round to infinity, and what is not finite, to nearest.
HET_INLINE HalfVector round_by_chance(Vector x, HalfVector random) {
  const WordVector bits = reinterpret_cast<WordVector>(x);
  const WordVector rounded = (bits + __builtin_convertvector(random, WordVector)) >> 16;
  const WordVector nearest = __builtin_convertvector(narrow_bf16(x), WordVector);
  return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f7f0000u ? nearest : rounded, HalfVector);
}

// `count` elements from place `inside` of the draw's on; together at most kBlock.
HET_INLINE void round_block(const float* x, bf16* y, const Words& words, int64_t inside, int64_t count) {
  uint16_t random[kBlock + kLanes];  // as rounding_bits: the low half of a word comes first in memory
  std::memcpy(random, &words.first, sizeof words.first);
  std::memcpy(random + kBlock / 2, &words.second, sizeof words.second);
  for_lanes(count, [&](int64_t i, auto lanes) {
    HalfVector own;
    std::memcpy(&own, random + inside + i, sizeof own);
    store_bits(y + i, round_by_chance(load(x + i, lanes), own), lanes);
  });
}

// `count` elements that follow each other in the whole from `element` on.
HET_INLINE void round_run(PhiloxKey key, int64_t step, int64_t element, const float* x, bf16* y,
                          int64_t count) {
  const auto third = static_cast<uint32_t>(step),
             fourth = static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32);
  while (count > 0) {
    const int64_t inside = element % kGroup, left = kBlock - inside, done = count < left ? count : left;
    round_block(x, y, draw(key, element / kGroup, third, fourth), inside, done);
    element += done;
    x += done;
    y += done;
    count -= done;
  }
}

std::unique_ptr<Kernel> prepare_stochastic_cast(const KernelRequest& request) {
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  if (request.inputs[0].type.dtype != DType::f32) refuse_dtype(request, request.inputs[0].type.dtype);
  const PhiloxKey key = draw_key(request);
  const SliceMap place = places_of(request.attributes, request.inputs[0].type.shape);
  const int64_t elements = request.inputs[0].type.elements();
  return make_kernel([=](const KernelArguments& a) {
    const float* x = a.in<float>(0);
    bf16* y = a.out<bf16>(0);
    const int64_t step = *a.in<int64_t>(1);
    parallel_for((elements + kBlock - 1) / kBlock, row_grain(kHeavyGrain, kBlock),
                 [&](int64_t begin, int64_t end) {
                   int64_t i = begin * kBlock;
                   const int64_t last = end * kBlock < elements ? end * kBlock : elements;
                   while (i < last) {
                     const auto run = place.at(i, elements);
                     const int64_t count = run.left < last - i ? run.left : last - i;
                     round_run(key, step, run.element, x + i, y + i, count);
                     i += count;
                   }
                 });
  });
}

}  // namespace

std::vector<KernelEntry> rounding_kernels() { return {{"stochastic_cast", prepare_stochastic_cast}}; }

}  // namespace het::cpu::HET_ISA
