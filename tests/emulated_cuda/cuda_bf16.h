// bf16 on the processor, rounded to nearest, ties to even. See README.md.
#pragma once

#include <cuda_runtime.h>

#include "core/tensor/dtype.h"

struct __nv_bfloat16 {
  het::bf16 value;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {het::bf16(x)}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return {het::bf16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.value.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return std::bit_cast<__nv_bfloat16>(bits); }
