// Powers with whole exponents, equal to the last bit on processors and GPUs.
#pragma once

#include <cstdint>

namespace het::kernels {

// base^exponent for exponent >= 0, by multiplications alone, which every device rounds alike.
inline __attribute__((always_inline)) constexpr double integer_power(double base, int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace het::kernels
