#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

// values[r, j], index[r, j]: the j-th largest of x[r, :]
std::unique_ptr<Kernel> top_k(const KernelRequest& request) {
  return kernel_of(request, [k = request.attributes.get<int64_t>("k")](const Operands& o) {
    const View x = o.in(0), values = o.out(0), index = o.out(1);
    const int64_t n = x.size(-1);
    const auto key = [&](int64_t i) {
      return std::isnan(x[i]) ? -std::numeric_limits<double>::infinity() : x[i];
    };
    for (int64_t r = 0; r < leading(x.layout(), 1); ++r) {
      std::vector<bool> taken(static_cast<size_t>(n));
      for (int64_t j = 0; j < k; ++j) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; ++i)
          if (!taken[static_cast<size_t>(i)] && (best < 0 || key(r * n + i) > key(r * n + best))) best = i;
        taken[static_cast<size_t>(best)] = true;
        values.set(r * k + j, x[r * n + best]);
        index.set(r * k + j, static_cast<double>(best));
      }
    }
  });
}

// Places in the order of choices, then of tokens; how many have each expert as their first choice.
std::unique_ptr<Kernel> expert_slots(const KernelRequest& request) {
  const auto experts = request.attributes.get<int64_t>("experts");
  const auto capacity = request.attributes.get<int64_t>("capacity");
  return kernel_of(request, [experts, capacity](const Operands& o) {
    const View expert = o.in(0), slot = o.out(0), counts = o.out(1);
    for (int64_t b = 0; b < expert.size(0); ++b) {
      std::vector<int64_t> chosen(static_cast<size_t>(experts));  // so far
      for (int64_t j = 0; j < expert.size(2); ++j) {
        for (int64_t t = 0; t < expert.size(1); ++t) {
          const auto e = static_cast<int64_t>(expert.at(b, t, j));
          if (e < 0 || e >= experts) fail_usage("expert {} is not one of {}", e, experts);
          const int64_t place = chosen[static_cast<size_t>(e)]++;
          slot.set_at(place < capacity ? static_cast<double>(e * capacity + place) : -1, b, t, j);
        }
        for (int64_t e = 0; e < experts && j == 0; ++e)
          counts.set_at(static_cast<double>(chosen[static_cast<size_t>(e)]), b, e);
      }
    }
  });
}

// The experts here, [first, first + own) of `of`, and the places of each.
struct Places {
  int64_t first, own, of, capacity;
  Places(const KernelRequest& request, const Shape& y)
      : first(request.attributes.get<int64_t>("first", 0)),
        own(y[0]),
        of(request.attributes.get<int64_t>("of", own)),
        capacity(y[2]) {}
  // Calls visit(expert counted from `first`, place) if the slot is here.
  template <typename Visit>
  void at(double slot, const Visit& visit) const {
    const auto s = static_cast<int64_t>(slot);
    if (s < -1 || s >= of * capacity)
      fail_usage("slot {} is outside {} experts of {} places", s, of, capacity);
    if (s >= first * capacity && s < (first + own) * capacity) visit(s / capacity - first, s % capacity);
  }
};

// y[e, b, place] = weight[b, t, j] x[b, t] where slot[b, t, j] = (e, place); 0 elsewhere
std::unique_ptr<Kernel> dispatch(const KernelRequest& request) {
  return kernel_of(request, [places = Places(request, request.outputs[0].type.shape)](const Operands& o) {
    const View x = o.in(0), slot = o.in(1), weight = o.in(2), y = o.out(0);
    const int64_t samples = x.size(0), width = x.size(2);
    std::vector<double> rows(static_cast<size_t>(y.elements()));
    for (int64_t b = 0; b < samples; ++b)
      for (int64_t t = 0; t < x.size(1); ++t)
        for (int64_t j = 0; j < slot.size(2); ++j)
          places.at(slot.at(b, t, j), [&](int64_t e, int64_t place) {
            const double factor = weight.present() ? weight.at(b, t, j) : 1;
            const int64_t row = (e * samples + b) * places.capacity + place;
            for (int64_t c = 0; c < width; ++c)
              rows[static_cast<size_t>(row * width + c)] = factor * x.at(b, t, c);
          });
    for (int64_t i = 0; i < y.elements(); ++i) y.set(i, rows[static_cast<size_t>(i)]);
  });
}

// out[b, t] = sum over j of weight[b, t, j] y[e, b, place], where slot[b, t, j] = (e, place)
std::unique_ptr<Kernel> combine(const KernelRequest& request) {
  return kernel_of(request, [places = Places(request, request.inputs[0].type.shape)](const Operands& o) {
    const View y = o.in(0), slot = o.in(1), weight = o.in(2), out = o.out(0);
    for (int64_t b = 0; b < out.size(0); ++b)
      for (int64_t t = 0; t < out.size(1); ++t)
        for (int64_t c = 0; c < out.size(2); ++c) {
          double total = 0;
          for (int64_t j = 0; j < slot.size(2); ++j)
            places.at(slot.at(b, t, j), [&](int64_t e, int64_t place) {
              total += (weight.present() ? weight.at(b, t, j) : 1) * y.at(e, b, place, c);
            });
          out.set_at(total, b, t, c);
        }
  });
}

// dweight[b, t, j] = sum over c of dout[b, t, c] y[e, b, place, c]
std::unique_ptr<Kernel> combine_weight_gradient(const KernelRequest& request) {
  return kernel_of(request, [places = Places(request, request.inputs[1].type.shape)](const Operands& o) {
    const View dout = o.in(0), y = o.in(1), slot = o.in(2), dweight = o.out(0);
    for (int64_t b = 0; b < dweight.size(0); ++b)
      for (int64_t t = 0; t < dweight.size(1); ++t)
        for (int64_t j = 0; j < dweight.size(2); ++j) {
          double total = 0;
          places.at(slot.at(b, t, j), [&](int64_t e, int64_t place) {
            for (int64_t c = 0; c < dout.size(2); ++c) total += dout.at(b, t, c) * y.at(e, b, place, c);
          });
          dweight.set_at(total, b, t, j);
        }
  });
}

}  // namespace

std::vector<KernelEntry> experts_kernels() {
  return {{"top_k", top_k},
          {"expert_slots", expert_slots},
          {"dispatch", dispatch},
          {"combine", combine},
          {"combine_weight_gradient", combine_weight_gradient}};
}

}  // namespace het::reference
