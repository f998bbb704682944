// Rotary embedding. The table of sines and cosines for this call's positions is made once in the workspace,
// in f64 angles, and shared by all heads and samples.
#include <vector>

#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Strides of [b, t, heads, d] with innermost 1.
struct Steps {
  int64_t sample, time, head;
};

struct Sizes {
  int64_t samples, time, heads, half;  // half: pairs in a head
};

template <typename T>
void rotate_halves(const T* x, T* y, const float* cosine, const float* sine, int64_t half) {
  for_lanes(half, [&](int64_t i, auto lanes) {
    const Vector a = load(x + i, lanes), b = load(x + half + i, lanes);
    const Vector c = load(cosine + i, lanes), s = load(sine + i, lanes);
    store(y + i, a * c - b * s, lanes);
    store(y + half + i, b * c + a * s, lanes);
  });
}

template <typename T>
void rotate_neighbours(const T* x, T* y, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = static_cast<float>(x[2 * i]), b = static_cast<float>(x[2 * i + 1]);
    y[2 * i] = static_cast<T>(a * cosine[i] - b * sine[i]);
    y[2 * i + 1] = static_cast<T>(b * cosine[i] + a * sine[i]);
  }
}

std::unique_ptr<Kernel> prepare_rotary(const KernelRequest& request) {
  const Layout &in = request.inputs[0], &out = request.outputs[0];
  const Shape& shape = in.type.shape;
  if (shape.size() != 4 || shape[3] % 2 != 0) refuse(request, "anything but [b, t, heads, d] with an even d");
  if (in.strides[3] != 1 || out.strides[3] != 1) refuse(request, "heads whose elements are not adjacent");
  if (request.inputs[1].type.dtype != DType::i32) refuse_dtype(request, request.inputs[1].type.dtype);
  const Sizes sizes{shape[0], shape[1], shape[2], shape[3] / 2};
  const Steps from{in.strides[0], in.strides[1], in.strides[2]},
      to{out.strides[0], out.strides[1], out.strides[2]};
  const bool interleaved = flag(request, "interleaved", false);
  const double direction = flag(request, "inverse", false) ? -1.0 : 1.0;
  const double base = number(request, "base", 10000.0);
  auto frequencies = request.attributes.get<std::vector<double>>("frequencies", {});
  if (frequencies.empty())
    for (int64_t i = 0; i < sizes.half; ++i)
      frequencies.push_back(__builtin_pow(base, -static_cast<double>(i) / static_cast<double>(sizes.half)));
  for (double& frequency : frequencies) frequency *= direction;

  return for_float(request, in.type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, frequencies = std::move(frequencies)](const KernelArguments& a) {
          const T* x = a.in<T>(0);
          T* y = a.out<T>(0);
          float* cosines = reinterpret_cast<float*>(a.workspace);
          float* sines = cosines + sizes.time * sizes.half;
          parallel_for(sizes.time, row_grain(kHeavyGrain / 4, sizes.half), [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
              const double position = a.in<int32_t>(1)[t];
              for (int64_t i = 0; i < sizes.half; ++i) {
                const SineCosine value = sine_cosine(position * frequencies[i]);
                cosines[t * sizes.half + i] = value.cosine;
                sines[t * sizes.half + i] = value.sine;
              }
            }
          });
          const int64_t rows = sizes.samples * sizes.time;
          parallel_for(rows, row_grain(kLightGrain, sizes.heads * sizes.half * 2),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t r = begin; r < end; ++r) {
                           const int64_t b = r / sizes.time, t = r % sizes.time;
                           for (int64_t h = 0; h < sizes.heads; ++h) {
                             const T* source = x + b * from.sample + t * from.time + h * from.head;
                             T* target = y + b * to.sample + t * to.time + h * to.head;
                             const float *c = cosines + t * sizes.half, *s = sines + t * sizes.half;
                             if (interleaved)
                               rotate_neighbours(source, target, c, s, sizes.half);
                             else
                               rotate_halves(source, target, c, s, sizes.half);
                           }
                         }
                       });
        },
        2 * sizes.time * sizes.half * 4);
  });
}

}  // namespace

std::vector<KernelEntry> rotary_kernels() { return {{"rotary", prepare_rotary}}; }

}  // namespace het::cpu::HET_ISA
