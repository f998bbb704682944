// Layer norm and RMS norm over rows of the last dimension. Statistics and sums are f32. Gradients of weight
// and bias are column sums over all rows: each part sums its rows into the workspace, then the parts are
// added in order.
#include <type_traits>

#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Sum of row(i, lanes) over the columns, in four independent chains.
template <typename Row>
HET_INLINE float sum_row(int64_t n, const Row& row) {
  Vector sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) sums[k] += row(i + k * kLanes, Full{});
  for (; i + kLanes <= n; i += kLanes) sums[0] += row(i, Full{});
  if (i < n) {
    const Tail tail{static_cast<int>(n - i)};
    sums[1] += keep(row(i, tail), tail, 0.0f);
  }
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename T, bool kCentred>
void normalise_row(const T* x, const float* weight, const float* bias, T* y, float* mean_out, float* rstd_out,
                   int64_t n, float eps) {
  float mean = 0;
  if constexpr (kCentred) mean = sum_row(n, [&](int64_t i, auto lanes) { return load(x + i, lanes); }) / n;
  const float square = sum_row(n, [&](int64_t i, auto lanes) {
    const Vector centred = load(x + i, lanes) - mean;
    return centred * centred;
  });
  const float rstd = 1.0f / __builtin_sqrtf(square / n + eps);
  if constexpr (kCentred) *mean_out = mean;
  *rstd_out = rstd;
  const auto write = [&](auto has_weight, auto has_bias) {
    for_lanes(n, [&](int64_t i, auto lanes) {
      Vector v = (load(x + i, lanes) - mean) * rstd;
      if constexpr (has_weight) v *= load(weight + i, lanes);
      if constexpr (has_bias) v += load(bias + i, lanes);
      store(y + i, v, lanes);
    });
  };
  using Yes = std::true_type;
  using No = std::false_type;
  if (weight && bias)
    write(Yes{}, Yes{});
  else if (weight)
    write(Yes{}, No{});
  else if (bias)
    write(No{}, Yes{});
  else
    write(No{}, No{});
}

// to = a + b, rounded to T. A separate loop, so that what follows or comes before is not contracted with
// it: the bits are those of a separate addition.
template <typename T>
void add_row(const T* a, const T* b, T* to, int64_t n) {
  for_lanes(n, [&](int64_t i, auto lanes) { store(to + i, load(a + i, lanes) + load(b + i, lanes), lanes); });
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm(const KernelRequest& request) {
  constexpr size_t kResidual = kCentred ? 3 : 2;  // operand; as result, the sum
  const Rows rows = packed_rows(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const bool has_residual = present(request.inputs, kResidual);
  if (has_residual) {
    require_packed(request, request.inputs[kResidual]);
    require_packed(request, request.outputs[kResidual]);
  }
  const float eps = static_cast<float>(number(request, "eps", 1e-5));
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const bool has_weight = present(request.inputs, 1), has_bias = kCentred && present(request.inputs, 2);
    return make_kernel([rows, eps, has_weight, has_bias, has_residual](const KernelArguments& a) {
      const float* weight = has_weight ? a.in<float>(1) : nullptr;
      const float* bias = has_bias ? a.in<float>(2) : nullptr;
      const T* x = a.in<T>(0);
      const T* residual = has_residual ? a.in<T>(kResidual) : nullptr;
      T* sum = has_residual ? a.out<T>(kResidual) : nullptr;
      T* y = a.out<T>(0);
      float* mean = kCentred ? a.out<float>(1) : nullptr;
      float* rstd = a.out<float>(kCentred ? 2 : 1);
      parallel_for(rows.count, row_grain(kLightGrain, rows.columns), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t at = r * rows.columns;
          if (has_residual) add_row(x + at, residual + at, sum + at, rows.columns);
          normalise_row<T, kCentred>((has_residual ? sum : x) + at, weight, bias, y + at,
                                     kCentred ? mean + r : nullptr, rstd + r, rows.columns, eps);
        }
      });
    });
  });
}

// With g = dy * weight and h = (x - mean) * rstd of a row: the sums of g (only when centred) and of g * h;
// dweight += dy * h; dbias += dy.
struct RowSums {
  float g, gh;
};
template <typename T, bool kCentred, bool kWeight, bool kSums>
HET_INLINE RowSums gradient_sums(const T* dy, const T* x, const float* weight, float mean, float rstd,
                                 float* dweight, float* dbias, int64_t n) {
  Vector sums_g[2] = {}, sums_gh[2] = {};
  int chain = 0;
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Vector d = load(dy + i, lanes);
    const Vector h = (load(x + i, lanes) - mean) * rstd;
    Vector g = d;
    if constexpr (kWeight) g *= load(weight + i, lanes);
    if constexpr (kSums) {
      store(dweight + i, load(dweight + i, lanes) + d * h, lanes);
      if constexpr (kCentred) store(dbias + i, load(dbias + i, lanes) + d, lanes);
    }
    if constexpr (kCentred) sums_g[chain & 1] += g;
    sums_gh[chain & 1] += g * h;
    ++chain;
  });
  return {kCentred ? sum_of(sums_g[0] + sums_g[1]) : 0.0f, sum_of(sums_gh[0] + sums_gh[1])};
}

// dx = rstd * (g - mean(g) - h * mean(g * h)), the middle term only when centred.
template <typename T, bool kCentred, bool kWeight, bool kSums>
void gradient_row(const T* dy, const T* x, const float* weight, float mean, float rstd, T* dx, float* dweight,
                  float* dbias, int64_t n) {
  const RowSums sums =
      gradient_sums<T, kCentred, kWeight, kSums>(dy, x, weight, mean, rstd, dweight, dbias, n);
  const float mean_g = kCentred ? sums.g / n : 0.0f, mean_gh = sums.gh / n;
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Vector h = (load(x + i, lanes) - mean) * rstd;
    Vector g = load(dy + i, lanes);
    if constexpr (kWeight) g *= load(weight + i, lanes);
    store(dx + i, (g - mean_g - h * mean_gh) * rstd, lanes);
  });
}

// to = (or +=) the sum over parts of from[part * step + i].
void add_parts(const float* from, int64_t parts, int64_t step, float* to, int64_t count, bool accumulate) {
  for_lanes(count, [&](int64_t i, auto lanes) {
    Vector sum = accumulate ? load(to + i, lanes) : Vector{};
    for (int64_t part = 0; part < parts; ++part) sum += load(from + part * step + i, lanes);
    store(to + i, sum, lanes);
  });
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm_gradient(const KernelRequest& request) {
  constexpr size_t kSkip = kCentred ? 5 : 4;
  const Rows rows = packed_rows(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const bool has_weight = present(request.inputs, 2), has_skip = present(request.inputs, kSkip);
  if (has_skip) require_packed(request, request.inputs[kSkip]);
  const bool wants_weight = present(request.outputs, 1), wants_bias = kCentred && present(request.outputs, 2);
  const bool has_sums = wants_weight || wants_bias;
  const uint32_t accumulate = request.accumulate;
  const int64_t parts = parts_for(rows.count, row_grain(kLightGrain, rows.columns));
  // Per part: dweight then dbias, each padded to whole cache lines so that no two parts share one.
  const int64_t step = (rows.columns + 15) / 16 * 16;
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=](const KernelArguments& a) {
          const T *dy = a.in<T>(0), *x = a.in<T>(1);
          const float* weight = has_weight ? a.in<float>(2) : nullptr;
          const float* mean = kCentred ? a.in<float>(3) : nullptr;
          const float* rstd = a.in<float>(kCentred ? 4 : 3);
          const T* skip = has_skip ? a.in<T>(kSkip) : nullptr;
          T* dx = a.out<T>(0);
          float* sums = reinterpret_cast<float*>(a.workspace);
          parallel_parts(parts, [&](int64_t part) {
            float *dweight = sums + 2 * part * step, *dbias = dweight + step;
            for (int64_t i = 0; i < 2 * step; ++i) dweight[i] = 0;
            const Range range = share_of(rows.count, parts, part);
            for (int64_t r = range.begin; r < range.end; ++r) {
              const int64_t at = r * rows.columns;
              const float m = kCentred ? mean[r] : 0.0f;
              const auto row = has_weight ? (has_sums ? gradient_row<T, kCentred, true, true>
                                                      : gradient_row<T, kCentred, true, false>)
                                          : (has_sums ? gradient_row<T, kCentred, false, true>
                                                      : gradient_row<T, kCentred, false, false>);
              row(dy + at, x + at, weight, m, rstd[r], dx + at, dweight, dbias, rows.columns);
              if (has_skip) add_row(dx + at, skip + at, dx + at, rows.columns);
            }
          });
          if (wants_weight)
            add_parts(sums, parts, 2 * step, a.out<float>(1), rows.columns, accumulate >> 1 & 1);
          if (wants_bias)
            add_parts(sums + step, parts, 2 * step, a.out<float>(2), rows.columns, accumulate >> 2 & 1);
        },
        parts * 2 * step * 4);
  });
}

// ---- of a part of the columns ----

std::unique_ptr<Kernel> prepare_row_moments(const KernelRequest& request) {
  const Rows rows = packed_rows(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([rows](const KernelArguments& a) {
      const int64_t n = rows.columns;
      float* moments = a.out<float>(0);
      parallel_for(rows.count, row_grain(kLightGrain, n), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* x = a.in<T>(0) + r * n;
          const float sum = sum_row(n, [&](int64_t i, auto lanes) { return load(x + i, lanes); });
          const float mean = sum / n;
          moments[r] = static_cast<float>(n);
          moments[rows.count + r] = sum;
          moments[2 * rows.count + r] = sum_row(n, [&](int64_t i, auto lanes) {
            const Vector centred = load(x + i, lanes) - mean;
            return centred * centred;
          });
        }
      });
    });
  });
}

std::unique_ptr<Kernel> prepare_norm_gradient_sums(const KernelRequest& request) {
  const Rows rows = packed_rows(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const bool has_weight = present(request.inputs, 2), has_mean = present(request.inputs, 3);
  const bool wants_weight = present(request.outputs, 1), wants_bias = present(request.outputs, 2);
  const uint32_t accumulate = request.accumulate;
  const int64_t parts = parts_for(rows.count, row_grain(kLightGrain, rows.columns));
  const int64_t step = (rows.columns + 15) / 16 * 16;  // as for the gradient above
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    const auto row = has_weight ? (wants_weight || wants_bias ? gradient_sums<T, true, true, true>
                                                              : gradient_sums<T, true, true, false>)
                                : (wants_weight || wants_bias ? gradient_sums<T, true, false, true>
                                                              : gradient_sums<T, true, false, false>);
    return make_kernel(
        [=](const KernelArguments& a) {
          const T *dy = a.in<T>(0), *x = a.in<T>(1);
          const float *weight = has_weight ? a.in<float>(2) : nullptr,
                      *mean = has_mean ? a.in<float>(3) : nullptr, *rstd = a.in<float>(4);
          float* totals = a.out<float>(0);
          float* sums = reinterpret_cast<float*>(a.workspace);
          parallel_parts(parts, [&](int64_t part) {
            float *dweight = sums + 2 * part * step, *dbias = dweight + step;
            for (int64_t i = 0; i < 2 * step; ++i) dweight[i] = 0;
            const Range range = share_of(rows.count, parts, part);
            for (int64_t r = range.begin; r < range.end; ++r) {
              const int64_t at = r * rows.columns;
              const RowSums both = row(dy + at, x + at, weight, mean == nullptr ? 0.0f : mean[r], rstd[r],
                                       dweight, dbias, rows.columns);
              totals[r] = both.g;
              totals[rows.count + r] = both.gh;
            }
          });
          if (wants_weight)
            add_parts(sums, parts, 2 * step, a.out<float>(1), rows.columns, accumulate >> 1 & 1);
          if (wants_bias)
            add_parts(sums + step, parts, 2 * step, a.out<float>(2), rows.columns, accumulate >> 2 & 1);
        },
        parts * 2 * step * 4);
  });
}

}  // namespace

std::vector<KernelEntry> norm_kernels() {
  return {{"layer_norm", prepare_norm<true>},   {"layer_norm_gradient", prepare_norm_gradient<true>},
          {"rms_norm", prepare_norm<false>},    {"rms_norm_gradient", prepare_norm_gradient<false>},
          {"row_moments", prepare_row_moments}, {"norm_gradient_sums", prepare_norm_gradient_sums}};
}

}  // namespace het::cpu::HET_ISA
