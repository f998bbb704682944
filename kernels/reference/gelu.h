// gelu by tanh, which the elementwise kernels and the products make.
#pragma once

#include <cmath>
#include <numbers>

namespace het::reference {

// a/2 (1 + tanh(u)), u = sqrt(2/pi) (a + 0.044715 a^3)
inline double gelu(double a) {
  return a / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a)));
}

// Its derivative.
inline double gelu_slope(double a) {
  const double root = std::sqrt(2 / std::numbers::pi), th = std::tanh(root * (a + 0.044715 * a * a * a));
  return 0.5 * (1 + th) + 0.5 * a * (1 - th * th) * root * (1 + 3 * 0.044715 * a * a);
}

}  // namespace het::reference
