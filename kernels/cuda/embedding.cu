// Rows of a table by index, and the gradient: rows added into the table's. For the gradient the positions are
// sorted by row (a key is the row above the position, so no two are equal), and runs of equal rows are summed
// in the order of their positions: in chunks of 32 sorted positions, each by one warp for its columns; sums
// of rows that go on in the next chunk are left in the workspace and added by a second kernel. So a token
// that half of the batch has is shared among many warps, and every sum has one order.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 128;
constexpr int kSegment = 4;    // accesses in flight for each lane when rows are copied
constexpr int kTile = 1024;    // positions that a block sorts
constexpr int kFan = 16;       // sorted runs that are merged at a time
constexpr int kChunk = kWarp;  // sorted positions that a warp sums
constexpr int kInFlight = 8;   // rows that it reads at a time

// The rows that the table here holds: [first, first + own) of `of`.
struct Rows {
  int64_t first, own, of;
};

void require_indices(const KernelRequest& request, const Layout& ids) {
  require_packed(request, ids);
  if (ids.type.dtype != DType::i32) refuse_dtype(request, ids.type.dtype);
}

// The row of the table for ids[i]; `own` where it is not here.
__device__ inline int64_t row_of(const int* ids, int64_t i, const Rows& rows, const char* op,
                                 Failure* failure) {
  const int64_t id = ids[i];
  if (id < 0 || id >= rows.of) {
    report(failure, {Failure::bad_index, i, id, rows.of, op});
    return rows.own;
  }
  return id < rows.first || id >= rows.first + rows.own ? rows.own : id - rows.first;
}

__device__ inline int64_t warp_of_grid() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
}

unsigned grid_of_warps(int64_t warps) { return static_cast<unsigned>(ceil_div(warps, kThreads / kWarp)); }

// A warp copies `kSegment` units a lane of one row, of `units` each.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    gather(const int* ids, const Unit* table, Unit* y, int64_t count, int64_t units, Rows rows,
           const char* op, Failure* failure) {
  const int64_t segments = (units + kWarp * kSegment - 1) / (kWarp * kSegment), warp = warp_of_grid();
  if (warp >= count * segments) return;
  const int64_t i = warp / segments, begin = warp % segments * kWarp * kSegment + threadIdx.x % kWarp;
  const int64_t row = row_of(ids, i, rows, op, failure);
  Unit values[kSegment];
#pragma unroll
  for (int k = 0; k < kSegment; ++k) {
    const int64_t at = begin + k * kWarp;
    values[k] = row < rows.own && at < units ? table[row * units + at] : Unit{};
  }
#pragma unroll
  for (int k = 0; k < kSegment; ++k)
    if (const int64_t at = begin + k * kWarp; at < units) y[i * units + at] = values[k];
}

template <typename Unit>
void launch_gather(const Context& context, const KernelArguments& a, int64_t count, int64_t row_bytes,
                   const Rows& rows) {
  const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
  launch(context, gather<Unit>, grid_of_warps(count * ceil_div(units, kWarp * kSegment)), kThreads, 0,
         a.in<int>(0), a.in<Unit>(1), a.out<Unit>(0), count, units, rows, "embedding", context.failure);
}

std::unique_ptr<Kernel> prepare_embedding(const KernelRequest& request, const Context& context) {
  require_indices(request, request.inputs[0]);
  const TensorType& table = request.inputs[1].type;
  require_packed(request, request.inputs[1]);
  require_packed(request, request.outputs[0]);
  const int64_t count = request.inputs[0].type.elements(), own = table.shape[0];
  const int64_t row_bytes = table.shape[1] * bytes_of(table.dtype);
  const Rows rows{integer(request, "first", 0), own, integer(request, "of", own)};
  return for_float(request, table.dtype, [&]<typename T>(T) {
    using Element = std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>;
    return make_kernel([=, &context](const KernelArguments& a) {
      constexpr int N = kPack<T>;
      if (row_bytes % 16 == 0 && packs(a.in<T>(1), N, N) && packs(a.out<T>(0), N, N))
        launch_gather<uint4>(context, a, count, row_bytes, rows);
      else
        launch_gather<Element>(context, a, count, row_bytes, rows);
    });
  });
}

// Keys of a tile's positions, in order; tile is a power of 2. Batcher's bitonic sort.
__global__ void __launch_bounds__(kTile / 2)
    sort_tiles(const int* ids, uint64_t* keys, int64_t count, int tile, Rows rows, const char* op,
               Failure* failure) {
  auto* own = reinterpret_cast<uint64_t*>(dynamic_shared());  // [tile]
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * tile;
  for (int i = threadIdx.x; i < tile; i += blockDim.x)
    own[i] = begin + i < count
                 ? static_cast<uint64_t>(row_of(ids, begin + i, rows, op, failure)) << 32 | (begin + i)
                 : ~uint64_t{0};
  for (int size = 2; size <= tile; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int k = threadIdx.x; k < tile / 2; k += blockDim.x) {
        const int i = 2 * k - (k & (step - 1)), j = i + step;
        const uint64_t a = own[i], b = own[j];
        if ((a > b) == ((i & size) == 0)) {
          own[i] = b;
          own[j] = a;
        }
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < tile && begin + i < count; i += blockDim.x) keys[begin + i] = own[i];
}

// Sorted runs of `run` keys become sorted runs of kFan times as many: each key's place is its own in its run
// and the number of smaller keys in the others.
__global__ void __launch_bounds__(kThreads)
    merge_runs(const uint64_t* from, uint64_t* to, int64_t count, int64_t run) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint64_t key = from[i];
  const int64_t group = i / (run * kFan) * (run * kFan), mine = i / run * run;
  int64_t at = group + i - mine;
  for (int64_t begin = group; begin < min(group + run * kFan, count); begin += run) {
    if (begin == mine) continue;
    int64_t low = begin, high = min(begin + run, count);
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (from[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    at += low - begin;
  }
  to[at] = key;
}

// What both kernels of the sums know.
struct Sums {
  const uint64_t* keys;  // [count], sorted
  float* partial;        // [2, chunks, columns]: sums of rows from before the chunk; of rows that go on after
  float* table;
  int64_t count, columns, chunks, segments, own;
  bool accumulate;

  // The row at a place of the order; none there: a number that no row has.
  __device__ unsigned row_at(int64_t i) const {
    return i >= 0 && i < count ? static_cast<unsigned>(keys[i] >> 32) : ~0u;
  }
  template <int N>
  __device__ void write(unsigned row, int64_t column, float (&sum)[N]) const {
    float* to = table + row * columns + column;
    if (accumulate) {
      float before[N];
      load(before, to);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += before[k];
    }
    store(to, sum);
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_chunks(const T* dy, Sums s) {
  const int64_t warp = warp_of_grid(), chunk = warp / s.segments, first = chunk * kChunk;
  if (chunk >= s.chunks) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t column = (warp % s.segments * kWarp + lane) * N;
  const uint64_t key = first + lane < s.count ? s.keys[first + lane] : ~uint64_t{0};
  const unsigned before = s.row_at(first - 1), after = s.row_at(first + kChunk);
  float sum[N] = {};
  unsigned current = __shfl_sync(~0u, static_cast<unsigned>(key >> 32), 0);
  bool begins = before != current;
  const auto leave = [&](bool ends) {
    if (current >= s.own || column >= s.columns) return;
    if (begins && ends)
      s.write(current, column, sum);
    else
      store(s.partial + ((begins ? s.chunks : 0) + chunk) * s.columns + column, sum);
  };
  for (int e = 0; e < kChunk; e += kInFlight) {
    Raw<T, N> values[kInFlight];
    unsigned rows[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t other = __shfl_sync(~0u, key, e + k);
      rows[k] = static_cast<unsigned>(other >> 32);
      if (rows[k] < s.own && column < s.columns)
        values[k].load(dy + (other & 0xFFFFFFFFu) * s.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (rows[k] != current) {
        leave(true);
        current = rows[k];
        begins = true;
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] = 0;
      }
      if (rows[k] < s.own && column < s.columns)
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += values[k][j];
    }
  }
  leave(after != current);
}

// The row that begins in a chunk and goes on in the next: its sums of all chunks, in order.
template <int N>
__global__ void __launch_bounds__(kThreads) join_chunks(Sums s) {
  const int64_t warp = warp_of_grid(), chunk = warp / s.segments;
  const int64_t column = (warp % s.segments * kWarp + threadIdx.x % kWarp) * N;
  if (chunk >= s.chunks || column >= s.columns) return;
  const unsigned row = s.row_at((chunk + 1) * kChunk - 1);
  bool more = row < s.own && s.row_at((chunk + 1) * kChunk) == row && s.row_at(chunk * kChunk - 1) != row;
  if (!more) return;
  float sum[N];
  load(sum, s.partial + (s.chunks + chunk) * s.columns + column);
  for (int64_t next = chunk + 1; more; next += kInFlight) {
    float parts[kInFlight][N];
    unsigned after[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      after[k] = s.row_at((next + k + 1) * kChunk);
      if (next + k < s.chunks) load(parts[k], s.partial + (next + k) * s.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (!more) break;
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += parts[k][j];
      more = after[k] == row;
    }
  }
  s.write(row, column, sum);
}

std::unique_ptr<Kernel> prepare_embedding_gradient(const KernelRequest& request, const Context& context) {
  require_indices(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const TensorType& table = request.outputs[0].type;
  if (table.dtype != DType::f32) refuse_dtype(request, table.dtype);
  const int64_t count = request.inputs[1].type.elements(), columns = table.shape[1];
  const Rows rows{integer(request, "first", 0), table.shape[0], integer(request, "of", table.shape[0])};
  if (std::max(rows.own, count) >= int64_t{1} << 32) refuse(request, "2^32 rows or indices");
  const bool accumulate = (request.accumulate & 1) != 0;
  const int64_t table_bytes = table.bytes(), chunks = ceil_div(count, kChunk);
  int tile = 2;
  while (tile < kTile && tile < count) tile *= 2;
  const size_t shared = tile * sizeof(uint64_t);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          const T* dy = a.in<T>(0);
          auto* keys = reinterpret_cast<uint64_t*>(a.workspace);
          auto* others = keys + count;
          Sums s{nullptr,
                 reinterpret_cast<float*>(others + count),
                 a.out<float>(0),
                 count,
                 columns,
                 chunks,
                 0,
                 rows.own,
                 accumulate};
          if (!accumulate)
            check(cudaMemsetAsync(s.table, 0, static_cast<size_t>(table_bytes), context.stream),
                  "clear a table");
          launch(context, sort_tiles, static_cast<unsigned>(ceil_div(count, tile)),
                 static_cast<unsigned>(std::max(kWarp, tile / 2)), shared, a.in<int>(1), keys, count, tile,
                 rows, "embedding_gradient", context.failure);
          for (int64_t run = tile; run < count; run *= kFan) {
            launch(context, merge_runs, static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, keys,
                   others, count, run);
            std::swap(keys, others);
          }
          s.keys = keys;
          const auto sum = [&]<int N>(std::integral_constant<int, N>) {
            s.segments = ceil_div(columns, kWarp * N);
            const unsigned grid = grid_of_warps(chunks * s.segments);
            launch(context, sum_chunks<T, N>, grid, kThreads, 0, dy, s);
            if (chunks > 1) launch(context, join_chunks<N>, grid, kThreads, 0, s);
          };
          constexpr int N = kPack<T>;
          if (packs(dy, columns, N) && packs(s.table, columns, N) && packs(s.partial, columns, N))
            sum(std::integral_constant<int, N>{});
          else
            sum(std::integral_constant<int, 1>{});
        },
        2 * count * 8 + 2 * chunks * columns * 4);
  });
}

}  // namespace

std::vector<Entry> embedding_kernels() {
  return {{"embedding", prepare_embedding}, {"embedding_gradient", prepare_embedding_gradient}};
}

}  // namespace het::HET_CUDA
