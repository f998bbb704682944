#include "core/ops/dropout.h"

#include "core/ops/part.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// Of each element i of y: make(x, i, the word that is drawn for it).
template <typename Make>
std::unique_ptr<Kernel> drawn(const KernelRequest& request, const Make& make) {
  const PhiloxKey key = philox_key(static_cast<uint64_t>(request.attributes.get<int64_t>("seed", 0)),
                                   static_cast<uint64_t>(request.attributes.get<int64_t>("stream", 0)));
  const Shape& shape = request.inputs[0].type.shape;
  const SliceMap place = places_of(request.attributes, shape);
  const int64_t each = whole_sample_elements(request.attributes, shape);
  return kernel_of(request, [=](const Operands& o) {
    const View x = o.in(0), y = o.out(0);
    const auto* counter = o.arguments.in<int64_t>(1);  // step, first sample
    for (int64_t i = 0; i < y.elements(); ++i) {
      const int64_t at = place.at(i, y.elements()).element, element = at % each;
      const auto words = dropout_words(key, counter[0], counter[1] + at / each, element / 4);
      y.set(i, make(x, i, words[static_cast<size_t>(element % 4)]));
    }
  });
}

std::unique_ptr<Kernel> dropout(const KernelRequest& request) {
  const double p = request.attributes.get<double>("p");
  return drawn(request, [p](const View& x, int64_t i, uint32_t word) {
    return dropout_keeps(word, static_cast<float>(p)) ? x[i] / (1 - p) : 0.0;
  });
}

std::unique_ptr<Kernel> uniform(const KernelRequest& request) {
  return drawn(request,
               [](const View&, int64_t, uint32_t word) { return static_cast<double>(uniform_inside(word)); });
}

}  // namespace

std::vector<KernelEntry> dropout_kernels() { return {{"dropout", dropout}, {"uniform", uniform}}; }

}  // namespace het::reference
