#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// Sums over the dimensions `dims` (all when none are named or the list is empty). The input's strides are
// split into those of the dimensions that stay and those that are summed, each walked in row-major order.
std::unique_ptr<Kernel> reduce(const KernelRequest& request, bool mean) {
  const Layout& x = request.inputs[0];
  const int64_t rank = static_cast<int64_t>(x.type.shape.size());
  const auto dims = request.attributes.get<std::vector<int64_t>>("dims", {});
  std::vector<bool> summed(rank, dims.empty());
  for (const int64_t dim : dims) summed[from_start(dim, rank)] = true;
  Layout kept, inner;
  kept.type.dtype = inner.type.dtype = x.type.dtype;
  for (int64_t d = 0; d < rank; ++d) {
    Layout& part = summed[d] ? inner : kept;
    part.type.shape.push_back(x.type.shape[d]);
    part.strides.push_back(x.strides[d]);
  }
  return kernel_of(request, [kept, inner, mean](const Operands& o) {
    const View y = o.out(0), rows(o.arguments.inputs[0], kept, false);
    const int64_t count = inner.type.elements(), bytes = bytes_of(inner.type.dtype);
    for (int64_t i = 0; i < y.elements(); ++i) {
      const View row(o.arguments.inputs[0] + rows.offset_of(i) * bytes, inner, false);
      double total = 0;
      for (int64_t j = 0; j < count; ++j) total += row[j];
      y.set(i, mean ? total / static_cast<double>(count) : total);
    }
  });
}

std::unique_ptr<Kernel> sum(const KernelRequest& request) { return reduce(request, false); }
std::unique_ptr<Kernel> mean(const KernelRequest& request) { return reduce(request, true); }

}  // namespace

std::vector<KernelEntry> reduce_kernels() { return {{"sum", sum}, {"mean", mean}}; }

}  // namespace het::reference
