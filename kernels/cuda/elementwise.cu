// Every elementwise operator and every fused chain of them, in one pass over memory.
//
// How fast it can be: an H200 reads or writes 4.8 TB/s, that is 21 bytes for each cycle of each of its 132
// multiprocessors. A warp that takes 8 bf16 elements a thread moves 512 bytes for each operand and result, so
// a chain of two operands and one result has 73 cycles of a multiprocessor for its 256 elements, and GELU, of
// one operand, has 49. A multiprocessor starts 4 instructions a cycle, each for a warp: 8 elements of GELU
// compile to 94 instructions, 24 cycles, and beside them 16 calls of its function units, 32 cycles. So what
// is compiled into one kernel runs at the speed of memory.
//
// - The chains that our models train with (residuals, activations and their gradients, SwiGLU and its
//   gradient, casts of parameters; see `known`) are compiled as they stand, values in registers.
// - All others are interpreted. A step costs its instructions, some 50 to fetch and choose it and to bring
//   its operands, together about 16 cycles, and beside them 8 for each operand that comes from shared
//   memory (1 KiB at 128 bytes a cycle). The result of a step stays in registers for the next one, and goes
//   to shared memory only if a later step asks for it. Reading and writing take some 10 cycles for each
//   operand and result. So chains of three cheap steps still run at the speed of memory, a chain of
//   thirty-two at a seventh of it. Compiling at run time (NVRTC) would save that; but long chains are rare,
//   the interpreter would still be needed where the library is missing, and what all GPUs run would be what
//   no machine without one can test. A chain that matters is a line in `known`.
// - Chains with f64 or integers among their operands are interpreted in f64, untuned (elementwise_wide.h).
#include "core/ops/elementwise.h"
#include "kernels/cuda/dtype.h"
#include "kernels/cuda/elementwise_plan.h"
#include "kernels/cuda/elementwise_wide.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kThreads = 128;
constexpr int kInterpretedPack = 8;

// ---- one step on one element ----

// Two calls of the function units and two additions or products: rounding the exponent costs |x| units in the
// last place where the result is small, which is nothing beside the results that are not.
__device__ inline float sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp2(x * -1.44269504f)); }

constexpr float kRootTwoOverPi = 0.797884561f, kCubic = 0.044715f;

// (1 + tanh(u)) / 2 = sigmoid(2 u), which keeps its precision where tanh is near -1.
__device__ inline float gelu_tanh_factor(float a) {
  return sigmoid((2.0f * kRootTwoOverPi) * (a + kCubic * (a * a * a)));
}
__device__ inline float gelu_tanh_derivative(float a) {
  const float s = gelu_tanh_factor(a);
  return s + a * s * (1.0f - s) * ((2.0f * kRootTwoOverPi) * (1.0f + (3.0f * kCubic) * (a * a)));
}
__device__ inline float normal_distribution(float a) { return 0.5f + 0.5f * erff(a * 0.707106781f); }
__device__ inline float gelu_erf_derivative(float a) {
  return normal_distribution(a) + a * expf(a * a * -0.5f) * 0.398942280f;
}
__device__ inline float silu_derivative(float a) {
  const float s = sigmoid(a);
  return s * (1.0f + a * (1.0f - s));
}

template <Pointwise kCode>
__device__ inline float apply(float a, float b, float immediate) {
  if constexpr (kCode == Pointwise::add) return a + b;
  if constexpr (kCode == Pointwise::sub) return a - b;
  if constexpr (kCode == Pointwise::mul) return a * b;
  if constexpr (kCode == Pointwise::div) return a / b;
  if constexpr (kCode == Pointwise::maximum) return a != a || a > b ? a : b;
  if constexpr (kCode == Pointwise::minimum) return a != a || a < b ? a : b;
  if constexpr (kCode == Pointwise::power) return powf(a, b);
  if constexpr (kCode == Pointwise::clamp_min) return a < immediate ? immediate : a;
  if constexpr (kCode == Pointwise::clamp_max) return a > immediate ? immediate : a;
  if constexpr (kCode == Pointwise::equal) return a == b ? 1.0f : 0.0f;
  if constexpr (kCode == Pointwise::not_equal) return a != b ? 1.0f : 0.0f;
  if constexpr (kCode == Pointwise::less) return a < b ? 1.0f : 0.0f;
  if constexpr (kCode == Pointwise::less_equal) return a <= b ? 1.0f : 0.0f;
  if constexpr (kCode == Pointwise::mask) return a != 0.0f ? b : 0.0f;
  if constexpr (kCode == Pointwise::mask_out) return a != 0.0f ? 0.0f : b;
  if constexpr (kCode == Pointwise::scale) return a * immediate;
  if constexpr (kCode == Pointwise::shift) return a + immediate;
  if constexpr (kCode == Pointwise::neg) return -a;
  if constexpr (kCode == Pointwise::abs) return fabsf(a);
  if constexpr (kCode == Pointwise::sign) return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a;
  if constexpr (kCode == Pointwise::sin) return sinf(a);
  if constexpr (kCode == Pointwise::cos) return cosf(a);
  if constexpr (kCode == Pointwise::pow) return powf(a, immediate);
  if constexpr (kCode == Pointwise::square) return a * a;
  if constexpr (kCode == Pointwise::sqrt) return sqrtf(a);
  if constexpr (kCode == Pointwise::exp) return expf(a);
  if constexpr (kCode == Pointwise::log) return logf(a);
  if constexpr (kCode == Pointwise::tanh) return tanhf(a);
  if constexpr (kCode == Pointwise::sigmoid) return sigmoid(a);
  if constexpr (kCode == Pointwise::relu) return a <= 0.0f ? 0.0f : a;
  if constexpr (kCode == Pointwise::silu) return a * sigmoid(a);
  if constexpr (kCode == Pointwise::gelu_tanh) return a * gelu_tanh_factor(a);
  if constexpr (kCode == Pointwise::gelu_erf) return a * normal_distribution(a);
  if constexpr (kCode == Pointwise::gelu_tanh_gradient) return gelu_tanh_derivative(a) * b;
  if constexpr (kCode == Pointwise::gelu_erf_gradient) return gelu_erf_derivative(a) * b;
  if constexpr (kCode == Pointwise::silu_gradient) return silu_derivative(a) * b;
  if constexpr (kCode == Pointwise::relu_gradient) return a > 0.0f ? b : 0.0f;
  if constexpr (kCode == Pointwise::tanh_gradient) return (1.0f - a * a) * b;
  if constexpr (kCode == Pointwise::sigmoid_gradient) return a * (1.0f - a) * b;
  return a;  // cast
}

// ---- chains that are compiled ----

struct Step {
  Pointwise code;
  int a, b = -1;
};

struct Immediates {
  float of[4];
};

template <int kOperands, Step... kSteps>
struct Chain {
  static constexpr int kInputs = kOperands, kCount = sizeof...(kSteps), kSources = kInputs + kCount;
  static_assert(kCount <= 4);

  static bool is(const PointwiseProgram& program) {
    const std::array<Step, kCount> steps{kSteps...};
    if (program.inputs != kInputs || program.steps.size() != kCount ||
        program.results != std::vector<int>{kSources - 1})
      return false;
    for (int s = 0; s < kCount; ++s)
      if (program.steps[s].code != steps[s].code || program.steps[s].a != steps[s].a ||
          program.steps[s].b != steps[s].b)
        return false;
    return true;
  }

  // Sources kInputs .. from the operands before them.
  template <int N>
  __device__ static void run(float (&v)[kSources][N], const Immediates& immediates) {
    run_all(v, immediates, std::make_integer_sequence<int, kCount>());
  }

 private:
  template <int N, int... kAt>
  __device__ static void run_all(float (&v)[kSources][N], const Immediates& immediates,
                                 std::integer_sequence<int, kAt...>) {
    (run_step<kSteps>(v[kSteps.a], v[kSteps.b < 0 ? kSteps.a : kSteps.b], v[kInputs + kAt],
                      immediates.of[kAt]),
     ...);
  }
  template <Step kStep, int N>
  __device__ static void run_step(const float (&a)[N], const float (&b)[N], float (&to)[N], float immediate) {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = apply<kStep.code>(a[k], b[k], immediate);
  }
};

// Elements that a thread takes at once: the narrower side moves 16 bytes.
template <typename In, typename Out>
inline constexpr int kChainPack = std::max(kPack<In>, kPack<Out>);
// Packs of a thread, all read before the first is used.
inline constexpr int kInFlight = 2;

template <typename C, typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    run_chain(const __grid_constant__ Plan plan, Pointers pointers, Immediates immediates, bool packed) {
  constexpr int N = kChainPack<In, Out>, I = C::kInputs;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads * kInFlight;
  const int64_t whole = plan.elements / N;  // packs
  Out* const y = static_cast<Out*>(pointers.out[0]);
  const auto in = [&](int i) { return static_cast<const In*>(pointers.in[i]); };
  if (packed && whole > 0) {
    Raw<In, N> raw[kInFlight][I];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      // Past the end the last one once more: no branch stands between the loads.
      int64_t offset[I];
      plan.packed.template at<I>(min(block + j * kThreads + threadIdx.x, whole - 1), offset);
#pragma unroll
      for (int i = 0; i < I; ++i)
        if (plan.repeats[i])
          raw[j][i].load_one(in(i) + offset[i]);
        else
          raw[j][i].load(in(i) + offset[i]);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t unit = block + j * kThreads + threadIdx.x;
      if (unit >= whole) break;
      float v[C::kSources][N];
#pragma unroll
      for (int i = 0; i < I; ++i) {
        raw[j][i].repeat(plan.repeats[i]);
#pragma unroll
        for (int k = 0; k < N; ++k) v[i][k] = raw[j][i][k];
      }
      C::run(v, immediates);
      store(y + unit * N, v[C::kSources - 1]);
    }
  }
  // One element at a time: all, neighbours in neighbouring threads, or those past the last whole pack.
  const int64_t begin = packed ? whole * N : block * N;
  const int64_t end = min(plan.elements, (block + kThreads * kInFlight) * N);
#pragma unroll 1
  for (int64_t e = begin + threadIdx.x; e < end; e += kThreads) {
    float v[C::kSources][1];
    int64_t offset[I];
    plan.each.template at<I>(e, offset);
#pragma unroll
    for (int i = 0; i < I; ++i) v[i][0] = to_float(in(i)[offset[i]]);
    C::run(v, immediates);
    y[e] = from_float<Out>(v[C::kSources - 1][0]);
  }
}

template <typename C, typename In, typename Out>
std::unique_ptr<Kernel> prepare_chain(const KernelRequest& request, const PointwiseProgram& program,
                                      const Context& context) {
  constexpr int N = kChainPack<In, Out>;
  const Plan plan = plan_of(request, N);
  Immediates immediates{};
  for (int s = 0; s < C::kCount; ++s) immediates.of[s] = static_cast<float>(program.steps[s].immediate);
  const auto grid = static_cast<unsigned>(ceil_div(plan.elements, int64_t{kThreads} * kInFlight * N));
  return make_kernel([=, &context, in = bytes_of_all(request.inputs),
                      out = bytes_of_all(request.outputs)](const KernelArguments& a) {
    launch(context, run_chain<C, In, Out>, grid, kThreads, 0, plan, pointers_of(a, in.size(), 1), immediates,
           aligned(plan, a, in, out, N));
  });
}

template <Pointwise kCode>
using Single = Chain<1, Step{kCode, 0}>;
template <Pointwise kCode>
using Pair = Chain<2, Step{kCode, 0, 1}>;

// The kernel of a chain that is compiled for operands and result of type T, or null.
template <typename T, typename... C>
std::unique_ptr<Kernel> among(const KernelRequest& request, const PointwiseProgram& program,
                              const Context& context) {
  std::unique_ptr<Kernel> kernel;
  (void)((C::is(program) && (kernel = prepare_chain<C, T, T>(request, program, context))) || ...);
  return kernel;
}

template <typename T>
std::unique_ptr<Kernel> known(const KernelRequest& request, const PointwiseProgram& program,
                              const Context& context) {
  using P = Pointwise;
  return among<T, Pair<P::add>,  // residuals, positions, and sums of gradients
               Pair<P::sub>, Pair<P::mul>, Single<P::scale>, Single<P::relu>, Pair<P::relu_gradient>,
               Single<P::gelu_tanh>, Pair<P::gelu_tanh_gradient>, Single<P::gelu_erf>,
               Pair<P::gelu_erf_gradient>, Single<P::silu>, Pair<P::silu_gradient>,
               Chain<3, Step{P::add, 0, 1}, Step{P::add, 3, 2}>,  // two residuals at once
               Chain<2, Step{P::silu, 0}, Step{P::mul, 2, 1}>,    // SwiGLU: silu(gate) * up
               // Of dy, up and gate: the gradient of the gate.
               Chain<3, Step{P::mul, 0, 1}, Step{P::silu_gradient, 2, 3}>,
               Chain<2, Step{P::gelu_tanh, 0}, Step{P::mul, 2, 1}>,  // the same with GELU
               Chain<3, Step{P::mul, 0, 1}, Step{P::gelu_tanh_gradient, 2, 3}>>(request, program, context);
}

// ---- chains that are interpreted ----

// Slots of shared memory hold operands and those results that are read later than by the next step: 8 floats
// of every thread, in two halves of 16 bytes so that neighbouring threads meet no bank conflict.
struct Script {
  static constexpr uint8_t kLast = 255;  // the result of the step before, in registers

  struct Instruction {
    Pointwise code;
    uint8_t a, b, to;  // slots; `to` kLast: in registers only
    float immediate;
  };
  int inputs = 0, steps = 0, results = 0, slots = 0, threads = 0;
  Instruction step[kMaxPointwiseSteps];
  uint8_t result[kMaxPointwiseResults];
  DType in[kMaxPointwiseInputs], out[kMaxPointwiseResults];
};

Script script_of(const PointwiseProgram& program, const KernelRequest& request) {
  Script script;
  script.inputs = program.inputs;
  script.steps = static_cast<int>(program.steps.size());
  script.results = static_cast<int>(program.results.size());
  for (int i = 0; i < script.inputs; ++i) script.in[i] = request.inputs[i].type.dtype;
  for (int r = 0; r < script.results; ++r) script.out[r] = request.outputs[r].type.dtype;

  // The last step that reads a source from its slot; `steps`: a result does, at the end.
  std::vector<int> last(script.inputs + script.steps, -1);
  const auto just_made = [&](int source, int step) { return step > 0 && source == script.inputs + step - 1; };
  const auto read = [&](int source, int step) {
    if (!just_made(source, step)) last[source] = step;
  };
  for (int s = 0; s < script.steps; ++s) {
    read(program.steps[s].a, s);
    if (program.steps[s].b >= 0) read(program.steps[s].b, s);
  }
  for (const int source : program.results) read(source, script.steps);

  std::vector<uint8_t> slot(last.size(), Script::kLast), free;
  const auto take = [&] {
    if (free.empty()) return static_cast<uint8_t>(script.slots++);
    const uint8_t next = free.back();
    free.pop_back();
    return next;
  };
  const auto place = [&](int source, int step) {
    return just_made(source, step) ? Script::kLast : slot[source];
  };
  for (int i = 0; i < script.inputs; ++i) slot[i] = take();
  for (int s = 0; s < script.steps; ++s) {
    const PointwiseStep& step = program.steps[s];
    script.step[s] = {step.code, place(step.a, s), step.b < 0 ? Script::kLast : place(step.b, s),
                      Script::kLast, static_cast<float>(step.immediate)};
    for (const int source : {step.a, step.b})
      if (source >= 0 && last[source] == s) {
        free.push_back(slot[source]);
        last[source] = -1;  // step.b may be step.a
      }
    if (const int made = script.inputs + s; last[made] >= 0) script.step[s].to = slot[made] = take();
  }
  for (int r = 0; r < script.results; ++r) script.result[r] = place(program.results[r], script.steps);
  // Fewer threads where slots are many: 48 KiB for a block serve the longest program.
  script.threads = kThreads;
  while (script.slots * script.threads * kInterpretedPack * 4 > 48 << 10) script.threads /= 2;
  return script;
}

// The values of one slot.
struct Values {
  float v[kInterpretedPack];
};

class Slots {
 public:
  __device__ Slots() : memory_(reinterpret_cast<Half*>(dynamic_shared()) + threadIdx.x) {}
  __device__ Values get(int slot) const {
    const Half low = memory_[2 * slot * blockDim.x], high = memory_[(2 * slot + 1) * blockDim.x];
    Values values;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      values.v[k] = low.v[k];
      values.v[4 + k] = high.v[k];
    }
    return values;
  }
  __device__ void set(int slot, const Values& values) {
    Half low, high;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      low.v[k] = values.v[k];
      high.v[k] = values.v[4 + k];
    }
    memory_[2 * slot * blockDim.x] = low;
    memory_[(2 * slot + 1) * blockDim.x] = high;
  }
  __device__ void set(int slot, int k, float value) {
    memory_[(2 * slot + k / 4) * blockDim.x].v[k % 4] = value;
  }

 private:
  using Half = Pack<float, 4>;
  Half* memory_;
};

template <Pointwise kCode>
__device__ inline Values apply_all(const Values& a, const Values& b, float immediate) {
  Values result;
#pragma unroll
  for (int k = 0; k < kInterpretedPack; ++k) result.v[k] = apply<kCode>(a.v[k], b.v[k], immediate);
  return result;
}

__device__ inline Values run_steps(const Script& script, Slots& slots) {
  Values last{};
  for (int s = 0; s < script.steps; ++s) {
    const Script::Instruction step = script.step[s];
    const Values a = step.a == Script::kLast ? last : slots.get(step.a);
    const Values b = step.b == Script::kLast ? last : slots.get(step.b);
    switch (step.code) {
#define HET_POINTWISE_APPLY(code, operands) \
  case Pointwise::code: last = apply_all<Pointwise::code>(a, b, step.immediate); break;
      HET_POINTWISE_STEPS(HET_POINTWISE_APPLY)
#undef HET_POINTWISE_APPLY
    }
    if (step.to != Script::kLast) slots.set(step.to, last);
  }
  return last;
}

// The same 8 words hold a pack of 4-byte elements, or in the first 4 one of 2-byte elements.
using RawPack = Raw<float, kInterpretedPack>;

__device__ inline RawPack read_raw(DType dtype, const void* from, int64_t i, bool repeats) {
  RawPack raw;
  if (dtype == DType::f32) {
    const float* p = static_cast<const float*>(from) + i;
    repeats ? raw.load_one(p) : raw.load(p);
  } else {
    Raw<bf16, kInterpretedPack> half;
    const bf16* p = static_cast<const bf16*>(from) + i;
    repeats ? half.load_one(p) : half.load(p);
#pragma unroll
    for (int k = 0; k < half.kWords; ++k) raw.words[k] = half.words[k];
  }
  return raw;
}
template <typename T>
__device__ inline Values widen(const RawPack& raw, bool repeats) {
  Raw<T, kInterpretedPack> pack;
#pragma unroll
  for (int k = 0; k < pack.kWords; ++k) pack.words[k] = raw.words[k];
  pack.repeat(repeats);
  Values values;
#pragma unroll
  for (int k = 0; k < kInterpretedPack; ++k) values.v[k] = pack[k];
  return values;
}
__device__ inline Values widen(DType dtype, const RawPack& raw, bool repeats) {
  switch (dtype) {
    case DType::bf16: return widen<bf16>(raw, repeats);
    case DType::f16: return widen<f16>(raw, repeats);
    default: return widen<float>(raw, repeats);
  }
}
__device__ inline void write_pack(DType dtype, void* to, int64_t i, const Values& values) {
  switch (dtype) {
    case DType::bf16: store(static_cast<bf16*>(to) + i, values.v); return;
    case DType::f16: store(static_cast<f16*>(to) + i, values.v); return;
    default: {
      const float low[4] = {values.v[0], values.v[1], values.v[2], values.v[3]},
                  high[4] = {values.v[4], values.v[5], values.v[6], values.v[7]};
      store(static_cast<float*>(to) + i, low);
      store(static_cast<float*>(to) + i + 4, high);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    interpret(const __grid_constant__ Plan plan, const __grid_constant__ Script script,
              const __grid_constant__ Pointers pointers, bool packed) {
  constexpr int N = kInterpretedPack, kGroup = 4;  // operands read before the first of them is used
  Slots slots;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (packed && unit * N >= plan.elements) return;
  // Element k of the thread: a separate pack, or, so that neighbours lie in neighbouring threads, one in
  // each stretch of the block.
  const int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.x * N;
  const auto element = [&](int k) { return block + k * static_cast<int64_t>(blockDim.x) + threadIdx.x; };
  if (packed) {
    int64_t offset[kMaxPointwiseInputs];
    plan.packed.at(unit, offset);
#pragma unroll
    for (int first = 0; first < kMaxPointwiseInputs; first += kGroup) {
      if (first >= script.inputs) break;
      RawPack raw[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (first + i < script.inputs)
          raw[i] = read_raw(script.in[first + i], pointers.in[first + i], offset[first + i],
                            plan.repeats[first + i]);
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (first + i < script.inputs)
          slots.set(first + i, widen(script.in[first + i], raw[i], plan.repeats[first + i]));
    }
  } else {
    for (int k = 0; k < N; ++k) {
      int64_t offset[kMaxPointwiseInputs] = {};
      const bool there = element(k) < plan.elements;
      if (there) plan.each.at(element(k), offset);
#pragma unroll
      for (int i = 0; i < kMaxPointwiseInputs; ++i)
        if (i < script.inputs)
          slots.set(i, k, there ? read_narrow(script.in[i], pointers.in[i], offset[i]) : 0.0f);
    }
  }
  const Values last = run_steps(script, slots);
  for (int r = 0; r < script.results; ++r) {
    const Values values = script.result[r] == Script::kLast ? last : slots.get(script.result[r]);
    if (packed) {
      write_pack(script.out[r], pointers.out[r], unit * N, values);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (element(k) < plan.elements) write_narrow(script.out[r], pointers.out[r], element(k), values.v[k]);
    }
  }
}

std::unique_ptr<Kernel> prepare_interpreted(const KernelRequest& request, const PointwiseProgram& program,
                                            const Context& context) {
  constexpr int N = kInterpretedPack;
  Plan plan = plan_of(request, N);
  // A block is all packs or all single elements.
  plan.can_pack &= plan.elements % N == 0;
  const Script script = script_of(program, request);
  const auto grid = static_cast<unsigned>(ceil_div(plan.elements, int64_t{script.threads} * N));
  const size_t shared = static_cast<size_t>(script.slots) * script.threads * N * 4;
  return make_kernel([=, &context, in = bytes_of_all(request.inputs),
                      out = bytes_of_all(request.outputs)](const KernelArguments& a) {
    launch(context, interpret, grid, static_cast<unsigned>(script.threads), shared, plan, script,
           pointers_of(a, in.size(), out.size()), aligned(plan, a, in, out, N));
  });
}

// ---- the choice ----

bool is_whole(DType dtype) { return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8; }

}  // namespace

std::unique_ptr<Kernel> prepare_elementwise(const KernelRequest& request, const Context& context) {
  const PointwiseProgram program = pointwise_program(request.op, request.attributes, request.inputs.size());
  const DType in = request.inputs[0].type.dtype, out = request.outputs[0].type.dtype;
  bool narrow = true, same = true;
  for (const auto layouts : {request.inputs, request.outputs})
    for (const Layout& layout : layouts) {
      narrow &= is_narrow(layout.type.dtype);
      same &= layout.type.dtype == out;
    }
  const bool cast = program.steps.size() == 1 && program.steps[0].code == Pointwise::cast;
  if (cast && is_whole(in) && is_whole(out)) return prepare_whole_cast(request, context);
  if (!narrow) return prepare_wide(request, program, context);

  std::unique_ptr<Kernel> kernel;
  using Cast = Single<Pointwise::cast>;
  if (cast && in == DType::f32 && out == DType::bf16)
    kernel = prepare_chain<Cast, float, bf16>(request, program, context);
  else if (cast && in == DType::bf16 && out == DType::f32)
    kernel = prepare_chain<Cast, bf16, float>(request, program, context);
  else if (same && out == DType::f32)
    kernel = known<float>(request, program, context);
  else if (same && out == DType::bf16)
    kernel = known<bf16>(request, program, context);
  return kernel != nullptr ? std::move(kernel) : prepare_interpreted(request, program, context);
}

std::vector<Entry> elementwise_kernels() {
  std::vector<Entry> entries;
  for (const std::string_view name : elementwise_names()) entries.push_back({name, prepare_elementwise});
  return entries;
}

}  // namespace het::HET_CUDA
