#include <cmath>
#include <vector>

#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// Pair i of a head turns by position * base^(-2i/d), or by position * frequencies[i]. Pairs are (i, i + d/2),
// or (2i, 2i + 1) when interleaved. Su et al., "RoFormer" (2021).
std::unique_ptr<Kernel> rotary(const KernelRequest& request) {
  const double base = request.attributes.get<double>("base", 10000.0);
  const auto frequencies = request.attributes.get<std::vector<double>>("frequencies", {});
  const bool interleaved = request.attributes.get<bool>("interleaved", false);
  const double sign = request.attributes.get<bool>("inverse", false) ? -1 : 1;
  return kernel_of(request, [base, frequencies, interleaved, sign](const Operands& o) {
    const View x = o.in(0), positions = o.in(1), y = o.out(0);
    const int64_t d = x.size(3);
    for (int64_t b = 0; b < x.size(0); ++b)
      for (int64_t t = 0; t < x.size(1); ++t)
        for (int64_t h = 0; h < x.size(2); ++h)
          for (int64_t i = 0; i < d / 2; ++i) {
            const double frequency =
                frequencies.empty() ? std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d))
                                    : frequencies[static_cast<size_t>(i)];
            const double angle = sign * positions[t] * frequency;
            const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + d / 2;
            const double u = x.at(b, t, h, first), v = x.at(b, t, h, second);
            y.set_at(u * std::cos(angle) - v * std::sin(angle), b, t, h, first);
            y.set_at(u * std::sin(angle) + v * std::cos(angle), b, t, h, second);
          }
  });
}

}  // namespace

std::vector<KernelEntry> rotary_kernels() { return {{"rotary", rotary}}; }

}  // namespace het::reference
