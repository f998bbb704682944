// Elementwise steps in f64, for every device: what computes with f64 and integers is rare, and no kernel is
// tuned for it. The functions are static, so that files compiled for several instruction sets share none.
#pragma once

#include <cmath>
#include <limits>

#include "core/ops/elementwise.h"

#ifdef __CUDACC__
#define HET_EVERYWHERE __host__ __device__
#else
#define HET_EVERYWHERE
#endif

namespace het::kernels {

// Towards zero; beyond the range of T its nearest end, NaN gives 0.
template <typename T>
HET_EVERYWHERE static T to_integer(double value) {
  constexpr T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  constexpr double beyond = static_cast<double>(most / 2 + 1) * 2.0;
  if (value != value) return 0;
  if (value < static_cast<double>(least)) return least;
  return value >= beyond ? most : static_cast<T>(value);
}
template <typename T>
HET_EVERYWHERE static T to_integer(int64_t value) {
  constexpr int64_t least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  return static_cast<T>(value < least ? least : value > most ? most : value);
}

HET_EVERYWHERE static inline double wide_sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }

HET_EVERYWHERE static inline double wide_step(Pointwise code, double a, double b, double immediate) {
  constexpr double kRoot = 0.79788456080286535588, kThird = 0.044715, kRootHalf = 0.70710678118654752440;
  switch (code) {
    case Pointwise::add: return a + b;
    case Pointwise::sub: return a - b;
    case Pointwise::mul: return a * b;
    case Pointwise::div: return a / b;
    case Pointwise::maximum: return a != a || a > b ? a : b;
    case Pointwise::minimum: return a != a || a < b ? a : b;
    case Pointwise::power: return ::pow(a, b);
    case Pointwise::clamp_min: return a < immediate ? immediate : a;
    case Pointwise::clamp_max: return a > immediate ? immediate : a;
    case Pointwise::equal: return a == b;
    case Pointwise::not_equal: return a != b;
    case Pointwise::less: return a < b;
    case Pointwise::less_equal: return a <= b;
    case Pointwise::mask: return a != 0 ? b : 0;
    case Pointwise::mask_out: return a != 0 ? 0 : b;
    case Pointwise::scale: return a * immediate;
    case Pointwise::shift: return a + immediate;
    case Pointwise::neg: return -a;
    case Pointwise::abs: return ::fabs(a);
    case Pointwise::sign: return a > 0 ? 1 : a < 0 ? -1 : a;
    case Pointwise::sin: return ::sin(a);
    case Pointwise::cos: return ::cos(a);
    case Pointwise::pow: return ::pow(a, immediate);
    case Pointwise::square: return a * a;
    case Pointwise::sqrt: return ::sqrt(a);
    case Pointwise::exp: return ::exp(a);
    case Pointwise::log: return ::log(a);
    case Pointwise::tanh: return ::tanh(a);
    case Pointwise::sigmoid: return wide_sigmoid(a);
    case Pointwise::relu: return a <= 0 ? 0 : a;
    case Pointwise::silu: return a * wide_sigmoid(a);
    case Pointwise::gelu_tanh: return a * wide_sigmoid(2 * kRoot * (a + kThird * a * a * a));
    case Pointwise::gelu_erf: return a * 0.5 * ::erfc(-a * kRootHalf);
    case Pointwise::gelu_tanh_gradient: {
      const double s = wide_sigmoid(2 * kRoot * (a + kThird * a * a * a));
      return (s + a * s * (1 - s) * 2 * kRoot * (1 + 3 * kThird * a * a)) * b;
    }
    case Pointwise::gelu_erf_gradient:
      return (0.5 * ::erfc(-a * kRootHalf) + a * ::exp(-0.5 * a * a) * 0.39894228040143267794) * b;
    case Pointwise::silu_gradient: {
      const double s = wide_sigmoid(a);
      return s * (1 + a * (1 - s)) * b;
    }
    case Pointwise::relu_gradient: return a > 0 ? b : 0;
    case Pointwise::tanh_gradient: return (1 - a * a) * b;
    case Pointwise::sigmoid_gradient: return a * (1 - a) * b;
    case Pointwise::cast: return a;
  }
  return 0;
}

}  // namespace het::kernels
