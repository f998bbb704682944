#include <cstring>

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

std::unique_ptr<Kernel> copy(const KernelRequest& request) {
  return kernel_of(request, [bytes = bytes_of(request.outputs[0].type.dtype)](const Operands& o) {
    const View x = o.in(0), y = o.out(0);
    for (int64_t i = 0; i < y.elements(); ++i)
      std::memcpy(y.base() + y.offset_of(i) * bytes, x.base() + x.offset_of(i) * bytes, bytes);
  });
}

std::unique_ptr<Kernel> fill(const KernelRequest& request) {
  return kernel_of(request, [value = request.attributes.get<double>("value")](const Operands& o) {
    const View y = o.out(0);
    for (int64_t i = 0; i < y.elements(); ++i) y.set(i, value);
  });
}

std::unique_ptr<Kernel> constant(const KernelRequest& request) {
  return kernel_of(request,
                   [values = request.attributes.get<std::vector<double>>("values")](const Operands& o) {
                     const View y = o.out(0);
                     for (int64_t i = 0; i < y.elements(); ++i) y.set(i, values[static_cast<size_t>(i)]);
                   });
}

}  // namespace

std::vector<KernelEntry> shape_kernels() { return {{"copy", copy}, {"fill", fill}, {"constant", constant}}; }

}  // namespace het::reference
