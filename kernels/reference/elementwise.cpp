#include "core/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;

double sigmoid(double a) { return 1 / (1 + std::exp(-a)); }
double phi(double a) { return std::erfc(-a / std::sqrt(2.0)) / 2; }  // of the normal distribution

double apply(const PointwiseStep& step, double a, double b) {
  switch (step.code) {
    case Pointwise::add: return a + b;
    case Pointwise::sub: return a - b;
    case Pointwise::mul: return a * b;
    case Pointwise::div: return a / b;
    case Pointwise::maximum:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::max(a, b);
    case Pointwise::minimum:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::min(a, b);
    case Pointwise::power: return std::pow(a, b);
    case Pointwise::clamp_min: return a < step.immediate ? step.immediate : a;
    case Pointwise::clamp_max: return a > step.immediate ? step.immediate : a;
    case Pointwise::equal: return a == b;
    case Pointwise::not_equal: return a != b;
    case Pointwise::less: return a < b;
    case Pointwise::less_equal: return a <= b;
    case Pointwise::mask: return a != 0 ? b : 0;
    case Pointwise::mask_out: return a != 0 ? 0 : b;
    case Pointwise::scale: return a * step.immediate;
    case Pointwise::shift: return a + step.immediate;
    case Pointwise::neg: return -a;
    case Pointwise::abs: return std::abs(a);
    case Pointwise::sign: return a > 0 ? 1 : a < 0 ? -1 : a;
    case Pointwise::sin: return std::sin(a);
    case Pointwise::cos: return std::cos(a);
    case Pointwise::pow: return std::pow(a, step.immediate);
    case Pointwise::square: return a * a;
    case Pointwise::sqrt: return std::sqrt(a);
    case Pointwise::exp: return std::exp(a);
    case Pointwise::log: return std::log(a);
    case Pointwise::tanh: return std::tanh(a);
    case Pointwise::sigmoid: return sigmoid(a);
    case Pointwise::relu: return a > 0 || std::isnan(a) ? a : 0;
    case Pointwise::silu: return a * sigmoid(a);
    case Pointwise::gelu_tanh: return gelu(a);
    case Pointwise::gelu_erf: return a * phi(a);
    case Pointwise::gelu_tanh_gradient: return gelu_slope(a) * b;
    case Pointwise::gelu_erf_gradient: return (phi(a) + a * std::exp(-a * a / 2) / std::sqrt(2 * kPi)) * b;
    case Pointwise::silu_gradient: return sigmoid(a) * (1 + a * (1 - sigmoid(a))) * b;
    case Pointwise::relu_gradient: return a > 0 ? b : 0;
    case Pointwise::tanh_gradient: return (1 - a * a) * b;
    case Pointwise::sigmoid_gradient: return a * (1 - a) * b;
    case Pointwise::cast: return a;
  }
  fail(ErrorKind::bug, "pointwise step {} has no reference", static_cast<int>(step.code));
}

// Every elementwise operator is a program over one element of each operand, operands of smaller shape
// repeated.
std::unique_ptr<Kernel> pointwise(const KernelRequest& request) {
  const PointwiseProgram program = pointwise_program(request.op, request.attributes, request.inputs.size());
  std::vector<Layout> stretched;
  for (const Layout& layout : request.inputs)
    stretched.push_back(broadcast_to(layout, request.outputs[0].type.shape));
  return kernel_of(request, [program, stretched](const Operands& o) {
    double sources[kMaxPointwiseInputs + kMaxPointwiseSteps];
    const int64_t elements = o.out(0).elements();
    for (int64_t i = 0; i < elements; ++i) {
      for (int x = 0; x < program.inputs; ++x)
        sources[x] = View(o.arguments.inputs[x], stretched[x], false)[i];
      double* made = sources + program.inputs;
      for (const PointwiseStep& step : program.steps)
        *made++ = apply(step, sources[step.a], step.b >= 0 ? sources[step.b] : 0);
      for (size_t r = 0; r < program.results.size(); ++r) o.out(r).set(i, sources[program.results[r]]);
    }
  });
}

}  // namespace

std::vector<KernelEntry> elementwise_kernels() {
  std::vector<KernelEntry> entries;
  for (const std::string_view op : elementwise_names()) entries.push_back({op, pointwise});
  return entries;
}

}  // namespace het::reference
