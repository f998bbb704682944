// Device code: functions that the GPU's function units compute in one instruction.
#pragma once

#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

// 2^x to 2 units in the last place, 1 / x to one; what is too small for a normal number is 0.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}
__device__ inline float fast_reciprocal(float x) {
#ifdef __CUDACC__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// To 2^-22, not relative to small results.
__device__ inline float fast_tanh(float x) {
  constexpr float kTwoLog2e = 2.8853900817779268f;
  return 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * kTwoLog2e) + 1.0f);
}

}  // namespace het::HET_CUDA
