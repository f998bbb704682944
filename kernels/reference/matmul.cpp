#include "kernels/activation.h"
#include "kernels/reference/families.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

using kernels::is_activated;

// Scratch for both operands of a product.
int64_t factors(const KernelRequest& request) {
  return request.inputs[0].type.elements() + request.inputs[1].type.elements();
}

// c[l, m, n] = sum_k a[l, m, k] b[l, k, n]; b of rank 2 serves every l.
std::unique_ptr<Kernel> matmul(const KernelRequest& request) {
  const bool ta = request.attributes.get<bool>("transpose_a", false);
  const bool tb = request.attributes.get<bool>("transpose_b", false);
  const auto body = [ta, tb](const Operands& o) {
    const View c = o.out(0);
    const int64_t m = c.size(-2), n = c.size(-1), k = o.in(0).size(ta ? -2 : -1);
    const int64_t lead = leading(c.layout(), 2);
    const bool shared = o.in(1).rank() == 2;
    const double* a = o.in(0).read(o.scratch());
    const double* b = o.in(1).read(o.scratch() + o.in(0).elements());
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
  };
  return kernel_of(request, body, factors(request));
}

// dweight[l, m, n] = sum_k a[l, k, m] b[l, k, n]
std::unique_ptr<Kernel> matmul_weight_gradient(const KernelRequest& request) {
  const auto body = [](const Operands& o) {
    const View dweight = o.out(0);
    const int64_t m = o.in(0).size(-1), n = o.in(1).size(-1), k = o.in(0).size(-2);
    const double* a = o.in(0).read(o.scratch());
    const double* b = o.in(1).read(o.scratch() + o.in(0).elements());
    for (int64_t l = 0; l < leading(dweight.layout(), 2); ++l)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double total = 0;
          for (int64_t p = 0; p < k; ++p) total += a[(l * k + p) * m + i] * b[(l * k + p) * n + j];
          dweight.set((l * m + i) * n + j, total);
        }
  };
  return kernel_of(request, body, factors(request));
}

// y[rows, out] = x[rows, in] weight[out, in]^T + bias[out], or gelu of that, rounded, which `before` is then.
std::unique_ptr<Kernel> linear(const KernelRequest& request) {
  const auto body = [activated = is_activated(request)](const Operands& o) {
    const View bias = o.in(2), y = o.out(0);
    const View before = o.has_out(1) ? o.out(1) : y;
    const int64_t in = o.in(1).size(1), out = o.in(1).size(0), rows = leading(y.layout(), 1);
    const double* x = o.in(0).read(o.scratch());
    const double* weight = o.in(1).read(o.scratch() + o.in(0).elements());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < out; ++j) {
        double total = bias.present() ? bias[j] : 0;
        for (int64_t p = 0; p < in; ++p) total += x[r * in + p] * weight[j * in + p];
        before.set(r * out + j, total);
        if (activated) y.set(r * out + j, gelu(before[r * out + j]));
      }
  };
  return kernel_of(request, body, factors(request));
}

// dx[rows, in] = dy[rows, out] weight[out, in], or that, rounded, times gelu'(before[rows, in])
std::unique_ptr<Kernel> linear_input_gradient(const KernelRequest& request) {
  const auto body = [activated = is_activated(request)](const Operands& o) {
    const View before = o.in(2), dx = o.out(0);
    const int64_t in = o.in(1).size(1), out = o.in(1).size(0), rows = leading(dx.layout(), 1);
    const double* dy = o.in(0).read(o.scratch());
    const double* weight = o.in(1).read(o.scratch() + o.in(0).elements());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t p = 0; p < in; ++p) {
        double total = 0;
        for (int64_t j = 0; j < out; ++j) total += dy[r * out + j] * weight[j * in + p];
        dx.set(r * in + p, total);
        if (activated) dx.set(r * in + p, gelu_slope(before[r * in + p]) * dx[r * in + p]);
      }
  };
  return kernel_of(request, body, factors(request));
}

// dweight[out, in] = dy[rows, out]^T x[rows, in]; dbias[out] = sum over rows of dy
std::unique_ptr<Kernel> linear_weight_gradient(const KernelRequest& request) {
  const auto body = [](const Operands& o) {
    const View dweight = o.out(0), dbias = o.out(1);
    const int64_t out = o.in(0).size(-1), in = o.in(1).size(-1), rows = leading(o.in(0).layout(), 1);
    const double* dy = o.in(0).read(o.scratch());
    const double* x = o.in(1).read(o.scratch() + o.in(0).elements());
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
  };
  return kernel_of(request, body, factors(request));
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
