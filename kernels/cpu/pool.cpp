// Pooling of images. Threads share out the images of one channel.
#include "core/ops/windows.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// body(plane, a line of f32 of the thread's own, as wide as an image, or `lines` of them)
template <typename Body>
std::unique_ptr<Kernel> by_planes(const Pooling& p, int64_t lines, const Body& body) {
  const int64_t plane = p.rows.size * p.columns.size, floats = (lines * p.columns.size + 15) / 16 * 16;
  const int64_t parts = parts_for(p.planes, row_grain(kLightGrain, plane));
  return make_kernel(
      [=](const KernelArguments& a) {
        parallel_parts(parts, [&](int64_t part) {
          float* own = reinterpret_cast<float*>(a.workspace) + part * floats;
          const Range share = share_of(p.planes, parts, part);
          for (int64_t i = share.begin; i < share.end; ++i) body(a, i, own);
        });
      },
      parts * floats * 4);
}

// The result of each window's rows, column by column (in whole vectors), then that of its columns.
template <typename T, typename Join, typename JoinVectors, typename Finish>
std::unique_ptr<Kernel> make_pool(const Pooling& p, const Join& join, const JoinVectors& join_vectors,
                                  const Finish& finish) {
  return by_planes(p, 1, [=](const KernelArguments& a, int64_t plane, float* line) {
    const T* x = a.in<T>(0) + plane * p.rows.size * p.columns.size;
    T* y = a.out<T>(0) + plane * p.rows.count * p.columns.count;
    for (int64_t r = 0; r < p.rows.count; ++r) {
      const Range rows = range_of(p.rows, r);
      for_lanes(p.columns.size, [&](int64_t i, auto lanes) {
        Vector all = load(x + rows.begin * p.columns.size + i, lanes);
        for (int64_t iy = rows.begin + 1; iy < rows.end; ++iy)
          all = join_vectors(all, load(x + iy * p.columns.size + i, lanes));
        store(line + i, all, lanes);
      });
      for (int64_t u = 0; u < p.columns.count; ++u) {
        const Range columns = range_of(p.columns, u);
        float all = line[columns.begin];
        for (int64_t ix = columns.begin + 1; ix < columns.end; ++ix) all = join(all, line[ix]);
        y[r * p.columns.count + u] = T(finish(all, rows, columns));
      }
    }
  });
}

HET_INLINE float share_for(const Pooling& p, Range rows, Range columns) {
  return 1.0F / static_cast<float>(p.divisor > 0 ? p.divisor
                                                 : (rows.end - rows.begin) * (columns.end - columns.begin));
}

std::unique_ptr<Kernel> prepare_max(const KernelRequest& request) {
  require_packed_floats(request);
  const Pooling p = pooling_of(request.inputs[0].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_pool<T>(
        p, [](float a, float b) { return b > a || b != b ? b : a; },
        [](Vector a, Vector b) { return maximum(a, b); }, [](float most, Range, Range) { return most; });
  });
}

std::unique_ptr<Kernel> prepare_avg(const KernelRequest& request) {
  require_packed_floats(request);
  const Pooling p = pooling_of(request.op.name, request.inputs[0].type.shape, request.outputs[0].type.shape,
                               request.attributes);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_pool<T>(
        p, [](float a, float b) { return a + b; }, [](Vector a, Vector b) { return a + b; },
        [p](float sum, Range rows, Range columns) { return sum * share_for(p, rows, columns); });
  });
}

// dx of an image, summed in f32.
template <typename T, typename Add>
std::unique_ptr<Kernel> make_gradient(const Pooling& p, const Add& add) {
  const int64_t size = p.rows.size * p.columns.size, results = p.rows.count * p.columns.count;
  return by_planes(p, p.rows.size, [=](const KernelArguments& a, int64_t plane, float* sums) {
    const T* dy = a.in<T>(0) + plane * results;
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
    for (int64_t r = 0; r < p.rows.count; ++r)
      for (int64_t u = 0; u < p.columns.count; ++u)
        add(a, plane * size, sums, range_of(p.rows, r), range_of(p.columns, u),
            static_cast<float>(dy[r * p.columns.count + u]));
    T* dx = a.out<T>(0) + plane * size;
    for_lanes(size, [&](int64_t i, auto lanes) { store(dx + i, load(sums + i, lanes), lanes); });
  });
}

std::unique_ptr<Kernel> prepare_max_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  const Pooling p = pooling_of(request.inputs[1].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_gradient<T>(
        p, [p](const KernelArguments& a, int64_t first, float* sums, Range rows, Range columns, float dy) {
          const T* x = a.in<T>(1) + first;
          int64_t place = rows.begin * p.columns.size + columns.begin;
          float most = static_cast<float>(x[place]);
          for (int64_t iy = rows.begin; iy < rows.end; ++iy)
            for (int64_t ix = columns.begin; ix < columns.end; ++ix) {
              const float value = static_cast<float>(x[iy * p.columns.size + ix]);
              if (!(value > most || value != value)) continue;
              most = value;
              place = iy * p.columns.size + ix;
            }
          sums[place] += dy;
        });
  });
}

std::unique_ptr<Kernel> prepare_avg_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  const Pooling p = pooling_of(request.op.name, request.outputs[0].type.shape, request.inputs[0].type.shape,
                               request.attributes);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_gradient<T>(
        p, [p](const KernelArguments&, int64_t, float* sums, Range rows, Range columns, float dy) {
          const float share = dy * share_for(p, rows, columns);
          for (int64_t iy = rows.begin; iy < rows.end; ++iy)
            for (int64_t ix = columns.begin; ix < columns.end; ++ix) sums[iy * p.columns.size + ix] += share;
        });
  });
}

}  // namespace

std::vector<KernelEntry> pool_kernels() {
  return {{"max_pool2d", &prepare_max},          {"max_pool2d_gradient", &prepare_max_gradient},
          {"avg_pool2d", &prepare_avg},          {"avg_pool2d_gradient", &prepare_avg_gradient},
          {"adaptive_avg_pool2d", &prepare_avg}, {"adaptive_avg_pool2d_gradient", &prepare_avg_gradient}};
}

}  // namespace het::cpu::HET_ISA
