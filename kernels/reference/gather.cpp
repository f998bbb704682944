#include <vector>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

int64_t checked(double index, int64_t n) {
  const auto i = static_cast<int64_t>(index);
  if (i < 0 || i >= n) fail_usage("index {} is outside a row of {}", i, n);
  return i;
}

// y[r, j] = x[r, index[r, j]]
std::unique_ptr<Kernel> gather(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View x = o.in(0), index = o.in(1), y = o.out(0);
    const int64_t n = x.size(-1), k = index.size(-1);
    for (int64_t i = 0; i < index.elements(); ++i) y.set(i, x[i / k * n + checked(index[i], n)]);
  });
}

// y[r, i] = sum over j with index[r, j] = i of x[r, j]
std::unique_ptr<Kernel> scatter_add(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View x = o.in(0), index = o.in(1), y = o.out(0);
    const int64_t n = y.size(-1), k = index.size(-1);
    for (int64_t r = 0; r < leading(y.layout(), 1); ++r) {
      std::vector<double> row(static_cast<size_t>(n));
      for (int64_t j = r * k; j < (r + 1) * k; ++j) row[static_cast<size_t>(checked(index[j], n))] += x[j];
      for (int64_t i = 0; i < n; ++i) y.set(r * n + i, row[static_cast<size_t>(i)]);
    }
  });
}

}  // namespace

std::vector<KernelEntry> gather_kernels() { return {{"gather", gather}, {"scatter_add", scatter_add}}; }

}  // namespace het::reference
