// f16 on the processor. See README.md.
#pragma once

#include <cuda_runtime.h>

#include "core/tensor/dtype.h"

struct __half {
  het::f16 value;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;

inline float __half2float(__half x) { return static_cast<float>(x.value); }
inline __half __float2half_rn(float x) { return {het::f16(x)}; }
inline __half __float2half(float x) { return {het::f16(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline unsigned short __half_as_ushort(__half x) { return std::bit_cast<unsigned short>(x); }
inline __half __ushort_as_half(unsigned short bits) { return std::bit_cast<__half>(bits); }
