// Layer norm and RMS norm over rows of the last dimension; statistics and sums are f32. A row of up to
// kMostColumns columns is read once: some warps hold it in registers, and have the next rows on their way
// meanwhile. A block walks over rows, several side by side when they are short, and keeps its columns'
// weights in registers. Gradients of weight and bias are column sums over all rows: each thread sums its
// columns of its block's rows in registers, and the blocks' sums are added in order (columns.h). Longer rows
// are read again for each pass over them. A residual is added to x before, a skip to dx after; each sum is
// rounded to T, as a separate addition would have left it.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;
constexpr int64_t kMostColumns = 8192;

// ---- rows in registers ----

// Who has what: `warps` warps take a row, kColumns columns a thread, and a block takes `side_by_side` rows.
struct Shares {
  int warps, side_by_side;
  int threads() const { return warps * side_by_side * kWarp; }
};

template <int kColumns>
Shares shares_of(int64_t n) {
  const int warps = static_cast<int>(ceil_div(n, kWarp * kColumns));
  return {warps, std::max(1, kThreads / kWarp / warps)};
}

// The columns of a thread, kPacks times N that are adjacent.
template <typename T, int N, int kPacks>
struct Held {
  Raw<T, N> packs[kPacks];
};

// Blocks that a multiprocessor should hold, so that enough rows are on their way: as many as registers allow.
template <typename T, int N, int kColumns>
constexpr int kBlocks = kColumns == 8 && N > 1 ? (sizeof(T) == 2 ? 4 : 3) : 1;
template <typename T, int N, int kColumns>
constexpr int kGradientBlocks = kColumns == 8 && N > 1 ? (sizeof(T) == 2 ? 3 : 2) : 1;

// This thread's place in the grid.
struct Place {
  int per_row, rows;  // threads of a row, rows of a block
  int mine, thread;   // which of them is this thread's, and its number in it
  int first_warp;     // of its row in the block
  float share;        // 1 / columns

  __device__ Place(int warps, int n)
      : per_row(warps * kWarp),
        rows(blockDim.x / per_row),
        mine(threadIdx.x / per_row),
        thread(threadIdx.x % per_row),
        first_warp(mine * warps),
        share(1.0f / static_cast<float>(n)) {}
  template <int N>
  __device__ int column(int pack) const {
    return (pack * per_row + thread) * N;
  }
};

// Zeros beyond the last row and column.
template <typename T, int N, int kPacks>
__device__ inline void hold(Held<T, N, kPacks>& to, const T* x, int64_t row, int64_t rows, int n,
                            const Place& place) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = place.column<N>(p);
    to.packs[p] = {};
    if (row < rows && column < n) to.packs[p].load(x + row * n + column);
  }
}

// A vector [n] for the columns of a thread; `absent` where there is none.
template <int N, int kPacks>
__device__ inline void hold_vector(float (&to)[kPacks * N], const float* from, float absent, int n,
                                   const Place& place) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[N];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = absent;
    const int column = place.column<N>(p);
    if (from != nullptr && column < n) load(v, from + column);
#pragma unroll
    for (int k = 0; k < N; ++k) to[p * N + k] = v[k];
  }
}

// Sums over the threads of a row, in every one of them; all threads of the block come. Successive calls take
// `turn` 0 and 1 by turns: so that one barrier is enough, each leaves the other's scratch alone.
template <int K>
__device__ inline void row_sums(float (&x)[K], const Place& place, int turn) {
  __shared__ float scratch[2][kMostThreads / kWarp][2];
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_sum(x[k]);
  const int warps = place.per_row / kWarp;
  if (warps == 1) return;
  if (threadIdx.x % kWarp == 0)
#pragma unroll
    for (int k = 0; k < K; ++k) scratch[turn][threadIdx.x / kWarp][k] = x[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = 0;
  for (int other = place.first_warp; other < place.first_warp + warps; ++other)
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] += scratch[turn][other][k];
}

template <typename T, int N, int kColumns, bool kCentred, bool kResidual>
__global__ void __launch_bounds__(kColumns == 8 ? kThreads : kMostThreads, kBlocks<T, N, kColumns>)
    norm_held(const T* x, const T* residual, const float* weight, const float* bias, T* y, T* sum,
              float* means, float* rstds, int64_t rows, int n, float eps, int warps) {
  constexpr int kPacks = kColumns / N;
  constexpr int kAhead =  // rows on their way
      N > 1 && sizeof(T) * kColumns * (kResidual ? 2 : 1) <= 32 ? 2 : 1;
  const Place place(warps, n);
  float w[kColumns], b[kColumns];
  hold_vector<N, kPacks>(w, weight, 1, n, place);
  hold_vector<N, kPacks>(b, bias, 0, n, place);
  const int64_t step = static_cast<int64_t>(gridDim.x) * place.rows;
  int64_t row = static_cast<int64_t>(blockIdx.x) * place.rows + place.mine;
  Held<T, N, kPacks> next[kAhead], next_residual[kResidual ? kAhead : 1];
  const auto read = [&](int a, int64_t from) {
    hold(next[a], x, from, rows, n, place);
    if constexpr (kResidual) hold(next_residual[a], residual, from, rows, n, place);
  };
#pragma unroll
  for (int a = 0; a < kAhead; ++a) read(a, row + a * step);
  int turn = 0;
  // Every thread of the block goes round equally often.
  for (; row - place.mine < rows; row += step, turn ^= 1) {
    Held<T, N, kPacks> held = next[0];
    const Held<T, N, kPacks> held_residual = next_residual[0];
#pragma unroll
    for (int a = 0; a + 1 < kAhead; ++a) {
      next[a] = next[a + 1];
      if constexpr (kResidual) next_residual[a] = next_residual[a + 1];
    }
    read(kAhead - 1, row + kAhead * step);
    if constexpr (kResidual) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float v[N];
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = held.packs[p][k] + held_residual.packs[p][k];
        held.packs[p].set(v);
        const int column = place.column<N>(p);
        if (row < rows && column < n) store(sum + row * n + column, v);
      }
    }
    float mean[1] = {}, square[1] = {};
    if constexpr (kCentred) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int k = 0; k < N; ++k) mean[0] += held.packs[p][k];
      row_sums(mean, place, 0);
      mean[0] *= place.share;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float centred = held.packs[p][k] - mean[0];
        if (place.column<N>(p) < n) square[0] += centred * centred;
      }
    row_sums(square, place, kCentred ? 1 : turn);
    const float rstd = rsqrtf(square[0] * place.share + eps);
    if (row >= rows) continue;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (place.column<N>(p) >= n) continue;
      float v[N];
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = (held.packs[p][k] - mean[0]) * rstd * w[p * N + k] + b[p * N + k];
      store(y + row * n + place.column<N>(p), v);
    }
    if (place.thread == 0) {
      if constexpr (kCentred) means[row] = mean[0];
      rstds[row] = rstd;
    }
  }
}

// a + b as if `a` had been stored as T: rounded, and not contracted with the product that it comes from.
template <typename T>
__device__ inline float rounded_sum(float a, float b) {
  return __fadd_rn(to_float(from_float<T>(a)), b);
}

// With g = dy * weight and h = (x - mean) * rstd:
// dx = rstd * (g - mean(g) - h * mean(g * h)), the middle term only when centred; dweight = sum dy * h; dbias
// = sum dy. Block b leaves its rows' sums in sums[b]: [2, n].
template <typename T, int N, int kColumns, bool kCentred, bool kSkip>
__global__ void __launch_bounds__(kColumns == 8 ? kThreads : kMostThreads, kGradientBlocks<T, N, kColumns>)
    norm_gradient_held(const T* dy, const T* x, const float* weight, const float* means, const float* rstds,
                       const T* skip, T* dx, float* sums, int64_t rows, int n, int warps) {
  constexpr int kPacks = kColumns / N;
  constexpr bool kAhead = N > 1 && sizeof(T) * kColumns <= 32;  // the next row is on its way
  const Place place(warps, n);
  float w[kColumns], dweight[kColumns] = {}, dbias[kColumns] = {};
  hold_vector<N, kPacks>(w, weight, 1, n, place);
  const int64_t step = static_cast<int64_t>(gridDim.x) * place.rows;
  int64_t row = static_cast<int64_t>(blockIdx.x) * place.rows + place.mine;
  Held<T, N, kPacks> next_dy, next_x;
  float next_mean = 0, next_rstd = 0;
  const auto read = [&](int64_t from) {
    hold(next_dy, dy, from, rows, n, place);
    hold(next_x, x, from, rows, n, place);
    if (from < rows) {
      if constexpr (kCentred) next_mean = means[from];
      next_rstd = rstds[from];
    }
  };
  if constexpr (kAhead) read(row);
  int turn = 0;
  for (; row - place.mine < rows; row += step, turn ^= 1) {
    if constexpr (!kAhead) read(row);
    Held<T, N, kPacks> held_skip;  // on its way while the row is summed
    if constexpr (kSkip) hold(held_skip, skip, row, rows, n, place);
    const Held<T, N, kPacks> held_dy = next_dy, held_x = next_x;
    const float mean = next_mean, rstd = next_rstd;
    if constexpr (kAhead) read(row + step);
    float both[2] = {};  // sums of g and of g * h
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float d = held_dy.packs[p][k], g = d * w[p * N + k], h = (held_x.packs[p][k] - mean) * rstd;
        both[0] += g;
        both[1] += g * h;
        dweight[p * N + k] += d * h;
        dbias[p * N + k] += d;
      }
    row_sums(both, place, turn);
    const float mean_g = kCentred ? both[0] * place.share : 0.0f, mean_gh = both[1] * place.share;
    if (row >= rows) continue;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (place.column<N>(p) >= n) continue;
      float v[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float g = held_dy.packs[p][k] * w[p * N + k], h = (held_x.packs[p][k] - mean) * rstd;
        v[k] = (g - mean_g - h * mean_gh) * rstd;
        if constexpr (kSkip) v[k] = rounded_sum<T>(v[k], held_skip.packs[p][k]);
      }
      store(dx + row * n + place.column<N>(p), v);
    }
  }
  if (sums == nullptr) return;
  sums += static_cast<int64_t>(blockIdx.x) * 2 * n;
  // Rows side by side are added in shared memory: [rows of the block, 2, n].
  float* to = place.rows == 1 ? sums : reinterpret_cast<float*>(dynamic_shared()) + place.mine * 2 * n;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (const int column = place.column<N>(p) + k; column < n) {
        to[column] = dweight[p * N + k];
        to[n + column] = dbias[p * N + k];
      }
  if (place.rows == 1) return;
  __syncthreads();
  const float* from = reinterpret_cast<const float*>(dynamic_shared());
  for (int i = threadIdx.x; i < 2 * n; i += static_cast<int>(blockDim.x)) {
    float sum = from[i];
    for (int other = 1; other < place.rows; ++other) sum += from[other * 2 * n + i];
    sums[i] = sum;
  }
}

// ---- rows of any length, read again for each pass; a block takes a row at a time ----

// Visit the columns of a row: each(i, pack size) where the thread has kPack elements from i on, or one.
template <typename T, typename Each>
__device__ void each_column(bool packed, int64_t n, const Each& each) {
  constexpr int N = kPack<T>;
  if (packed)
    for (int64_t i = threadIdx.x * N; i < n; i += blockDim.x * N) each(i, std::integral_constant<int, N>{});
  else
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) each(i, std::integral_constant<int, 1>{});
}

template <typename T, bool kCentred, bool kResidual>
__global__ void __launch_bounds__(kThreads)
    norm_long(const T* x, const T* residual, const float* weight, const float* bias, T* y, T* sum,
              float* means, float* rstds, int64_t rows, int64_t n, float eps, bool packed) {
  __shared__ float scratch[kThreads / kWarp];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    T* out = y + row * n;
    if constexpr (kResidual) {
      each_column<T>(packed, n, [&](int64_t i, auto size) {
        float v[size()], r[size()];
        load(v, in + i);
        load(r, residual + row * n + i);
        for (int k = 0; k < size(); ++k) v[k] += r[k];
        store(sum + row * n + i, v);
      });
      in = sum + row * n;  // each thread reads what it wrote itself
    }
    float mean = 0;
    if constexpr (kCentred) {
      float total = 0;
      each_column<T>(packed, n, [&](int64_t i, auto size) {
        float v[size()];
        load(v, in + i);
        for (int k = 0; k < size(); ++k) total += v[k];
      });
      mean = block_sum(total, scratch) / n;
    }
    float square = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()];
      load(v, in + i);
      for (int k = 0; k < size(); ++k) square += (v[k] - mean) * (v[k] - mean);
    });
    const float rstd = 1.0f / sqrtf(block_sum(square, scratch) / n + eps);
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()], w[size()] = {}, b[size()] = {};
      load(v, in + i);
      if (weight != nullptr) load(w, weight + i);
      if (bias != nullptr) load(b, bias + i);
      for (int k = 0; k < size(); ++k) {
        v[k] = (v[k] - mean) * rstd;
        if (weight != nullptr) v[k] *= w[k];
        if (bias != nullptr) v[k] += b[k];
      }
      store(out + i, v);
    });
    if (threadIdx.x == 0) {
      if constexpr (kCentred) means[row] = mean;
      rstds[row] = rstd;
    }
  }
}

template <typename T, bool kCentred, bool kSkip>
__global__ void __launch_bounds__(kThreads)
    norm_gradient_long(const T* dy, const T* x, const float* weight, const float* means, const float* rstds,
                       const T* skip, T* dx, float* sums, int64_t rows, int64_t n, bool packed) {
  __shared__ float scratch[kThreads / kWarp];
  float* dweight = sums == nullptr ? nullptr : sums + blockIdx.x * 2 * n;
  float* dbias = dweight + n;
  if (sums != nullptr)
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      for (int k = 0; k < size(); ++k) dweight[i + k] = dbias[i + k] = 0;
    });
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float mean = kCentred ? means[row] : 0.0f, rstd = rstds[row];
    const int64_t at = row * n;
    float sum_g = 0, sum_gh = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float d[size()], v[size()], w[size()] = {};
      load(d, dy + at + i);
      load(v, x + at + i);
      if (weight != nullptr) load(w, weight + i);
      for (int k = 0; k < size(); ++k) {
        const float h = (v[k] - mean) * rstd, g = weight == nullptr ? d[k] : d[k] * w[k];
        sum_g += g;
        sum_gh += g * h;
        if (sums != nullptr) {
          dweight[i + k] += d[k] * h;
          dbias[i + k] += d[k];
        }
      }
    });
    const float mean_g = kCentred ? block_sum(sum_g, scratch) / n : 0.0f,
                mean_gh = block_sum(sum_gh, scratch) / n;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float d[size()], v[size()], w[size()] = {};
      load(d, dy + at + i);
      load(v, x + at + i);
      if (weight != nullptr) load(w, weight + i);
      for (int k = 0; k < size(); ++k) {
        const float h = (v[k] - mean) * rstd, g = weight == nullptr ? d[k] : d[k] * w[k];
        d[k] = (g - mean_g - h * mean_gh) * rstd;
      }
      if constexpr (kSkip) {
        float s[size()];
        load(s, skip + at + i);
        for (int k = 0; k < size(); ++k) d[k] = rounded_sum<T>(d[k], s[k]);
      }
      store(dx + at + i, d);
    });
  }
}

// ---- choice ----

// choose(kColumns of a thread) for rows that are held; false when they are not.
template <typename Choose>
void for_columns(int64_t n, const Choose& choose) {
  if (n <= 8 * kThreads)
    choose(std::integral_constant<int, 8>{});
  else
    choose(std::integral_constant<int, 16>{});
}
bool held(int64_t n) { return n > 0 && n <= kMostColumns; }

// A kernel and the blocks that it is launched with.
template <typename Function>
struct Launched {
  Function* kernel;
  unsigned grid;
};
template <typename... Parameters>
Launched<void(Parameters...)> fitted(const Context& context, void (*kernel)(Parameters...),
                                     const Shares& shares, size_t shared, int64_t rows) {
  const int64_t most = resident_blocks(context, kernel, shares.threads(), shared);
  return {kernel, static_cast<unsigned>(std::min(ceil_div(rows, shares.side_by_side), most))};
}

// choose(whether an operand that is added is there), known when the kernel is compiled.
template <typename Choose>
std::unique_ptr<Kernel> for_added(bool there, const Choose& choose) {
  return there ? choose(std::true_type{}) : choose(std::false_type{});
}

template <typename T, bool kCentred, bool kResidual>
std::unique_ptr<Kernel> prepare_norm_of(const KernelRequest& request, const Context& context) {
  constexpr int N = kPack<T>;
  constexpr size_t kAdded = kCentred ? 3 : 2;  // the residual's operand; as result, the sum
  const Rows rows = packed_rows(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  if constexpr (kResidual) {
    require_packed(request, request.inputs[kAdded]);
    require_packed(request, request.outputs[kAdded]);
  }
  const float eps = static_cast<float>(number(request, "eps", 1e-5));
  const bool has_weight = present(request.inputs, 1), has_bias = kCentred && present(request.inputs, 2);
  const int64_t n = rows.columns;
  const auto make = [&](const auto& run) {  // run(x, residual, weight, bias, y, sum, mean, rstd, packed)
    return make_kernel([=](const KernelArguments& a) {
      const T *x = a.in<T>(0), *residual = kResidual ? a.in<T>(kAdded) : nullptr;
      const float *weight = has_weight ? a.in<float>(1) : nullptr,
                  *bias = has_bias ? a.in<float>(2) : nullptr;
      T *y = a.out<T>(0), *sum = kResidual ? a.out<T>(kAdded) : nullptr;
      const bool packed = packs(x, n, N) && packs(residual, n, N) && packs(y, n, N) && packs(sum, n, N) &&
                          packs(weight, n, N) && packs(bias, n, N);
      run(x, residual, weight, bias, y, sum, kCentred ? a.out<float>(1) : nullptr,
          a.out<float>(kCentred ? 2 : 1), packed);
    });
  };
  if (!held(n)) {
    const auto grid = static_cast<unsigned>(std::min<int64_t>(rows.count, 1 << 20));
    return make([=, &context](const T* x, const T* residual, const float* weight, const float* bias, T* y,
                              T* sum, float* mean, float* rstd, bool packed) {
      launch(context, norm_long<T, kCentred, kResidual>, grid, kThreads, 0, x, residual, weight, bias, y, sum,
             mean, rstd, rows.count, n, eps, packed);
    });
  }
  std::unique_ptr<Kernel> made;
  for_columns(n, [&]<int kColumns>(std::integral_constant<int, kColumns>) {
    const Shares shares = shares_of<kColumns>(n);
    const auto by_packs =
        fitted(context, norm_held<T, N, kColumns, kCentred, kResidual>, shares, 0, rows.count);
    const auto one_by_one =
        fitted(context, norm_held<T, 1, kColumns, kCentred, kResidual>, shares, 0, rows.count);
    made = make([=, &context](const T* x, const T* residual, const float* weight, const float* bias, T* y,
                              T* sum, float* mean, float* rstd, bool packed) {
      const auto& chosen = packed ? by_packs : one_by_one;
      launch(context, chosen.kernel, chosen.grid, shares.threads(), 0, x, residual, weight, bias, y, sum,
             mean, rstd, rows.count, n, eps, shares.warps);
    });
  });
  return made;
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm(const KernelRequest& request, const Context& context) {
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return for_added(present(request.inputs, kCentred ? 3 : 2), [&]<bool kThere>(std::bool_constant<kThere>) {
      return prepare_norm_of<T, kCentred, kThere>(request, context);
    });
  });
}

template <typename T, bool kCentred, bool kSkip>
std::unique_ptr<Kernel> prepare_norm_gradient_of(const KernelRequest& request, const Context& context) {
  constexpr int N = kPack<T>;
  constexpr size_t kAdded = kCentred ? 5 : 4;
  const Rows rows = packed_rows(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  if constexpr (kSkip) require_packed(request, request.inputs[kAdded]);
  const bool has_weight = present(request.inputs, 2);
  const bool wants_weight = present(request.outputs, 1), wants_bias = kCentred && present(request.outputs, 2);
  const bool wants_sums = wants_weight || wants_bias;
  const uint32_t accumulate = request.accumulate;
  const int64_t n = rows.columns;
  // run(dy, x, weight, mean, rstd, skip, dx, sums, packed) gives the number of parts that it left in sums.
  const auto make = [&](int64_t parts, const auto& run) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          const T *dy = a.in<T>(0), *x = a.in<T>(1), *skip = kSkip ? a.in<T>(kAdded) : nullptr;
          const float* weight = has_weight ? a.in<float>(2) : nullptr;
          T* dx = a.out<T>(0);
          float* sums = wants_sums ? reinterpret_cast<float*>(a.workspace) : nullptr;
          const bool packed = packs(dy, n, N) && packs(x, n, N) && packs(skip, n, N) && packs(dx, n, N) &&
                              packs(weight, n, N) && packs(sums, n, N);
          const int64_t left = run(dy, x, weight, kCentred ? a.in<float>(3) : nullptr,
                                   a.in<float>(kCentred ? 4 : 3), skip, dx, sums, packed);
          if (wants_weight)
            launch_add_parts(context, sums, left, 2 * n, a.out<float>(1), n, accumulate >> 1 & 1);
          if (wants_bias)
            launch_add_parts(context, sums + n, left, 2 * n, a.out<float>(2), n, accumulate >> 2 & 1);
        },
        wants_sums ? parts * 2 * n * 4 : 0);
  };
  if (!held(n)) {
    const int64_t parts = std::min<int64_t>(rows.count, 2 * context.multiprocessors);
    return make(parts, [=, &context](const T* dy, const T* x, const float* weight, const float* mean,
                                     const float* rstd, const T* skip, T* dx, float* sums, bool packed) {
      launch(context, norm_gradient_long<T, kCentred, kSkip>, static_cast<unsigned>(parts), kThreads, 0, dy,
             x, weight, mean, rstd, skip, dx, sums, rows.count, n, packed);
      return parts;
    });
  }
  std::unique_ptr<Kernel> made;
  for_columns(n, [&]<int kColumns>(std::integral_constant<int, kColumns>) {
    const Shares shares = shares_of<kColumns>(n);
    const size_t shared =
        wants_sums && shares.side_by_side > 1 ? static_cast<size_t>(shares.side_by_side * 2 * n * 4) : 0;
    const auto by_packs =
        fitted(context, norm_gradient_held<T, N, kColumns, kCentred, kSkip>, shares, shared, rows.count);
    const auto one_by_one =
        fitted(context, norm_gradient_held<T, 1, kColumns, kCentred, kSkip>, shares, shared, rows.count);
    made = make(std::max(by_packs.grid, one_by_one.grid),
                [=, &context](const T* dy, const T* x, const float* weight, const float* mean,
                              const float* rstd, const T* skip, T* dx, float* sums, bool packed) {
                  const auto& chosen = packed ? by_packs : one_by_one;
                  launch(context, chosen.kernel, chosen.grid, shares.threads(), shared, dy, x, weight, mean,
                         rstd, skip, dx, sums, rows.count, n, shares.warps);
                  return static_cast<int64_t>(chosen.grid);
                });
  });
  return made;
}

template <bool kCentred>
std::unique_ptr<Kernel> prepare_norm_gradient(const KernelRequest& request, const Context& context) {
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    return for_added(present(request.inputs, kCentred ? 5 : 4), [&]<bool kThere>(std::bool_constant<kThere>) {
      return prepare_norm_gradient_of<T, kCentred, kThere>(request, context);
    });
  });
}

// ---- of a part of the columns: a block takes a row at a time ----

template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_moments_long(const T* x, float* moments, int64_t rows, int64_t n, bool packed) {
  __shared__ float scratch[kThreads / kWarp];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    float total = 0, square = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()];
      load(v, in + i);
      for (int k = 0; k < size(); ++k) total += v[k];
    });
    total = block_sum(total, scratch);
    const float mean = total / n;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float v[size()];
      load(v, in + i);
      for (int k = 0; k < size(); ++k) square += (v[k] - mean) * (v[k] - mean);
    });
    square = block_sum(square, scratch);
    if (threadIdx.x == 0) {
      moments[row] = static_cast<float>(n);
      moments[rows + row] = total;
      moments[2 * rows + row] = square;
    }
  }
}

std::unique_ptr<Kernel> prepare_row_moments(const KernelRequest& request, const Context& context) {
  const Rows rows = packed_rows(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  if (rows.count == 0) return make_kernel([](const KernelArguments&) {});
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const auto grid = static_cast<unsigned>(std::min<int64_t>(rows.count, 1 << 20));
    return make_kernel([=, &context](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      launch(context, row_moments_long<T>, grid, kThreads, 0, x, a.out<float>(0), rows.count, rows.columns,
             packs(x, rows.columns, kPack<T>));
    });
  });
}

// Block b leaves its rows' sums of dy * h and of dy in sums[b]: [2, n].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    norm_gradient_sums_long(const T* dy, const T* x, const float* weight, const float* means,
                            const float* rstds, float* totals, float* sums, int64_t rows, int64_t n,
                            bool packed) {
  __shared__ float scratch[kThreads / kWarp];
  float* dweight = sums == nullptr ? nullptr : sums + blockIdx.x * 2 * n;
  float* dbias = dweight + n;
  if (sums != nullptr)
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      for (int k = 0; k < size(); ++k) dweight[i + k] = dbias[i + k] = 0;
    });
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float mean = means == nullptr ? 0.0f : means[row], rstd = rstds[row];
    const int64_t at = row * n;
    float sum_g = 0, sum_gh = 0;
    each_column<T>(packed, n, [&](int64_t i, auto size) {
      float d[size()], v[size()], w[size()] = {};
      load(d, dy + at + i);
      load(v, x + at + i);
      if (weight != nullptr) load(w, weight + i);
      for (int k = 0; k < size(); ++k) {
        const float h = (v[k] - mean) * rstd, g = weight == nullptr ? d[k] : d[k] * w[k];
        sum_g += g;
        sum_gh += g * h;
        if (sums != nullptr) {
          dweight[i + k] += d[k] * h;
          dbias[i + k] += d[k];
        }
      }
    });
    sum_g = block_sum(sum_g, scratch);
    sum_gh = block_sum(sum_gh, scratch);
    if (threadIdx.x == 0) {
      totals[row] = sum_g;
      totals[rows + row] = sum_gh;
    }
  }
}

std::unique_ptr<Kernel> prepare_norm_gradient_sums(const KernelRequest& request, const Context& context) {
  const Rows rows = packed_rows(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const bool has_weight = present(request.inputs, 2), has_mean = present(request.inputs, 3);
  const bool wants_weight = present(request.outputs, 1), wants_bias = present(request.outputs, 2);
  const bool wants_sums = wants_weight || wants_bias;
  const uint32_t accumulate = request.accumulate;
  const int64_t n = rows.columns, parts = std::min<int64_t>(rows.count, 4 * context.multiprocessors);
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          const T *dy = a.in<T>(0), *x = a.in<T>(1);
          const float *weight = has_weight ? a.in<float>(2) : nullptr,
                      *mean = has_mean ? a.in<float>(3) : nullptr;
          float* sums = wants_sums ? reinterpret_cast<float*>(a.workspace) : nullptr;
          const bool packed = packs(dy, n, kPack<T>) && packs(x, n, kPack<T>) && packs(weight, n, kPack<T>) &&
                              packs(sums, n, kPack<T>);
          if (parts > 0)
            launch(context, norm_gradient_sums_long<T>, static_cast<unsigned>(parts), kThreads, 0, dy, x,
                   weight, mean, a.in<float>(4), a.out<float>(0), sums, rows.count, n, packed);
          if (wants_weight)
            launch_add_parts(context, sums, parts, 2 * n, a.out<float>(1), n, accumulate >> 1 & 1);
          if (wants_bias)
            launch_add_parts(context, sums + n, parts, 2 * n, a.out<float>(2), n, accumulate >> 2 & 1);
        },
        wants_sums ? parts * 2 * n * 4 : 0);
  });
}

}  // namespace

std::vector<Entry> norm_kernels() {
  return {{"layer_norm", prepare_norm<true>},   {"layer_norm_gradient", prepare_norm_gradient<true>},
          {"rms_norm", prepare_norm<false>},    {"rms_norm_gradient", prepare_norm_gradient<false>},
          {"row_moments", prepare_row_moments}, {"norm_gradient_sums", prepare_norm_gradient_sums}};
}

}  // namespace het::HET_CUDA
