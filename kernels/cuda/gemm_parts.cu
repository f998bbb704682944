// What products need beside cuBLASLt: a bias of the type that its epilogue takes, and products without terms.
#include <algorithm>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256, kMostRows = 65'535;  // blocks that a grid may have in its second dimension

template <typename T>
__global__ void convert(const float* from, T* to, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from_float<T>(from[i]);
}

// A block takes rows blockIdx.y, blockIdx.y + gridDim.y, ... of one matrix.
template <typename T>
__global__ void add_nothing(T* c, int64_t m, int64_t n, int64_t lead, int64_t step, float beta,
                            const float* bias) {
  T* matrix = c + blockIdx.x * step;
  for (int64_t i = blockIdx.y; i < m; i += gridDim.y)
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
      T& value = matrix[i * lead + j];
      const float before = beta == 0 ? 0.0f : beta * to_float(value);
      value = from_float<T>(before + (bias == nullptr ? 0.0f : bias[j]));
    }
}

template <typename Run>
void with_type(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::bf16: return run(bf16{});
    case DType::f16: return run(f16{});
    default: return run(float{});
  }
}

}  // namespace

void convert_bias(const Context& context, const float* from, DType dtype, void* to, int64_t n) {
  with_type(dtype, [&]<typename T>(T) {
    launch(context, convert<T>, static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, from,
           static_cast<T*>(to), n);
  });
}

void run_without_terms(const Context& context, const Product& p, void* c, const float* bias) {
  with_type(p.c, [&]<typename T>(T) {
    launch(context, add_nothing<T>,
           dim3(static_cast<unsigned>(p.batch), static_cast<unsigned>(std::min<int64_t>(p.m, kMostRows))),
           kThreads, 0, static_cast<T*>(c), p.m, p.n, p.lead_c, p.step_c, p.beta, p.bias ? bias : nullptr);
  });
}

}  // namespace het::HET_CUDA
