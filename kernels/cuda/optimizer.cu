// The update phase: each state is read and written once, four floats at a time where addresses allow; AdamW's
// of all parameters by one launch. Sums of squares are taken over blocks of fixed size, and those sums added
// in order by one block. Updates are rounded operation by operation, as on processors
// (kernels/cpu/optimizer.cpp says why): the intrinsics are never contracted to fused multiply-adds.
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"
#include "kernels/powers.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 256;
constexpr int kSquares = 16384;  // elements that a block squares
constexpr int kMost = 128;       // operands of one launch

void require_f32(const KernelRequest& request, const Layout& layout) {
  require_packed(request, layout);
  if (layout.type.dtype != DType::f32) refuse_dtype(request, layout.type.dtype);
}

__device__ inline bool is_finite(float x) { return x - x == 0.0f; }

// Visit the elements of [0, n), a thread for each pack of N (if `packed`) and for each element that is left:
// each(first element, how many).
template <int N, typename Each>
__device__ void each_element(int64_t n, bool packed, const Each& each) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, packs = packed ? n / N : 0;
  if (i < packs)
    each(i * N, std::integral_constant<int, N>{});
  else if (const int64_t at = packs * N + (i - packs); at < n)
    each(at, std::integral_constant<int, 1>{});
}
unsigned grid_of(int64_t n, bool packed, int N) {
  return static_cast<unsigned>(ceil_div(packed ? n / N + n % N : n, kThreads));
}

// ---- the norm of all gradients ----

// Operands of one launch; blocks first[i] .. first[i + 1] - 1 take operand i.
struct Gradients {
  const float* x[kMost];
  int64_t count[kMost];
  int first[kMost + 1];
  int operands;
};

__global__ void __launch_bounds__(kThreads) square_sums(const __grid_constant__ Gradients g, float* sums) {
  __shared__ float scratch[kThreads / kWarp];
  const int block = blockIdx.x;
  int low = 0, high = g.operands;  // the last operand whose first block is not after this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.first[middle] <= block ? low : high) = middle;
  }
  const int64_t begin = static_cast<int64_t>(block - g.first[low]) * kSquares;
  const float* x = g.x[low] + begin;
  const int n = static_cast<int>(min(g.count[low] - begin, static_cast<int64_t>(kSquares)));
  float chains[4] = {};
  int done = 0;
  if (packs(x, 4, 4)) {
    done = n / 4 * 4;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < done; i += kThreads * 4) {
      float v[4];
      load(v, x + i);
#pragma unroll
      for (int k = 0; k < 4; ++k) chains[k] += v[k] * v[k];
    }
  }
  for (int i = done + threadIdx.x; i < n; i += kThreads) chains[0] += x[i] * x[i];
  const float sum = block_sum((chains[0] + chains[1]) + (chains[2] + chains[3]), scratch);
  if (threadIdx.x == 0) sums[block] = sum;
}

__global__ void __launch_bounds__(kThreads)
    clip(const float* sums, int64_t count, float most, float* norm_out, float* coefficient) {
  __shared__ double parts[kThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  parts[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const float norm = static_cast<float>(sqrt(parts[0]));
  *norm_out = norm;
  *coefficient = !is_finite(norm) ? NAN : most > 0 && norm > most ? most / norm : 1.0f;
}

std::unique_ptr<Kernel> prepare_global_norm(const KernelRequest& request, const Context& context) {
  for (const Layout& layout : request.inputs) require_f32(request, layout);
  require_f32(request, request.outputs[0]);
  const float most = static_cast<float>(number(request, "max_norm", 0.0));
  std::vector<int64_t> counts;
  int64_t blocks = 0;
  for (const Layout& layout : request.inputs) {
    counts.push_back(layout.type.elements());
    blocks += ceil_div(counts.back(), kSquares);
  }
  return make_kernel(
      [=, &context](const KernelArguments& a) {
        float* const sums = reinterpret_cast<float*>(a.workspace);
        float* to = sums;
        for (size_t from = 0; from < counts.size(); from += kMost) {
          Gradients g{};
          for (; g.operands < kMost && from + g.operands < counts.size(); ++g.operands) {
            g.x[g.operands] = a.in<float>(from + g.operands);
            g.count[g.operands] = counts[from + g.operands];
            g.first[g.operands + 1] =
                g.first[g.operands] + static_cast<int>(ceil_div(g.count[g.operands], kSquares));
          }
          const auto grid = static_cast<unsigned>(g.first[g.operands]);
          launch(context, square_sums, grid, kThreads, 0, g, to);
          to += grid;
        }
        launch(context, clip, 1, kThreads, 0, sums, blocks, most, a.out<float>(0), a.out<float>(1));
      },
      blocks * 4);
}

// ---- updates ----

struct Adam {
  double beta1, beta2;
  float decay1, decay2, rest1, rest2;  // decay: beta; rest: 1 - beta
  float eps;
};

// Parameters of one launch; blocks first .. first of the next - 1 take one of them.
struct Update {
  float *param, *m, *v;
  const float* gradient;
  int64_t count;
  float decay;
  int first;
};
// A launch may be given so many: they are arguments of the kernel, at most 32,764 bytes, and so
// become part of a captured step.
constexpr int kMostUpdates = 600;
struct Updates {
  Update of[kMostUpdates];
  int count;
};
static_assert(sizeof(Updates) + 256 <= 32'764);
constexpr int kUpdated = 8192;  // elements that a block updates

// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
// param = param (1 - lr decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps).
__global__ void __launch_bounds__(kThreads)
    adamw(const __grid_constant__ Updates updates, const float* lr_at, const int64_t* step_at,
          const float* coefficient_at, const Adam s) {
  const int block = blockIdx.x;
  int low = 0, high = updates.count;  // the last parameter whose first block is not after this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (updates.of[middle].first <= block ? low : high) = middle;
  }
  const Update& own = updates.of[low];
  const int64_t begin = static_cast<int64_t>(block - own.first) * kUpdated;
  const int n = static_cast<int>(min(own.count - begin, static_cast<int64_t>(kUpdated)));
  float *const param = own.param + begin, *const first = own.m + begin, *const second = own.v + begin;
  const float* const gradient = own.gradient + begin;
  const float coefficient = *coefficient_at;
  if (!is_finite(coefficient)) return;
  __shared__ float of_step[3];
  if (threadIdx.x == 0) {
    const double lr = *lr_at;
    of_step[0] = static_cast<float>(lr / (__dsub_rn(1.0, kernels::integer_power(s.beta1, *step_at))));
    of_step[1] = static_cast<float>(1.0 / sqrt(__dsub_rn(1.0, kernels::integer_power(s.beta2, *step_at))));
    of_step[2] = static_cast<float>(1.0 - lr * own.decay);  // the product is exact
  }
  __syncthreads();
  const float rate = of_step[0], root = of_step[1], keep = of_step[2];
  const auto update = [&](int i, auto size) {
    // All reads are on their way before the first is waited for.
    float p[size()], m[size()], v[size()], g[size()];
    load(p, param + i);
    load(m, first + i);
    load(v, second + i);
    load(g, gradient + i);
#pragma unroll
    for (int k = 0; k < size(); ++k) {
      const float scaled = __fmul_rn(g[k], coefficient);
      m[k] = __fadd_rn(__fmul_rn(s.decay1, m[k]), __fmul_rn(s.rest1, scaled));
      v[k] = __fadd_rn(__fmul_rn(s.decay2, v[k]), __fmul_rn(s.rest2, __fmul_rn(scaled, scaled)));
      const float change =
          __fdiv_rn(__fmul_rn(rate, m[k]), __fadd_rn(__fmul_rn(__fsqrt_rn(v[k]), root), s.eps));
      p[k] = __fsub_rn(__fmul_rn(p[k], keep), change);
    }
    store(param + i, p);
    store(first + i, m);
    store(second + i, v);
  };
  int done = 0;
  if (packs(param, 4, 4) && packs(first, 4, 4) && packs(second, 4, 4) && packs(gradient, 4, 4)) {
    done = n / 4 * 4;
#pragma unroll 2
    for (int i = threadIdx.x * 4; i < done; i += kThreads * 4) update(i, std::integral_constant<int, 4>{});
  }
  for (int i = done + threadIdx.x; i < n; i += kThreads) update(i, std::integral_constant<int, 1>{});
}

// Of one parameter or of several.
std::unique_ptr<Kernel> prepare_adamw(const KernelRequest& request, const Context& context) {
  struct Parameter {
    int64_t count;
    float decay;
  };
  std::vector<Parameter> parameters;
  for (size_t p = 0; p < request.outputs.size() / 3; ++p) {
    for (size_t i = 4 * p; i < 4 * p + 4; ++i) require_f32(request, request.inputs[i]);
    parameters.push_back(
        {request.inputs[4 * p].type.elements(), static_cast<float>(weight_decay_of(request, p))});
  }
  const double beta1 = number(request, "beta1", 0.9), beta2 = number(request, "beta2", 0.999);
  Adam s{};
  s.beta1 = beta1;
  s.beta2 = beta2;
  s.decay1 = static_cast<float>(beta1);
  s.decay2 = static_cast<float>(beta2);
  s.rest1 = static_cast<float>(1.0 - beta1);
  s.rest2 = static_cast<float>(1.0 - beta2);
  s.eps = static_cast<float>(number(request, "eps", 1e-8));
  return make_kernel([=, &context](const KernelArguments& a) {
    const size_t scalars = 4 * parameters.size();
    for (size_t p = 0; p < parameters.size();) {
      Updates updates{};
      int blocks = 0;
      for (; updates.count < kMostUpdates && p < parameters.size(); ++p) {
        updates.of[updates.count++] = {a.out<float>(3 * p),
                                       a.out<float>(3 * p + 1),
                                       a.out<float>(3 * p + 2),
                                       a.in<float>(4 * p + 3),
                                       parameters[p].count,
                                       parameters[p].decay,
                                       blocks};
        blocks += static_cast<int>(ceil_div(parameters[p].count, kUpdated));
      }
      launch(context, adamw, static_cast<unsigned>(blocks), kThreads, 0, updates, a.in<float>(scalars),
             a.in<int64_t>(scalars + 1), a.in<float>(scalars + 2), s);
    }
  });
}

struct Descent {
  float momentum, decay;
  bool nesterov;
};

// With g = coefficient * gradient + decay * param: momentum = mu momentum + g; param falls by lr times the
// momentum (g + mu momentum with Nesterov's; g alone without momentum).
__global__ void __launch_bounds__(kThreads)
    sgd(float* param, float* momentum, const float* gradient, const float* lr_at, const float* coefficient_at,
        int64_t n, Descent s, bool packed) {
  each_element<4>(n, packed, [&](int64_t i, auto size) {
    float p[size()], m[size()] = {}, g[size()];
    load(p, param + i);
    load(g, gradient + i);
    if (momentum != nullptr) load(m, momentum + i);
    const float lr = *lr_at, coefficient = *coefficient_at;
    if (!is_finite(coefficient)) return;
#pragma unroll
    for (int k = 0; k < size(); ++k) {
      g[k] = __fadd_rn(__fmul_rn(g[k], coefficient), __fmul_rn(p[k], s.decay));
      if (momentum != nullptr) {
        m[k] = __fadd_rn(__fmul_rn(m[k], s.momentum), g[k]);
        g[k] = s.nesterov ? __fadd_rn(g[k], __fmul_rn(s.momentum, m[k])) : m[k];
      }
      p[k] = __fsub_rn(p[k], __fmul_rn(lr, g[k]));
    }
    store(param + i, p);
    if (momentum != nullptr) store(momentum + i, m);
  });
}

std::unique_ptr<Kernel> prepare_sgd(const KernelRequest& request, const Context& context) {
  require_f32(request, request.inputs[0]);
  require_f32(request, request.inputs[2]);
  const bool has_momentum = present(request.inputs, 1);
  if (has_momentum) require_f32(request, request.inputs[1]);
  const int64_t n = request.inputs[0].type.elements();
  const Descent s{static_cast<float>(number(request, "momentum", 0.0)),
                  static_cast<float>(number(request, "weight_decay", 0.0)), flag(request, "nesterov", false)};
  return make_kernel([=, &context](const KernelArguments& a) {
    float *param = a.out<float>(0), *momentum = has_momentum ? a.out<float>(1) : nullptr;
    const float* gradient = a.in<float>(2);
    const bool packed = packs(param, 4, 4) && packs(momentum, 4, 4) && packs(gradient, 4, 4);
    launch(context, sgd, grid_of(n, packed, 4), kThreads, 0, param, momentum, gradient, a.in<float>(3),
           a.in<float>(4), n, s, packed);
  });
}

__global__ void __launch_bounds__(kThreads)
    copy_unless(float* state, const float* value, const float* coefficient, int64_t n, bool packed) {
  if (!is_finite(*coefficient)) return;
  each_element<4>(n, packed, [&](int64_t i, auto size) {
    float v[size()];
    load(v, value + i);
    store(state + i, v);
  });
}

std::unique_ptr<Kernel> prepare_assign(const KernelRequest& request, const Context& context) {
  for (const Layout& layout : request.inputs) require_f32(request, layout);
  const int64_t n = request.inputs[0].type.elements();
  return make_kernel([=, &context](const KernelArguments& a) {
    const bool packed = packs(a.out<float>(0), 4, 4) && packs(a.in<float>(1), 4, 4);
    launch(context, copy_unless, grid_of(n, packed, 4), kThreads, 0, a.out<float>(0), a.in<float>(1),
           a.in<float>(2), n, packed);
  });
}

// ---- sums of tensors ----

template <typename T>
struct Terms {
  const T* x[kMost];
  int count;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_terms(const __grid_constant__ Terms<T> terms, T* y, int64_t n, bool packed) {
  each_element<kPack<T>>(n, packed, [&](int64_t i, auto size) {
    float sum[size()] = {};
#pragma unroll 4
    for (int term = 0; term < terms.count; ++term) {
      float v[size()];
      load(v, terms.x[term] + i);
#pragma unroll
      for (int k = 0; k < size(); ++k) sum[k] += v[k];
    }
    store(y + i, sum);
  });
}

// Of more than kMost operands the sum so far, rounded, is the first operand of the next launch.
std::unique_ptr<Kernel> prepare_add_n(const KernelRequest& request, const Context& context) {
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const int64_t n = request.outputs[0].type.elements();
  const size_t count = request.inputs.size();
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      constexpr int N = kPack<T>;
      for (size_t next = 0; next < count;) {
        Terms<T> terms{};
        if (next > 0) terms.x[terms.count++] = a.out<T>(0);
        while (next < count && terms.count < kMost) terms.x[terms.count++] = a.in<T>(next++);
        bool packed = packs(a.out<T>(0), N, N);
        for (int term = 0; term < terms.count; ++term) packed = packed && packs(terms.x[term], N, N);
        launch(context, add_terms<T>, grid_of(n, packed, N), kThreads, 0, terms, a.out<T>(0), n, packed);
      }
    });
  });
}

}  // namespace

std::vector<Entry> optimizer_kernels() {
  return {{"global_norm", prepare_global_norm}, {"adamw", prepare_adamw},
          {"adamw_n", prepare_adamw},           {"sgd", prepare_sgd},
          {"assign", prepare_assign},           {"add_n", prepare_add_n}};
}

}  // namespace het::HET_CUDA
