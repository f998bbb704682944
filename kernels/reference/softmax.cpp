#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// The tensor as [outer, n, inner] around the softmax dimension.
struct Around {
  int64_t outer = 1, n = 1, inner = 1;

  explicit Around(const KernelRequest& request) {
    const Shape& shape = request.inputs[0].type.shape;
    const int64_t rank = static_cast<int64_t>(shape.size());
    int64_t dim = request.attributes.get<int64_t>("dim", -1);
    dim = from_start(dim, rank);
    for (int64_t d = 0; d < rank; ++d) (d < dim ? outer : d == dim ? n : inner) *= shape[d];
  }
  int64_t index(int64_t o, int64_t k, int64_t i) const { return (o * n + k) * inner + i; }
};

// y_k = exp(x_k - max) / sum_j exp(x_j - max)
std::unique_ptr<Kernel> softmax(const KernelRequest& request) {
  return kernel_of(request, [a = Around(request)](const Operands& operands) {
    const View x = operands.in(0), y = operands.out(0);
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t i = 0; i < a.inner; ++i) {
        double most = -std::numeric_limits<double>::infinity(), total = 0;
        for (int64_t k = 0; k < a.n; ++k) most = std::max(most, x[a.index(o, k, i)]);
        for (int64_t k = 0; k < a.n; ++k) total += std::exp(x[a.index(o, k, i)] - most);
        for (int64_t k = 0; k < a.n; ++k)
          y.set(a.index(o, k, i), std::exp(x[a.index(o, k, i)] - most) / total);
      }
  });
}

// dx_k = y_k (dy_k - sum_j y_j dy_j)
std::unique_ptr<Kernel> softmax_gradient(const KernelRequest& request) {
  return kernel_of(request, [a = Around(request)](const Operands& operands) {
    const View y = operands.in(0), dy = operands.in(1), dx = operands.out(0);
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t i = 0; i < a.inner; ++i) {
        double dot = 0;
        for (int64_t k = 0; k < a.n; ++k) dot += y[a.index(o, k, i)] * dy[a.index(o, k, i)];
        for (int64_t k = 0; k < a.n; ++k)
          dx.set(a.index(o, k, i), y[a.index(o, k, i)] * (dy[a.index(o, k, i)] - dot));
      }
  });
}

// max x_k, or the lowest number of the result's dtype, and sum_j exp(x_j - it)
std::unique_ptr<Kernel> softmax_statistics(const KernelRequest& request) {
  return kernel_of(request, [a = Around(request)](const Operands& operands) {
    const View x = operands.in(0), statistics = operands.out(0);
    const double lowest = statistics.dtype() == DType::f64
                              ? std::numeric_limits<double>::lowest()
                              : static_cast<double>(std::numeric_limits<float>::lowest());
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t i = 0; i < a.inner; ++i) {
        double most = lowest, total = 0;
        for (int64_t k = 0; k < a.n; ++k) most = std::max(most, x[a.index(o, k, i)]);
        for (int64_t k = 0; k < a.n; ++k) total += std::exp(x[a.index(o, k, i)] - most);
        statistics.set(o * a.inner + i, most);
        statistics.set((a.outer + o) * a.inner + i, total);
      }
  });
}

// sum_j y_j dy_j
std::unique_ptr<Kernel> softmax_gradient_sums(const KernelRequest& request) {
  return kernel_of(request, [a = Around(request)](const Operands& operands) {
    const View y = operands.in(0), dy = operands.in(1), sums = operands.out(0);
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t i = 0; i < a.inner; ++i) {
        double dot = 0;
        for (int64_t k = 0; k < a.n; ++k) dot += y[a.index(o, k, i)] * dy[a.index(o, k, i)];
        sums.set(o * a.inner + i, dot);
      }
  });
}

}  // namespace

std::vector<KernelEntry> softmax_kernels() {
  return {{"softmax", softmax},
          {"softmax_gradient", softmax_gradient},
          {"softmax_statistics", softmax_statistics},
          {"softmax_gradient_sums", softmax_gradient_sums}};
}

}  // namespace het::reference
