#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"
#include "kernels/request.h"

namespace het::reference {
namespace {

// norm = sqrt(sum of squares over all gradients); coefficient = min(1, max_norm / norm), NaN when the norm is
// not finite.
std::unique_ptr<Kernel> global_norm(const KernelRequest& request) {
  return kernel_of(request, [most = request.attributes.get<double>("max_norm", 0.0)](const Operands& o) {
    double square = 0;
    for (size_t g = 0; g < o.layouts.inputs.size(); ++g) {
      const View gradient = o.in(g);
      for (int64_t i = 0; i < gradient.elements(); ++i) square += gradient[i] * gradient[i];
    }
    const double norm = std::sqrt(square);
    o.out(0).set(0, norm);
    o.out(1).set(0, !std::isfinite(norm)      ? std::numeric_limits<double>::quiet_NaN()
                    : most > 0 && norm > most ? most / norm
                                              : 1);
  });
}

// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), with g = coefficient * gradient:
// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
// param = param (1 - lr decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps); step counts
// from 1.
std::unique_ptr<Kernel> adamw(const KernelRequest& request) {
  const Attributes& a = request.attributes;
  std::vector<double> decays;
  for (size_t p = 0; p < request.outputs.size() / 3; ++p)
    decays.push_back(kernels::weight_decay_of(request, p));
  return kernel_of(
      request, [decays, beta1 = a.get<double>("beta1", 0.9), beta2 = a.get<double>("beta2", 0.999),
                eps = a.get<double>("eps", 1e-8)](const Operands& o) {
        const size_t scalars = 4 * decays.size();
        const double lr = o.in(scalars)[0], step = o.in(scalars + 1)[0], coefficient = o.in(scalars + 2)[0];
        if (!std::isfinite(coefficient)) return;
        for (size_t p = 0; p < decays.size(); ++p) {
          const View gradient = o.in(4 * p + 3);
          const View param = o.out(3 * p), first = o.out(3 * p + 1), second = o.out(3 * p + 2);
          for (int64_t i = 0; i < param.elements(); ++i) {
            const double g = coefficient * gradient[i];
            const double m = beta1 * first[i] + (1 - beta1) * g, v = beta2 * second[i] + (1 - beta2) * g * g;
            const double change =
                m / (1 - std::pow(beta1, step)) / (std::sqrt(v / (1 - std::pow(beta2, step))) + eps);
            param.set(i, param[i] * (1 - lr * decays[p]) - lr * change);
            first.set(i, m);
            second.set(i, v);
          }
        }
      });
}

// With g = coefficient * gradient + decay * param: momentum = mu momentum + g, and param falls by lr times
// the momentum (g + mu momentum with Nesterov's; g alone without momentum).
std::unique_ptr<Kernel> sgd(const KernelRequest& request) {
  const Attributes& a = request.attributes;
  return kernel_of(request, [mu = a.get<double>("momentum", 0.0), decay = a.get<double>("weight_decay", 0.0),
                             nesterov = a.get<bool>("nesterov", false)](const Operands& o) {
    const View gradient = o.in(2), param = o.out(0), momentum = o.out(1);
    const double lr = o.in(3)[0], coefficient = o.in(4)[0];
    if (!std::isfinite(coefficient)) return;
    for (int64_t i = 0; i < param.elements(); ++i) {
      double g = coefficient * gradient[i] + decay * param[i];
      if (momentum.present()) {
        const double moved = mu * momentum[i] + g;
        momentum.set(i, moved);
        g = nesterov ? g + mu * moved : moved;
      }
      param.set(i, param[i] - lr * g);
    }
  });
}

std::unique_ptr<Kernel> assign(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    if (!std::isfinite(o.in(2)[0])) return;
    for (int64_t i = 0; i < o.out(0).elements(); ++i) o.out(0).set(i, o.in(1)[i]);
  });
}

std::unique_ptr<Kernel> add_n(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View y = o.out(0);
    for (int64_t i = 0; i < y.elements(); ++i) {
      double total = 0;
      for (size_t g = 0; g < o.layouts.inputs.size(); ++g) total += o.in(g)[i];
      y.set(i, total);
    }
  });
}

}  // namespace

std::vector<KernelEntry> optimizer_kernels() {
  return {{"global_norm", global_norm}, {"adamw", adamw}, {"adamw_n", adamw}, {"sgd", sgd},
          {"assign", assign},           {"add_n", add_n}};
}

}  // namespace het::reference
