#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"
#include "kernels/request.h"

namespace het::reference {
namespace {

// y[o, k, i] = sum over j <= k of x[o, j, i]; with `reverse` over j >= k
std::unique_ptr<Kernel> cumsum(const KernelRequest& request) {
  const kernels::Split3 a =
      kernels::split_at(request.inputs[0].type.shape, request.attributes.get<int64_t>("dim", -1));
  return kernel_of(request, [a, reverse = request.attributes.get<bool>("reverse", false)](const Operands& o) {
    const View x = o.in(0), y = o.out(0);
    for (int64_t outer = 0; outer < a.outer; ++outer)
      for (int64_t i = 0; i < a.inner; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < a.size; ++k) {
          const int64_t at = (outer * a.size + (reverse ? a.size - 1 - k : k)) * a.inner + i;
          y.set(at, sum += x[at]);
        }
      }
  });
}

}  // namespace

std::vector<KernelEntry> scan_kernels() { return {{"cumsum", cumsum}}; }

}  // namespace het::reference
