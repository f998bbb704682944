// Rotary embedding. A block takes one position and some samples: it makes the position's sines and cosines
// once, from f64 angles, in shared memory, and turns the heads of its samples by them.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kItems = 4 * kThreads;  // packs of pairs that are worth a table of their own

// Strides of [b, t, heads, d] with innermost 1.
struct Steps {
  int64_t sample, time, head;
};

struct Rotary {
  int64_t samples, time;
  unsigned heads, half;  // half: pairs in a head
  int64_t share;         // samples of a block
  Steps from, to;
  double exponent, direction;  // pair i turns by direction * position * 2^(exponent i)
};

constexpr unsigned kMostPairs = 256;

// Given frequencies: pair i turns by direction * position * of[i]. An argument of the kernel holds 4 KB.
struct Frequencies {
  double of[kMostPairs];
};
struct NoFrequencies {};

// N pairs at a time: i .. i + N - 1, where pair i is (i, i + half), or (2i, 2i + 1) when interleaved.
template <typename T, int N, bool kInterleaved, typename Given>
__global__ void __launch_bounds__(kThreads)
    rotate(const T* x, T* y, const int* positions, Rotary r, Given given) {
  float* cosines = reinterpret_cast<float*>(dynamic_shared());
  float* sines = cosines + r.half;
  const int64_t time = blockIdx.x % r.time, first = blockIdx.x / r.time * r.share;
  const double position = r.direction * positions[time];
  for (unsigned i = threadIdx.x; i < r.half; i += blockDim.x) {
    double sine, cosine, frequency;
    if constexpr (std::is_same_v<Given, NoFrequencies>)
      frequency = exp2(r.exponent * i);
    else
      frequency = given.of[i];
    sincos(position * frequency, &sine, &cosine);
    cosines[i] = static_cast<float>(cosine);
    sines[i] = static_cast<float>(sine);
  }
  __syncthreads();
  const unsigned packs = r.half / N;
  const auto items = static_cast<unsigned>(min(r.share, r.samples - first)) * r.heads * packs;
  for (unsigned item = threadIdx.x; item < items; item += blockDim.x) {
    const unsigned row = item / packs, i = item % packs * N, head = row % r.heads;
    const int64_t sample = first + row / r.heads;
    const T* from = x + sample * r.from.sample + time * r.from.time + head * r.from.head;
    T* to = y + sample * r.to.sample + time * r.to.time + head * r.to.head;
    const unsigned a = kInterleaved ? 2 * i : i, b = kInterleaved ? 2 * i + N : i + r.half;
    float u[N], v[N];
    load(u, from + a);
    load(v, from + b);
    // The elements one after the other when interleaved: u, then v.
    const auto at = [&](int k) -> float& { return k < N ? u[k] : v[k - N]; };
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float &left = kInterleaved ? at(2 * k) : u[k], &right = kInterleaved ? at(2 * k + 1) : v[k];
      const float c = cosines[i + k], s = sines[i + k], l = left;
      left = l * c - right * s;
      right = right * c + l * s;
    }
    store(to + a, u);
    store(to + b, v);
  }
}

template <typename Given>
std::unique_ptr<Kernel> prepare(const KernelRequest& request, const Context& context, Rotary r,
                                const Given& given) {
  const Layout &in = request.inputs[0], &out = request.outputs[0];
  const Shape& shape = in.type.shape;
  const size_t shared = 2 * r.half * sizeof(float);
  if (shared > static_cast<size_t>(context.shared_bytes)) refuse(request, "heads as large as these");
  return for_float(request, in.type.dtype, [&]<typename T>(T) {
    constexpr int N = kPack<T>;
    bool packed = r.half % N == 0;
    for (const Layout* layout : {&in, &out})
      for (int d = 0; d < 3; ++d) packed = packed && (shape[d] == 1 || layout->strides[d] % N == 0);
    const int64_t row_items = std::max<int64_t>(1, int64_t{r.heads} * r.half / (packed ? N : 1));
    r.share = std::min(std::max<int64_t>(1, r.samples), ceil_div(kItems, row_items));
    const bool interleaved = flag(request, "interleaved", false);
    const auto by_packs = interleaved ? rotate<T, N, true, Given> : rotate<T, N, false, Given>;
    const auto one_by_one = interleaved ? rotate<T, 1, true, Given> : rotate<T, 1, false, Given>;
    allow_shared(by_packs, shared);
    allow_shared(one_by_one, shared);
    const auto grid =
        static_cast<unsigned>(r.heads == 0 || r.half == 0 ? 0 : r.time * ceil_div(r.samples, r.share));
    return make_kernel([=, &context](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      T* y = a.out<T>(0);
      launch(context, packed && packs(x, N, N) && packs(y, N, N) ? by_packs : one_by_one, grid, kThreads,
             shared, x, y, a.in<int>(1), r, given);
    });
  });
}

std::unique_ptr<Kernel> prepare_rotary(const KernelRequest& request, const Context& context) {
  const Layout &in = request.inputs[0], &out = request.outputs[0];
  const Shape& shape = in.type.shape;
  if (shape.size() != 4 || shape[3] % 2 != 0) refuse(request, "anything but [b, t, heads, d] with an even d");
  if (in.strides[3] != 1 || out.strides[3] != 1) refuse(request, "heads whose elements are not adjacent");
  if (request.inputs[1].type.dtype != DType::i32) refuse_dtype(request, request.inputs[1].type.dtype);
  const Rotary r{shape[0],
                 shape[1],
                 static_cast<unsigned>(shape[2]),
                 static_cast<unsigned>(shape[3] / 2),
                 1,
                 {in.strides[0], in.strides[1], in.strides[2]},
                 {out.strides[0], out.strides[1], out.strides[2]},
                 -std::log2(number(request, "base", 10000.0)) / std::max<double>(1, shape[3] / 2),
                 flag(request, "inverse", false) ? -1.0 : 1.0};
  const auto frequencies = request.attributes.get<std::vector<double>>("frequencies", {});
  if (frequencies.empty()) return prepare(request, context, r, NoFrequencies{});
  if (frequencies.size() > kMostPairs) refuse(request, "more than 256 frequencies");
  Frequencies given{};
  std::copy(frequencies.begin(), frequencies.end(), given.of);
  return prepare(request, context, r, given);
}

}  // namespace

std::vector<Entry> rotary_kernels() { return {{"rotary", prepare_rotary}}; }

}  // namespace het::HET_CUDA
