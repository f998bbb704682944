// Softmax and its gradient along any dimension, in f32. Rows of the last dimension stay in registers between
// the passes, so that memory is read once: a warp keeps up to 1024 elements (512 of each operand for the
// gradient), a block up to 32768 (16384); longer rows are read twice. Along another dimension neighbouring
// threads take neighbouring columns.
#include <algorithm>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256, kMostThreads = 1024;
// Elements of each operand that a thread keeps.
constexpr int kSoftmaxValues = 32, kGradientValues = 16;

// The largest of some numbers and the sum of their exponentials relative to it.
struct Running {
  float top = -INFINITY, sum = 0;

  __device__ void add(float x) {
    if (x > top) {
      sum = sum * expf(top - x) + 1.0f;
      top = x;
    } else if (x != -INFINITY) {
      sum += expf(x - top);
    }
  }
  // The sum relative to `other`, which is no smaller than top.
  __device__ float relative_to(float other) const {
    return top == -INFINITY ? 0.0f : sum * expf(top - other);
  }
};

// A row that kGroup threads share: a warp's lanes, or a block of kGroup threads.
template <int kGroup>
struct Row {
  int lane;
  float* scratch;

  __device__ float sum(float x) const { return kGroup == kWarp ? warp_sum(x) : block_sum(x, scratch); }
  __device__ float max(float x) const { return kGroup == kWarp ? warp_max(x) : block_max(x, scratch); }
  // The thread's elements of the row, kValues at most; `missing` past its end. Each thread has packs, or,
  // where those are not possible, every kGroup-th element.
  template <int kValues, typename T>
  __device__ void read(const T* x, int64_t n, bool packed, float missing, float (&v)[kValues]) const {
    constexpr int N = kPack<T>;
    Raw<T, N> raw[kValues / N];
#pragma unroll
    for (int p = 0; p < kValues / N; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * kGroup + lane) * N;
      if (packed && column < n) raw[p].load(x + column);
    }
#pragma unroll
    for (int p = 0; p < kValues / N; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int i = p * N + k;
        if (packed)
          v[i] = (static_cast<int64_t>(p) * kGroup + lane) * N < n ? raw[p][k] : missing;
        else
          v[i] = i * kGroup + lane < n ? to_float(x[i * kGroup + lane]) : missing;
      }
  }
  template <int kValues, typename T>
  __device__ void write(T* y, int64_t n, bool packed, const float (&v)[kValues]) const {
    constexpr int N = kPack<T>;
#pragma unroll
    for (int p = 0; p < kValues / N; ++p) {
      float part[N];
#pragma unroll
      for (int k = 0; k < N; ++k) part[k] = v[p * N + k];
      const int64_t column = (static_cast<int64_t>(p) * kGroup + lane) * N;
      if (packed && column < n) store(y + column, part);
      if (!packed) {
#pragma unroll
        for (int k = 0; k < N; ++k)
          if ((p * N + k) * kGroup + lane < n) y[(p * N + k) * kGroup + lane] = from_float<T>(part[k]);
      }
    }
  }
};

// Threads of a block whose rows are shared by kGroup threads.
constexpr int block_of(int group) { return group == kWarp ? kThreads : group; }

// The row of this thread, and how its group shares it. False: there is none, for the whole group.
template <int kGroup>
__device__ bool find_row(int64_t rows, float* scratch, int64_t& row, Row<kGroup>& share) {
  share = {static_cast<int>(threadIdx.x) % kGroup, scratch};
  row = static_cast<int64_t>(blockIdx.x) * (block_of(kGroup) / kGroup) + threadIdx.x / kGroup;
  return row < rows;
}

template <typename T, int kGroup>
__global__ void __launch_bounds__(block_of(kGroup))
    softmax_rows(const T* x, T* y, int64_t rows, int64_t n, bool packed) {
  __shared__ float scratch[kMostThreads / kWarp];
  int64_t row;
  Row<kGroup> share;
  if (!find_row(rows, scratch, row, share)) return;
  float v[kSoftmaxValues], top = -INFINITY, sum = 0;
  share.read(x + row * n, n, packed, -INFINITY, v);
#pragma unroll
  for (float each : v) top = fmaxf(top, each);
  top = share.max(top);
#pragma unroll
  for (float& each : v) {
    each = expf(each - top);
    sum += each;
  }
  const float factor = 1.0f / share.sum(sum);
#pragma unroll
  for (float& each : v) each *= factor;
  share.write(y + row * n, n, packed, v);
}

template <typename T, int kGroup>
__global__ void __launch_bounds__(block_of(kGroup))
    softmax_gradient_rows(const T* y, const T* dy, T* dx, int64_t rows, int64_t n, bool packed) {
  __shared__ float scratch[kMostThreads / kWarp];
  int64_t row;
  Row<kGroup> share;
  if (!find_row(rows, scratch, row, share)) return;
  float v[kGradientValues], d[kGradientValues], dot = 0;
  share.read(y + row * n, n, packed, 0.0f, v);
  share.read(dy + row * n, n, packed, 0.0f, d);
#pragma unroll
  for (int i = 0; i < kGradientValues; ++i) dot += v[i] * d[i];
  dot = share.sum(dot);
#pragma unroll
  for (int i = 0; i < kGradientValues; ++i) v[i] *= d[i] - dot;
  share.write(dx + row * n, n, packed, v);
}

// ---- rows that no block keeps: each(column, values) over the row, twice ----

template <typename T, typename Each>
__device__ void each_pack(int64_t n, bool packed, const Each& each) {
  constexpr int N = kPack<T>;
  if (packed)
    for (int64_t i = threadIdx.x * N; i < n; i += kMostThreads * N) each(i, std::integral_constant<int, N>{});
  else
    for (int64_t i = threadIdx.x; i < n; i += kMostThreads) each(i, std::integral_constant<int, 1>{});
}

template <typename T>
__global__ void __launch_bounds__(kMostThreads) softmax_long_rows(const T* x, T* y, int64_t n, bool packed) {
  __shared__ float scratch[kMostThreads / kWarp];
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  Running running;
  each_pack<T>(n, packed, [&](int64_t i, auto size) {
    float v[size()];
    load(v, x + i);
#pragma unroll
    for (int k = 0; k < size(); ++k) running.add(v[k]);
  });
  const float top = block_max(running.top, scratch);
  const float factor = 1.0f / block_sum(running.relative_to(top), scratch);
  each_pack<T>(n, packed, [&](int64_t i, auto size) {
    float v[size()];
    load(v, x + i);
#pragma unroll
    for (int k = 0; k < size(); ++k) v[k] = expf(v[k] - top) * factor;
    store(y + i, v);
  });
}

template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    softmax_gradient_long_rows(const T* y, const T* dy, T* dx, int64_t n, bool packed) {
  __shared__ float scratch[kMostThreads / kWarp];
  y += blockIdx.x * n;
  dy += blockIdx.x * n;
  dx += blockIdx.x * n;
  float dot = 0;
  each_pack<T>(n, packed, [&](int64_t i, auto size) {
    float v[size()], d[size()];
    load(v, y + i);
    load(d, dy + i);
#pragma unroll
    for (int k = 0; k < size(); ++k) dot += v[k] * d[k];
  });
  dot = block_sum(dot, scratch);
  each_pack<T>(n, packed, [&](int64_t i, auto size) {
    float v[size()], d[size()];
    load(v, y + i);
    load(d, dy + i);
#pragma unroll
    for (int k = 0; k < size(); ++k) v[k] *= d[k] - dot;
    store(dx + i, v);
  });
}

// ---- columns: [outer, n, inner] along n. Thread (x, y) of a block takes of column x every element that is y
// modulo kHeight ----

constexpr int kHeight = kThreads / kWarp;

// Where the thread's column begins; past the last one threads go on without a column, for the barriers.
__device__ inline int64_t column_start(const Split3& split, bool& there) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  there = column < split.outer * split.inner;
  return column / split.inner * split.size * split.inner + column % split.inner;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) softmax_columns(const T* x, T* y, Split3 split) {
  __shared__ float tops[kHeight][kWarp], sums[kHeight][kWarp];
  bool there;
  const int64_t start = column_start(split, there);
  const unsigned column = threadIdx.x, first = threadIdx.y;
  Running running;
  for (int64_t i = first; there && i < split.size; i += kHeight)
    running.add(to_float(x[start + i * split.inner]));
  tops[first][column] = running.top;
  __syncthreads();
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < kHeight; ++i) top = fmaxf(top, tops[i][column]);
  sums[first][column] = running.relative_to(top);
  __syncthreads();
  for (int i = 0; i < kHeight; ++i) sum += sums[i][column];
  const float factor = 1.0f / sum;
  for (int64_t i = first; there && i < split.size; i += kHeight)
    y[start + i * split.inner] = from_float<T>(expf(to_float(x[start + i * split.inner]) - top) * factor);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_columns(const T* y, const T* dy, T* dx, Split3 split) {
  __shared__ float dots[kHeight][kWarp];
  bool there;
  const int64_t start = column_start(split, there);
  const unsigned column = threadIdx.x, first = threadIdx.y;
  float dot = 0;
  for (int64_t i = first; there && i < split.size; i += kHeight)
    dot += to_float(y[start + i * split.inner]) * to_float(dy[start + i * split.inner]);
  dots[first][column] = dot;
  __syncthreads();
  dot = 0;
  for (int i = 0; i < kHeight; ++i) dot += dots[i][column];
  for (int64_t i = first; there && i < split.size; i += kHeight)
    dx[start + i * split.inner] =
        from_float<T>(to_float(y[start + i * split.inner]) * (to_float(dy[start + i * split.inner]) - dot));
}

// ---- what a part of the dimension gives: numbers [outer, inner]. The threads of a block take a row
// together, or a column each kHeight of them ----

constexpr float kLowestFinite = -3.402823466e38f;  // the largest of nothing but -inf

template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_statistics_rows(const T* x, float* tops, float* sums, int64_t n) {
  __shared__ float scratch[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  Running running;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) running.add(to_float(x[row * n + i]));
  const float top = fmaxf(block_max(running.top, scratch), kLowestFinite);
  const float sum = block_sum(running.relative_to(top), scratch);
  if (threadIdx.x == 0) {
    tops[row] = top;
    sums[row] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_statistics_columns(const T* x, float* tops, float* sums, Split3 split) {
  __shared__ float top_of[kHeight][kWarp], sum_of[kHeight][kWarp];
  bool there;
  const int64_t start = column_start(split, there);
  const unsigned column = threadIdx.x, first = threadIdx.y;
  Running running;
  for (int64_t i = first; there && i < split.size; i += kHeight)
    running.add(to_float(x[start + i * split.inner]));
  top_of[first][column] = running.top;
  __syncthreads();
  float top = kLowestFinite, sum = 0;
  for (int i = 0; i < kHeight; ++i) top = fmaxf(top, top_of[i][column]);
  sum_of[first][column] = running.relative_to(top);
  __syncthreads();
  for (int i = 0; i < kHeight; ++i) sum += sum_of[i][column];
  if (there && first == 0) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarp + column;
    tops[at] = top;
    sums[at] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_sums_rows(const T* y, const T* dy, float* sums, int64_t n) {
  __shared__ float scratch[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads)
    dot += to_float(y[row * n + i]) * to_float(dy[row * n + i]);
  dot = block_sum(dot, scratch);
  if (threadIdx.x == 0) sums[row] = dot;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_sums_columns(const T* y, const T* dy, float* sums, Split3 split) {
  __shared__ float dots[kHeight][kWarp];
  bool there;
  const int64_t start = column_start(split, there);
  const unsigned column = threadIdx.x, first = threadIdx.y;
  float dot = 0;
  for (int64_t i = first; there && i < split.size; i += kHeight)
    dot += to_float(y[start + i * split.inner]) * to_float(dy[start + i * split.inner]);
  dots[first][column] = dot;
  __syncthreads();
  dot = 0;
  for (int i = 0; i < kHeight; ++i) dot += dots[i][column];
  if (there && first == 0) sums[static_cast<int64_t>(blockIdx.x) * kWarp + column] = dot;
}

// ---- the choice ----

// choose(group) for rows of n elements, `values` of them kept by a thread: the smallest group that keeps a
// row; 0 where none does.
int group_for(int64_t n, int values) {
  for (const int group : {kWarp, kThreads, kMostThreads})
    if (n <= int64_t{group} * values) return group;
  return 0;
}
unsigned blocks_for(int64_t rows, int group) {
  return static_cast<unsigned>(group == 0 ? rows : ceil_div(rows, block_of(group) / group));
}

std::unique_ptr<Kernel> prepare_softmax(const KernelRequest& request, const Context& context) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  if (type.elements() == 0) return make_kernel([](const KernelArguments&) {});
  return for_float(request, type.dtype, [&]<typename T>(T) -> std::unique_ptr<Kernel> {
    const int64_t rows = split.outer, n = split.size;
    if (split.inner != 1)
      return make_kernel([=, &context](const KernelArguments& a) {
        launch(context, softmax_columns<T>, static_cast<unsigned>(ceil_div(split.outer * split.inner, kWarp)),
               dim3(kWarp, kHeight), 0, a.in<T>(0), a.out<T>(0), split);
      });
    const int group = group_for(n, kSoftmaxValues);
    const unsigned grid = blocks_for(rows, group);
    return make_kernel([=, &context](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      T* y = a.out<T>(0);
      const bool packed = packs(x, n, kPack<T>) && packs(y, n, kPack<T>);
      switch (group) {
        case kWarp: return launch(context, softmax_rows<T, kWarp>, grid, kThreads, 0, x, y, rows, n, packed);
        case kThreads:
          return launch(context, softmax_rows<T, kThreads>, grid, kThreads, 0, x, y, rows, n, packed);
        case kMostThreads:
          return launch(context, softmax_rows<T, kMostThreads>, grid, kMostThreads, 0, x, y, rows, n, packed);
        default: return launch(context, softmax_long_rows<T>, grid, kMostThreads, 0, x, y, n, packed);
      }
    });
  });
}

std::unique_ptr<Kernel> prepare_softmax_gradient(const KernelRequest& request, const Context& context) {
  const TensorType& type = request.inputs[0].type;
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  if (type.elements() == 0) return make_kernel([](const KernelArguments&) {});
  return for_float(request, type.dtype, [&]<typename T>(T) -> std::unique_ptr<Kernel> {
    const int64_t rows = split.outer, n = split.size;
    if (split.inner != 1)
      return make_kernel([=, &context](const KernelArguments& a) {
        launch(context, softmax_gradient_columns<T>,
               static_cast<unsigned>(ceil_div(split.outer * split.inner, kWarp)), dim3(kWarp, kHeight), 0,
               a.in<T>(0), a.in<T>(1), a.out<T>(0), split);
      });
    const int group = group_for(n, kGradientValues);
    const unsigned grid = blocks_for(rows, group);
    return make_kernel([=, &context](const KernelArguments& a) {
      const T *y = a.in<T>(0), *dy = a.in<T>(1);
      T* dx = a.out<T>(0);
      const bool packed = packs(y, n, kPack<T>) && packs(dy, n, kPack<T>) && packs(dx, n, kPack<T>);
      switch (group) {
        case kWarp:
          return launch(context, softmax_gradient_rows<T, kWarp>, grid, kThreads, 0, y, dy, dx, rows, n,
                        packed);
        case kThreads:
          return launch(context, softmax_gradient_rows<T, kThreads>, grid, kThreads, 0, y, dy, dx, rows, n,
                        packed);
        case kMostThreads:
          return launch(context, softmax_gradient_rows<T, kMostThreads>, grid, kMostThreads, 0, y, dy, dx,
                        rows, n, packed);
        default:
          return launch(context, softmax_gradient_long_rows<T>, grid, kMostThreads, 0, y, dy, dx, n, packed);
      }
    });
  });
}

std::unique_ptr<Kernel> prepare_softmax_statistics(const KernelRequest& request, const Context& context) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  const int64_t columns = split.outer * split.inner;
  if (columns == 0) return make_kernel([](const KernelArguments&) {});
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      float *tops = a.out<float>(0), *sums = tops + columns;
      if (split.inner == 1)
        launch(context, softmax_statistics_rows<T>, static_cast<unsigned>(columns), kThreads, 0, x, tops,
               sums, split.size);
      else
        launch(context, softmax_statistics_columns<T>, static_cast<unsigned>(ceil_div(columns, kWarp)),
               dim3(kWarp, kHeight), 0, x, tops, sums, split);
    });
  });
}

std::unique_ptr<Kernel> prepare_softmax_gradient_sums(const KernelRequest& request, const Context& context) {
  const TensorType& type = request.inputs[0].type;
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  const int64_t columns = split.outer * split.inner;
  if (columns == 0) return make_kernel([](const KernelArguments&) {});
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const T *y = a.in<T>(0), *dy = a.in<T>(1);
      float* sums = a.out<float>(0);
      if (split.inner == 1)
        launch(context, softmax_gradient_sums_rows<T>, static_cast<unsigned>(columns), kThreads, 0, y, dy,
               sums, split.size);
      else
        launch(context, softmax_gradient_sums_columns<T>, static_cast<unsigned>(ceil_div(columns, kWarp)),
               dim3(kWarp, kHeight), 0, y, dy, sums, split);
    });
  });
}

}  // namespace

std::vector<Entry> softmax_kernels() {
  return {{"softmax", prepare_softmax},
          {"softmax_gradient", prepare_softmax_gradient},
          {"softmax_statistics", prepare_softmax_statistics},
          {"softmax_gradient_sums", prepare_softmax_gradient_sums}};
}

}  // namespace het::HET_CUDA
