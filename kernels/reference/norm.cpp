#include <cmath>

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// The rows to normalise: x, or x + residual, which is left in sum.
View summed(const View& x, const View& residual, const View& sum) {
  if (!residual.present()) return x;
  for (int64_t i = 0; i < x.elements(); ++i) sum.set(i, x[i] + residual[i]);
  return sum;
}

void add_skip(const View& dx, const View& skip) {
  if (!skip.present()) return;
  for (int64_t i = 0; i < dx.elements(); ++i) dx.set(i, dx[i] + skip[i]);
}

// y = (x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps) over the last dimension.
std::unique_ptr<Kernel> layer_norm(const KernelRequest& request) {
  return kernel_of(request, [eps = request.attributes.get<double>("eps", 1e-5)](const Operands& o) {
    const View x = summed(o.in(0), o.in(3), o.out(3)), weight = o.in(1), bias = o.in(2);
    const View y = o.out(0), means = o.out(1), rstds = o.out(2);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < n; ++i) mean += x[r * n + i];
      mean /= static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) variance += (x[r * n + i] - mean) * (x[r * n + i] - mean);
      const double rstd = 1 / std::sqrt(variance / static_cast<double>(n) + eps);
      for (int64_t i = 0; i < n; ++i)
        y.set(r * n + i, (x[r * n + i] - mean) * rstd * (weight.present() ? weight[i] : 1) +
                             (bias.present() ? bias[i] : 0));
      means.set(r, mean);
      rstds.set(r, rstd);
    }
  });
}

// With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)), dweight = sum dy z,
// dbias = sum dy.
std::unique_ptr<Kernel> layer_norm_gradient(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View dy = o.in(0), x = o.in(1), weight = o.in(2), means = o.in(3), rstds = o.in(4);
    const View dx = o.out(0), dweight = o.out(1), dbias = o.out(2);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    const auto z = [&](int64_t r, int64_t i) { return (x[r * n + i] - means[r]) * rstds[r]; };
    const auto g = [&](int64_t r, int64_t i) { return dy[r * n + i] * (weight.present() ? weight[i] : 1); };
    for (int64_t r = 0; r < rows; ++r) {
      double mean_g = 0, mean_gz = 0;
      for (int64_t i = 0; i < n; ++i) {
        mean_g += g(r, i) / static_cast<double>(n);
        mean_gz += g(r, i) * z(r, i) / static_cast<double>(n);
      }
      for (int64_t i = 0; i < n; ++i) dx.set(r * n + i, rstds[r] * (g(r, i) - mean_g - z(r, i) * mean_gz));
    }
    add_skip(dx, o.in(5));
    for (int64_t i = 0; i < n; ++i) {
      double weight_total = 0, bias_total = 0;
      for (int64_t r = 0; r < rows; ++r) {
        weight_total += dy[r * n + i] * z(r, i);
        bias_total += dy[r * n + i];
      }
      dweight.set(i, weight_total);
      dbias.set(i, bias_total);
    }
  });
}

// y = x rstd weight, with rstd = 1 / sqrt(mean(x^2) + eps).
std::unique_ptr<Kernel> rms_norm(const KernelRequest& request) {
  return kernel_of(request, [eps = request.attributes.get<double>("eps", 1e-5)](const Operands& o) {
    const View x = summed(o.in(0), o.in(2), o.out(2)), weight = o.in(1), y = o.out(0), rstds = o.out(1);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int64_t i = 0; i < n; ++i) square += x[r * n + i] * x[r * n + i];
      const double rstd = 1 / std::sqrt(square / static_cast<double>(n) + eps);
      for (int64_t i = 0; i < n; ++i)
        y.set(r * n + i, x[r * n + i] * rstd * (weight.present() ? weight[i] : 1));
      rstds.set(r, rstd);
    }
  });
}

// With z = x rstd and g = dy weight: dx = rstd (g - z mean(g z)), dweight = sum dy z.
std::unique_ptr<Kernel> rms_norm_gradient(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View dy = o.in(0), x = o.in(1), weight = o.in(2), rstds = o.in(3), dx = o.out(0),
               dweight = o.out(1);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    const auto z = [&](int64_t r, int64_t i) { return x[r * n + i] * rstds[r]; };
    const auto g = [&](int64_t r, int64_t i) { return dy[r * n + i] * (weight.present() ? weight[i] : 1); };
    for (int64_t r = 0; r < rows; ++r) {
      double mean_gz = 0;
      for (int64_t i = 0; i < n; ++i) mean_gz += g(r, i) * z(r, i) / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) dx.set(r * n + i, rstds[r] * (g(r, i) - z(r, i) * mean_gz));
    }
    add_skip(dx, o.in(4));
    for (int64_t i = 0; i < n; ++i) {
      double total = 0;
      for (int64_t r = 0; r < rows; ++r) total += dy[r * n + i] * z(r, i);
      dweight.set(i, total);
    }
  });
}

// Of each row its number of elements, their sum and the sum of (x - mean)^2.
std::unique_ptr<Kernel> row_moments(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View x = o.in(0), moments = o.out(0);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < n; ++i) sum += x[r * n + i];
      const double mean = sum / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) squares += (x[r * n + i] - mean) * (x[r * n + i] - mean);
      moments.set(r, static_cast<double>(n));
      moments.set(rows + r, sum);
      moments.set(2 * rows + r, squares);
    }
  });
}

// With z = (x - mean) rstd and g = dy weight: the sums of g and of g z over each row, dweight = sum dy z over
// the rows, dbias = sum dy.
std::unique_ptr<Kernel> norm_gradient_sums(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View dy = o.in(0), x = o.in(1), weight = o.in(2), means = o.in(3), rstds = o.in(4);
    const View sums = o.out(0), dweight = o.out(1), dbias = o.out(2);
    const int64_t n = x.size(-1), rows = leading(x.layout(), 1);
    const auto z = [&](int64_t r, int64_t i) {
      return (x[r * n + i] - (means.present() ? means[r] : 0)) * rstds[r];
    };
    for (int64_t r = 0; r < rows; ++r) {
      double sum_g = 0, sum_gz = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double g = dy[r * n + i] * (weight.present() ? weight[i] : 1);
        sum_g += g;
        sum_gz += g * z(r, i);
      }
      sums.set(r, sum_g);
      sums.set(rows + r, sum_gz);
    }
    for (int64_t i = 0; i < n; ++i) {
      double weight_total = 0, bias_total = 0;
      for (int64_t r = 0; r < rows; ++r) {
        weight_total += dy[r * n + i] * z(r, i);
        bias_total += dy[r * n + i];
      }
      dweight.set(i, weight_total);
      dbias.set(i, bias_total);
    }
  });
}

}  // namespace

std::vector<KernelEntry> norm_kernels() {
  return {{"layer_norm", layer_norm},   {"layer_norm_gradient", layer_norm_gradient},
          {"rms_norm", rms_norm},       {"rms_norm_gradient", rms_norm_gradient},
          {"row_moments", row_moments}, {"norm_gradient_sums", norm_gradient_sums}};
}

}  // namespace het::reference
