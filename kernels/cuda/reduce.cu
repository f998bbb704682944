// Sum and mean over any dimensions, in f32. After merging, the innermost loop is either summed (rows, as in a
// mean over the last dimension) or kept (columns, as in the gradient of a bias). Each element is read once,
// in packs of 16 bytes and four of them in flight. Where the results are too few to occupy the GPU, what is
// summed is split into parts, whose sums a second kernel adds in order.
#include <algorithm>

#include "kernels/cuda/dtype.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/loops.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;

// Where sums go: to the result, or, where there are several parts, to the workspace [parts, results].
struct Target {
  void* y;
  float* parts;  // null: to the result
  int64_t results;
  float factor;
  DType dtype;
  bool accumulate;

  __device__ void write(int64_t part, int64_t result, float sum) const {
    if (parts != nullptr) {
      parts[part * results + result] = sum;
    } else {
      sum *= factor;
      write_narrow(dtype, y, result, accumulate ? read_narrow(dtype, y, result) + sum : sum);
    }
  }
};

struct Reduction {
  Walk<1> kept, summed;  // places in the input, in packs of the innermost loop
  int64_t results = 1;   // single ones, also where packs are kept
  int64_t units = 1;     // summed for each result: packs, or single elements where packs are kept
  int64_t part_units = 1;
};

// A thread of `group` takes packs of its part; group is 1, 32 or kThreads.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const T* x, const __grid_constant__ Reduction r, Target target, int group) {
  __shared__ float scratch[kThreads / kWarp];
  const int64_t result = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / group;
  const int lane = static_cast<int>(threadIdx.x) % group;
  const int64_t begin = blockIdx.y * r.part_units, end = min(r.units, begin + r.part_units);
  float sums[kInFlight] = {};
  if (result < r.results) {
    int64_t start[1];
    r.kept.at(result, start);
    x += start[0];
    for (int64_t unit = begin + lane; unit < end; unit += group * kInFlight) {
      Raw<T, N> raw[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (unit + j * group >= end) break;
        int64_t offset[1];
        r.summed.at(unit + j * group, offset);
        raw[j].load(x + offset[0]);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (unit + j * group >= end) break;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) sum += raw[j][k];
        sums[j] += sum;
      }
    }
  }
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (group == kWarp) sum = warp_sum(sum);
  if (group == kThreads) sum = block_sum(sum, scratch);
  if (lane == 0 && result < r.results) target.write(blockIdx.y, result, sum);
}

// Thread (x, y) of the block takes one pack of columns, and of its part every row that is y modulo the
// block's height. Long sums are gathered in two levels, so that rounding does not grow with their length.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_columns(const T* x, const __grid_constant__ Reduction r, Target target) {
  constexpr int kPiece = 8;  // rows, each of kInFlight
  __shared__ float scratch[kThreads * N];
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t begin = blockIdx.y * r.part_units, end = min(r.units, begin + r.part_units);
  float total[N] = {};
  if (pack * N < r.results) {
    int64_t start[1];
    r.kept.at(pack, start);
    x += start[0];
    int64_t row = begin + threadIdx.y;
    const int64_t step = blockDim.y;
    while (row < end) {
      float sums[N] = {};
      for (int piece = 0; piece < kPiece && row < end; ++piece, row += step * kInFlight) {
        Raw<T, N> raw[kInFlight];
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
          if (row + j * step >= end) break;
          int64_t offset[1];
          r.summed.at(row + j * step, offset);
          raw[j].load(x + offset[0]);
        }
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
          if (row + j * step >= end) break;
#pragma unroll
          for (int k = 0; k < N; ++k) sums[k] += raw[j][k];
        }
      }
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += sums[k];
    }
  }
  // The columns of one pack lie blockDim.x apart: neighbouring threads meet no bank conflict.
#pragma unroll
  for (int k = 0; k < N; ++k) scratch[(threadIdx.y * N + k) * blockDim.x + threadIdx.x] = total[k];
  __syncthreads();
  for (unsigned i = threadIdx.y * blockDim.x + threadIdx.x; i < N * blockDim.x; i += kThreads) {
    const unsigned column = i % N, at = column * blockDim.x + i / N;
    const int64_t result = (static_cast<int64_t>(blockIdx.x) * blockDim.x + i / N) * N + column;
    if (result >= r.results) continue;
    float sum = 0;
    for (unsigned y = 0; y < blockDim.y; ++y) sum += scratch[y * N * blockDim.x + at];
    target.write(blockIdx.y, result, sum);
  }
}

// A warp for each result.
__global__ void __launch_bounds__(kThreads) add_parts(const float* sums, int64_t parts, Target target) {
  const int64_t result = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (result >= target.results) return;
  float sum = 0;
  for (int64_t part = threadIdx.x % kWarp; part < parts; part += kWarp)
    sum += sums[part * target.results + result];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) target.write(0, result, sum);
}

// One way to run a reduction: in packs of N, or element by element where addresses or sizes do not allow
// them.
struct Launch {
  Reduction reduction;
  dim3 grid, block;
  int group = 0;  // of rows; 0: columns
};

Launch shape_of(const Loops& loops, int64_t pack, const Context& context) {
  Launch shape;
  Reduction& r = shape.reduction;
  const int inner = loops.rank - 1;
  // A loop of one element (all dimensions had size 1) has stride 0 everywhere: summing it does nothing.
  const auto summed = [&](int d) { return loops.stride[1][d] == 0; };
  const auto size = [&](int d) { return d == inner ? loops.size[d] / pack : loops.size[d]; };
  int64_t kept = 1;
  for (int d = 0; d < loops.rank; ++d) (summed(d) ? r.units : kept) *= size(d);
  for (int d = 0; d < loops.rank; ++d) {
    Walk<1>& walk = summed(d) ? r.summed : r.kept;
    walk.stride[0][walk.rank] = loops.stride[0][d] * (d == inner ? pack : 1);
    walk.add(size(d), summed(d) ? r.units : kept);
  }
  r.results = kept * (summed(inner) ? 1 : pack);

  int64_t blocks, rows;  // rows: units that the block has in flight
  if (summed(inner)) {
    shape.group = r.units <= 8 ? 1 : r.units <= 8 * kWarp ? kWarp : kThreads;
    blocks = ceil_div(r.results * shape.group, kThreads);
    rows = int64_t{shape.group} * kInFlight;
    shape.block = dim3(kThreads);
  } else {
    unsigned width = 1;
    while (width < kWarp && width < kept) width *= 2;
    shape.block = dim3(width, kThreads / width);
    blocks = ceil_div(kept, width);
    rows = int64_t{shape.block.y} * kInFlight;
  }
  int64_t parts = 1;
  if (blocks < 2 * context.multiprocessors && blocks > 0)
    parts = std::clamp<int64_t>(4 * context.multiprocessors / blocks, 1,
                                std::max<int64_t>(1, ceil_div(r.units, rows)));
  r.part_units = std::max<int64_t>(1, ceil_div(r.units, parts));
  parts = std::max<int64_t>(1, ceil_div(r.units, r.part_units));
  shape.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  return shape;
}

template <typename T, int N>
void run_shape(const Context& context, const Launch& shape, const KernelArguments& a, Target target) {
  const auto parts = static_cast<int64_t>(shape.grid.y);
  target.y = a.outputs[0];
  target.parts = parts > 1 ? reinterpret_cast<float*>(a.workspace) : nullptr;
  if (shape.group > 0)
    launch(context, sum_rows<T, N>, shape.grid, shape.block, 0, a.in<T>(0), shape.reduction, target,
           shape.group);
  else
    launch(context, sum_columns<T, N>, shape.grid, shape.block, 0, a.in<T>(0), shape.reduction, target);
  if (parts == 1) return;
  const float* sums = target.parts;
  target.parts = nullptr;
  launch(context, add_parts, static_cast<unsigned>(ceil_div(target.results * kWarp, kThreads)), kThreads, 0,
         sums, parts, target);
}

template <bool kMean>
std::unique_ptr<Kernel> prepare_reduction(const KernelRequest& request, const Context& context) {
  require_packed(request, request.outputs[0]);
  const Loops loops = reduction_loops(request);
  const int inner = loops.rank - 1;
  Target target{};
  target.dtype = request.outputs[0].type.dtype;
  target.accumulate = request.accumulate & 1;
  if (!is_narrow(target.dtype)) refuse_dtype(request, target.dtype);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    constexpr int N = kPack<T>;
    const Launch single = shape_of(loops, 1, context);
    bool can_pack = loops.stride[0][inner] == 1 && loops.size[inner] % N == 0;
    for (int d = 0; d < inner; ++d) can_pack &= loops.stride[0][d] % N == 0;
    const Launch packed = can_pack ? shape_of(loops, N, context) : single;
    Target to = target;
    to.results = single.reduction.results;
    to.factor = kMean ? 1.0f / static_cast<float>(single.reduction.units) : 1.0f;
    const int64_t parts = std::max(single.grid.y, packed.grid.y);
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          if (can_pack && packs(a.in<T>(0), N, N))
            run_shape<T, N>(context, packed, a, to);
          else
            run_shape<T, 1>(context, single, a, to);
        },
        parts > 1 ? parts * to.results * 4 : 0);
  });
}

}  // namespace

std::vector<Entry> reduce_kernels() {
  return {{"sum", prepare_reduction<false>}, {"mean", prepare_reduction<true>}};
}

}  // namespace het::HET_CUDA
