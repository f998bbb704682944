// Copies between strided layouts, and fill. A copy whose rows are runs of memory on both sides moves words of
// up to 16 bytes; one whose rows are adjacent along another dimension in the source (a transposition) goes
// through square tiles in shared memory, so that both sides are read and written in runs; any other goes
// element by element.
#include <array>
#include <cstring>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/loops.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // words of a thread, all read before the first is written

// Operand 0 is the target, 1 the source; strides in words.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    copy_words(const Word* x, Word* y, const __grid_constant__ Walk<2> walk, int64_t words) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kInFlight + threadIdx.x;
  Word word[kInFlight];
  int64_t to[kInFlight];
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
    const int64_t i = first + j * kThreads;
    if (i >= words) continue;
    int64_t offset[2];
    walk.at(i, offset);
    to[j] = offset[0];
    word[j] = x[offset[1]];
  }
#pragma unroll
  for (int j = 0; j < kInFlight; ++j)
    if (first + j * kThreads < words) y[to[j]] = word[j];
}

template <typename Word>
std::unique_ptr<Kernel> words_kernel(const Loops& loops, int64_t pack, const Context& context) {
  const Walk<2> walk = [&] {
    Loops words = loops;  // the inner loop's strides are 1 where pack is more, and stay 1 in words
    const int inner = loops.rank - 1;
    words.size[inner] /= pack;
    for (int d = 0; d < inner; ++d)
      for (int i = 0; i < 2; ++i) words.stride[i][d] /= pack;
    return walk_of<2>(words, 2);
  }();
  const int64_t words = loops.elements() / pack;
  const auto grid = static_cast<unsigned>(ceil_div(words, kThreads * kInFlight));
  return make_kernel([=, &context](const KernelArguments& a) {
    launch(context, copy_words<Word>, grid, kThreads, 0, a.in<Word>(0), a.out<Word>(0), walk, words);
  });
}

// Elements that can move as one word of up to 16 bytes, as far as sizes and strides say.
int64_t widest(const Loops& loops, int64_t bytes) {
  const int inner = loops.rank - 1;
  if (loops.stride[0][inner] != 1 || loops.stride[1][inner] != 1) return 1;
  for (int64_t pack = 16 / bytes; pack > 1; pack /= 2) {
    bool fits = loops.size[inner] % pack == 0;
    for (int d = 0; d < inner; ++d)
      for (int i = 0; i < 2; ++i) fits &= loops.stride[i][d] % pack == 0;
    if (fits) return pack;
  }
  return 1;
}

std::unique_ptr<Kernel> words_kernel_of(const Loops& loops, int64_t bytes, int64_t pack,
                                        const Context& context) {
  switch (bytes * pack) {
    case 1: return words_kernel<uint8_t>(loops, pack, context);
    case 2: return words_kernel<uint16_t>(loops, pack, context);
    case 4: return words_kernel<uint32_t>(loops, pack, context);
    case 8: return words_kernel<uint64_t>(loops, pack, context);
    default: return words_kernel<uint4>(loops, pack, context);
  }
}

// The wide kernel where both addresses allow it, else the narrow one.
std::unique_ptr<Kernel> prepare_rows(const Loops& loops, int64_t bytes, const Context& context) {
  const int64_t pack = widest(loops, bytes);
  std::shared_ptr<Kernel> narrow = words_kernel_of(loops, bytes, 1, context);
  std::shared_ptr<Kernel> wide = pack == 1 ? narrow : words_kernel_of(loops, bytes, pack, context);
  const auto alignment = static_cast<uintptr_t>(bytes * pack);
  return make_kernel([=](const KernelArguments& a) {
    const bool fits = reinterpret_cast<uintptr_t>(a.inputs[0]) % alignment == 0 &&
                      reinterpret_cast<uintptr_t>(a.outputs[0]) % alignment == 0;
    (fits ? wide : narrow)->run(a);
  });
}

// ---- transpositions ----

// Narrow elements in wider tiles, so that a warp reads whole sectors of 32 bytes and there is enough in
// flight.
template <typename Word>
inline constexpr int kEdge = sizeof(Word) <= 2 ? 64 : 32;

// y[row * to_row + column] = x[row + column * from_column], for each of the outer loops.
struct Crossing {
  Walk<2> outer;
  int64_t rows, columns, to_row, from_column;
  int64_t row_tiles, column_tiles;
};

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_tiles(const Word* x, Word* y, const __grid_constant__ Crossing c) {
  constexpr int kSide = kEdge<Word>, kStep = kThreads / 32;
  // A column of the tile meets every bank once: its rows are an odd number of 4-byte words apart.
  constexpr int kRow = kSide + (sizeof(Word) < 4 ? 4 / static_cast<int>(sizeof(Word)) : 1);
  __shared__ Word tile[kSide][kRow];  // [column][row]
  const int64_t outer = blockIdx.x / (c.row_tiles * c.column_tiles),
                rest = blockIdx.x % (c.row_tiles * c.column_tiles);
  int64_t offset[2];
  c.outer.at(outer, offset);
  const int64_t row = rest / c.column_tiles * kSide, column = rest % c.column_tiles * kSide;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = static_cast<int>(min(int64_t{kSide}, c.rows - row)),
            columns = static_cast<int>(min(int64_t{kSide}, c.columns - column));
  x += offset[1] + row + column * c.from_column;
  y += offset[0] + row * c.to_row + column;
#pragma unroll
  for (int j = 0; j < kSide; j += kStep)
#pragma unroll
    for (int i = 0; i < kSide; i += 32)
      if (j + warp < columns && i + lane < rows)
        tile[j + warp][i + lane] = x[i + lane + (j + warp) * c.from_column];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; i += kStep)
#pragma unroll
    for (int j = 0; j < kSide; j += 32)
      if (i + warp < rows && j + lane < columns)
        y[(i + warp) * c.to_row + j + lane] = tile[j + lane][i + warp];
}

template <typename Word>
std::unique_ptr<Kernel> prepare_transposition(const Loops& loops, int crossed, const Context& context) {
  const int inner = loops.rank - 1;
  Crossing c;
  c.rows = loops.size[crossed];
  c.columns = loops.size[inner];
  c.to_row = loops.stride[0][crossed];
  c.from_column = loops.stride[1][inner];
  c.row_tiles = ceil_div(c.rows, kEdge<Word>);
  c.column_tiles = ceil_div(c.columns, kEdge<Word>);
  int64_t outer = 1;
  for (int d = 0; d < inner; ++d)
    if (d != crossed) outer *= loops.size[d];
  for (int d = 0; d < inner; ++d) {
    if (d == crossed) continue;
    c.outer.stride[0][c.outer.rank] = loops.stride[0][d];
    c.outer.stride[1][c.outer.rank] = loops.stride[1][d];
    c.outer.add(loops.size[d], outer);
  }
  const auto grid = static_cast<unsigned>(outer * c.row_tiles * c.column_tiles);
  return make_kernel([=, &context](const KernelArguments& a) {
    launch(context, transpose_tiles<Word>, grid, kThreads, 0, a.in<Word>(0), a.out<Word>(0), c);
  });
}

std::unique_ptr<Kernel> prepare_copy(const KernelRequest& request, const Context& context) {
  if (request.inputs[0].type.dtype != request.outputs[0].type.dtype)
    refuse(request, "a change of dtype (use cast)");
  const int64_t bytes = bytes_of(request.inputs[0].type.dtype);
  const Loops loops = copy_loops(request, request.outputs[0], request.inputs[0]);
  const int inner = loops.rank - 1;
  if (loops.rank == 1 && loops.stride[0][0] == 1 && loops.stride[1][0] == 1)
    return make_kernel(
        [&context, all = static_cast<size_t>(loops.elements() * bytes)](const KernelArguments& a) {
          if (all > 0)
            check(cudaMemcpyAsync(a.outputs[0], a.inputs[0], all, cudaMemcpyDeviceToDevice, context.stream),
                  "copy");
        });
  int crossed = -1;
  if (loops.stride[0][inner] == 1 && loops.stride[1][inner] != 1)
    for (int d = 0; d < inner; ++d)
      if (loops.stride[1][d] == 1) crossed = d;
  if (crossed < 0) return prepare_rows(loops, bytes, context);
  switch (bytes) {
    case 1: return prepare_transposition<uint8_t>(loops, crossed, context);
    case 2: return prepare_transposition<uint16_t>(loops, crossed, context);
    case 4: return prepare_transposition<uint32_t>(loops, crossed, context);
    default: return prepare_transposition<uint64_t>(loops, crossed, context);
  }
}

// ---- fill ----

// 16 bytes a thread between a head and a tail of single elements.
template <typename Word>
__global__ void __launch_bounds__(kThreads) fill(Word* y, int64_t elements, int64_t head, Word value) {
  constexpr int N = 16 / sizeof(Word);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < head) y[i] = value;
  const int64_t begin = head + i * N;
  if (begin + N <= elements) {
    Pack<Word, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.v[k] = value;
    store_whole(y + begin, pack);
  } else {
    for (int64_t k = begin; k < elements; ++k) y[k] = value;
  }
}

template <typename Element>
std::unique_ptr<Kernel> fill_with(int64_t elements, Element element, const Context& context) {
  using Word =
      std::conditional_t<sizeof(Element) == 1, uint8_t,
                         std::conditional_t<sizeof(Element) == 2, uint16_t,
                                            std::conditional_t<sizeof(Element) == 4, uint32_t, uint64_t>>>;
  constexpr int N = 16 / sizeof(Word);
  Word word;
  std::memcpy(&word, &element, sizeof word);
  return make_kernel([=, &context](const KernelArguments& a) {
    // Elements before the first address that is a multiple of 16.
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.outputs[0]) % 16 / sizeof(Word));
    const int64_t head = std::min(elements, (N - past) % N);
    // A thread for each pack, for a part of one at the end, and for each element of the head.
    const int64_t threads = std::max(head, ceil_div(elements - head, N));
    launch(context, fill<Word>, static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0,
           a.out<Word>(0), elements, head, word);
  });
}

std::unique_ptr<Kernel> prepare_fill(const KernelRequest& request, const Context& context) {
  const Layout& out = request.outputs[0];
  require_packed(request, out);
  const int64_t n = out.type.elements();
  const double value = number(request, "value", 0.0);
  switch (out.type.dtype) {
    case DType::f32: return fill_with(n, static_cast<float>(value), context);
    case DType::f64: return fill_with(n, value, context);
    case DType::bf16: return fill_with(n, het::bf16(static_cast<float>(value)), context);
    case DType::f16: return fill_with(n, het::f16(static_cast<float>(value)), context);
    case DType::i32: return fill_with(n, static_cast<int32_t>(value), context);
    case DType::i64: return fill_with(n, static_cast<int64_t>(value), context);
    case DType::u8: return fill_with(n, static_cast<uint8_t>(value), context);
    case DType::boolean: return fill_with(n, static_cast<uint8_t>(value != 0), context);
    default: refuse_dtype(request, out.type.dtype);
  }
}

// ---- constants ----

// Bytes that a launch brings as its argument, so that a recorded step can have them, too.
struct Chunk {
  std::byte bytes[2048];
};

__global__ void __launch_bounds__(kThreads)
    write_chunk(const __grid_constant__ Chunk chunk, std::byte* y, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) y[i] = chunk.bytes[i];
}

std::unique_ptr<Kernel> prepare_constant(const KernelRequest& request, const Context& context) {
  require_packed(request, request.outputs[0]);
  return make_kernel([bytes = kernels::constant_bytes(request), &context](const KernelArguments& a) {
    for (size_t done = 0; done < bytes.size(); done += sizeof(Chunk)) {
      Chunk chunk;
      const size_t n = std::min(bytes.size() - done, sizeof(Chunk));
      std::memcpy(chunk.bytes, bytes.data() + done, n);
      launch(context, write_chunk, 1, kThreads, 0, chunk, a.outputs[0] + done, static_cast<int>(n));
    }
  });
}

}  // namespace

std::vector<Entry> shape_kernels() {
  return {{"copy", prepare_copy}, {"fill", prepare_fill}, {"constant", prepare_constant}};
}

}  // namespace het::HET_CUDA
