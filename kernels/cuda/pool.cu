// Pooling of images: a thread for each result, and for each element of a gradient, which looks at the windows
// that have it, so that sums have one order.
#include "core/ops/windows.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;

unsigned grid_of(int64_t elements) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(elements, kThreads), int64_t{1} << 20));
}
__device__ inline int64_t first_element() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// The results whose windows have element i: range_of the other way.
__device__ inline Range results_with(const PoolAxis& axis, int64_t i) {
  const Window& window = axis.window;
  if (window.kernel == 0)
    return {i * axis.count / axis.size, ((i + 1) * axis.count + axis.size - 1) / axis.size};
  const int64_t at = i + window.padding, before = at - window.kernel;  // the last window that ends before i
  const int64_t begin = before < 0 ? 0 : before / window.stride + 1, end = at / window.stride + 1;
  return {begin, end < axis.count ? end : axis.count};
}

// The place in a plane of the largest element of a window: the first of equals, NaN before all numbers.
template <typename T>
__device__ inline int64_t largest(const T* plane, const Pooling& p, Range rows, Range columns) {
  int64_t place = rows.begin * p.columns.size + columns.begin;
  float most = to_float(plane[place]);
  for (int64_t iy = rows.begin; iy < rows.end; ++iy)
    for (int64_t ix = columns.begin; ix < columns.end; ++ix) {
      const float value = to_float(plane[iy * p.columns.size + ix]);
      if (!(value > most || value != value)) continue;
      most = value;
      place = iy * p.columns.size + ix;
    }
  return place;
}

__device__ inline float divisor_of(const Pooling& p, Range rows, Range columns) {
  return static_cast<float>(p.divisor > 0 ? p.divisor
                                          : (rows.end - rows.begin) * (columns.end - columns.begin));
}

template <typename T, bool kMax>
__global__ void __launch_bounds__(kThreads) pool(const T* x, T* y, Pooling p, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const Range columns = range_of(p.columns, e % p.columns.count),
                rows = range_of(p.rows, e / p.columns.count % p.rows.count);
    const T* plane = x + e / p.columns.count / p.rows.count * p.rows.size * p.columns.size;
    if constexpr (kMax) {
      y[e] = plane[largest(plane, p, rows, columns)];
    } else {
      float sum = 0;
      for (int64_t iy = rows.begin; iy < rows.end; ++iy)
        for (int64_t ix = columns.begin; ix < columns.end; ++ix)
          sum += to_float(plane[iy * p.columns.size + ix]);
      y[e] = from_float<T>(sum / divisor_of(p, rows, columns));
    }
  }
}

// x is null for means.
template <typename T, bool kMax>
__global__ void __launch_bounds__(kThreads)
    pool_gradient(const T* dy, const T* x, T* dx, Pooling p, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const int64_t size = p.rows.size * p.columns.size, plane = e / size, own = e % size;
    const Range ys = results_with(p.rows, own / p.columns.size),
                xs = results_with(p.columns, own % p.columns.size);
    float sum = 0;
    for (int64_t r = ys.begin; r < ys.end; ++r)
      for (int64_t u = xs.begin; u < xs.end; ++u) {
        const Range rows = range_of(p.rows, r), columns = range_of(p.columns, u);
        const float given = to_float(dy[(plane * p.rows.count + r) * p.columns.count + u]);
        if constexpr (kMax)
          sum += largest(x + plane * size, p, rows, columns) == own ? given : 0.0f;
        else
          sum += given / divisor_of(p, rows, columns);
      }
    dx[e] = from_float<T>(sum);
  }
}

Pooling pooling(const KernelRequest& request, const Layout& image, const Layout& result) {
  require_packed_floats(request);
  return pooling_of(request.op.name, image.type.shape, result.type.shape, request.attributes);
}

template <bool kMax>
std::unique_ptr<Kernel> prepare_pool(const KernelRequest& request, const Context& context) {
  const Pooling p = pooling(request, request.inputs[0], request.outputs[0]);
  const int64_t count = request.outputs[0].type.elements();
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      launch(context, pool<T, kMax>, grid_of(count), kThreads, 0, a.in<T>(0), a.out<T>(0), p, count);
    });
  });
}

template <bool kMax>
std::unique_ptr<Kernel> prepare_gradient(const KernelRequest& request, const Context& context) {
  const Pooling p = pooling(request, request.outputs[0], request.inputs[0]);
  const int64_t count = request.outputs[0].type.elements();
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const T* x = nullptr;
      if constexpr (kMax) x = a.in<T>(1);
      launch(context, pool_gradient<T, kMax>, grid_of(count), kThreads, 0, a.in<T>(0), x, a.out<T>(0), p,
             count);
    });
  });
}

}  // namespace

std::vector<Entry> pool_kernels() {
  return {{"max_pool2d", prepare_pool<true>},
          {"max_pool2d_gradient", prepare_gradient<true>},
          {"avg_pool2d", prepare_pool<false>},
          {"avg_pool2d_gradient", prepare_gradient<false>},
          {"adaptive_avg_pool2d", prepare_pool<false>},
          {"adaptive_avg_pool2d_gradient", prepare_gradient<false>}};
}

}  // namespace het::HET_CUDA
