// Elements as doubles, and back: the conversions of `cast`, for everything that computes one element at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
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

inline double load_element(const std::byte* base, DType dtype, int64_t index = 0) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const float*>(base)[index];
    case DType::f64: return reinterpret_cast<const double*>(base)[index];
    case DType::bf16: return static_cast<float>(reinterpret_cast<const bf16*>(base)[index]);
    case DType::f16: return static_cast<float>(reinterpret_cast<const f16*>(base)[index]);
    case DType::i32: return reinterpret_cast<const int32_t*>(base)[index];
    case DType::i64: return static_cast<double>(reinterpret_cast<const int64_t*>(base)[index]);
    case DType::u8: return reinterpret_cast<const uint8_t*>(base)[index];
    case DType::boolean: return reinterpret_cast<const uint8_t*>(base)[index] != 0;
    case DType::none: break;
  }
  return 0;
}

inline void store_element(std::byte* base, DType dtype, double value, int64_t index = 0) {
  switch (dtype) {
    case DType::f32: reinterpret_cast<float*>(base)[index] = static_cast<float>(value); break;
    case DType::f64: reinterpret_cast<double*>(base)[index] = value; break;
    case DType::bf16: reinterpret_cast<bf16*>(base)[index] = bf16(static_cast<float>(value)); break;
    case DType::f16: reinterpret_cast<f16*>(base)[index] = f16(static_cast<float>(value)); break;
    case DType::i32: reinterpret_cast<int32_t*>(base)[index] = to_integer<int32_t>(value); break;
    case DType::i64: reinterpret_cast<int64_t*>(base)[index] = to_integer<int64_t>(value); break;
    case DType::u8: reinterpret_cast<uint8_t*>(base)[index] = to_integer<uint8_t>(value); break;
    case DType::boolean: reinterpret_cast<uint8_t*>(base)[index] = value != 0; break;
    case DType::none: break;
  }
}

}  // namespace het
