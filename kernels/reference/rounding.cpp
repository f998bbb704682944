#include "core/ops/rounding.h"

#include <bit>

#include "core/ops/part.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

std::unique_ptr<Kernel> stochastic_cast(const KernelRequest& request) {
  const PhiloxKey key = philox_key(static_cast<uint64_t>(request.attributes.get<int64_t>("seed")),
                                   static_cast<uint64_t>(request.attributes.get<int64_t>("stream")));
  const SliceMap place = places_of(request.attributes, request.inputs[0].type.shape);
  return kernel_of(request, [key, place](const Operands& o) {
    const View x = o.in(0), y = o.out(0);
    const int64_t step = *o.arguments.in<int64_t>(1);
    for (int64_t i = 0; i < x.elements(); ++i) {
      const int64_t element = place.at(i, x.elements()).element;
      const uint32_t random = rounding_bits(rounding_words(key, step, element / 8), element % 8);
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x[i]));
      y.set(i, static_cast<double>(
                   static_cast<float>(bf16(std::bit_cast<float>(rounded_by_chance(bits, random))))));
    }
  });
}

}  // namespace

std::vector<KernelEntry> rounding_kernels() { return {{"stochastic_cast", stochastic_cast}}; }

}  // namespace het::reference
