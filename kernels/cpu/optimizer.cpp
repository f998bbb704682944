// The update phase: each state is read and written once. Sums of squares are taken over blocks of fixed size,
// so that the norm does not depend on the number of threads.
//
// Ranks that hold copies of a parameter update them each for itself, on processors that may differ. So that
// the copies stay equal, updates give the same bits on every instruction set, and on GPUs: each operation is
// rounded by itself (this file is compiled without contraction to fused multiply-adds), in the order that
// kernels/cuda/optimizer.cu has, too.
#include "kernels/cpu/kernel.h"
#include "kernels/powers.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kBlock = 65536;  // elements

void require_f32(const KernelRequest& request, const Layout& layout) {
  require_packed(request, layout);
  if (layout.type.dtype != DType::f32) refuse_dtype(request, layout.type.dtype);
}

// In four times 16 sums, whatever the length of a vector.
float square_sum(const float* x, int64_t n) {
  constexpr int kSums = 16, kVectors = kSums / kLanes;
  Vector sums[4][kVectors] = {};
  int64_t i = 0;
  for (; i + 4 * kSums <= n; i += 4 * kSums)
    for (int k = 0; k < 4; ++k)
      for (int part = 0; part < kVectors; ++part) {
        const Vector v = load(x + i + k * kSums + part * kLanes);
        sums[k][part] += v * v;
      }
  for_lanes(n - i, [&](int64_t j, auto lanes) {
    const Vector v = load(x + i + j, lanes);
    sums[0][j % kSums / kLanes] += v * v;
  });
  float total[kSums];
  for (int part = 0; part < kVectors; ++part)
    store(total + part * kLanes, (sums[0][part] + sums[1][part]) + (sums[2][part] + sums[3][part]));
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) total[k] += total[k + half];
  return total[0];
}

bool is_finite(float x) { return x - x == 0.0f; }

std::unique_ptr<Kernel> prepare_global_norm(const KernelRequest& request) {
  // The gradient and the block of each item: {operand, first element, count}.
  struct Item {
    int64_t operand, begin, count;
  };
  std::vector<Item> items;
  for (size_t g = 0; g < request.inputs.size(); ++g) {
    require_f32(request, request.inputs[g]);
    const int64_t n = request.inputs[g].type.elements();
    for (int64_t begin = 0; begin < n; begin += kBlock)
      items.push_back({static_cast<int64_t>(g), begin, n - begin < kBlock ? n - begin : kBlock});
  }
  require_f32(request, request.outputs[0]);
  const float most = static_cast<float>(number(request, "max_norm", 0.0));
  const int64_t count = static_cast<int64_t>(items.size());
  return make_kernel(
      [items = std::move(items), most, count](const KernelArguments& a) {
        double* sums = reinterpret_cast<double*>(a.workspace);
        parallel_for(count, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            sums[i] = square_sum(a.in<float>(items[i].operand) + items[i].begin, items[i].count);
        });
        double total = 0;
        for (int64_t i = 0; i < count; ++i) total += sums[i];
        const float norm = static_cast<float>(__builtin_sqrt(total));
        *a.out<float>(0) = norm;
        *a.out<float>(1) = !is_finite(norm)          ? __builtin_nanf("")
                           : most > 0 && norm > most ? most / norm
                                                     : 1.0f;
      },
      count * 8);
}

// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
// param = param (1 - lr decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps), of one
// parameter or of several. Threads share out blocks of all of them.
std::unique_ptr<Kernel> prepare_adamw(const KernelRequest& request) {
  constexpr int64_t kUpdated = kLightGrain / 2;  // elements of a block
  struct Parameter {
    int64_t first, count;  // of its blocks; elements
    float decay;
  };
  std::vector<Parameter> parameters;
  int64_t blocks = 0;
  const int64_t number_of = static_cast<int64_t>(request.outputs.size()) / 3, scalars = 4 * number_of;
  for (int64_t p = 0; p < number_of; ++p) {
    for (int64_t i = 4 * p; i < 4 * p + 4; ++i) require_f32(request, request.inputs[i]);
    const int64_t n = request.inputs[4 * p].type.elements();
    parameters.push_back({blocks, n, static_cast<float>(weight_decay_of(request, static_cast<size_t>(p)))});
    blocks += (n + kUpdated - 1) / kUpdated;
  }
  const double beta1 = number(request, "beta1", 0.9), beta2 = number(request, "beta2", 0.999);
  const double eps = number(request, "eps", 1e-8);
  return make_kernel([=, parameters = std::move(parameters)](const KernelArguments& a) {
    const float coefficient = *a.in<float>(scalars + 2);
    if (!is_finite(coefficient)) return;
    const double lr = *a.in<float>(scalars);
    const int64_t step = *a.in<int64_t>(scalars + 1);
    const float rate = static_cast<float>(lr / (1.0 - kernels::integer_power(beta1, step)));
    const float root = static_cast<float>(1.0 / __builtin_sqrt(1.0 - kernels::integer_power(beta2, step)));
    const float b1 = static_cast<float>(beta1), a1 = static_cast<float>(1.0 - beta1);
    const float b2 = static_cast<float>(beta2), a2 = static_cast<float>(1.0 - beta2),
                e = static_cast<float>(eps);
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < number_of; ++p) {
        // The part of the parameter that lies in these blocks.
        const Parameter& own = parameters[p];
        const int64_t from = begin <= own.first ? 0 : (begin - own.first) * kUpdated;
        const int64_t until = end <= own.first ? 0 : (end - own.first) * kUpdated;
        const int64_t to = until < own.count ? until : own.count;
        if (from >= to) continue;
        const float keep = static_cast<float>(1.0 - lr * own.decay);
        float* param = a.out<float>(3 * p) + from;
        float *first = a.out<float>(3 * p + 1) + from, *second = a.out<float>(3 * p + 2) + from;
        const float* gradient = a.in<float>(4 * p + 3) + from;
        for_lanes(to - from, [&](int64_t i, auto lanes) {
          const Vector g = load(gradient + i, lanes) * coefficient;
          const Vector m = b1 * load(first + i, lanes) + a1 * g;
          const Vector v = b2 * load(second + i, lanes) + a2 * (g * g);
          store(first + i, m, lanes);
          store(second + i, v, lanes);
          store(param + i, load(param + i, lanes) * keep - rate * m / (sqrt(v) * root + e), lanes);
        });
      }
    });
  });
}

// With g = coefficient * gradient + decay * param: momentum = mu momentum + g; param falls by lr times the
// momentum (g + mu momentum with Nesterov's; g alone without momentum).
std::unique_ptr<Kernel> prepare_sgd(const KernelRequest& request) {
  require_f32(request, request.inputs[0]);
  require_f32(request, request.inputs[2]);
  const bool has_momentum = present(request.inputs, 1);
  if (has_momentum) require_f32(request, request.inputs[1]);
  const int64_t n = request.inputs[0].type.elements();
  const float mu = static_cast<float>(number(request, "momentum", 0.0));
  const float decay = static_cast<float>(number(request, "weight_decay", 0.0));
  const bool nesterov = flag(request, "nesterov", false);
  return make_kernel([=](const KernelArguments& a) {
    const float lr = *a.in<float>(3), coefficient = *a.in<float>(4);
    if (!is_finite(coefficient)) return;
    float *param = a.out<float>(0), *momentum = has_momentum ? a.out<float>(1) : nullptr;
    const float* gradient = a.in<float>(2);
    parallel_for(n, kLightGrain, [&](int64_t begin, int64_t end) {
      for_lanes(end - begin, [&](int64_t i, auto lanes) {
        i += begin;
        const Vector p = load(param + i, lanes);
        Vector g = load(gradient + i, lanes) * coefficient + p * decay;
        if (has_momentum) {
          const Vector moved = load(momentum + i, lanes) * mu + g;
          store(momentum + i, moved, lanes);
          g = nesterov ? g + mu * moved : moved;
        }
        store(param + i, p - lr * g, lanes);
      });
    });
  });
}

std::unique_ptr<Kernel> prepare_assign(const KernelRequest& request) {
  for (const Layout& layout : request.inputs) require_f32(request, layout);
  const int64_t n = request.inputs[0].type.elements();
  return make_kernel([n](const KernelArguments& a) {
    if (!is_finite(*a.in<float>(2))) return;
    parallel_for(n, kLightGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(a.out<float>(0) + begin, a.in<float>(1) + begin, (end - begin) * 4);
    });
  });
}

std::unique_ptr<Kernel> prepare_add_n(const KernelRequest& request) {
  constexpr int64_t kTile = 2048;  // elements whose sums stay in the first-level cache
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const int64_t n = request.outputs[0].type.elements(), count = static_cast<int64_t>(request.inputs.size());
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([n, count](const KernelArguments& a) {
      parallel_for(n, kLightGrain / 2, [&](int64_t begin, int64_t end) {
        float sums[kTile];
        for (int64_t at = begin; at < end; at += kTile) {
          const int64_t width = end - at < kTile ? end - at : kTile;
          for (int64_t g = 0; g < count; ++g) {
            const T* x = a.in<T>(g) + at;
            for_lanes(width, [&](int64_t i, auto lanes) {
              const Vector v = load(x + i, lanes);
              store(sums + i, g == 0 ? v : load(sums + i, lanes) + v, lanes);
            });
          }
          T* y = a.out<T>(0) + at;
          for_lanes(width, [&](int64_t i, auto lanes) { store(y + i, load(sums + i, lanes), lanes); });
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> optimizer_kernels() {
  return {{"global_norm", prepare_global_norm}, {"adamw", prepare_adamw},
          {"adamw_n", prepare_adamw},           {"sgd", prepare_sgd},
          {"assign", prepare_assign},           {"add_n", prepare_add_n}};
}

}  // namespace het::cpu::HET_ISA
