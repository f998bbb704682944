// Matrix products: batched matmul, and linear layers with both their gradients. The products are cuBLASLt's
// (gemm.h), with gelu and its gradient where it makes them; the gradient of a bias is the sum of dy's
// columns, by own kernels: dy is read once more for it, which is 2 * rows * out bytes beside the product's 2
// * rows * out * in operations.
#include <algorithm>

#include "kernels/activation.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

// Sizes of zero leave leading dimensions of zero, which no matrix has.
int64_t lead(int64_t columns) { return std::max<int64_t>(1, columns); }

std::unique_ptr<Kernel> kernel_of(const Context& context, const Product& product) {
  std::shared_ptr<Gemm> gemm = make_gemm(context, product);
  const bool bias = product.bias;
  const int64_t workspace = gemm->workspace_bytes();
  return make_kernel(
      [gemm, bias](const KernelArguments& a) {
        gemm->run({a.inputs[0], a.inputs[1], a.outputs[0], bias ? a.in<float>(2) : nullptr}, a.workspace);
      },
      workspace);
}

// A product with an activation: by cuBLASLt where it makes it, and operands lie as it asks for; else the
// product and the elementwise kernel.
class Activated final : public Kernel {
 public:
  Activated(std::unique_ptr<Gemm> joined, std::unique_ptr<Kernel> apart, const Product& product)
      : joined_(std::move(joined)),
        apart_(std::move(apart)),
        epilogue_(product.epilogue),
        bias_(product.bias) {}
  int64_t workspace_bytes() const override {
    return std::max(joined_->workspace_bytes(), apart_->workspace_bytes());
  }
  void run(const KernelArguments& a) override {
    std::byte* const beside = epilogue_ == Epilogue::gelu_gradient ? a.inputs[2]
                              : epilogue_ == Epilogue::gelu_kept   ? a.outputs[1]
                                                                   : nullptr;
    for (const std::byte* address : {a.inputs[0], a.inputs[1], a.outputs[0], beside})
      if (reinterpret_cast<uintptr_t>(address) % kEpilogueAlign != 0) return apart_->run(a);
    joined_->run({a.inputs[0], a.inputs[1], a.outputs[0], bias_ ? a.in<float>(2) : nullptr, beside},
                 a.workspace);
  }

 private:
  std::unique_ptr<Gemm> joined_;
  std::unique_ptr<Kernel> apart_;
  Epilogue epilogue_;
  bool bias_;
};

// The product, with the request's activation if it asks for one.
std::unique_ptr<Kernel> activated(const KernelRequest& request, const Context& context, Product product) {
  auto kernel = kernel_of(context, product);
  if (!is_activated(request)) return kernel;
  const ActivationCall call(request);
  auto apart = with_activation(request, std::move(kernel), prepare_elementwise(call.request(), context));
  const bool gradient = request.op.name == "linear_input_gradient", keeps = present(request.outputs, 1);
  product.epilogue = gradient ? Epilogue::gelu_gradient : keeps ? Epilogue::gelu_kept : Epilogue::gelu;
  auto joined = make_gemm(context, product);
  if (joined == nullptr) return apart;
  return std::make_unique<Activated>(std::move(joined), std::move(apart), product);
}

// y[..., out] = x[..., in] weight[out, in]^T + bias
std::unique_ptr<Kernel> prepare_linear(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Layout &x = request.inputs[0], &weight = request.inputs[1], &y = request.outputs[0];
  Product p;
  p.n = weight.type.shape[0];
  p.k = weight.type.shape[1];
  p.m = p.n == 0 ? 0 : y.type.elements() / p.n;
  p.a = x.type.dtype;
  p.b = weight.type.dtype;
  p.c = y.type.dtype;
  p.transposed_b = true;
  p.lead_a = p.lead_b = lead(p.k);
  p.lead_c = lead(p.n);
  p.bias = present(request.inputs, 2);
  return activated(request, context, p);
}

// dx[..., in] = dy[..., out] weight[out, in]
std::unique_ptr<Kernel> prepare_input_gradient(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Layout &dy = request.inputs[0], &weight = request.inputs[1], &dx = request.outputs[0];
  Product p;
  p.k = weight.type.shape[0];
  p.n = weight.type.shape[1];
  p.m = p.n == 0 ? 0 : dx.type.elements() / p.n;
  p.a = dy.type.dtype;
  p.b = weight.type.dtype;
  p.c = dx.type.dtype;
  p.lead_a = lead(p.k);
  p.lead_b = p.lead_c = lead(p.n);
  return activated(request, context, p);
}

constexpr int kWarps = 8, kRowsAtOnce = 4;

// sums[blockIdx.y * n + j] = (or +=) the sum over rows [blockIdx.y * rows_each, + rows_each) of column j. A
// block takes 32 * N columns: its lanes N columns each, its warps every eighth row.
template <typename T, int N>
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_columns(const T* matrix, int64_t rows, int64_t n, int64_t rows_each, float* sums, bool add) {
  constexpr int kColumns = kWarp * N;
  __shared__ float scratch[kWarps][kColumns];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns, j = first + lane * N;
  const int64_t begin = blockIdx.y * rows_each, end = begin + rows_each < rows ? begin + rows_each : rows;
  float total[N] = {};
  if (j < n) {
    int64_t r = begin + warp;
    for (; r + (kRowsAtOnce - 1) * kWarps < end; r += kRowsAtOnce * kWarps) {
      float v[kRowsAtOnce][N];
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) load(v[u], matrix + (r + u * kWarps) * n + j);
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u)
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += v[u][k];
    }
    for (; r < end; r += kWarps) {
      float v[N];
      load(v, matrix + r * n + j);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += v[k];
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) scratch[warp][lane * N + k] = total[k];
  __syncthreads();
  for (int c = threadIdx.x; c < kColumns && first + c < n; c += kWarps * kWarp) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += scratch[w][c];
    float* to = sums + blockIdx.y * n + first + c;
    *to = add ? *to + sum : sum;
  }
}

// The sums of the columns of a packed matrix [rows, n], in two rounds where one would leave the machine idle.
struct ColumnSums {
  int64_t rows = 0, n = 0, parts = 1;
  bool add = false;

  ColumnSums(const Context& context, int64_t rows, int64_t n, bool add) : rows(rows), n(n), add(add) {
    const int64_t blocks = std::max<int64_t>(1, ceil_div(n, kWarp * kPack<bf16>));
    parts = std::clamp<int64_t>(4 * context.multiprocessors / blocks, 1,
                                std::max<int64_t>(1, ceil_div(rows, kWarps * kRowsAtOnce * 2)));
  }
  int64_t workspace_bytes() const { return parts == 1 ? 0 : parts * n * 4; }

  template <typename T>
  void run(const Context& context, const T* matrix, float* sums, float* workspace) const {
    const auto of = [&]<typename From, int N>(const From* from, int64_t count, int64_t split, float* to,
                                              bool into, std::integral_constant<int, N>) {
      launch(context, sum_columns<From, N>,
             dim3(static_cast<unsigned>(ceil_div(n, kWarp * N)), static_cast<unsigned>(split)),
             kWarps * kWarp, 0, from, count, n, ceil_div(count, split), to, into);
    };
    float* first = parts == 1 ? sums : workspace;
    const bool into = parts == 1 && add;
    if (packs(matrix, n, kPack<T>))
      of(matrix, rows, parts, first, into, std::integral_constant<int, kPack<T>>{});
    else
      of(matrix, rows, parts, first, into, std::integral_constant<int, 1>{});
    if (parts > 1) of(workspace, parts, 1, sums, add, std::integral_constant<int, 1>{});
  }
};

// dweight[out, in] (+)= dy[..., out]^T x[..., in]; dbias[out] (+)= the column sums of dy.
std::unique_ptr<Kernel> prepare_weight_gradient(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Layout &dy = request.inputs[0], &x = request.inputs[1];
  Product p;
  p.m = dy.type.shape.back();
  p.n = x.type.shape.back();
  p.k = p.m > 0 ? dy.type.elements() / p.m : p.n > 0 ? x.type.elements() / p.n : 0;
  p.a = dy.type.dtype;
  p.b = x.type.dtype;
  p.c = DType::f32;
  p.transposed_a = true;
  p.lead_a = lead(p.m);
  p.lead_b = p.lead_c = lead(p.n);
  p.beta = (request.accumulate & 1) != 0 ? 1 : 0;
  std::shared_ptr<Gemm> gemm = make_gemm(context, p);
  if (!present(request.outputs, 1)) return kernel_of(context, p);
  const ColumnSums columns(context, p.k, p.m, (request.accumulate & 2) != 0);
  const int64_t workspace = std::max(gemm->workspace_bytes(), columns.workspace_bytes());
  return for_float(request, dy.type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          gemm->run({a.inputs[0], a.inputs[1], a.outputs[0]}, a.workspace);
          columns.run(context, a.in<T>(0), a.out<float>(1), reinterpret_cast<float*>(a.workspace));
        },
        workspace);
  });
}

// [..., m, k] by [..., k, n], or by one [k, n] for all.
Product product_of(const KernelRequest& request, bool transposed_a, bool transposed_b) {
  require_packed_floats(request);
  const Layout &a = request.inputs[0], &b = request.inputs[1], &c = request.outputs[0];
  const size_t rank = a.type.shape.size();
  Product p;
  p.transposed_a = transposed_a;
  p.transposed_b = transposed_b;
  p.m = c.type.shape[rank - 2];
  p.n = c.type.shape[rank - 1];
  p.k = a.type.shape[p.transposed_a ? rank - 2 : rank - 1];
  p.a = a.type.dtype;
  p.b = b.type.dtype;
  p.c = c.type.dtype;
  p.lead_a = lead(p.transposed_a ? p.m : p.k);
  p.lead_b = lead(p.transposed_b ? p.k : p.n);
  p.lead_c = lead(p.n);
  p.batch = p.m * p.n == 0 ? 0 : c.type.elements() / (p.m * p.n);
  const bool shared = b.type.shape.size() == 2;
  if (shared && !p.transposed_a) {  // all rows in one product
    p.m *= p.batch;
    p.batch = std::min<int64_t>(p.batch, 1);
  } else {
    p.step_a = p.m * p.k;
    p.step_b = shared ? 0 : p.k * p.n;
    p.step_c = p.m * p.n;
  }
  return p;
}

std::unique_ptr<Kernel> prepare_matmul(const KernelRequest& request, const Context& context) {
  return kernel_of(
      context, product_of(request, flag(request, "transpose_a", false), flag(request, "transpose_b", false)));
}

// dweight[..., m, n] (+)= a[..., k, m]^T b[..., k, n]
std::unique_ptr<Kernel> prepare_matmul_weight_gradient(const KernelRequest& request, const Context& context) {
  Product p = product_of(request, true, false);
  p.beta = (request.accumulate & 1) != 0 ? 1 : 0;
  return kernel_of(context, p);
}

}  // namespace

std::vector<Entry> matmul_kernels() {
  return {{"matmul", prepare_matmul},
          {"matmul_weight_gradient", prepare_matmul_weight_gradient},
          {"linear", prepare_linear},
          {"linear_input_gradient", prepare_input_gradient},
          {"linear_weight_gradient", prepare_weight_gradient}};
}

}  // namespace het::HET_CUDA
