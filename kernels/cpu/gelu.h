// GELU by tanh, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016), and its
// derivative, for the elementwise kernel and for what products do with their results.
#pragma once

#include "kernels/cpu/simd.h"

namespace het::cpu::HET_ISA {

inline constexpr float kRootTwoOverPi = 0.797884561f, kGeluCubic = 0.044715f;

// NaN stays NaN.
HET_INLINE Vector at_least(Vector x, float low) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<Vector>(
      _mm256_max_ps(reinterpret_cast<__m256>(splat(low)), reinterpret_cast<__m256>(x)));
#else
  return x < low ? splat(low) : x;
#endif
}

// Below this GELU is 0 in f32: -16 times a factor of 10^-38.
inline constexpr float kGeluLeast = -16.0f;

// What x is multiplied by: (1 + tanh(u)) / 2 = sigmoid(2 u), which keeps its precision where tanh is near -1.
// It never gets below 10^-38, since arithmetic on subnormal numbers is slow.
HET_INLINE Vector gelu_factor(Vector x) {
  constexpr float kTwice = -2.0f * kRootTwoOverPi;
  return 1.0f / (1.0f + exp_normal(x * (kTwice + (kTwice * kGeluCubic) * (x * x))));
}
HET_INLINE Vector gelu(Vector x) {
  x = at_least(x, kGeluLeast);
  return x * gelu_factor(x);
}
HET_INLINE Vector gelu_derivative(Vector x) {
  x = clamp(x, kGeluLeast, -kGeluLeast);  // beyond it is 0, and 1
  const Vector s = gelu_factor(x);
  const Vector inner = (2.0f * kRootTwoOverPi) * (1.0f + (3.0f * kGeluCubic) * (x * x));
  return s + x * s * (1.0f - s) * inner;
}

}  // namespace het::cpu::HET_ISA
