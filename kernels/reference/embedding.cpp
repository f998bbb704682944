#include <algorithm>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// The rows that a table holds: [first, first + rows held) of `of`.
struct Rows {
  int64_t first, own, of;
  Rows(const KernelRequest& request, int64_t own)
      : first(request.attributes.get<int64_t>("first", 0)),
        own(own),
        of(request.attributes.get<int64_t>("of", own)) {}
  // The row of id i, counted from `first`; -1 where it is not here.
  int64_t row(const View& ids, int64_t i) const {
    const int64_t id = static_cast<int64_t>(ids[i]);
    if (id < 0 || id >= of)
      fail_usage("token id {} at element {} is outside the table of {} rows", id, i, of);
    return id < first || id >= first + own ? -1 : id - first;
  }
};

std::unique_ptr<Kernel> embedding(const KernelRequest& request) {
  return kernel_of(request, [rows = Rows(request, request.inputs[1].type.shape[0])](const Operands& o) {
    const View ids = o.in(0), table = o.in(1), y = o.out(0);
    const int64_t width = table.size(1);
    for (int64_t i = 0; i < ids.elements(); ++i) {
      const int64_t row = rows.row(ids, i);
      for (int64_t c = 0; c < width; ++c) y.set(i * width + c, row < 0 ? 0 : table[row * width + c]);
    }
  });
}

std::unique_ptr<Kernel> embedding_gradient(const KernelRequest& request) {
  const int64_t scratch = request.outputs[0].type.elements();
  return kernel_of(
      request,
      [rows = Rows(request, request.outputs[0].type.shape[0])](const Operands& o) {
        const View dy = o.in(0), ids = o.in(1), dtable = o.out(0);
        const int64_t width = dtable.size(1);
        double* total = o.scratch();  // [rows, width]
        std::fill(total, total + dtable.elements(), 0.0);
        for (int64_t i = 0; i < ids.elements(); ++i) {
          const int64_t row = rows.row(ids, i);
          for (int64_t c = 0; c < width && row >= 0; ++c) total[row * width + c] += dy[i * width + c];
        }
        for (int64_t i = 0; i < dtable.elements(); ++i) dtable.set(i, total[i]);
      },
      scratch);
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{"embedding", embedding}, {"embedding_gradient", embedding_gradient}};
}

}  // namespace het::reference
