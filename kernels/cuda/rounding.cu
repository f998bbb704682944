// Stochastic rounding of core/ops/rounding.h. A thread takes 8 elements, which are one draw of Philox where
// they are a group of the whole.
#include "core/ops/part.h"
#include "core/ops/rounding.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256, kElements = 8;

// What was rounded by chance is a bf16 already; the rest is rounded to nearest.
__device__ bf16 round_by_chance(float x, uint32_t random) {
  return from_float<bf16>(__uint_as_float(rounded_by_chance(__float_as_uint(x), random)));
}

__global__ void __launch_bounds__(kThreads)
    round_all(const float* x, const int64_t* step, bf16* y, PhiloxKey key, int64_t elements,
              const __grid_constant__ SliceMap place, bool packed) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  if (i >= elements) return;
  const auto run = place.at(i, elements);
  if (packed && run.element % kElements == 0 && run.left >= kElements) {
    const auto words = rounding_words(key, *step, run.element / kElements);
    float v[kElements];
    load(v, x + i);
    Pack<bf16, kElements> pack;
#pragma unroll
    for (int k = 0; k < kElements; ++k) pack.v[k] = round_by_chance(v[k], rounding_bits(words, k));
    store_whole(y + i, pack);
    return;
  }
  for (int64_t k = i; k < min(i + kElements, elements); ++k) {
    const int64_t element = place.at(k, elements).element;
    const auto words = rounding_words(key, *step, element / kElements);
    y[k] = round_by_chance(x[k], rounding_bits(words, element % kElements));
  }
}

std::unique_ptr<Kernel> prepare_stochastic_cast(const KernelRequest& request, const Context& context) {
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  if (request.inputs[0].type.dtype != DType::f32) refuse_dtype(request, request.inputs[0].type.dtype);
  const PhiloxKey key = draw_key(request);
  const SliceMap place = places_of(request.attributes, request.inputs[0].type.shape);
  const int64_t elements = request.inputs[0].type.elements();
  const int64_t grid = ceil_div(elements, int64_t{kThreads} * kElements);
  return make_kernel([=, &context](const KernelArguments& a) {
    const float* x = a.in<float>(0);
    bf16* y = a.out<bf16>(0);
    const bool packed = packs(x, kElements, kElements) && packs(y, kElements, kElements);
    launch(context, round_all, static_cast<unsigned>(grid), kThreads, 0, x, a.in<int64_t>(1), y, key,
           elements, place, packed);
  });
}

}  // namespace

std::vector<Entry> rounding_kernels() { return {{"stochastic_cast", prepare_stochastic_cast}}; }

}  // namespace het::HET_CUDA
