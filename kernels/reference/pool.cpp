#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ops/windows.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// visit(plane, index of the result, its rows, its columns) for each result.
template <typename Visit>
void for_windows(const Pooling& p, const Visit& visit) {
  int64_t result = 0;
  for (int64_t plane = 0; plane < p.planes; ++plane)
    for (int64_t y = 0; y < p.rows.count; ++y)
      for (int64_t x = 0; x < p.columns.count; ++x)
        visit(plane, result++, range_of(p.rows, y), range_of(p.columns, x));
}

// The element of a plane that is the largest of a window: the first of equals, NaN before all numbers.
int64_t largest(const Pooling& p, const View& x, int64_t plane, Range rows, Range columns) {
  int64_t place = -1;
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t iy = rows.begin; iy < rows.end; ++iy)
    for (int64_t ix = columns.begin; ix < columns.end; ++ix) {
      const int64_t at = (plane * p.rows.size + iy) * p.columns.size + ix;
      if (place >= 0 && !(x[at] > most || std::isnan(x[at]))) continue;
      most = x[at];
      place = at;
    }
  return place;
}

// y = max of x over a window
std::unique_ptr<Kernel> max_pool(const KernelRequest& request) {
  const Pooling p = pooling_of(request.inputs[0].type.shape, request.attributes);
  return kernel_of(request, [p](const Operands& operands) {
    const View x = operands.in(0), y = operands.out(0);
    for_windows(p, [&](int64_t plane, int64_t result, Range rows, Range columns) {
      y.set(result, x[largest(p, x, plane, rows, columns)]);
    });
  });
}

// dx = sum of the dy whose window's largest element it is
std::unique_ptr<Kernel> max_pool_gradient(const KernelRequest& request) {
  const Pooling p = pooling_of(request.inputs[1].type.shape, request.attributes);
  const auto run = [p](const Operands& operands) {
    const View dy = operands.in(0), x = operands.in(1), dx = operands.out(0);
    double* total = operands.scratch();
    std::fill(total, total + dx.elements(), 0.0);
    for_windows(p, [&](int64_t plane, int64_t result, Range rows, Range columns) {
      total[largest(p, x, plane, rows, columns)] += dy[result];
    });
    for (int64_t e = 0; e < dx.elements(); ++e) dx.set(e, total[e]);
  };
  return kernel_of(request, run, request.outputs[0].type.elements());
}

double divisor_of(const Pooling& p, Range rows, Range columns) {
  return static_cast<double>(p.divisor > 0 ? p.divisor : rows.size() * columns.size());
}

// y = sum of x over a window / its elements
std::unique_ptr<Kernel> avg_pool(const KernelRequest& request) {
  const Pooling p = pooling_of(request.op.name, request.inputs[0].type.shape, request.outputs[0].type.shape,
                               request.attributes);
  return kernel_of(request, [p](const Operands& operands) {
    const View x = operands.in(0), y = operands.out(0);
    for_windows(p, [&](int64_t plane, int64_t result, Range rows, Range columns) {
      double total = 0;
      for (int64_t iy = rows.begin; iy < rows.end; ++iy)
        for (int64_t ix = columns.begin; ix < columns.end; ++ix)
          total += x[(plane * p.rows.size + iy) * p.columns.size + ix];
      y.set(result, total / divisor_of(p, rows, columns));
    });
  });
}

// dx = sum of dy / elements over the windows that it is in
std::unique_ptr<Kernel> avg_pool_gradient(const KernelRequest& request) {
  const Pooling p = pooling_of(request.op.name, request.outputs[0].type.shape, request.inputs[0].type.shape,
                               request.attributes);
  const auto run = [p](const Operands& operands) {
    const View dy = operands.in(0), dx = operands.out(0);
    double* total = operands.scratch();
    std::fill(total, total + dx.elements(), 0.0);
    for_windows(p, [&](int64_t plane, int64_t result, Range rows, Range columns) {
      for (int64_t iy = rows.begin; iy < rows.end; ++iy)
        for (int64_t ix = columns.begin; ix < columns.end; ++ix)
          total[(plane * p.rows.size + iy) * p.columns.size + ix] +=
              dy[result] / divisor_of(p, rows, columns);
    });
    for (int64_t e = 0; e < dx.elements(); ++e) dx.set(e, total[e]);
  };
  return kernel_of(request, run, request.outputs[0].type.elements());
}

}  // namespace

std::vector<KernelEntry> pool_kernels() {
  return {{"max_pool2d", max_pool},          {"max_pool2d_gradient", max_pool_gradient},
          {"avg_pool2d", avg_pool},          {"avg_pool2d_gradient", avg_pool_gradient},
          {"adaptive_avg_pool2d", avg_pool}, {"adaptive_avg_pool2d_gradient", avg_pool_gradient}};
}

}  // namespace het::reference
