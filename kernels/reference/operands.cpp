#include "kernels/reference/operands.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace het::reference {
namespace {

template <typename T>
T saturated(double value) {
  if (std::isnan(value)) return 0;
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  const double high = static_cast<double>(std::numeric_limits<T>::max());
  if (value <= low) return std::numeric_limits<T>::min();
  if (value >= high) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

const Layout kNone;

}  // namespace

double load(const std::byte* base, DType dtype, int64_t element) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const float*>(base)[element];
    case DType::f64: return reinterpret_cast<const double*>(base)[element];
    case DType::bf16: return static_cast<float>(reinterpret_cast<const bf16*>(base)[element]);
    case DType::f16: return static_cast<float>(reinterpret_cast<const f16*>(base)[element]);
    case DType::i32: return reinterpret_cast<const int32_t*>(base)[element];
    case DType::i64: return static_cast<double>(reinterpret_cast<const int64_t*>(base)[element]);
    case DType::u8: return reinterpret_cast<const uint8_t*>(base)[element];
    case DType::boolean: return reinterpret_cast<const uint8_t*>(base)[element] != 0;
    case DType::none: break;
  }
  return 0;
}

void store(std::byte* base, DType dtype, int64_t element, double value) {
  switch (dtype) {
    case DType::f32: reinterpret_cast<float*>(base)[element] = static_cast<float>(value); break;
    case DType::f64: reinterpret_cast<double*>(base)[element] = value; break;
    case DType::bf16: reinterpret_cast<bf16*>(base)[element] = bf16(static_cast<float>(value)); break;
    case DType::f16: reinterpret_cast<f16*>(base)[element] = f16(static_cast<float>(value)); break;
    case DType::i32: reinterpret_cast<int32_t*>(base)[element] = saturated<int32_t>(value); break;
    case DType::i64: reinterpret_cast<int64_t*>(base)[element] = saturated<int64_t>(value); break;
    case DType::u8: reinterpret_cast<uint8_t*>(base)[element] = saturated<uint8_t>(value); break;
    case DType::boolean: reinterpret_cast<uint8_t*>(base)[element] = value != 0; break;
    case DType::none: break;
  }
}

int64_t View::offset_of(int64_t flat) const {
  if (packed_) return flat;
  int64_t offset = 0;
  for (int64_t d = rank() - 1; d >= 0; --d) {
    offset += flat % layout_->type.shape[d] * layout_->strides[d];
    flat /= layout_->type.shape[d];
  }
  return offset;
}

View Operands::none() { return View(nullptr, kNone, false); }

int64_t leading(const Layout& layout, int64_t n) {
  int64_t rows = 1;
  for (size_t d = 0; d + n < layout.type.shape.size(); ++d) rows *= layout.type.shape[d];
  return rows;
}

}  // namespace het::reference
