#include "core/ops/windows.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// visit(n, o, y, x, i, iy, ix, ky, kx) for each product that a convolution adds up: result [n, o, y, x], of
// x[n, channel, iy, ix] and weight[o, i, ky, kx]. In the order of the results.
template <typename Begin, typename Term, typename End>
void for_results(const Convolution& c, const Begin& begin, const Term& term, const End& end) {
  for (int64_t n = 0; n < c.samples; ++n)
    for (int64_t o = 0; o < c.groups * c.out; ++o)
      for (int64_t y = 0; y < c.out_height; ++y)
        for (int64_t x = 0; x < c.out_width; ++x) {
          begin(n, o, y, x);
          for (int64_t i = 0; i < c.in; ++i)
            for (int64_t ky = 0; ky < c.rows.kernel; ++ky)
              for (int64_t kx = 0; kx < c.columns.kernel; ++kx) {
                const int64_t iy = y * c.rows.stride - c.rows.padding + ky * c.rows.dilation;
                const int64_t ix = x * c.columns.stride - c.columns.padding + kx * c.columns.dilation;
                if (iy >= 0 && iy < c.height && ix >= 0 && ix < c.width)
                  term(o / c.out * c.in + i, iy, ix, i, ky, kx);
              }
          end(n, o, y, x);
        }
}

// y[n, o, y, x] = bias[o] + sum over i, ky, kx of x[n, channel i of o's group, ...] weight[o, i, ky, kx]
std::unique_ptr<Kernel> conv2d(const KernelRequest& request) {
  const Convolution c =
      convolution_of(request.inputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  return kernel_of(request, [c](const Operands& operands) {
    const View x = operands.in(0), weight = operands.in(1), bias = operands.in(2), y = operands.out(0);
    double total = 0;
    int64_t sample = 0, out = 0;
    for_results(
        c,
        [&](int64_t n, int64_t o, int64_t, int64_t) {
          sample = n;
          out = o;
          total = bias.present() ? bias[o] : 0;
        },
        [&](int64_t channel, int64_t iy, int64_t ix, int64_t i, int64_t ky, int64_t kx) {
          total += x.at(sample, channel, iy, ix) * weight.at(out, i, ky, kx);
        },
        [&](int64_t n, int64_t o, int64_t oy, int64_t ox) { y.set_at(total, n, o, oy, ox); });
  });
}

// dx: each dy times the weight, added where the window was.
std::unique_ptr<Kernel> input_gradient(const KernelRequest& request) {
  const Convolution c =
      convolution_of(request.outputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  const auto run = [c](const Operands& operands) {
    const View dy = operands.in(0), weight = operands.in(1), dx = operands.out(0);
    double* total = operands.scratch();  // as dx
    std::fill(total, total + dx.elements(), 0.0);
    double own = 0;
    int64_t sample = 0, out = 0;
    for_results(
        c,
        [&](int64_t n, int64_t o, int64_t oy, int64_t ox) {
          sample = n;
          out = o;
          own = dy.at(n, o, oy, ox);
        },
        [&](int64_t channel, int64_t iy, int64_t ix, int64_t i, int64_t ky, int64_t kx) {
          total[((sample * c.groups * c.in + channel) * c.height + iy) * c.width + ix] +=
              own * weight.at(out, i, ky, kx);
        },
        [](int64_t, int64_t, int64_t, int64_t) {});
    for (int64_t e = 0; e < dx.elements(); ++e) dx.set(e, total[e]);
  };
  return kernel_of(request, run, request.outputs[0].type.elements());
}

// dweight[o, i, ky, kx] = sum over n, y, x of dy[n, o, y, x] x[n, channel i of o's group, ...]; dbias[o] =
// sum of dy[:, o]
std::unique_ptr<Kernel> weight_gradient(const KernelRequest& request) {
  const Convolution c =
      convolution_of(request.inputs[1].type.shape, request.outputs[0].type.shape, request.attributes);
  const int64_t elements = request.outputs[0].type.elements(), channels = request.outputs[0].type.shape[0];
  const auto run = [c, elements, channels](const Operands& operands) {
    const View dy = operands.in(0), x = operands.in(1), dweight = operands.out(0), dbias = operands.out(1);
    double *weights = operands.scratch(), *sums = weights + elements;
    std::fill(weights, sums + channels, 0.0);
    double own = 0;
    int64_t sample = 0, out = 0;
    for_results(
        c,
        [&](int64_t n, int64_t o, int64_t oy, int64_t ox) {
          sample = n;
          out = o;
          own = dy.at(n, o, oy, ox);
        },
        [&](int64_t channel, int64_t iy, int64_t ix, int64_t i, int64_t ky, int64_t kx) {
          weights[((out * c.in + i) * c.rows.kernel + ky) * c.columns.kernel + kx] +=
              own * x.at(sample, channel, iy, ix);
        },
        [&](int64_t, int64_t o, int64_t, int64_t) { sums[o] += own; });
    for (int64_t e = 0; e < elements; ++e) dweight.set(e, weights[e]);
    for (int64_t o = 0; o < channels; ++o) dbias.set(o, sums[o]);
  };
  return kernel_of(request, run, elements + channels);
}

}  // namespace

std::vector<KernelEntry> conv_kernels() {
  return {{"conv2d", conv2d},
          {"conv2d_input_gradient", input_gradient},
          {"conv2d_weight_gradient", weight_gradient}};
}

}  // namespace het::reference
