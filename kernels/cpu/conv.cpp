// Convolutions as products of matrices. Rows of the result's places, some at a time (a tile), are laid out as
// columns: of each place the elements of x that its window covers, one below the other [terms, places]. Then
// the weight [out, terms] times that matrix is the result's tile, the weight turned times dy's tile the
// gradient of the columns, which are added where they came from, and dy's tile times the columns turned the
// gradient of the weight. A tile is small enough for the second-level cache, and every thread has one.
#include <cstring>
#include <vector>

#include "core/ops/windows.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kColumnElements = int64_t{1} << 19;       // of a tile's matrix of columns, about
constexpr int64_t kFewestPlaces = 192, kMostPlaces = 4096;  // of a tile, about
constexpr int64_t kSmallWeight = int64_t{1} << 18;          // every thread may sum its own gradient of it

HET_INLINE int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
HET_INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
HET_INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Where the parts of a thread's workspace are, in bytes from its beginning.
struct Space {
  int64_t bytes = 0;
  int64_t take(int64_t count, int64_t size) {
    const int64_t at = bytes;
    bytes += round_up(count * size);
    return at;
  }
};

HET_INLINE int64_t terms_of(const Convolution& c) { return c.in * c.rows.kernel * c.columns.kernel; }
HET_INLINE int64_t window_of(const Convolution& c) { return c.rows.kernel * c.columns.kernel; }

// Rows of places: row r is row r % out_height of sample r / out_height. A tile has up to `most` of them.
struct Tiles {
  int64_t rows = 0, count = 0, most = 0;
  int64_t places = 0;  // of a tile, the last rows of a shorter one included

  // Of `rows` rows; a multiple of `parts` of them where there are enough.
  Tiles(const Convolution& c, int64_t rows, int64_t parts) : rows(rows) {
    if (rows == 0) return;
    int64_t wanted = kColumnElements / terms_of(c);
    wanted = wanted < kFewestPlaces ? kFewestPlaces : wanted > kMostPlaces ? kMostPlaces : wanted;
    const int64_t each = most_of(1, wanted / c.out_width);
    count = (rows + each - 1) / each;
    count = least_of(rows, (count + parts - 1) / parts * parts);
    most = (rows + count - 1) / count;
    places = most * c.out_width;
  }
  Range tile(int64_t t) const { return share_of(rows, count, t); }
};

// columns[(i, ky, kx), place] of the channels [first, first + count) of x, for rows of places; zeros where
// windows reach over the image, and for rows that the tile does not have.
template <typename T>
void lay_out(const Convolution& c, const T* x, Range rows, int64_t first, int64_t count, T* columns,
             int64_t places) {
  const int64_t channels = c.groups * c.in, used = rows.size() * c.out_width;
  const Window &v = c.rows, &u = c.columns;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t ky = 0; ky < v.kernel; ++ky)
      for (int64_t kx = 0; kx < u.kernel; ++kx) {
        T* to = columns + ((i * v.kernel + ky) * u.kernel + kx) * places;
        // Places [low, high) of a row have their element inside the image.
        const int64_t shift = kx * u.dilation - u.padding, room = c.width - 1 - shift;
        const int64_t low = least_of(c.out_width, shift >= 0 ? 0 : (-shift + u.stride - 1) / u.stride);
        const int64_t high = room < 0 ? low : most_of(low, least_of(c.out_width, room / u.stride + 1));
        for (int64_t r = rows.begin; r < rows.end; ++r, to += c.out_width) {
          const int64_t y = r % c.out_height * v.stride - v.padding + ky * v.dilation;
          if (y < 0 || y >= c.height) {
            for (int64_t p = 0; p < c.out_width; ++p) to[p] = T(0.0F);
            continue;
          }
          const T* from = x + ((r / c.out_height * channels + first + i) * c.height + y) * c.width + shift;
          for (int64_t p = 0; p < low; ++p) to[p] = T(0.0F);
          if (u.stride == 1)
            for (int64_t p = low; p < high; ++p) to[p] = from[p];
          else
            for (int64_t p = low; p < high; ++p) to[p] = from[p * u.stride];
          for (int64_t p = high; p < c.out_width; ++p) to[p] = T(0.0F);
        }
        for (int64_t p = used; p < places; ++p, ++to) *to = T(0.0F);
      }
}

// The other way: columns added to dx[channels of the samples from `sample` on, h, w], which has `count`
// channels of a sample.
inline void add_back(const Convolution& c, const float* columns, int64_t places, Range rows, int64_t count,
                     int64_t sample, float* dx) {
  const Window &v = c.rows, &u = c.columns;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t ky = 0; ky < v.kernel; ++ky)
      for (int64_t kx = 0; kx < u.kernel; ++kx) {
        const float* from = columns + ((i * v.kernel + ky) * u.kernel + kx) * places;
        const int64_t shift = kx * u.dilation - u.padding, room = c.width - 1 - shift;
        const int64_t low = least_of(c.out_width, shift >= 0 ? 0 : (-shift + u.stride - 1) / u.stride);
        const int64_t high = room < 0 ? low : most_of(low, least_of(c.out_width, room / u.stride + 1));
        for (int64_t r = rows.begin; r < rows.end; ++r, from += c.out_width) {
          const int64_t y = r % c.out_height * v.stride - v.padding + ky * v.dilation;
          if (y < 0 || y >= c.height) continue;
          float* to = dx + (((r / c.out_height - sample) * count + i) * c.height + y) * c.width + shift;
          if (u.stride == 1)
            for (int64_t p = low; p < high; ++p) to[p] += from[p];
          else
            for (int64_t p = low; p < high; ++p) to[p * u.stride] += from[p];
        }
      }
}

// visit(first place of the tile, element of the tensor, count) for each run of places of a channel that are
// adjacent in a tensor [samples, channels, out_height, out_width].
template <typename Visit>
HET_INLINE void for_runs(const Convolution& c, Range rows, int64_t channels, int64_t channel,
                         const Visit& visit) {
  for (int64_t r = rows.begin; r < rows.end;) {
    const int64_t sample = r / c.out_height, end = least_of(rows.end, (sample + 1) * c.out_height);
    visit((r - rows.begin) * c.out_width,
          ((sample * channels + channel) * c.out_height + r % c.out_height) * c.out_width,
          (end - r) * c.out_width);
    r = end;
  }
}

// tile[channel, place] of the channels [first, first + count) of dy; zeros for rows that the tile lacks.
template <typename T>
void take(const Convolution& c, const T* dy, Range rows, int64_t first, int64_t count, T* tile,
          int64_t places) {
  for (int64_t o = 0; o < count; ++o) {
    T* to = tile + o * places;
    for_runs(c, rows, c.groups * c.out, first + o, [&](int64_t place, int64_t element, int64_t size) {
      std::memcpy(static_cast<void*>(to + place), dy + element, static_cast<size_t>(size) * sizeof(T));
    });
    for (int64_t p = rows.size() * c.out_width; p < places; ++p) to[p] = T(0.0F);
  }
}

template <typename T>
constexpr DType kType = sizeof(T) == 4            ? DType::f32
                        : std::is_same_v<T, bf16> ? DType::bf16
                                                  : DType::f16;

// y = weight * columns + bias
template <typename T>
std::unique_ptr<Kernel> make_conv2d(const Convolution& c, bool has_bias) {
  const int64_t rows = c.samples * c.out_height, terms = terms_of(c);
  const Tiles tiles(c, rows, thread_count());
  const int64_t parts = least_of(tiles.count, thread_count());
  GemmShape shape;
  shape.m = c.out;
  shape.n = tiles.places;
  shape.k = terms;
  shape.a_type = shape.b_type = kType<T>;
  shape.a_row = terms;
  shape.b_row = shape.c_row = tiles.places;
  shape.serial = true;
  const Gemm gemm(shape);
  Space space;
  const int64_t columns_at = space.take(terms * tiles.places, sizeof(T));
  const int64_t result_at = space.take(c.out * tiles.places, 4);
  const int64_t gemm_at = space.take(gemm.workspace_bytes(), 1);
  return make_kernel(
      [=](const KernelArguments& a) {
        parallel_parts(parts, [&](int64_t part) {
          std::byte* own = a.workspace + part * space.bytes;
          T* columns = reinterpret_cast<T*>(own + columns_at);
          float* result = reinterpret_cast<float*>(own + result_at);
          const Range share = share_of(tiles.count, parts, part);
          for (int64_t t = share.begin; t < share.end; ++t)
            for (int64_t g = 0; g < c.groups; ++g) {
              const Range tile = tiles.tile(t);
              lay_out(c, a.in<T>(0), tile, g * c.in, c.in, columns, tiles.places);
              gemm.run(a.in<T>(1) + g * c.out * terms, columns, result, nullptr, own + gemm_at);
              for (int64_t o = 0; o < c.out; ++o) {
                const int64_t channel = g * c.out + o;
                const float bias = has_bias ? a.in<float>(2)[channel] : 0.0F;
                const float* from = result + o * tiles.places;
                for_runs(c, tile, c.groups * c.out, channel,
                         [&](int64_t place, int64_t element, int64_t size) {
                           for_lanes(size, [&](int64_t i, auto lanes) {
                             store(a.out<T>(0) + element + i, load(from + place + i, lanes) + bias, lanes);
                           });
                         });
              }
            }
        });
      },
      parts * space.bytes);
}

std::unique_ptr<Kernel> prepare_conv2d(const KernelRequest& request) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.inputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype,
                   [&]<typename T>(T) { return make_conv2d<T>(c, present(request.inputs, 2)); });
}

// dx: columns = weight turned * dy, added back. Threads share out the samples, or, where there are too few,
// the channels of x.
template <typename T>
std::unique_ptr<Kernel> make_input_gradient(const Convolution& c) {
  const bool by_channels = c.samples < thread_count() && c.in > c.samples;
  const int64_t parts = least_of(thread_count(), by_channels ? c.in : c.samples);
  const int64_t terms = terms_of(c), plane = c.height * c.width;
  // Samples at a time: as many as fill a tile, or one in several tiles.
  const Tiles of_sample(c, c.out_height, 1);
  const int64_t own_samples = by_channels || parts == 0 ? c.samples : (c.samples + parts - 1) / parts;
  int64_t block = 1;
  if (of_sample.count == 1 && own_samples > 0) {
    const Tiles all(c, own_samples * c.out_height, 1);
    block = most_of(1, least_of(own_samples, all.most / c.out_height));
  }
  const Tiles tiles = block == 1 ? of_sample : Tiles(c, block * c.out_height, 1);
  const int64_t most_in = by_channels ? (c.in + parts - 1) / most_of(1, parts) : c.in;
  std::vector<Gemm> products;  // one, or one for each part of the channels
  int64_t gemm_bytes = 0;
  for (int64_t part = 0; part < (by_channels ? parts : 1); ++part) {
    GemmShape shape;
    shape.m = (by_channels ? share_of(c.in, parts, part).size() : c.in) * window_of(c);
    shape.n = tiles.places;
    shape.k = c.out;
    shape.a_type = shape.b_type = kType<T>;
    shape.a_row = 1;
    shape.a_col = terms;
    shape.b_row = shape.c_row = tiles.places;
    shape.serial = true;
    products.emplace_back(shape);
    gemm_bytes = most_of(gemm_bytes, products.back().workspace_bytes());
  }
  Space space;
  const int64_t dy_at = space.take(c.out * tiles.places, sizeof(T));
  const int64_t columns_at = space.take(most_in * window_of(c) * tiles.places, 4);
  const int64_t sums_at = space.take(block * most_in * plane, 4);
  const int64_t gemm_at = space.take(gemm_bytes, 1);
  return make_kernel(
      [=](const KernelArguments& a) {
        parallel_parts(parts, [&](int64_t part) {
          std::byte* own = a.workspace + part * space.bytes;
          T* dy = reinterpret_cast<T*>(own + dy_at);
          float *columns = reinterpret_cast<float*>(own + columns_at),
                *sums = reinterpret_cast<float*>(own + sums_at);
          const Range samples = by_channels ? Range{0, c.samples} : share_of(c.samples, parts, part);
          const Range in = by_channels ? share_of(c.in, parts, part) : Range{0, c.in};
          const Gemm& gemm = products[static_cast<size_t>(by_channels ? part : 0)];
          for (int64_t g = 0; g < c.groups; ++g)
            for (int64_t n = samples.begin; n < samples.end; n += block) {
              const int64_t count = least_of(block, samples.end - n);
              std::memset(sums, 0, static_cast<size_t>(count * in.size() * plane) * 4);
              const int64_t last = (n + count) * c.out_height;
              for (int64_t r = n * c.out_height; r < last; r += tiles.most) {
                const Range tile{r, least_of(last, r + tiles.most)};
                take(c, a.in<T>(0), tile, g * c.out, c.out, dy, tiles.places);
                gemm.run(a.in<T>(1) + g * c.out * terms + in.begin * window_of(c), dy, columns, nullptr,
                         own + gemm_at);
                add_back(c, columns, tiles.places, tile, in.size(), n, sums);
              }
              for (int64_t s = 0; s < count; ++s) {
                const float* from = sums + s * in.size() * plane;
                T* to = a.out<T>(0) + (((n + s) * c.groups + g) * c.in + in.begin) * plane;
                for_lanes(in.size() * plane,
                          [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
              }
            }
        });
      },
      parts * space.bytes);
}

std::unique_ptr<Kernel> prepare_input_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.outputs[0].type.shape, request.inputs[1].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype,
                   [&]<typename T>(T) { return make_input_gradient<T>(c); });
}

// dweight (+)= dy * columns turned. Of a small weight every thread sums its tiles, and the sums are added up;
// of a large one threads share out the channels of x.
template <typename T>
std::unique_ptr<Kernel> make_weight_gradient(const Convolution& c, uint32_t accumulate, bool has_bias) {
  const int64_t terms = terms_of(c), weights = c.groups * c.out * terms;
  const Tiles tiles(c, c.samples * c.out_height, thread_count());
  const bool by_tiles = weights <= kSmallWeight && tiles.count >= thread_count();
  const int64_t parts = least_of(thread_count(), by_tiles ? tiles.count : c.in);
  const int64_t most_in = by_tiles ? c.in : (c.in + parts - 1) / parts;
  std::vector<Gemm> products;
  int64_t gemm_bytes = 0;
  for (int64_t part = 0; part < (by_tiles ? 1 : parts); ++part) {
    GemmShape shape;
    shape.m = c.out;
    shape.n = (by_tiles ? c.in : share_of(c.in, parts, part).size()) * window_of(c);
    shape.k = tiles.places;
    shape.a_type = shape.b_type = kType<T>;
    shape.a_row = tiles.places;
    shape.b_row = 1;
    shape.b_col = tiles.places;
    shape.c_row = terms;
    shape.add = true;
    shape.serial = true;
    products.emplace_back(shape);
    gemm_bytes = most_of(gemm_bytes, products.back().workspace_bytes());
  }
  Space space;
  const int64_t dy_at = space.take(c.out * tiles.places, sizeof(T));
  const int64_t columns_at = space.take(most_in * window_of(c) * tiles.places, sizeof(T));
  const int64_t gemm_at = space.take(gemm_bytes, 1);
  const int64_t sums_at = space.take(by_tiles ? weights : 0, 4);
  const bool add = (accumulate & 1) != 0, add_bias = (accumulate & 2) != 0;
  return make_kernel(
      [=](const KernelArguments& a) {
        float* dweight = a.out<float>(0);
        const auto sums_of = [&](int64_t part) {
          return part == 0 ? dweight : reinterpret_cast<float*>(a.workspace + part * space.bytes + sums_at);
        };
        if (!by_tiles && !add)
          parallel_for(weights, kLightGrain, [&](int64_t begin, int64_t end) {
            std::memset(dweight + begin, 0, static_cast<size_t>(end - begin) * 4);
          });
        parallel_parts(parts, [&](int64_t part) {
          std::byte* own = a.workspace + part * space.bytes;
          T *dy = reinterpret_cast<T*>(own + dy_at), *columns = reinterpret_cast<T*>(own + columns_at);
          float* sums = by_tiles ? sums_of(part) : dweight;
          if (by_tiles && !(part == 0 && add)) std::memset(sums, 0, static_cast<size_t>(weights) * 4);
          const Range share = by_tiles ? share_of(tiles.count, parts, part) : Range{0, tiles.count};
          const Range in = by_tiles ? Range{0, c.in} : share_of(c.in, parts, part);
          const Gemm& gemm = products[static_cast<size_t>(by_tiles ? 0 : part)];
          for (int64_t t = share.begin; t < share.end; ++t)
            for (int64_t g = 0; g < c.groups; ++g) {
              const Range tile = tiles.tile(t);
              take(c, a.in<T>(0), tile, g * c.out, c.out, dy, tiles.places);
              lay_out(c, a.in<T>(1), tile, g * c.in + in.begin, in.size(), columns, tiles.places);
              gemm.run(dy, columns, sums + g * c.out * terms + in.begin * window_of(c), nullptr,
                       own + gemm_at);
            }
        });
        if (by_tiles)
          parallel_for(weights, kLightGrain, [&](int64_t begin, int64_t end) {
            for (int64_t part = 1; part < parts; ++part) {
              const float* from = sums_of(part);
              for_lanes(end - begin, [&](int64_t i, auto lanes) {
                store(dweight + begin + i, load(dweight + begin + i, lanes) + load(from + begin + i, lanes),
                      lanes);
              });
            }
          });
        if (!has_bias) return;
        const int64_t places = c.out_height * c.out_width, channels = c.groups * c.out;
        parallel_for(channels, row_grain(kLightGrain, c.samples * places), [&](int64_t begin, int64_t end) {
          for (int64_t o = begin; o < end; ++o) {
            Vector total{};
            for (int64_t n = 0; n < c.samples; ++n) {
              const T* from = a.in<T>(0) + (n * channels + o) * places;
              for_lanes(places, [&](int64_t i, auto lanes) { total += load(from + i, lanes); });
            }
            float* to = a.out<float>(1) + o;
            *to = (add_bias ? *to : 0.0F) + sum_of(total);
          }
        });
      },
      parts * space.bytes);
}

std::unique_ptr<Kernel> prepare_weight_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  const Convolution c =
      convolution_of(request.inputs[1].type.shape, request.outputs[0].type.shape, request.attributes);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_weight_gradient<T>(c, request.accumulate, present(request.outputs, 1));
  });
}

}  // namespace

std::vector<KernelEntry> conv_kernels() {
  return {{"conv2d", &prepare_conv2d},
          {"conv2d_input_gradient", &prepare_input_gradient},
          {"conv2d_weight_gradient", &prepare_weight_gradient}};
}

}  // namespace het::cpu::HET_ISA
