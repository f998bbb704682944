// Elements as doubles, and back: the conversions of `cast`, for everything that computes one element at a
// time.
#pragma once

#include <cstddef>
#include <limits>

#include "core/tensor/dtype.h"

namespace het {

// Towards zero; beyond the range of T its nearest end, NaN gives 0.
template <typename T>
constexpr T to_integer(double value) {
  constexpr T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  constexpr double beyond = static_cast<double>(most / 2 + 1) * 2.0;
  if (value != value) return 0;
  if (value < static_cast<double>(least)) return least;
  return value >= beyond ? most : static_cast<T>(value);
}

double load_element(const std::byte* from, DType dtype);
void store_element(std::byte* to, DType dtype, double value);

}  // namespace het
