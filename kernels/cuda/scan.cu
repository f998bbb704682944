// Cumulative sums in f32: a warp for a row of the last dimension, 32 entries at a time; along another
// dimension a thread for each column.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scan_rows(const T* x, T* y, int64_t rows, int64_t n, bool reverse) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = threadIdx.x % kWarp;
  float carry = 0;  // of the entries before
  for (int64_t base = 0; base < n; base += kWarp) {
    const int64_t k = base + lane, at = row * n + (reverse ? n - 1 - k : k);
    float sum = k < n ? to_float(x[at]) : 0.0f;
    for (int step = 1; step < kWarp; step *= 2) {
      const float before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    sum += carry;
    if (k < n) y[at] = from_float<T>(sum);
    carry = __shfl_sync(~0u, sum, kWarp - 1);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scan_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool reverse) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int64_t first = column / inner * n * inner + column % inner;
  float sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t at = first + (reverse ? n - 1 - k : k) * inner;
    sum += to_float(x[at]);
    y[at] = from_float<T>(sum);
  }
}

std::unique_ptr<Kernel> prepare_cumsum(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Split3 s = split_at(request.inputs[0].type.shape, integer(request, "dim", -1));
  const bool reverse = flag(request, "reverse", false);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const int64_t columns = s.outer * s.inner;
      const auto grid = static_cast<unsigned>(ceil_div(s.inner == 1 ? columns * kWarp : columns, kThreads));
      if (s.inner == 1)
        launch(context, scan_rows<T>, grid, kThreads, 0, a.in<T>(0), a.out<T>(0), columns, s.size, reverse);
      else
        launch(context, scan_columns<T>, grid, kThreads, 0, a.in<T>(0), a.out<T>(0), columns, s.size, s.inner,
               reverse);
    });
  });
}

}  // namespace

std::vector<Entry> scan_kernels() { return {{"cumsum", prepare_cumsum}}; }

}  // namespace het::HET_CUDA
