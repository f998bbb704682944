// Entries of rows by index, and sums of entries by index: the thread of the first entry with an index adds
// all that have it, in order, so that sums need no atomics.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 128;
unsigned grid_of(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

struct Indexed {
  int64_t n, k, count;  // entries of a row; how many of them are indexed, and of all rows
};

Indexed rows_by_index(const KernelRequest& request, const Layout& all) {
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const TensorType& index = request.inputs[1].type;
  if (index.dtype != DType::i32) refuse_dtype(request, index.dtype);
  return {all.type.shape.back(), index.shape.back(), index.elements()};
}

// Of a thread's entry: whether its index is one of the row. The first that is not is reported.
__device__ inline bool is_inside(const int* index, const Indexed& r, int64_t i, const char* op,
                                 Failure* failure) {
  if (i >= r.count) return false;
  const int64_t at = index[i];
  if (at >= 0 && at < r.n) return true;
  report(failure, {Failure::bad_index, i, at, r.n, op});
  return false;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    pick(const T* x, const int* index, T* y, Indexed r, const char* op, Failure* failure) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (is_inside(index, r, i, op, failure)) y[i] = x[i / r.k * r.n + index[i]];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_by_index(const T* x, const int* index, T* y, Indexed r, const char* op, Failure* failure) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (!is_inside(index, r, i, op, failure)) return;
  const int64_t row = i / r.k, begin = row * r.k;
  const int at = index[i];
  for (int64_t j = begin; j < i; ++j)
    if (index[j] == at) return;  // that entry's thread adds this one
  float sum = 0;
  for (int64_t j = i; j < begin + r.k; ++j)
    if (index[j] == at) sum += to_float(x[j]);
  y[row * r.n + at] = from_float<T>(sum);
}

std::unique_ptr<Kernel> prepare_gather(const KernelRequest& request, const Context& context) {
  const Indexed r = rows_by_index(request, request.inputs[0]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      launch(context, pick<T>, grid_of(r.count), kThreads, 0, a.in<T>(0), a.in<int>(1), a.out<T>(0), r,
             "gather", context.failure);
    });
  });
}

std::unique_ptr<Kernel> prepare_scatter_add(const KernelRequest& request, const Context& context) {
  const Indexed r = rows_by_index(request, request.outputs[0]);
  const auto bytes = static_cast<size_t>(request.outputs[0].type.bytes());
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      check(cudaMemsetAsync(a.out<T>(0), 0, bytes, context.stream), "clear sums");
      launch(context, add_by_index<T>, grid_of(r.count), kThreads, 0, a.in<T>(0), a.in<int>(1), a.out<T>(0),
             r, "scatter_add", context.failure);
    });
  });
}

}  // namespace

std::vector<Entry> gather_kernels() {
  return {{"gather", prepare_gather}, {"scatter_add", prepare_scatter_add}};
}

}  // namespace het::HET_CUDA
