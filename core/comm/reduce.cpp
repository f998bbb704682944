#include "core/comm/reduce.h"

#include <algorithm>
#include <type_traits>

#include "core/base/error.h"

namespace het {
namespace {

struct Sum {
  template <typename A>
  static A join(A a, A b) {
    return static_cast<A>(a + b);
  }
};
struct Max {
  template <typename A>
  static A join(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) return b > a || b != b ? b : a;
    return b > a ? b : a;
  }
};

// Accumulators of one block stay in the first-level cache; the constant count lets the compiler use vectors.
constexpr int64_t kBlock = 1024;

template <typename T, typename A, typename Op>
void reduce_as(std::byte* out, const std::byte* const* in, int inputs, int64_t count) {
  A sums[kBlock];
  const auto pass = [&](int64_t first, int64_t n) __attribute__((always_inline)) {
    const T* block = reinterpret_cast<const T*>(in[0]) + first;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(block[i]);
    for (int k = 1; k < inputs; ++k) {
      block = reinterpret_cast<const T*>(in[k]) + first;
      for (int64_t i = 0; i < n; ++i) sums[i] = Op::join(sums[i], static_cast<A>(block[i]));
    }
    T* result = reinterpret_cast<T*>(out) + first;
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sums[i]);
  };
  int64_t first = 0;
  for (; first + kBlock <= count; first += kBlock) pass(first, kBlock);
  if (first < count) pass(first, count - first);
}

template <typename Op>
void reduce_with(DType dtype, std::byte* out, const std::byte* const* in, int inputs, int64_t count) {
  constexpr bool wraps = std::is_same_v<Op, Sum>;  // signed overflow would be undefined
  switch (dtype) {
    case DType::f32: return reduce_as<float, float, Op>(out, in, inputs, count);
    case DType::f64: return reduce_as<double, double, Op>(out, in, inputs, count);
    case DType::bf16: return reduce_as<bf16, float, Op>(out, in, inputs, count);
    case DType::f16: return reduce_as<f16, float, Op>(out, in, inputs, count);
    case DType::i32:
      return reduce_as<int32_t, std::conditional_t<wraps, uint32_t, int32_t>, Op>(out, in, inputs, count);
    case DType::i64:
      return reduce_as<int64_t, std::conditional_t<wraps, uint64_t, int64_t>, Op>(out, in, inputs, count);
    case DType::u8: return reduce_as<uint8_t, uint8_t, Op>(out, in, inputs, count);
    case DType::boolean:
    case DType::none: break;
  }
  fail(ErrorKind::bug, "{} cannot be reduced", dtype);
}

}  // namespace

void reduce_blocks(DType dtype, Reduction reduction, std::byte* out, const std::byte* const* in, int inputs,
                   int64_t count) {
  if (reduction == Reduction::sum) return reduce_with<Sum>(dtype, out, in, inputs, count);
  reduce_with<Max>(dtype, out, in, inputs, count);
}

}  // namespace het
