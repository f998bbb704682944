#include "kernels/cpu/registers.h"

#include <vector>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/simd.h"

namespace het::cpu::HET_ISA {
namespace {

// Sums that are independent of each other, as many as hide an instruction's latency; with both factors they
// fit the registers.
constexpr int kSums = kLanes == 16 ? 16 : 12;

// step(sum) over all sums, again and again.
template <typename Step>
HET_INLINE void repeat(int64_t iterations, const Step& step) {
  Vector sums[kSums] = {};
  for (Vector& sum : sums) __asm__ volatile("" : "+m"(sum));  // else they are known to be equal
  for (int64_t n = 0; n < iterations; ++n)
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = step(sums[i]);
  for (const Vector& sum : sums) __asm__ volatile("" : : "m"(sum));  // they are needed
}

void multiply_add(int64_t iterations) {
  Vector factor = splat(0.5F), addend = splat(1.0F);
  __asm__ volatile("" : "+m"(factor), "+m"(addend));
  repeat(
      iterations, [&](Vector sum) __attribute__((always_inline)) { return sum * factor + addend; });
}

#if defined(HET_DOT_PRODUCT)
void dot_product(int64_t iterations) {
  Vector a = splat(0.5F), b = splat(0.25F);
  __asm__ volatile("" : "+m"(a), "+m"(b));
  repeat(
      iterations, [&](Vector sum) __attribute__((always_inline)) { return Pair::add_product(sum, a, b); });
}
#endif

#if defined(__AMX_BF16__)
void tile_product(int64_t iterations) {
  const TileState state;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
}
#endif

}  // namespace

std::vector<RegisterLoop> register_loops() {
  std::vector<RegisterLoop> loops{{"f32 multiply-add", DType::f32, 2.0 * kSums * kLanes, &multiply_add}};
#if defined(HET_DOT_PRODUCT)
  loops.push_back({"bf16 dot product", DType::bf16, 4.0 * kSums * kLanes, &dot_product});
#endif
#if defined(__AMX_BF16__)
  loops.push_back(
      {"bf16 matrix units", DType::bf16, 6 * 2.0 * kTileRows * kTileRows * kTileTerms, &tile_product});
#endif
  return loops;
}

}  // namespace het::cpu::HET_ISA
