// Convolutions as products of matrices: some samples at a time, the elements of x that each window covers are
// laid out as a column [groups * terms, places], where places are those of all these samples; the products
// are cuBLASLt's (gemm.h), one for each group, with f32 results. The samples of a chunk are as many as keep
// the matrix of columns at kColumnElements.
#include <vector>

#include "core/ops/windows.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kColumnElements = int64_t{1} << 26;

__host__ __device__ inline int64_t window_of(const Convolution& c) {
  return c.rows.kernel * c.columns.kernel;
}
__host__ __device__ inline int64_t terms_of(const Convolution& c) { return c.in * window_of(c); }
__host__ __device__ inline int64_t places_of(const Convolution& c) { return c.out_height * c.out_width; }

// Elements that threads go round.
struct Elements {
  int64_t count;
  unsigned grid() const {
    return static_cast<unsigned>(std::min<int64_t>(ceil_div(count, kThreads), int64_t{1} << 20));
  }
};
__device__ inline int64_t first_element() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// columns[(channel, ky, kx), (sample, y, x)]: x's element there, 0 outside the image.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    lay_out(const T* x, T* columns, Convolution c, int64_t places, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const int64_t place = e % places, line = e / places, channel = line / window_of(c);
    const int64_t ky = line / c.columns.kernel % c.rows.kernel, kx = line % c.columns.kernel;
    const int64_t sample = place / places_of(c), oy = place / c.out_width % c.out_height,
                  ox = place % c.out_width;
    const int64_t iy = oy * c.rows.stride - c.rows.padding + ky * c.rows.dilation;
    const int64_t ix = ox * c.columns.stride - c.columns.padding + kx * c.columns.dilation;
    const bool inside = iy >= 0 && iy < c.height && ix >= 0 && ix < c.width;
    columns[e] = inside ? x[((sample * c.groups * c.in + channel) * c.height + iy) * c.width + ix]
                        : from_float<T>(0.0f);
  }
}

// dx[sample, channel, iy, ix]: the sum of the columns' elements that are laid out from there.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_back(const float* columns, T* dx, Convolution c, int64_t places, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const int64_t ix = e % c.width, iy = e / c.width % c.height, plane = e / c.width / c.height;
    const int64_t channel = plane % (c.groups * c.in), sample = plane / (c.groups * c.in);
    float sum = 0;
    for (int64_t ky = 0; ky < c.rows.kernel; ++ky) {
      const int64_t y = iy + c.rows.padding - ky * c.rows.dilation, oy = y / c.rows.stride;
      if (y < 0 || y % c.rows.stride != 0 || oy >= c.out_height) continue;
      for (int64_t kx = 0; kx < c.columns.kernel; ++kx) {
        const int64_t at = ix + c.columns.padding - kx * c.columns.dilation, ox = at / c.columns.stride;
        if (at < 0 || at % c.columns.stride != 0 || ox >= c.out_width) continue;
        sum += columns[((channel * c.rows.kernel + ky) * c.columns.kernel + kx) * places +
                       (sample * c.out_height + oy) * c.out_width + ox];
      }
    }
    dx[e] = from_float<T>(sum);
  }
}

// tile[channel, (sample, place)] = dy[sample, channel, place]
template <typename T>
__global__ void __launch_bounds__(kThreads)
    take(const T* dy, T* tile, Convolution c, int64_t places, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const int64_t place = e % places, channel = e / places;
    const int64_t sample = place / places_of(c), own = place % places_of(c);
    tile[e] = dy[(sample * c.groups * c.out + channel) * places_of(c) + own];
  }
}

// y[sample, channel, place] = tile[channel, (sample, place)] + bias[channel]
template <typename T>
__global__ void __launch_bounds__(kThreads)
    put(const float* tile, const float* bias, T* y, Convolution c, int64_t places, int64_t count) {
  for (int64_t e = first_element(); e < count; e += element_step()) {
    const int64_t own = e % places_of(c), plane = e / places_of(c);
    const int64_t channel = plane % (c.groups * c.out), sample = plane / (c.groups * c.out);
    const float value = tile[channel * places + sample * places_of(c) + own];
    y[e] = from_float<T>(bias == nullptr ? value : value + bias[channel]);
  }
}

// sums[channel] (+)= the sum of dy[:, channel]: a block for each.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_channel(const T* dy, float* sums, Convolution c, bool add) {
  __shared__ float scratch[kThreads / kWarp];
  const int64_t channel = blockIdx.x, count = c.samples * places_of(c);
  float sum = 0;
  for (int64_t e = threadIdx.x; e < count; e += blockDim.x)
    sum += to_float(dy[(e / places_of(c) * c.groups * c.out + channel) * places_of(c) + e % places_of(c)]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[channel] = add ? sums[channel] + sum : sum;
}

// Some samples, and the product of them.
struct Chunk {
  int64_t first, samples;
  std::shared_ptr<Gemm> gemm;
};

// The call cut in chunks; product(places, is the first) says what is multiplied.
struct Chunks {
  std::vector<Chunk> list;
  int64_t most = 0, gemm_bytes = 0;  // places of the largest one; workspace of the products

  template <typename MakeProduct>
  Chunks(const Context& context, const Convolution& c, const MakeProduct& product) {
    const int64_t of_sample = std::max<int64_t>(1, c.groups * terms_of(c) * places_of(c));
    const int64_t each = std::clamp<int64_t>(kColumnElements / of_sample, 1, std::max<int64_t>(1, c.samples));
    std::shared_ptr<Gemm> last;
    Product made;
    for (int64_t first = 0; first < std::max<int64_t>(1, c.samples); first += each) {
      const int64_t samples = std::min(each, c.samples - first);
      const Product wanted = product(samples * places_of(c), first == 0);
      if (last == nullptr || !(wanted == made)) last = make_gemm(context, wanted);
      made = wanted;
      list.push_back({first, samples, last});
      most = std::max(most, samples * places_of(c));
      gemm_bytes = std::max(gemm_bytes, last->workspace_bytes());
    }
  }
};

// Parts of the workspace, at multiples of 256 bytes.
struct Space {
  int64_t bytes = 0;
  int64_t take(int64_t count, int64_t size) {
    const int64_t at = bytes;
    bytes += ceil_div(count * size, 256) * 256;
    return at;
  }
};

int64_t lead(int64_t columns) { return std::max<int64_t>(1, columns); }

template <typename T>
std::unique_ptr<Kernel> make_conv2d(const Convolution& c, DType dtype, bool has_bias,
                                    const Context& context) {
  const int64_t terms = terms_of(c);
  const Chunks chunks(context, c, [&](int64_t places, bool) {
    Product p;
    p.m = c.out;
    p.n = places;
    p.k = terms;
    p.batch = c.groups;
    p.a = p.b = dtype;
    p.lead_a = terms;
    p.lead_b = p.lead_c = lead(places);
    p.step_a = c.out * terms;
    p.step_b = terms * places;
    p.step_c = c.out * places;
    return p;
  });
  Space space;
  const int64_t columns_at = space.take(c.groups * terms * chunks.most, sizeof(T));
  const int64_t tile_at = space.take(c.groups * c.out * chunks.most, 4);
  const int64_t gemm_at = space.take(chunks.gemm_bytes, 1);
  return make_kernel(
      [=, &context](const KernelArguments& a) {
        T* columns = reinterpret_cast<T*>(a.workspace + columns_at);
        float* tile = reinterpret_cast<float*>(a.workspace + tile_at);
        for (const Chunk& chunk : chunks.list) {
          const int64_t places = chunk.samples * places_of(c);
          const Elements laid{c.groups * terms * places}, made{c.groups * c.out * places};
          if (places == 0) continue;
          launch(context, lay_out<T>, laid.grid(), kThreads, 0,
                 a.in<T>(0) + chunk.first * c.groups * c.in * c.height * c.width, columns, c, places,
                 laid.count);
          chunk.gemm->run({a.inputs[1], columns, tile}, a.workspace + gemm_at);
          launch(context, put<T>, made.grid(), kThreads, 0, tile, has_bias ? a.in<float>(2) : nullptr,
                 a.out<T>(0) + chunk.first * c.groups * c.out * places_of(c), c, places, made.count);
        }
      },
      space.bytes);
}

std::unique_ptr<Kernel> prepare_conv2d(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.inputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  const DType dtype = request.inputs[0].type.dtype;
  return for_float(request, dtype, [&]<typename T>(T) {
    return make_conv2d<T>(c, dtype, present(request.inputs, 2), context);
  });
}

template <typename T>
std::unique_ptr<Kernel> make_input_gradient(const Convolution& c, DType dtype, const Context& context) {
  const int64_t terms = terms_of(c), image = c.groups * c.in * c.height * c.width;
  const Chunks chunks(context, c, [&](int64_t places, bool) {
    Product p;
    p.m = terms;
    p.n = places;
    p.k = c.out;
    p.batch = c.groups;
    p.a = p.b = dtype;
    p.transposed_a = true;
    p.lead_a = terms;
    p.lead_b = p.lead_c = lead(places);
    p.step_a = c.out * terms;
    p.step_b = c.out * places;
    p.step_c = terms * places;
    return p;
  });
  Space space;
  const int64_t columns_at = space.take(c.groups * terms * chunks.most, 4);
  const int64_t tile_at = space.take(c.groups * c.out * chunks.most, sizeof(T));
  const int64_t gemm_at = space.take(chunks.gemm_bytes, 1);
  return make_kernel(
      [=, &context](const KernelArguments& a) {
        float* columns = reinterpret_cast<float*>(a.workspace + columns_at);
        T* tile = reinterpret_cast<T*>(a.workspace + tile_at);
        for (const Chunk& chunk : chunks.list) {
          const int64_t places = chunk.samples * places_of(c);
          const Elements taken{c.groups * c.out * places}, made{chunk.samples * image};
          if (places == 0) continue;
          launch(context, take<T>, taken.grid(), kThreads, 0,
                 a.in<T>(0) + chunk.first * c.groups * c.out * places_of(c), tile, c, places, taken.count);
          chunk.gemm->run({a.inputs[1], tile, columns}, a.workspace + gemm_at);
          launch(context, add_back<T>, made.grid(), kThreads, 0, columns, a.out<T>(0) + chunk.first * image,
                 c, places, made.count);
        }
      },
      space.bytes);
}

std::unique_ptr<Kernel> prepare_input_gradient(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.outputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  const DType dtype = request.inputs[0].type.dtype;
  return for_float(request, dtype, [&]<typename T>(T) { return make_input_gradient<T>(c, dtype, context); });
}

template <typename T>
std::unique_ptr<Kernel> make_weight_gradient(const Convolution& c, const KernelRequest& request,
                                             const Context& context) {
  const int64_t terms = terms_of(c);
  const bool has_bias = present(request.outputs, 1), add = (request.accumulate & 1) != 0,
             add_bias = (request.accumulate & 2) != 0;
  const Chunks chunks(context, c, [&](int64_t places, bool first) {
    Product p;
    p.m = c.out;
    p.n = terms;
    p.k = places;
    p.batch = c.groups;
    p.a = p.b = request.inputs[0].type.dtype;
    p.transposed_b = true;
    p.lead_a = p.lead_b = lead(places);
    p.lead_c = terms;
    p.step_a = c.out * places;
    p.step_b = terms * places;
    p.step_c = c.out * terms;
    p.beta = first && !add ? 0.0f : 1.0f;
    return p;
  });
  Space space;
  const int64_t columns_at = space.take(c.groups * terms * chunks.most, sizeof(T));
  const int64_t tile_at = space.take(c.groups * c.out * chunks.most, sizeof(T));
  const int64_t gemm_at = space.take(chunks.gemm_bytes, 1);
  return make_kernel(
      [=, &context](const KernelArguments& a) {
        T* columns = reinterpret_cast<T*>(a.workspace + columns_at);
        T* tile = reinterpret_cast<T*>(a.workspace + tile_at);
        for (const Chunk& chunk : chunks.list) {
          const int64_t places = chunk.samples * places_of(c);
          const Elements laid{c.groups * terms * places}, taken{c.groups * c.out * places};
          launch(context, lay_out<T>, laid.grid(), kThreads, 0,
                 a.in<T>(1) + chunk.first * c.groups * c.in * c.height * c.width, columns, c, places,
                 laid.count);
          launch(context, take<T>, taken.grid(), kThreads, 0,
                 a.in<T>(0) + chunk.first * c.groups * c.out * places_of(c), tile, c, places, taken.count);
          chunk.gemm->run({tile, columns, a.outputs[0]}, a.workspace + gemm_at);
        }
        if (has_bias)
          launch(context, sum_channel<T>, static_cast<unsigned>(c.groups * c.out), kThreads, 0, a.in<T>(0),
                 a.out<float>(1), c, add_bias);
      },
      space.bytes);
}

std::unique_ptr<Kernel> prepare_weight_gradient(const KernelRequest& request, const Context& context) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.inputs[1].type.shape, request.outputs[0].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype,
                   [&]<typename T>(T) { return make_weight_gradient<T>(c, request, context); });
}

}  // namespace

std::vector<Entry> conv_kernels() {
  return {{"conv2d", prepare_conv2d},
          {"conv2d_input_gradient", prepare_input_gradient},
          {"conv2d_weight_gradient", prepare_weight_gradient}};
}

}  // namespace het::HET_CUDA
