#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"
#include "kernels/request.h"

namespace het::reference {
namespace {

struct Setting {
  bool causal;
  int64_t window;     // keys that a query sees at most
  double scale, cap;  // cap: of scores, 0 without one

  explicit Setting(const KernelRequest& request)
      : causal(request.attributes.get<bool>("causal", false)),
        window(request.attributes.get<int64_t>("window", INT64_MAX)),
        scale(request.attributes.get<double>(
            "scale", 1 / std::sqrt(static_cast<double>(
                             request.inputs[request.op.name == "attention_gradient"].type.shape[3])))),
        cap(request.attributes.get<double>("score_cap", 0)) {}

  // Keys that query i of t sees, of s: the last query sees all.
  int64_t visible(int64_t i, int64_t t, int64_t s) const {
    return causal ? std::clamp<int64_t>(i + 1 + s - t, 0, s) : s;
  }
  // The first of the `seen` keys that are in the window.
  int64_t begin(int64_t seen) const { return std::max<int64_t>(0, seen - window); }
  // The score of a product q . k, and what the derivative by scale q . k multiplies.
  double score(double product) const {
    return cap == 0 ? scale * product : cap * std::tanh(scale * product / cap);
  }
  double slope(double score) const { return cap == 0 ? 1 : 1 - score * score / (cap * cap); }
};

double dot(const View& q, const View& k, int64_t b, int64_t i, int64_t h, int64_t j, int64_t kh) {
  double total = 0;
  for (int64_t c = 0; c < q.size(3); ++c) total += q.at(b, i, h, c) * k.at(b, j, kh, c);
  return total;
}

// Where the tokens of sample b begin to see: operand `which`, or all from 0.
class Begins {
 public:
  Begins(const Operands& o, size_t which, const char* op, int64_t b, int64_t tokens) {
    if (!o.has_in(which)) return;
    for (int64_t i = 0; i < tokens; ++i) starts_.push_back(static_cast<int32_t>(o.in(which).at(b, i)));
    kernels::require_starts(op, starts_.data(), tokens);
  }
  int64_t operator[](int64_t i) const { return starts_.empty() ? 0 : starts_[static_cast<size_t>(i)]; }

 private:
  std::vector<int32_t> starts_;
};

// One query's attention over the keys from `begin` to `seen`, with scratch for as many; its log-sum-exp is
// returned.
double attend(const View& q, const View& k, const View& v, const View& out, const Setting& setting, int64_t b,
              int64_t i, int64_t h, int64_t kh, int64_t begin, int64_t seen, double* p) {
  double most = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t j = begin; j < seen; ++j)
    most = std::max(most, p[j] = setting.score(dot(q, k, b, i, h, j, kh)));
  for (int64_t j = begin; j < seen; ++j) total += std::exp(p[j] - most);
  const double lse = seen > begin ? most + std::log(total) : most;
  for (int64_t j = begin; j < seen; ++j) p[j] = std::exp(p[j] - lse);
  for (int64_t c = 0; c < q.size(3); ++c) {
    double sum = 0;
    for (int64_t j = begin; j < seen; ++j) sum += p[j] * v.at(b, j, kh, c);
    out.set_at(sum, b, i, h, c);
  }
  return lse;
}

// out[b, i, h] = sum_j softmax_j(score(q_i . k_j)) v_j; query head h uses key head h / (hq / hk).
std::unique_ptr<Kernel> attention(const KernelRequest& request) {
  const auto body = [setting = Setting(request)](const Operands& o) {
    const View q = o.in(0), k = o.in(1), v = o.in(2), out = o.out(0), lse = o.out(1);
    const int64_t t = q.size(1), s = k.size(1), group = q.size(2) / k.size(2);
    for (int64_t b = 0; b < q.size(0); ++b) {
      const Begins begins(o, 3, "attention", b, t);
      for (int64_t h = 0; h < q.size(2); ++h)
        for (int64_t i = 0; i < t; ++i) {
          const int64_t seen = setting.visible(i, t, s), begin = std::max(begins[i], setting.begin(seen));
          lse.set_at(attend(q, k, v, out, setting, b, i, h, h / group, begin, seen, o.scratch()), b, h, i);
        }
    }
  };
  return kernel_of(request, body, request.inputs[1].type.shape[1]);
}

// With p_ij = exp(score_ij - lse_i), e_i = dout_i . out_i and ds_ij = p_ij (dout_i . v_j - e_i) slope_ij:
// dq_i = scale sum_j ds_ij k_j, dk_j = scale sum_i ds_ij q_i, dv_j = sum_i p_ij dout_i.
std::unique_ptr<Kernel> attention_gradient(const KernelRequest& request) {
  const Shape& q = request.inputs[1].type.shape;
  const int64_t pairs = q[1] * request.inputs[2].type.shape[1];
  const int64_t group = q[2] / request.inputs[2].type.shape[2];
  return kernel_of(
      request,
      [setting = Setting(request), pairs, group](const Operands& o) {
        const View dout = o.in(0), q = o.in(1), k = o.in(2), v = o.in(3), out = o.in(4), lse = o.in(5);
        const View dq = o.out(0), dk = o.out(1), dv = o.out(2);
        const int64_t t = q.size(1), s = k.size(1), d = q.size(3);
        double* p = o.scratch();         // [group, t, s]
        double* ds = p + pairs * group;  // [group, t, s]
        for (int64_t b = 0; b < q.size(0); ++b) {
          const Begins begins(o, 6, "attention_gradient", b, t);
          for (int64_t kh = 0; kh < k.size(2); ++kh) {
            for (int64_t g = 0; g < group; ++g)
              for (int64_t i = 0; i < t; ++i) {
                const int64_t h = kh * group + g, seen = setting.visible(i, t, s);
                const int64_t begin = std::max(begins[i], setting.begin(seen));
                double e = 0;
                for (int64_t c = 0; c < d; ++c) e += dout.at(b, i, h, c) * out.at(b, i, h, c);
                for (int64_t j = 0; j < s; ++j) {
                  const int64_t at = (g * t + i) * s + j;
                  const bool sees = begin <= j && j < seen;
                  const double score = sees ? setting.score(dot(q, k, b, i, h, j, kh)) : 0;
                  p[at] = sees ? std::exp(score - lse.at(b, h, i)) : 0;
                  ds[at] = sees ? p[at] * (dot(dout, v, b, i, h, j, kh) - e) * setting.slope(score) : 0;
                }
                for (int64_t c = 0; c < d; ++c) {
                  double total = 0;
                  for (int64_t j = begin; j < seen; ++j) total += ds[(g * t + i) * s + j] * k.at(b, j, kh, c);
                  dq.set_at(setting.scale * total, b, i, h, c);
                }
              }
            for (int64_t j = 0; j < s; ++j)
              for (int64_t c = 0; c < d; ++c) {
                double key = 0, value = 0;
                for (int64_t g = 0; g < group; ++g)
                  for (int64_t i = 0; i < t; ++i) {
                    const int64_t at = (g * t + i) * s + j, h = kh * group + g;
                    key += ds[at] * q.at(b, i, h, c);
                    value += p[at] * dout.at(b, i, h, c);
                  }
                dk.set_at(setting.scale * key, b, j, kh, c);
                dv.set_at(value, b, j, kh, c);
              }
          }
        }
      },
      2 * pairs * group);
}

// New keys and values are written to the caches at position..; query i then sees all up to position + i.
std::unique_ptr<Kernel> attention_cached(const KernelRequest& request) {
  const auto body = [setting = Setting(request)](const Operands& o) {
    const View q = o.in(0), k = o.in(1), v = o.in(2), out = o.out(0), k_cache = o.out(1), v_cache = o.out(2);
    const int64_t t = q.size(1), room = k_cache.size(1), position = static_cast<int64_t>(o.in(5)[0]);
    if (position < 0 || position + t > room)
      fail_usage("attention_cached: {} new tokens at position {} do not fit in a cache of {}", t, position,
                 room);
    const int64_t group = q.size(2) / k.size(2);
    for (int64_t b = 0; b < q.size(0); ++b)
      for (int64_t i = 0; i < t; ++i)
        for (int64_t h = 0; h < k.size(2); ++h)
          for (int64_t c = 0; c < k.size(3); ++c) {
            k_cache.set_at(k.at(b, i, h, c), b, position + i, h, c);
            v_cache.set_at(v.at(b, i, h, c), b, position + i, h, c);
          }
    for (int64_t b = 0; b < q.size(0); ++b)
      for (int64_t h = 0; h < q.size(2); ++h)
        for (int64_t i = 0; i < t; ++i)
          attend(q, k_cache, v_cache, out, setting, b, i, h, h / group, setting.begin(position + i + 1),
                 position + i + 1, o.scratch());
  };
  return kernel_of(request, body, request.outputs[1].type.shape[1]);
}

}  // namespace

std::vector<KernelEntry> attention_kernels() {
  return {{"attention", attention},
          {"attention_gradient", attention_gradient},
          {"attention_cached", attention_cached}};
}

}  // namespace het::reference
