#include "kernels/activation.h"
#include "kernels/reference/families.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

using kernels::is_activated;

// c[l, m, n] = sum_k a[l, m, k] b[l, k, n]; b of rank 2 serves every l.
std::unique_ptr<Kernel> matmul(const KernelRequest& request) {
  const bool ta = request.attributes.get<bool>("transpose_a", false);
  const bool tb = request.attributes.get<bool>("transpose_b", false);
  return kernel_of(request, [ta, tb](const Operands& o) {
    const View a = o.in(0), b = o.in(1), c = o.out(0);
    const int64_t m = c.size(-2), n = c.size(-1), k = a.size(ta ? -2 : -1);
    const int64_t lead = leading(c.layout(), 2);
    const bool shared = b.rank() == 2;
    for (int64_t l = 0; l < lead; ++l)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double total = 0;
          for (int64_t p = 0; p < k; ++p) {
            const int64_t in_a = ta ? p * m + i : i * k + p;
            const int64_t in_b = tb ? j * k + p : p * n + j;
            total += a[l * m * k + in_a] * b[(shared ? 0 : l * k * n) + in_b];
          }
          c.set((l * m + i) * n + j, total);
        }
  });
}

// dweight[l, m, n] = sum_k a[l, k, m] b[l, k, n]
std::unique_ptr<Kernel> matmul_weight_gradient(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View a = o.in(0), b = o.in(1), dweight = o.out(0);
    const int64_t m = a.size(-1), n = b.size(-1), k = a.size(-2);
    for (int64_t l = 0; l < leading(dweight.layout(), 2); ++l)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double total = 0;
          for (int64_t p = 0; p < k; ++p) total += a[(l * k + p) * m + i] * b[(l * k + p) * n + j];
          dweight.set((l * m + i) * n + j, total);
        }
  });
}

// y[rows, out] = x[rows, in] weight[out, in]^T + bias[out], or gelu of that, rounded, which `before` is then.
std::unique_ptr<Kernel> linear(const KernelRequest& request) {
  return kernel_of(request, [activated = is_activated(request)](const Operands& o) {
    const View x = o.in(0), weight = o.in(1), bias = o.in(2), y = o.out(0);
    const View before = o.has_out(1) ? o.out(1) : y;
    const int64_t in = weight.size(1), out = weight.size(0), rows = leading(y.layout(), 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < out; ++j) {
        double total = bias.present() ? bias[j] : 0;
        for (int64_t p = 0; p < in; ++p) total += x[r * in + p] * weight[j * in + p];
        before.set(r * out + j, total);
        if (activated) y.set(r * out + j, gelu(before[r * out + j]));
      }
  });
}

// dx[rows, in] = dy[rows, out] weight[out, in], or that, rounded, times gelu'(before[rows, in])
std::unique_ptr<Kernel> linear_input_gradient(const KernelRequest& request) {
  return kernel_of(request, [activated = is_activated(request)](const Operands& o) {
    const View dy = o.in(0), weight = o.in(1), before = o.in(2), dx = o.out(0);
    const int64_t in = weight.size(1), out = weight.size(0), rows = leading(dx.layout(), 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t p = 0; p < in; ++p) {
        double total = 0;
        for (int64_t j = 0; j < out; ++j) total += dy[r * out + j] * weight[j * in + p];
        dx.set(r * in + p, total);
        if (activated) dx.set(r * in + p, gelu_slope(before[r * in + p]) * dx[r * in + p]);
      }
  });
}

// dweight[out, in] = dy[rows, out]^T x[rows, in]; dbias[out] = sum over rows of dy
std::unique_ptr<Kernel> linear_weight_gradient(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View dy = o.in(0), x = o.in(1), dweight = o.out(0), dbias = o.out(1);
    const int64_t out = dy.size(-1), in = x.size(-1), rows = leading(dy.layout(), 1);
    for (int64_t j = 0; j < out; ++j) {
      for (int64_t p = 0; p < in; ++p) {
        double total = 0;
        for (int64_t r = 0; r < rows; ++r) total += dy[r * out + j] * x[r * in + p];
        dweight.set(j * in + p, total);
      }
      double total = 0;
      for (int64_t r = 0; r < rows; ++r) total += dy[r * out + j];
      dbias.set(j, total);
    }
  });
}

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  return {{"matmul", matmul},
          {"matmul_weight_gradient", matmul_weight_gradient},
          {"linear", linear},
          {"linear_input_gradient", linear_input_gradient},
          {"linear_weight_gradient", linear_weight_gradient}};
}

}  // namespace het::reference
