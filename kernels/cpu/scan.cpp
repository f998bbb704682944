// Cumulative sums: a thread takes whole rows of the last dimension, or strips of columns along another one.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kStrip = 256;  // columns whose sums are kept together

// Along the last dimension; in f64, since rows can be long.
template <typename T>
void scan_row(const T* x, T* y, int64_t n, bool reverse) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t at = reverse ? n - 1 - k : k;
    sum += static_cast<float>(x[at]);
    y[at] = static_cast<T>(static_cast<float>(sum));
  }
}

template <typename T>
void scan_strip(const T* x, T* y, const Split3& s, int64_t columns, bool reverse) {
  float sums[kStrip] = {};
  for (int64_t k = 0; k < s.size; ++k) {
    const int64_t at = (reverse ? s.size - 1 - k : k) * s.inner;
    for_lanes(columns, [&](int64_t i, auto lanes) {
      const Vector sum = load(sums + i, lanes) + load(x + at + i, lanes);
      store(sums + i, sum, lanes);
      store(y + at + i, sum, lanes);
    });
  }
}

std::unique_ptr<Kernel> prepare_cumsum(const KernelRequest& request) {
  require_packed_floats(request);
  const Split3 s = split_at(request.inputs[0].type.shape, integer(request, "dim", -1));
  const bool reverse = flag(request, "reverse", false);
  const int64_t strips = (s.inner + kStrip - 1) / kStrip, items = s.outer * strips;
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      parallel_for(items, row_grain(kHeavyGrain, s.size), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t column = item % strips * kStrip, at = item / strips * s.size * s.inner + column;
          const T* x = a.in<T>(0) + at;
          T* y = a.out<T>(0) + at;
          if (s.inner == 1)
            scan_row(x, y, s.size, reverse);
          else
            scan_strip(x, y, s, s.inner - column < kStrip ? s.inner - column : kStrip, reverse);
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> scan_kernels() { return {{"cumsum", prepare_cumsum}}; }

}  // namespace het::cpu::HET_ISA
