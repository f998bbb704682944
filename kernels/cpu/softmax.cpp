// Softmax and its gradient along any dimension. Along the last one each row is one run of memory; along
// another, the dimensions after it lie in the lanes.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();

// ---- rows ----

template <typename T>
void softmax_row(const T* x, T* y, float* scratch, int64_t n) {
  Vector top = splat(kLowest);
  for_lanes(n, [&](int64_t i, auto lanes) { top = maximum(top, keep(load(x + i, lanes), lanes, kLowest)); });
  const Vector shift = splat(maximum_of(top));
  Vector sum{};
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Vector e = exp(load(x + i, lanes) - shift);
    store(scratch + i, e, lanes);
    sum += keep(e, lanes, 0.0f);
  });
  const Vector factor = splat(1.0f / sum_of(sum));
  for_lanes(n, [&](int64_t i, auto lanes) { store(y + i, load(scratch + i, lanes) * factor, lanes); });
}

template <typename T>
void softmax_gradient_row(const T* y, const T* dy, T* dx, int64_t n) {
  Vector dot{};
  for_lanes(n, [&](int64_t i, auto lanes) { dot += load(y + i, lanes) * load(dy + i, lanes); });
  const Vector mean = splat(sum_of(dot));
  for_lanes(n, [&](int64_t i, auto lanes) {
    store(dx + i, load(y + i, lanes) * (load(dy + i, lanes) - mean), lanes);
  });
}

// ---- a strip of lanes, the summed dimension outside it with a step of `inner` elements ----

template <typename T, typename Lanes>
void softmax_strip(const T* x, T* y, int64_t n, int64_t inner, Lanes lanes) {
  Vector top = splat(kLowest);
  for (int64_t i = 0; i < n; ++i) top = maximum(top, load(x + i * inner, lanes));
  Vector sum{};
  for (int64_t i = 0; i < n; ++i) sum += exp(load(x + i * inner, lanes) - top);
  const Vector factor = 1.0f / sum;
  for (int64_t i = 0; i < n; ++i) store(y + i * inner, exp(load(x + i * inner, lanes) - top) * factor, lanes);
}

template <typename T, typename Lanes>
void softmax_gradient_strip(const T* y, const T* dy, T* dx, int64_t n, int64_t inner, Lanes lanes) {
  Vector dot{};
  for (int64_t i = 0; i < n; ++i) dot += load(y + i * inner, lanes) * load(dy + i * inner, lanes);
  for (int64_t i = 0; i < n; ++i)
    store(dx + i * inner, load(y + i * inner, lanes) * (load(dy + i * inner, lanes) - dot), lanes);
}

// body(offset of the strip's first element, lanes) over all strips of [outer, size, inner].
template <typename Body>
void for_strips(const Split3& split, int64_t grain, const Body& body) {
  const int64_t strips = (split.inner + kLanes - 1) / kLanes;
  parallel_for(split.outer * strips, row_grain(grain, split.size * kLanes), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t column = s % strips * kLanes;
      const int64_t offset = s / strips * split.size * split.inner + column;
      if (column + kLanes <= split.inner)
        body(offset, Full{});
      else
        body(offset, Tail{static_cast<int>(split.inner - column)});
    }
  });
}

// Of [outer, size, inner] without the middle: where the column is whose first element is at `offset`.
int64_t column_of(const Split3& split, int64_t offset) {
  return offset / (split.size * split.inner) * split.inner + offset % split.inner;
}

std::unique_ptr<Kernel> prepare_softmax(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  return for_float(request, type.dtype, [&]<typename T>(T) {
    // A row of exponentials for each part: as f32 even when the result is narrower.
    const int64_t parts = split.inner == 1 ? parts_for(split.outer, row_grain(kHeavyGrain, split.size)) : 1;
    const int64_t scratch = split.inner == 1 ? (split.size + kLanes) / 16 * 16 + 16 : 0;
    return make_kernel(
        [split, parts, scratch](const KernelArguments& a) {
          const T* x = a.in<T>(0);
          T* y = a.out<T>(0);
          if (split.inner != 1) {
            for_strips(split, kHeavyGrain, [&](int64_t offset, auto lanes) {
              softmax_strip(x + offset, y + offset, split.size, split.inner, lanes);
            });
            return;
          }
          parallel_parts(parts, [&](int64_t part) {
            float* row = reinterpret_cast<float*>(a.workspace) + part * scratch;
            const Range range = share_of(split.outer, parts, part);
            for (int64_t r = range.begin; r < range.end; ++r)
              softmax_row(x + r * split.size, y + r * split.size, row, split.size);
          });
        },
        parts * scratch * 4);
  });
}

std::unique_ptr<Kernel> prepare_softmax_gradient(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([split](const KernelArguments& a) {
      const T *y = a.in<T>(0), *dy = a.in<T>(1);
      T* dx = a.out<T>(0);
      if (split.inner != 1) {
        for_strips(split, kLightGrain, [&](int64_t offset, auto lanes) {
          softmax_gradient_strip(y + offset, dy + offset, dx + offset, split.size, split.inner, lanes);
        });
        return;
      }
      parallel_for(split.outer, row_grain(kLightGrain, split.size), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          softmax_gradient_row(y + r * split.size, dy + r * split.size, dx + r * split.size, split.size);
      });
    });
  });
}

// ---- of a part of the dimension ----

// Only a row of nothing but -inf, which cannot be subtracted from itself, has this as its largest element.
constexpr float kLowestFinite = -__FLT_MAX__;

std::unique_ptr<Kernel> prepare_softmax_statistics(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([split](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      const int64_t n = split.size;
      const int64_t columns = split.outer * split.inner;
      float *tops = a.out<float>(0), *sums = tops + columns;
      for (int64_t c = 0; n == 0 && c < columns; ++c) tops[c] = kLowestFinite, sums[c] = 0;
      if (n == 0) return;
      if (split.inner != 1) {
        for_strips(split, kHeavyGrain, [&](int64_t offset, auto lanes) {
          Vector top = splat(kLowestFinite), sum{};
          for (int64_t i = 0; i < n; ++i) top = maximum(top, load(x + offset + i * split.inner, lanes));
          for (int64_t i = 0; i < n; ++i) sum += exp(load(x + offset + i * split.inner, lanes) - top);
          const int64_t at = column_of(split, offset);
          store(tops + at, top, lanes);
          store(sums + at, sum, lanes);
        });
        return;
      }
      parallel_for(split.outer, row_grain(kHeavyGrain, n), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* row = x + r * n;
          Vector top = splat(kLowestFinite), sum{};
          for_lanes(n, [&](int64_t i, auto lanes) {
            top = maximum(top, keep(load(row + i, lanes), lanes, kLowestFinite));
          });
          tops[r] = maximum_of(top);
          const Vector shift = splat(tops[r]);
          for_lanes(
              n, [&](int64_t i, auto lanes) { sum += keep(exp(load(row + i, lanes) - shift), lanes, 0.0f); });
          sums[r] = sum_of(sum);
        }
      });
    });
  });
}

std::unique_ptr<Kernel> prepare_softmax_gradient_sums(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const Split3 split = split_at(type.shape, integer(request, "dim", -1));
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([split](const KernelArguments& a) {
      const T *y = a.in<T>(0), *dy = a.in<T>(1);
      const int64_t n = split.size;
      float* sums = a.out<float>(0);
      for (int64_t c = 0; n == 0 && c < split.outer * split.inner; ++c) sums[c] = 0;
      if (n == 0) return;
      if (split.inner != 1) {
        for_strips(split, kLightGrain, [&](int64_t offset, auto lanes) {
          Vector dot{};
          for (int64_t i = 0; i < n; ++i) {
            const int64_t at = offset + i * split.inner;
            dot += load(y + at, lanes) * load(dy + at, lanes);
          }
          store(sums + column_of(split, offset), dot, lanes);
        });
        return;
      }
      parallel_for(split.outer, row_grain(kLightGrain, n), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          Vector dot{};
          for_lanes(n, [&](int64_t i, auto lanes) {
            dot += load(y + r * n + i, lanes) * load(dy + r * n + i, lanes);
          });
          sums[r] = sum_of(dot);
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> softmax_kernels() {
  return {{"softmax", prepare_softmax},
          {"softmax_gradient", prepare_softmax_gradient},
          {"softmax_statistics", prepare_softmax_statistics},
          {"softmax_gradient_sums", prepare_softmax_gradient_sums}};
}

}  // namespace het::cpu::HET_ISA
