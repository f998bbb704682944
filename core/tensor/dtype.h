// Element types, and the two 16-bit floats as values. Arithmetic on them is done in f32.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace het {

enum class DType : uint8_t { none, f32, f64, bf16, f16, i32, i64, u8, boolean };

std::string_view name_of(DType dtype);                    // "f32", "bf16", ..., "bool"
std::optional<DType> dtype_named(std::string_view name);  // the reverse
int64_t bytes_of(DType dtype);                            // of one element; 0 for none

constexpr bool is_float(DType d) {
  return d == DType::f32 || d == DType::f64 || d == DType::bf16 || d == DType::f16;
}
// The type in which sums of `d` are kept: f64 for f64, f32 for the other floats, else `d` itself. Biases,
// norm weights and gradients of parameters have this type.
constexpr DType accumulator_of(DType d) { return d == DType::bf16 || d == DType::f16 ? DType::f32 : d; }

// The upper half of an f32, rounded to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u
                                                                 : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE 754 binary16, rounded to nearest even; NaN stays NaN. By whole numbers: x86-64 alone has no
// instruction for it, and the compiler's function takes several times as long.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value) {
    constexpr uint32_t kInfinity = 0x7f800000;
    constexpr uint32_t kTooLarge = 0x477ff000;  // 65520
    constexpr uint32_t kNormal = 0x38800000;    // 2^-14
    const uint32_t u = std::bit_cast<uint32_t>(value), size = u & 0x7fffffff;
    const uint32_t sign = (u ^ size) >> 16;
    uint32_t half = 0;
    if (size > kInfinity)
      half = 0x7e00 | (size >> 13 & 0x3ff);
    else if (size >= kTooLarge)
      half = 0x7c00;
    else if (size < kNormal)  // one unit of 0.5f in its last place is 2^-24, as of halves below 2^-14
      half = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    else
      half = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    bits = static_cast<uint16_t>(sign | half);
  }
  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size < 0x400)
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(size) * 0x1p-24f));
    const uint32_t more = size < 0x7c00 ? 112u << 23 : 224u << 23;  // by how much exponents differ
    return std::bit_cast<float>(sign | ((size << 13) + more));
  }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

template <typename T>
inline constexpr DType dtype_of = DType::none;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

}  // namespace het

template <>
struct fmt::formatter<het::DType> : fmt::formatter<std::string_view> {
  auto format(het::DType d, fmt::format_context& c) const {
    return formatter<std::string_view>::format(het::name_of(d), c);
  }
};
