// Matrix products: batched matmul, and linear layers with both their gradients.
#include "core/base/parallel.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

void require_types(const KernelRequest& request) {
  for (const auto& operands : {request.inputs, request.outputs})
    for (const Layout& layout : operands) {
      if (!layout.type.present()) continue;
      if (layout.type.dtype != DType::f32 && layout.type.dtype != DType::bf16 && layout.type.dtype != DType::f16)
        refuse_dtype(request, layout.type.dtype);
      require_packed(request, layout);
    }
}

int64_t rows_of(const Layout& layout) {
  const int64_t columns = layout.type.shape.back();
  return columns == 0 ? 0 : layout.type.elements() / columns;
}

// y[..., out] = x[..., in] weight[out, in]^T + bias
std::unique_ptr<Kernel> prepare_linear(const KernelRequest& request) {
  require_types(request);
  const Layout &x = request.inputs[0], &weight = request.inputs[1], &y = request.outputs[0];
  GemmShape shape;
  shape.m = rows_of(x);
  shape.k = weight.type.shape[1];
  shape.n = weight.type.shape[0];
  shape.a_type = x.type.dtype;
  shape.b_type = weight.type.dtype;
  shape.c_type = y.type.dtype;
  shape.a_row = shape.k;
  shape.b_row = 1;
  shape.b_col = shape.k;
  shape.c_row = shape.n;
  const Gemm gemm(shape);
  const bool bias = present(request.inputs, 2);
  return make_kernel(
      [gemm, bias](const KernelArguments& a) {
        gemm.run(a.inputs[0], a.inputs[1], a.outputs[0], bias ? a.in<float>(2) : nullptr, a.workspace);
      },
      gemm.workspace_bytes());
}

// dx[..., in] = dy[..., out] weight[out, in]
std::unique_ptr<Kernel> prepare_input_gradient(const KernelRequest& request) {
  require_types(request);
  const Layout &dy = request.inputs[0], &weight = request.inputs[1], &dx = request.outputs[0];
  GemmShape shape;
  shape.m = rows_of(dy);
  shape.k = weight.type.shape[0];
  shape.n = weight.type.shape[1];
  shape.a_type = dy.type.dtype;
  shape.b_type = weight.type.dtype;
  shape.c_type = dx.type.dtype;
  shape.a_row = shape.k;
  shape.b_row = shape.n;
  shape.c_row = shape.n;
  const Gemm gemm(shape);
  return make_kernel(
      [gemm](const KernelArguments& a) { gemm.run(a.inputs[0], a.inputs[1], a.outputs[0], nullptr, a.workspace); },
      gemm.workspace_bytes());
}

// sums[j] (+)= the sum of column j of matrix[rows, columns]. Threads share out the columns.
template <typename T>
void sum_columns(const T* matrix, int64_t rows, int64_t columns, float* sums, bool add) {
  parallel_for(columns, rows > 0 ? 1 + 4 * kLightGrain / rows : columns, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j += 4 * kLanes) {
      const int64_t width = end - j < 4 * kLanes ? end - j : 4 * kLanes;
      Vector total[4] = {};
      for (int64_t r = 0; r < rows; ++r) {
        int v = 0;
        for_lanes(width, [&](int64_t i, auto lanes) { total[v++] += load(matrix + r * columns + j + i, lanes); });
      }
      int v = 0;
      for_lanes(width, [&](int64_t i, auto lanes) {
        store(sums + j + i, add ? load(sums + j + i, lanes) + total[v] : total[v], lanes);
        ++v;
      });
    }
  });
}

// dweight[out, in] (+)= dy[..., out]^T x[..., in]; dbias[out] (+)= the column sums of dy
std::unique_ptr<Kernel> prepare_weight_gradient(const KernelRequest& request) {
  require_types(request);
  const Layout &dy = request.inputs[0], &x = request.inputs[1];
  GemmShape shape;
  shape.m = dy.type.shape.back();
  shape.k = rows_of(dy);
  shape.n = x.type.shape.back();
  shape.a_type = dy.type.dtype;
  shape.b_type = x.type.dtype;
  shape.c_type = DType::f32;
  shape.a_row = 1;
  shape.a_col = shape.m;
  shape.b_row = shape.n;
  shape.c_row = shape.n;
  shape.add = (request.accumulate & 1) != 0;
  const Gemm gemm(shape);
  const bool bias = present(request.outputs, 1), add_bias = (request.accumulate & 2) != 0;
  return for_float(request, dy.type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [gemm, bias, add_bias, rows = shape.k, columns = shape.m](const KernelArguments& a) {
          gemm.run(a.inputs[0], a.inputs[1], a.outputs[0], nullptr, a.workspace);
          if (bias) sum_columns(a.in<T>(0), rows, columns, a.out<float>(1), add_bias);
        },
        gemm.workspace_bytes());
  });
}

// [..., m, k] by [..., k, n], or by one [k, n] for all. Threads share out the batch when it is large enough.
std::unique_ptr<Kernel> prepare_matmul(const KernelRequest& request) {
  require_types(request);
  const Layout &a = request.inputs[0], &b = request.inputs[1], &c = request.outputs[0];
  const bool ta = flag(request, "transpose_a", false), tb = flag(request, "transpose_b", false);
  GemmShape shape;
  shape.m = c.type.shape[c.type.shape.size() - 2];
  shape.n = c.type.shape.back();
  const int64_t rank = static_cast<int64_t>(a.type.shape.size());
  shape.k = ta ? a.type.shape[rank - 2] : a.type.shape[rank - 1];
  shape.a_type = a.type.dtype;
  shape.b_type = b.type.dtype;
  shape.c_type = c.type.dtype;
  shape.a_row = ta ? 1 : shape.k;
  shape.a_col = ta ? shape.m : 1;
  shape.b_row = tb ? 1 : shape.n;
  shape.b_col = tb ? shape.k : 1;
  shape.c_row = shape.n;
  const int64_t matrix = shape.m * shape.n;
  const int64_t batch = matrix == 0 ? 0 : c.type.elements() / matrix;
  const int64_t step_b = b.type.shape.size() == 2 ? 0 : shape.k * shape.n * bytes_of(b.type.dtype);
  const int64_t step_a = shape.m * shape.k * bytes_of(a.type.dtype), step_c = matrix * bytes_of(c.type.dtype);
  const int64_t parts = batch < thread_count() ? 1 : thread_count();
  shape.serial = parts > 1;
  const Gemm gemm(shape);
  const int64_t own = (gemm.workspace_bytes() + 63) / 64 * 64;
  return make_kernel(
      [gemm, batch, parts, own, step_a, step_b, step_c](const KernelArguments& arguments) {
        parallel_parts(parts, [&](int64_t part) {
          const Range share = share_of(batch, parts, part);
          for (int64_t i = share.begin; i < share.end; ++i)
            gemm.run(arguments.inputs[0] + i * step_a, arguments.inputs[1] + i * step_b,
                     arguments.outputs[0] + i * step_c, nullptr, arguments.workspace + part * own);
        });
      },
      parts * own);
}

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  return {{"matmul", &prepare_matmul},
          {"linear", &prepare_linear},
          {"linear_input_gradient", &prepare_input_gradient},
          {"linear_weight_gradient", &prepare_weight_gradient}};
}

}  // namespace het::cpu::HET_ISA
