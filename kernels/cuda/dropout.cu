// Dropout and uniform numbers: the draws of core/ops/dropout.h. A thread takes 8 elements, which are two
// draws of Philox: 2 * 10 rounds of two wide multiplications and two exclusive ors, some 50 cycles of a
// multiprocessor for a warp's 256 elements, as many as their bytes take in bf16.
#include <cmath>

#include "core/ops/dropout.h"
#include "core/ops/part.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/loops.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256, kElements = 8;

struct Dropping {
  PhiloxKey key;
  uint32_t threshold;  // kept when the word's upper 24 bits are at least this
  float scale;
  int64_t samples, each, whole_each;  // elements of a sample, here and in the whole
  Divisor units;                      // of a sample, the last one perhaps partly filled
};

// What becomes of an element's value by the word that is drawn for it.
struct Drop {
  static constexpr bool kReads = true;
  static __device__ float value(float x, uint32_t word, const Dropping& d) {
    return word >> 8 >= d.threshold ? x * d.scale : 0.0f;
  }
};
struct Uniform {
  static constexpr bool kReads = false;
  static __device__ float value(float, uint32_t word, const Dropping&) { return uniform_inside(word); }
};

template <typename T, typename What>
__global__ void __launch_bounds__(kThreads)
    draw(const T* x, const int64_t* counter, T* y, const __grid_constant__ Dropping d,
         const __grid_constant__ SliceMap place, bool packed) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto sample = static_cast<int64_t>(d.units.quotient(unit));
  if (sample >= d.samples) return;
  const int64_t element = (unit - sample * static_cast<int64_t>(d.units.size)) * kElements;
  const int64_t at = sample * d.each + element, count = min(d.each - element, int64_t{kElements});
  const auto run = place.at(at, d.samples * d.each);
  const int64_t whole_sample = run.element / d.whole_each, first = run.element - whole_sample * d.whole_each;
  if (first % 4 != 0 || run.left < count) {  // of a slice that begins or ends within what is drawn together
    for (int k = 0; k < count; ++k) {
      const int64_t own = place.at(at + k, d.samples * d.each).element - whole_sample * d.whole_each;
      const auto words = dropout_words(d.key, counter[0], counter[1] + whole_sample, own / 4);
      y[at + k] = from_float<T>(What::value(What::kReads ? to_float(x[at + k]) : 0.0f, words[own % 4], d));
    }
    return;
  }
  float v[kElements] = {};
  if (What::kReads && packed)
    load(v, x + at);
  else if (What::kReads)
    for (int k = 0; k < kElements; ++k) v[k] = k < count ? to_float(x[at + k]) : 0.0f;
#pragma unroll
  for (int half = 0; half < kElements / 4; ++half) {
    const auto words = dropout_words(d.key, counter[0], counter[1] + whole_sample, first / 4 + half);
#pragma unroll
    for (int k = 0; k < 4; ++k) v[4 * half + k] = What::value(v[4 * half + k], words[k], d);
  }
  if (packed) {
    Pack<T, kElements> pack;
#pragma unroll
    for (int k = 0; k < kElements; ++k) pack.v[k] = from_float<T>(v[k]);
    store_whole(y + at, pack);
  } else {
    for (int k = 0; k < count; ++k) y[at + k] = from_float<T>(v[k]);
  }
}

template <typename What>
std::unique_ptr<Kernel> prepare(const KernelRequest& request, const Context& context) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const double p = number(request, "p", 0.0);
  Dropping d;
  d.key = draw_key(request);
  // uniform_of(word) = (word >> 8) / 2^24 >= p, without a conversion for each element.
  d.threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(static_cast<float>(p)) * 0x1p24));
  d.scale = static_cast<float>(1.0 / (1.0 - p));
  d.samples = type.elements() > 0 ? type.shape[0] : 0;
  d.each = d.samples > 0 ? type.elements() / d.samples : 0;
  const SliceMap place = places_of(request.attributes, type.shape);
  d.whole_each = whole_sample_elements(request.attributes, type.shape);
  const int64_t units = ceil_div(d.each, kElements), grid = ceil_div(units * d.samples, kThreads);
  d.units = Divisor(units, grid * kThreads);
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const bool packed = packs(a.in<T>(0), d.each, kElements) && packs(a.out<T>(0), d.each, kElements);
      launch(context, draw<T, What>, static_cast<unsigned>(grid), kThreads, 0, a.in<T>(0), a.in<int64_t>(1),
             a.out<T>(0), d, place, packed);
    });
  });
}

}  // namespace

std::vector<Entry> dropout_kernels() { return {{"dropout", prepare<Drop>}, {"uniform", prepare<Uniform>}}; }

}  // namespace het::HET_CUDA
