// Layer norm and RMS norm over rows of the last dimension. A block takes a row at a time; statistics and sums
// are f32. Gradients of weight and bias are column sums over all rows: each block sums its own rows into the
// workspace, then the blocks' sums are added in order.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;

struct Rows {
  int64_t count, columns;
};

Rows rows_of(const KernelRequest& request, const Layout& layout) {
  require_packed(request, layout);
  const Split3 split = split_at(layout.type.shape, -1);
  return {split.outer, split.size};
}

// Visit the columns of a row: each(i, pack size) where the thread has kPack elements from i on, or one.
template <typename T, typename Each>
__device__ void each_column(bool packed, int64_t n, const Each& each) {
  constexpr int N = kPack<T>;
  if (packed)
    for (int64_t i = threadIdx.x * N; i < n; i += blockDim.x * N) each(i, std::integral_constant<int, N>{});
  else
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) each(i, std::integral_constant<int, 1>{});
}

template <typename T, bool kCentred>
__global__ void __launch_bounds__(kThreads)
    norm(const T* x, const float* weight, const float* bias, T* y, float* means, float* rstds, int64_t rows,
         int64_t n, float eps) {
  __shared__ float scratch[kThreads / kWarp];
  const bool packed = packs(x, n, kPack<T>) && packs(y, n, kPack<T>) && packs(weight, n, kPack<T>) &&
                      packs(bias, n, kPack<T>);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    T* out = y + row * n;
    float mean = 0;
    if constexpr (kCentred) {
      float sum = 0;
      each_column<T>(packed, n, [&](int64_t i, auto size) {
        float v[size()];
        load(v, in + i);
        for (int k = 0; k < size(); ++k) sum += v[k];
      });
      mean = block_sum(sum, scratch) / n;
    }
    float square = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()];
      load(v, in + i);
      for (int k = 0; k < size(); ++k) square += (v[k] - mean) * (v[k] - mean);
    });
    const float rstd = 1.0f / sqrtf(block_sum(square, scratch) / n + eps);
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()], w[size()] = {}, b[size()] = {};
      load(v, in + i);
      if (weight != nullptr) load(w, weight + i);
      if (bias != nullptr) load(b, bias + i);
      for (int k = 0; k < size(); ++k) {
        v[k] = (v[k] - mean) * rstd;
        if (weight != nullptr) v[k] *= w[k];
        if (bias != nullptr) v[k] += b[k];
      }
      store(out + i, v);
    });
    if (threadIdx.x == 0) {
      if constexpr (kCentred) means[row] = mean;
      rstds[row] = rstd;
    }
  }
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm(const KernelRequest& request, const Context& context) {
  const Rows rows = rows_of(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const float eps = static_cast<float>(number(request, "eps", 1e-5));
  const bool has_weight = present(request.inputs, 1), has_bias = kCentred && present(request.inputs, 2);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      launch(context, norm<T, kCentred>, static_cast<unsigned>(std::min<int64_t>(rows.count, 1 << 20)),
             kThreads, 0, a.in<T>(0), has_weight ? a.in<float>(1) : nullptr,
             has_bias ? a.in<float>(2) : nullptr, a.out<T>(0), kCentred ? a.out<float>(1) : nullptr,
             a.out<float>(kCentred ? 2 : 1), rows.count, rows.columns, eps);
    });
  });
}

// With g = dy * weight and h = (x - mean) * rstd:
// dx = rstd * (g - mean(g) - h * mean(g * h)), the middle term only when centred; dweight = sum dy * h; dbias
// = sum dy. Block b takes rows b, b + grid, ... and leaves its sums in sums[b].
template <typename T, bool kCentred>
__global__ void __launch_bounds__(kThreads)
    norm_gradient(const T* dy, const T* x, const float* weight, const float* means, const float* rstds, T* dx,
                  float* sums, int64_t rows, int64_t n) {
  __shared__ float scratch[kThreads / kWarp];
  float* dweight = sums == nullptr ? nullptr : sums + blockIdx.x * 2 * n;
  float* dbias = dweight + n;
  const bool packed = packs(dy, n, kPack<T>) && packs(x, n, kPack<T>) && packs(dx, n, kPack<T>) &&
                      packs(weight, n, kPack<T>) && packs(sums, n, kPack<T>);
  if (sums != nullptr)
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      for (int k = 0; k < size(); ++k) dweight[i + k] = dbias[i + k] = 0;
    });
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float mean = kCentred ? means[row] : 0.0f, rstd = rstds[row];
    const int64_t at = row * n;
    float sum_g = 0, sum_gh = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float d[size()], v[size()], w[size()] = {};
      load(d, dy + at + i);
      load(v, x + at + i);
      if (weight != nullptr) load(w, weight + i);
      for (int k = 0; k < size(); ++k) {
        const float h = (v[k] - mean) * rstd, g = weight == nullptr ? d[k] : d[k] * w[k];
        sum_g += g;
        sum_gh += g * h;
        if (sums != nullptr) {
          dweight[i + k] += d[k] * h;
          dbias[i + k] += d[k];
        }
      }
    });
    const float mean_g = kCentred ? block_sum(sum_g, scratch) / n : 0.0f,
                mean_gh = block_sum(sum_gh, scratch) / n;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float d[size()], v[size()], w[size()] = {};
      load(d, dy + at + i);
      load(v, x + at + i);
      if (weight != nullptr) load(w, weight + i);
      for (int k = 0; k < size(); ++k) {
        const float h = (v[k] - mean) * rstd, g = weight == nullptr ? d[k] : d[k] * w[k];
        d[k] = (g - mean_g - h * mean_gh) * rstd;
      }
      store(dx + at + i, d);
    });
  }
}

// to[i] = (or +=) the sum over parts of from[part * step + i].
__global__ void add_parts(const float* from, int64_t parts, int64_t step, float* to, int64_t count,
                          bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float sum = accumulate ? to[i] : 0.0f;
  for (int64_t part = 0; part < parts; ++part) sum += from[part * step + i];
  to[i] = sum;
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm_gradient(const KernelRequest& request, const Context& context) {
  const Rows rows = rows_of(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const bool has_weight = present(request.inputs, 2);
  const bool wants_weight = present(request.outputs, 1), wants_bias = kCentred && present(request.outputs, 2);
  const uint32_t accumulate = request.accumulate;
  const int64_t n = rows.columns, parts = std::min<int64_t>(rows.count, 2 * context.multiprocessors);
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          float* sums = wants_weight || wants_bias ? reinterpret_cast<float*>(a.workspace) : nullptr;
          launch(context, norm_gradient<T, kCentred>, static_cast<unsigned>(parts), kThreads, 0, a.in<T>(0),
                 a.in<T>(1), has_weight ? a.in<float>(2) : nullptr, kCentred ? a.in<float>(3) : nullptr,
                 a.in<float>(kCentred ? 4 : 3), a.out<T>(0), sums, rows.count, n);
          const auto grid = static_cast<unsigned>(ceil_div(n, kThreads));
          if (wants_weight)
            launch(context, add_parts, grid, kThreads, 0, sums, parts, 2 * n, a.out<float>(1), n,
                   accumulate >> 1 & 1);
          if (wants_bias)
            launch(context, add_parts, grid, kThreads, 0, sums + n, parts, 2 * n, a.out<float>(2), n,
                   accumulate >> 2 & 1);
        },
        wants_weight || wants_bias ? parts * 2 * n * 4 : 0);
  });
}

}  // namespace

std::vector<Entry> norm_kernels() {
  return {{"layer_norm", prepare_norm<true>},
          {"layer_norm_gradient", prepare_norm_gradient<true>},
          {"rms_norm", prepare_norm<false>},
          {"rms_norm_gradient", prepare_norm_gradient<false>}};
}

}  // namespace het::HET_CUDA
