// Choices of experts, and the way of tokens there and back. A warp works on a row. For tokens on their way
// there it is first noted which token each slot has, so that each row of the result is written once.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 1024;  // choices that a block holds in shared memory

void require_packed_operands(const KernelRequest& request) {
  for (const auto& operands : {request.inputs, request.outputs})
    for (const Layout& layout : operands)
      if (layout.type.present()) require_packed(request, layout);
}

void require_i32(const KernelRequest& request, const Layout& ids) {
  if (ids.type.dtype != DType::i32) refuse_dtype(request, ids.type.dtype);
}

__device__ inline int64_t warp_of_grid() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
}
unsigned grid_of_warps(int64_t warps) { return static_cast<unsigned>(ceil_div(warps, kThreads / kWarp)); }
unsigned grid_of(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

// The largest that comes after the one before it, in the order of values, then of places; k times. NaN counts
// as -inf.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    choose_largest(const T* x, T* values, int* index, int64_t rows, int64_t n, int64_t k) {
  const int64_t r = warp_of_grid();
  if (r >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const T* row = x + r * n;
  float last = INFINITY;
  int64_t place = -1;
  for (int64_t j = 0; j < k; ++j) {
    float most = -INFINITY;
    int64_t best = n;
    for (int64_t i = lane; i < n; i += kWarp) {
      const float value = to_float(row[i]), key = value == value ? value : -INFINITY;
      if ((key < last || (key == last && i > place)) && (best == n || key > most)) {
        most = key;
        best = i;
      }
    }
    for (int other = kWarp / 2; other > 0; other /= 2) {
      const float theirs = __shfl_xor_sync(~0u, most, other);
      const auto at = static_cast<int64_t>(__shfl_xor_sync(~0u, static_cast<unsigned>(best), other));
      if (at < n && (best == n || theirs > most || (theirs == most && at < best))) {
        most = theirs;
        best = at;
      }
    }
    last = most;
    place = best;
    if (lane == 0 && values != nullptr) values[r * k + j] = row[best];
    if (lane == 0 && index != nullptr) index[r * k + j] = static_cast<int>(best);
  }
}

std::unique_ptr<Kernel> prepare_top_k(const KernelRequest& request, const Context& context) {
  require_packed_operands(request);
  const Layout& x = request.inputs[0];
  const int64_t rows = kernels::rows_of(x), n = x.type.shape.back(), k = integer(request, "k", 1);
  if (n >= int64_t{1} << 31) refuse(request, "2^31 entries of a row");
  const bool has_values = present(request.outputs, 0), has_index = present(request.outputs, 1);
  return for_float(request, x.type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      launch(context, choose_largest<T>, grid_of_warps(rows), kThreads, 0, a.in<T>(0),
             has_values ? a.out<T>(0) : nullptr, has_index ? a.out<int>(1) : nullptr, rows, n, k);
    });
  });
}

// A block for a sample, a thread for each expert at a time: it goes through all choices, which the block
// reads chunk by chunk. Choices of no expert get no slot; a thread of the first round reports them.
__global__ void __launch_bounds__(kThreads)
    give_places(const int* expert, int* slot, int* counts, int64_t tokens, int64_t k, int64_t experts,
                int64_t capacity, const char* op, Failure* failure) {
  __shared__ int chunk[kChunk];
  const int64_t sample = blockIdx.x, base = sample * tokens * k;
  for (int64_t first = 0; first < experts; first += blockDim.x) {
    const int64_t own = first + threadIdx.x;
    int64_t chosen = 0;
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t begin = 0; begin < tokens; begin += kChunk) {
        const int size = static_cast<int>(tokens - begin < kChunk ? tokens - begin : kChunk);
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += blockDim.x) {
          const int64_t at = base + (begin + i) * k + j;
          chunk[i] = expert[at];
          if (first == 0 && (chunk[i] < 0 || chunk[i] >= experts))
            report(failure, {Failure::bad_index, at, chunk[i], experts, op});
        }
        __syncthreads();
        for (int i = 0; i < size && own < experts; ++i) {
          if (chunk[i] != own) continue;
          if (slot != nullptr)
            slot[base + (begin + i) * k + j] =
                chosen < capacity ? static_cast<int>(own * capacity + chosen) : -1;
          ++chosen;
        }
      }
      if (j == 0 && counts != nullptr && own < experts)
        counts[sample * experts + own] = static_cast<int>(chosen);
    }
  }
}

std::unique_ptr<Kernel> prepare_expert_slots(const KernelRequest& request, const Context& context) {
  require_packed_operands(request);
  require_i32(request, request.inputs[0]);
  const Shape& shape = request.inputs[0].type.shape;
  const int64_t samples = shape[0], tokens = shape[1], k = shape[2];
  const int64_t experts = integer(request, "experts", 1), capacity = integer(request, "capacity", 1);
  if (experts * capacity >= int64_t{1} << 31) refuse(request, "2^31 slots");
  const bool has_slot = present(request.outputs, 0), has_counts = present(request.outputs, 1);
  return make_kernel([=, &context](const KernelArguments& a) {
    launch(context, give_places, static_cast<unsigned>(samples), kThreads, 0, a.in<int>(0),
           has_slot ? a.out<int>(0) : nullptr, has_counts ? a.out<int>(1) : nullptr, tokens, k, experts,
           capacity, "expert_slots", context.failure);
  });
}

// Sizes of slot[b, t, k], and of y[own, b, capacity, width], whose experts are [first, first + own) of `of`.
struct Places {
  int64_t samples, tokens, k, own, capacity, width, first, of;

  Places(const KernelRequest& request, const Layout& slot, const Layout& y)
      : samples(slot.type.shape[0]),
        tokens(slot.type.shape[1]),
        k(slot.type.shape[2]),
        own(y.type.shape[0]),
        capacity(y.type.shape[2]),
        width(y.type.shape[3]),
        first(integer(request, "first", 0)),
        of(integer(request, "of", own)) {
    require_packed_operands(request);
    require_i32(request, slot);
    if (of * capacity >= int64_t{1} << 31 || tokens * k >= int64_t{1} << 31) refuse(request, "2^31 slots");
  }
  __host__ __device__ int64_t choices() const { return samples * tokens * k; }
  __host__ __device__ int64_t rows() const { return own * samples * capacity; }

  // The row of y for choice i of slot; -1: it is not here.
  __device__ int64_t row_of(const int* slot, int64_t i, const char* op, Failure* failure) const {
    const int64_t s = slot[i], mine = s - first * capacity;
    if (s < -1 || s >= of * capacity) report(failure, {Failure::bad_index, i, s, of * capacity, op});
    if (s < 0 || mine < 0 || mine >= own * capacity) return -1;
    return (mine / capacity * samples + i / (tokens * k)) * capacity + mine % capacity;
  }
};

// choice[row] = the choice whose slot it is, of all of the batch.
__global__ void __launch_bounds__(kThreads)
    note_choices(const int* slot, int* choice, Places p, const char* op, Failure* failure) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.choices()) return;
  const int64_t row = p.row_of(slot, i, op, failure);
  if (row >= 0) choice[row] = static_cast<int>(i % (p.tokens * p.k));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    send(const T* x, const float* weight, const int* choice, T* y, Places p) {
  const int64_t row = warp_of_grid();
  if (row >= p.rows()) return;
  const int64_t b = row / p.capacity % p.samples, i = choice[row];
  const T* from = x + (b * p.tokens + (i < 0 ? 0 : i / p.k)) * p.width;
  const float factor = i >= 0 && weight != nullptr ? weight[b * p.tokens * p.k + i] : 1.0f;
  for (int64_t c = threadIdx.x % kWarp * N; c < p.width; c += kWarp * N) {
    float values[N] = {};
    if (i >= 0) {
      load(values, from + c);
#pragma unroll
      for (int u = 0; u < N; ++u) values[u] *= factor;
    }
    store(y + row * p.width + c, values);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) collect(const T* y, const int* slot, const float* weight, T* out,
                                                    Places p, const char* op, Failure* failure) {
  const int64_t token = warp_of_grid();
  if (token >= p.samples * p.tokens) return;
  for (int64_t c = threadIdx.x % kWarp * N; c < p.width; c += kWarp * N) {
    float sum[N] = {};
    for (int64_t i = token * p.k; i < (token + 1) * p.k; ++i) {
      const int64_t row = p.row_of(slot, i, op, failure);
      if (row < 0) continue;
      const float factor = weight != nullptr ? weight[i] : 1.0f;
      float values[N];
      load(values, y + row * p.width + c);
#pragma unroll
      for (int u = 0; u < N; ++u) sum[u] += factor * values[u];
    }
    store(out + token * p.width + c, sum);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    multiply_rows(const T* dout, const T* y, const int* slot, float* dweight, Places p, const char* op,
                  Failure* failure) {
  const int64_t i = warp_of_grid();
  if (i >= p.choices()) return;
  const int64_t row = p.row_of(slot, i, op, failure);
  float sum = 0;
  for (int64_t c = threadIdx.x % kWarp * N; row >= 0 && c < p.width; c += kWarp * N) {
    float a[N], b[N];
    load(a, dout + i / p.k * p.width + c);
    load(b, y + row * p.width + c);
#pragma unroll
    for (int u = 0; u < N; ++u) sum += a[u] * b[u];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dweight[i] = sum;
}

// body(N): packs of 16 bytes where both operands allow them.
template <typename T, typename Body>
void with_packs(const T* a, const T* b, int64_t width, const Body& body) {
  if (packs(a, width, kPack<T>) && packs(b, width, kPack<T>))
    body(std::integral_constant<int, kPack<T>>{});
  else
    body(std::integral_constant<int, 1>{});
}

std::unique_ptr<Kernel> prepare_dispatch(const KernelRequest& request, const Context& context) {
  const Places p(request, request.inputs[1], request.outputs[0]);
  const bool weighted = present(request.inputs, 2);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          const float* weight = weighted ? a.in<float>(2) : nullptr;
          auto* choice = reinterpret_cast<int*>(a.workspace);  // [rows]
          check(cudaMemsetAsync(choice, 0xff, static_cast<size_t>(p.rows()) * 4, context.stream),
                "clear slots");
          launch(context, note_choices, grid_of(p.choices()), kThreads, 0, a.in<int>(1), choice, p,
                 "dispatch", context.failure);
          with_packs(a.in<T>(0), a.out<T>(0), p.width, [&]<int N>(std::integral_constant<int, N>) {
            launch(context, send<T, N>, grid_of_warps(p.rows()), kThreads, 0, a.in<T>(0), weight, choice,
                   a.out<T>(0), p);
          });
        },
        p.rows() * 4);
  });
}

std::unique_ptr<Kernel> prepare_combine(const KernelRequest& request, const Context& context) {
  const Places p(request, request.inputs[1], request.inputs[0]);
  const bool weighted = present(request.inputs, 2);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const float* weight = weighted ? a.in<float>(2) : nullptr;
      with_packs(a.in<T>(0), a.out<T>(0), p.width, [&]<int N>(std::integral_constant<int, N>) {
        launch(context, collect<T, N>, grid_of_warps(p.samples * p.tokens), kThreads, 0, a.in<T>(0),
               a.in<int>(1), weight, a.out<T>(0), p, "combine", context.failure);
      });
    });
  });
}

std::unique_ptr<Kernel> prepare_combine_weight_gradient(const KernelRequest& request,
                                                        const Context& context) {
  const Places p(request, request.inputs[2], request.inputs[1]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      const T *dout = a.in<T>(0), *y = a.in<T>(1);
      with_packs(dout, y, p.width, [&]<int N>(std::integral_constant<int, N>) {
        launch(context, multiply_rows<T, N>, grid_of_warps(p.choices()), kThreads, 0, dout, y, a.in<int>(2),
               a.out<float>(0), p, "combine_weight_gradient", context.failure);
      });
    });
  });
}

}  // namespace

std::vector<Entry> experts_kernels() {
  return {{"top_k", prepare_top_k},
          {"expert_slots", prepare_expert_slots},
          {"dispatch", prepare_dispatch},
          {"combine", prepare_combine},
          {"combine_weight_gradient", prepare_combine_weight_gradient}};
}

}  // namespace het::HET_CUDA
