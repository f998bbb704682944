// What the per-set kernel files share: choice of a kernel by element type, and how little work is worth a
// thread.
#pragma once

#include "core/base/parallel.h"
#include "core/device/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/request.h"

namespace het::cpu {
using namespace kernels;
}

namespace het::cpu::HET_ISA {

// make(T{}) for the float type `dtype`, as float, bf16 or f16.
template <typename Make>
std::unique_ptr<Kernel> for_float(const KernelRequest& request, DType dtype, const Make& make) {
  switch (dtype) {
    case DType::f32: return make(float{});
    case DType::bf16: return make(bf16{});
    case DType::f16: return make(f16{});
    default: refuse_dtype(request, dtype);
  }
}

// Elements of light work (a few operations each) that pay for waking a thread: about 4 microseconds.
inline constexpr int64_t kLightGrain = 16384;
// The same for work with a transcendental function for each element.
inline constexpr int64_t kHeavyGrain = 4096;

// Rows of `columns` elements each that make up a grain.
HET_INLINE int64_t row_grain(int64_t grain, int64_t columns) {
  return columns >= grain ? 1 : (grain + columns - 1) / (columns > 0 ? columns : 1);
}

// Parts in which `count` items of a reduction are split: fixed when the kernel is prepared, as it decides
// rounding.
inline int64_t parts_for(int64_t count, int64_t grain) {
  const int64_t most = (count + grain - 1) / grain, threads = thread_count();
  return most < 1 ? 1 : most < threads ? most : threads;
}

}  // namespace het::cpu::HET_ISA
