// Dropout: the mask of core/ops/dropout.h, drawn for a vector of counters at a time.
#include "core/ops/dropout.h"

#include "core/ops/part.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/philox.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kBlock = kWords;  // elements of a draw

// As uniform_of(word) >= p.
HET_INLINE IntVector kept(WordVector words, float p) {
  const Vector uniform = __builtin_convertvector(reinterpret_cast<IntVector>(words >> 8), Vector) * 0x1p-24f;
  return uniform >= splat(p);
}

template <typename T, typename Lanes>
HET_INLINE void drop(const T* x, T* y, IntVector keep, float scale, Lanes lanes) {
  const Vector v = load(x, lanes) * scale;
  store(y, keep ? v : Vector{}, lanes);
}

// `count` elements of a sample from element 4 * quad on; at most kBlock.
template <typename T>
HET_INLINE void drop_block(const T* x, T* y, const Words& words, float p, float scale, int64_t count) {
  const IntVector first = kept(words.first, p), second = kept(words.second, p);
  if (count == kBlock) {
    drop(x, y, first, scale, Full{});
    drop(x + kLanes, y + kLanes, second, scale, Full{});
  } else if (count > kLanes) {
    drop(x, y, first, scale, Full{});
    drop(x + kLanes, y + kLanes, second, scale, Tail{static_cast<int>(count - kLanes)});
  } else if (count == kLanes) {
    drop(x, y, first, scale, Full{});
  } else {
    drop(x, y, first, scale, Tail{static_cast<int>(count)});
  }
}

// `count` elements of a sample from `element` on.
template <typename T>
HET_INLINE void drop_run(const T* x, T* y, PhiloxKey key, int64_t element, uint32_t sample, uint32_t step,
                         float p, float scale, int64_t count) {
  while (count > 0) {
    // A slice may begin within four elements that are drawn together.
    const int64_t inside = element % 4, left = kBlock - inside, done = count < left ? count : left;
    Words words = draw(key, element / 4, sample, step);
    if (inside != 0) {
      uint32_t lanes[2 * kBlock] = {};
      std::memcpy(lanes, &words, sizeof words);
      std::memcpy(&words, lanes + inside, sizeof words);
    }
    drop_block(x, y, words, p, scale, done);
    x += done;
    y += done;
    element += done;
    count -= done;
  }
}

std::unique_ptr<Kernel> prepare_dropout(const KernelRequest& request) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const float p = static_cast<float>(number(request, "p", 0.0));
  const float scale = static_cast<float>(1.0 / (1.0 - number(request, "p", 0.0)));
  const PhiloxKey key = draw_key(request);
  const SliceMap place = places_of(request.attributes, type.shape);
  const int64_t elements = type.elements(), samples = elements > 0 ? type.shape[0] : 0;
  const int64_t each = samples > 0 ? elements / samples : 0, blocks = (each + kBlock - 1) / kBlock;
  const int64_t whole_each = whole_sample_elements(request.attributes, type.shape);
  return for_float(request, type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      T* y = a.out<T>(0);
      const int64_t* counter = a.in<int64_t>(1);  // step, index of the first sample
      parallel_for(samples * blocks, row_grain(kHeavyGrain, kBlock), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end;) {  // what there is of one sample at once
          const int64_t sample = i / blocks, first = i % blocks;
          const int64_t stop = end - i < blocks - first ? first + end - i : blocks;
          int64_t at = sample * each + first * kBlock;
          const int64_t last = sample * each + (stop * kBlock < each ? stop * kBlock : each);
          while (at < last) {
            const auto run = place.at(at, elements);
            const int64_t count = run.left < last - at ? run.left : last - at;
            drop_run(x + at, y + at, key, run.element % whole_each,
                     static_cast<uint32_t>(counter[1] + run.element / whole_each),
                     static_cast<uint32_t>(counter[0]), p, scale, count);
            at += count;
          }
          i += stop - first;
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> dropout_kernels() { return {{"dropout", prepare_dropout}}; }

}  // namespace het::cpu::HET_ISA
