#include "core/ops/dropout.h"

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

std::unique_ptr<Kernel> dropout(const KernelRequest& request) {
  const double p = request.attributes.get<double>("p");
  const PhiloxKey key = philox_key(static_cast<uint64_t>(request.attributes.get<int64_t>("seed", 0)),
                                   static_cast<uint64_t>(request.attributes.get<int64_t>("stream", 0)));
  const int64_t offset = request.attributes.get<int64_t>("offset", 0);
  return kernel_of(request, [p, key, offset](const Operands& o) {
    const View x = o.in(0), y = o.out(0);
    const int64_t samples = x.size(0), each = samples > 0 ? x.elements() / samples : 0;
    const auto* counter = o.arguments.in<int64_t>(1);  // step, first sample
    for (int64_t s = 0; s < samples; ++s)
      for (int64_t e = 0; e < each; ++e) {
        const bool keep = dropout_keeps(key, counter[0], counter[1] + s, offset + e, static_cast<float>(p));
        y.set(s * each + e, keep ? x[s * each + e] / (1 - p) : 0);
      }
  });
}

}  // namespace

std::vector<KernelEntry> dropout_kernels() { return {{"dropout", dropout}}; }

}  // namespace het::reference
