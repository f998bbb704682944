// Device code for floats whose type is a value: the side of a kernel that moves few bytes, where a template
// for each pair of types would not pay.
#pragma once

#include "core/tensor/dtype.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {

// Element i as f32. f32, bf16 and f16 only, as below.
__device__ inline float read_narrow(DType dtype, const void* from, int64_t i) {
  switch (dtype) {
    case DType::bf16: return to_float(static_cast<const bf16*>(from)[i]);
    case DType::f16: return to_float(static_cast<const f16*>(from)[i]);
    default: return static_cast<const float*>(from)[i];
  }
}

__device__ inline void write_narrow(DType dtype, void* to, int64_t i, float value) {
  switch (dtype) {
    case DType::bf16: static_cast<bf16*>(to)[i] = from_float<bf16>(value); return;
    case DType::f16: static_cast<f16*>(to)[i] = from_float<f16>(value); return;
    default: static_cast<float*>(to)[i] = value;
  }
}

}  // namespace het::HET_CUDA
