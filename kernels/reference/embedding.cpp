#include <algorithm>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

int64_t row_of(const View& ids, int64_t i, int64_t rows) {
  const int64_t row = static_cast<int64_t>(ids[i]);
  if (row < 0 || row >= rows)
    fail_usage("token id {} at element {} is outside the table of {} rows", row, i, rows);
  return row;
}

std::unique_ptr<Kernel> embedding(const KernelRequest& request) {
  return kernel_of(request, [](const Operands& o) {
    const View ids = o.in(0), table = o.in(1), y = o.out(0);
    const int64_t width = table.size(1);
    for (int64_t i = 0; i < ids.elements(); ++i)
      for (int64_t c = 0; c < width; ++c)
        y.set(i * width + c, table[row_of(ids, i, table.size(0)) * width + c]);
  });
}

std::unique_ptr<Kernel> embedding_gradient(const KernelRequest& request) {
  const int64_t scratch = request.outputs[0].type.elements();
  return kernel_of(
      request,
      [](const Operands& o) {
        const View dy = o.in(0), ids = o.in(1), dtable = o.out(0);
        const int64_t width = dtable.size(1);
        double* total = o.scratch();  // [rows, width]
        std::fill(total, total + dtable.elements(), 0.0);
        for (int64_t i = 0; i < ids.elements(); ++i)
          for (int64_t c = 0; c < width; ++c)
            total[row_of(ids, i, dtable.size(0)) * width + c] += dy[i * width + c];
        for (int64_t i = 0; i < dtable.elements(); ++i) dtable.set(i, total[i]);
      },
      scratch);
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{"embedding", embedding}, {"embedding_gradient", embedding_gradient}};
}

}  // namespace het::reference
