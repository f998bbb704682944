// Dropout and uniform numbers: the draws of core/ops/dropout.h, for a vector of counters at a time.
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

// What is written of elements by what was drawn for them.
template <typename T>
struct Dropped {
  float p, scale;

  template <typename Lanes>
  HET_INLINE void write(const T* x, T* y, WordVector words, Lanes lanes) const {
    const Vector v = load(x, lanes) * scale;
    store(y, kept(words, p) ? v : Vector{}, lanes);
  }
};
struct Uniform {
  template <typename Lanes>
  HET_INLINE void write(const float*, float* y, WordVector words, Lanes lanes) const {
    const Vector steps = __builtin_convertvector(reinterpret_cast<IntVector>(words >> 8), Vector);
    store(y, steps * 0x1p-24f + 0x1p-25f, lanes);
  }
};

// `count` elements of a sample from element 4 * quad on; at most kBlock.
template <typename T, typename What>
HET_INLINE void draw_block(const T* x, T* y, const Words& words, const What& what, int64_t count) {
  if (count == kBlock) {
    what.write(x, y, words.first, Full{});
    what.write(x + kLanes, y + kLanes, words.second, Full{});
  } else if (count > kLanes) {
    what.write(x, y, words.first, Full{});
    what.write(x + kLanes, y + kLanes, words.second, Tail{static_cast<int>(count - kLanes)});
  } else if (count == kLanes) {
    what.write(x, y, words.first, Full{});
  } else {
    what.write(x, y, words.first, Tail{static_cast<int>(count)});
  }
}

// `count` elements of a sample from `element` on.
template <typename T, typename What>
HET_INLINE void draw_run(const T* x, T* y, PhiloxKey key, int64_t element, uint32_t sample, uint32_t step,
                         const What& what, int64_t count) {
  while (count > 0) {
    // A slice may begin within four elements that are drawn together.
    const int64_t inside = element % 4, left = kBlock - inside, done = count < left ? count : left;
    Words words = draw(key, element / 4, sample, step);
    if (inside != 0) {
      uint32_t lanes[2 * kBlock] = {};
      std::memcpy(lanes, &words, sizeof words);
      std::memcpy(&words, lanes + inside, sizeof words);
    }
    draw_block(x, y, words, what, done);
    x += done;
    y += done;
    element += done;
    count -= done;
  }
}

// All elements of an operand.
template <typename T, typename What>
std::unique_ptr<Kernel> prepare_drawn(const KernelRequest& request, const What& what) {
  const TensorType& type = request.inputs[0].type;
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const PhiloxKey key = draw_key(request);
  const SliceMap place = places_of(request.attributes, type.shape);
  const int64_t elements = type.elements(), samples = elements > 0 ? type.shape[0] : 0;
  const int64_t each = samples > 0 ? elements / samples : 0, blocks = (each + kBlock - 1) / kBlock;
  const int64_t whole_each = whole_sample_elements(request.attributes, type.shape);
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
          draw_run(x + at, y + at, key, run.element % whole_each,
                   static_cast<uint32_t>(counter[1] + run.element / whole_each),
                   static_cast<uint32_t>(counter[0]), what, count);
          at += count;
        }
        i += stop - first;
      }
    });
  });
}

std::unique_ptr<Kernel> prepare_dropout(const KernelRequest& request) {
  const double p = number(request, "p", 0.0);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return prepare_drawn<T>(request, Dropped<T>{static_cast<float>(p), static_cast<float>(1.0 / (1.0 - p))});
  });
}

std::unique_ptr<Kernel> prepare_uniform(const KernelRequest& request) {
  if (request.inputs[0].type.dtype != DType::f32) refuse_dtype(request, request.inputs[0].type.dtype);
  return prepare_drawn<float>(request, Uniform{});
}

}  // namespace

std::vector<KernelEntry> dropout_kernels() {
  return {{"dropout", prepare_dropout}, {"uniform", prepare_uniform}};
}

}  // namespace het::cpu::HET_ISA
