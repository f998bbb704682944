// The one elementwise kernel: walks a PointwisePlan tile by tile. Every step is a loop over a tile that is in
// the first-level cache, so memory is read and written once however long the program is.
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/wide.h"

namespace het::cpu::HET_ISA {
namespace {

// ---- one step over one tile ----

template <typename Function>
HET_INLINE void unary(const float* a, float* to, int64_t n, const Function& f) {
  for_lanes(n, [&](int64_t i, auto lanes) { store(to + i, f(load(a + i, lanes)), lanes); });
}
template <typename Function>
HET_INLINE void binary(const float* a, const float* b, float* to, int64_t n, const Function& f) {
  for_lanes(n,
            [&](int64_t i, auto lanes) { store(to + i, f(load(a + i, lanes), load(b + i, lanes)), lanes); });
}

// By the C library: steps that layers take seldom, where its range reduction counts for more than lanes.
template <typename Function>
void scalars(const float* a, float* to, int64_t n, const Function& f) {
  for (int64_t i = 0; i < n; ++i) to[i] = f(a[i]);
}
void powers(const float* a, const float* b, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = ::powf(a[i], b[i]);
}

HET_INLINE Vector normal_distribution(Vector a) { return 0.5f + 0.5f * erf(a * 0.707106781f); }
HET_INLINE Vector gelu_erf_derivative(Vector a) {
  return normal_distribution(a) + a * exp(a * a * -0.5f) * 0.398942280f;
}
HET_INLINE Vector silu_derivative(Vector a) {
  const Vector s = sigmoid(a);
  return s * (1.0f + a * (1.0f - s));
}

void run_step(Pointwise code, const float* a, const float* b, float* to, float immediate, int64_t n) {
  using V = Vector;
  const V zero{}, one = splat(1);
  switch (code) {
    case Pointwise::add: return binary(a, b, to, n, [](V x, V y) { return x + y; });
    case Pointwise::sub: return binary(a, b, to, n, [](V x, V y) { return x - y; });
    case Pointwise::mul: return binary(a, b, to, n, [](V x, V y) { return x * y; });
    case Pointwise::div: return binary(a, b, to, n, [](V x, V y) { return x / y; });
    case Pointwise::maximum: return binary(a, b, to, n, [](V x, V y) { return maximum(x, y); });
    case Pointwise::minimum: return binary(a, b, to, n, [](V x, V y) { return minimum(x, y); });
    case Pointwise::power: return powers(a, b, to, n);
    case Pointwise::clamp_min:
      return unary(a, to, n, [bound = splat(immediate)](V x) { return x < bound ? bound : x; });
    case Pointwise::clamp_max:
      return unary(a, to, n, [bound = splat(immediate)](V x) { return x > bound ? bound : x; });
    case Pointwise::equal: return binary(a, b, to, n, [=](V x, V y) { return x == y ? one : zero; });
    case Pointwise::not_equal: return binary(a, b, to, n, [=](V x, V y) { return x != y ? one : zero; });
    case Pointwise::less: return binary(a, b, to, n, [=](V x, V y) { return x < y ? one : zero; });
    case Pointwise::less_equal: return binary(a, b, to, n, [=](V x, V y) { return x <= y ? one : zero; });
    case Pointwise::mask: return binary(a, b, to, n, [=](V x, V y) { return x != zero ? y : zero; });
    case Pointwise::mask_out: return binary(a, b, to, n, [=](V x, V y) { return x != zero ? zero : y; });
    case Pointwise::scale: return unary(a, to, n, [=](V x) { return x * immediate; });
    case Pointwise::shift: return unary(a, to, n, [=](V x) { return x + immediate; });
    case Pointwise::neg: return unary(a, to, n, [](V x) { return -x; });
    case Pointwise::abs: return unary(a, to, n, [](V x) { return absolute(x); });
    case Pointwise::sign: return unary(a, to, n, [=](V x) { return x > zero ? one : x < zero ? -one : x; });
    case Pointwise::sin: return scalars(a, to, n, [](float x) { return ::sinf(x); });
    case Pointwise::cos: return scalars(a, to, n, [](float x) { return ::cosf(x); });
    case Pointwise::pow: return scalars(a, to, n, [=](float x) { return ::powf(x, immediate); });
    case Pointwise::square: return unary(a, to, n, [](V x) { return x * x; });
    case Pointwise::sqrt: return unary(a, to, n, [](V x) { return sqrt(x); });
    case Pointwise::exp: return unary(a, to, n, [](V x) { return exp(x); });
    case Pointwise::log: return unary(a, to, n, [](V x) { return log(x); });
    case Pointwise::tanh: return unary(a, to, n, [](V x) { return tanh(x); });
    case Pointwise::sigmoid: return unary(a, to, n, [](V x) { return sigmoid(x); });
    case Pointwise::relu: return unary(a, to, n, [=](V x) { return x <= zero ? zero : x; });
    case Pointwise::silu: return unary(a, to, n, [](V x) { return x * sigmoid(x); });
    case Pointwise::gelu_tanh: return unary(a, to, n, [](V x) { return gelu(x); });
    case Pointwise::gelu_erf: return unary(a, to, n, [](V x) { return x * normal_distribution(x); });
    case Pointwise::gelu_tanh_gradient:
      return binary(a, b, to, n, [](V x, V dy) { return gelu_derivative(x) * dy; });
    case Pointwise::gelu_erf_gradient:
      return binary(a, b, to, n, [](V x, V dy) { return gelu_erf_derivative(x) * dy; });
    case Pointwise::silu_gradient:
      return binary(a, b, to, n, [](V x, V dy) { return silu_derivative(x) * dy; });
    case Pointwise::relu_gradient:
      return binary(a, b, to, n, [=](V x, V dy) { return x > zero ? dy : zero; });
    case Pointwise::tanh_gradient: return binary(a, b, to, n, [](V y, V dy) { return (1.0f - y * y) * dy; });
    case Pointwise::sigmoid_gradient:
      return binary(a, b, to, n, [](V y, V dy) { return y * (1.0f - y) * dy; });
    case Pointwise::cast: return unary(a, to, n, [](V x) { return x; });
  }
}

// ---- operands to tiles and tiles to results ----

template <typename T>
void widen(const T* from, float* to, int64_t n) {
  for_lanes(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}
void widen(DType dtype, const std::byte* from, int64_t index, float* to, int64_t n) {
  switch (dtype) {
    case DType::bf16: return widen(reinterpret_cast<const bf16*>(from) + index, to, n);
    case DType::f16: return widen(reinterpret_cast<const f16*>(from) + index, to, n);
    default: return widen(reinterpret_cast<const float*>(from) + index, to, n);
  }
}

template <typename T>
void narrow(const float* from, T* to, int64_t n) {
  for_lanes(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}
void narrow(DType dtype, const float* from, std::byte* to, int64_t index, int64_t n) {
  switch (dtype) {
    case DType::bf16: return narrow(from, reinterpret_cast<bf16*>(to) + index, n);
    case DType::f16: return narrow(from, reinterpret_cast<f16*>(to) + index, n);
    default: return narrow(from, reinterpret_cast<float*>(to) + index, n);
  }
}

float element(DType dtype, const std::byte* from, int64_t index) {
  float value;
  widen(dtype, from, index, &value, 1);
  return value;
}

// The position of flat element `index` in the loops, and where the operand has it.
struct Walk {
  int64_t at[kMaxRank];
  int64_t offset;
};
Walk walk_to(const Loops& loops, int operand, int64_t index) {
  Walk walk{};
  for (int d = loops.rank - 1; d >= 0; --d) {
    walk.at[d] = index % loops.size[d];
    index /= loops.size[d];
    walk.offset += walk.at[d] * loops.stride[operand][d];
  }
  return walk;
}
// Move on by `count` elements, no further than the end of the innermost loop.
void advance(const Loops& loops, int operand, Walk& walk, int64_t count) {
  int d = loops.rank - 1;
  walk.at[d] += count;
  walk.offset += count * loops.stride[operand][d];
  while (d > 0 && walk.at[d] == loops.size[d]) {
    walk.offset -= loops.size[d] * loops.stride[operand][d];
    walk.at[d] = 0;
    --d;
    ++walk.at[d];
    walk.offset += loops.stride[operand][d];
  }
}

void gather(const Loops& loops, int operand, DType dtype, const std::byte* from, int64_t begin, float* to,
            int64_t n) {
  const int inner = loops.rank - 1;
  const int64_t step = loops.stride[operand][inner];
  Walk walk = walk_to(loops, operand, begin);
  for (int64_t done = 0; done < n;) {
    int64_t run = loops.size[inner] - walk.at[inner];
    if (run > n - done) run = n - done;
    if (step == 1) {
      widen(dtype, from, walk.offset, to + done, run);
    } else if (step == 0) {
      const float value = element(dtype, from, walk.offset);
      for (int64_t i = 0; i < run; ++i) to[done + i] = value;
    } else {
      for (int64_t i = 0; i < run; ++i) to[done + i] = element(dtype, from, walk.offset + i * step);
    }
    advance(loops, operand, walk, run);
    done += run;
  }
}

void run_tiles(const PointwisePlan& plan, const KernelArguments& a, float* scratch, Range tiles) {
  using Load = PointwisePlan::Load;
  if (tiles.begin == tiles.end) return;
  float* place[PointwisePlan::kMaxPlaces];
  for (int s = 0; s < plan.slots; ++s) place[s] = scratch + s * PointwisePlan::kTile;
  for (int i = 0; i < plan.inputs; ++i) {
    const auto& input = plan.input[i];
    if (input.load != Load::once) continue;
    float* tile = place[input.place];
    if (input.period == 1) {
      const float value = element(input.dtype, a.inputs[i], 0);
      for (int64_t k = 0; k < plan.tile; ++k) tile[k] = value;
    } else {
      for (int64_t k = 0; k < plan.tile; k += input.period)
        widen(input.dtype, a.inputs[i], 0, tile + k, input.period);
    }
  }
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const int64_t begin = t * plan.tile;
    const int64_t n = plan.elements - begin < plan.tile ? plan.elements - begin : plan.tile;
    for (int i = 0; i < plan.inputs; ++i) {
      const auto& input = plan.input[i];
      if (input.load == Load::direct)
        // Read only: no step writes to the place of an operand.
        place[input.place] = reinterpret_cast<float*>(a.inputs[i]) + begin;
      else if (input.load == Load::convert)
        widen(input.dtype, a.inputs[i], begin, place[input.place], n);
      else if (input.load == Load::gather)
        gather(plan.loops, i, input.dtype, a.inputs[i], begin, place[input.place], n);
    }
    for (int r = 0; r < plan.results; ++r)
      if (plan.result[r].direct) place[plan.result[r].place] = a.out<float>(r) + begin;
    for (int s = 0; s < plan.steps; ++s) {
      const auto& step = plan.step[s];
      run_step(step.code, place[step.a], step.b < 0 ? nullptr : place[step.b], place[step.to],
               static_cast<float>(step.immediate), n);
    }
    for (int r = 0; r < plan.results; ++r)
      if (!plan.result[r].direct)
        narrow(plan.result[r].dtype, place[plan.result[r].place], a.outputs[r], begin, n);
  }
}

// ---- f64 and integers, one element at a time ----

double read_wide(DType dtype, const std::byte* from, int64_t i) {
  switch (dtype) {
    case DType::f64: return reinterpret_cast<const double*>(from)[i];
    case DType::i32: return reinterpret_cast<const int32_t*>(from)[i];
    case DType::i64: return static_cast<double>(reinterpret_cast<const int64_t*>(from)[i]);
    case DType::u8: return reinterpret_cast<const uint8_t*>(from)[i];
    case DType::boolean: return reinterpret_cast<const uint8_t*>(from)[i] != 0;
    default: return element(dtype, from, i);
  }
}

void write_wide(DType dtype, std::byte* to, int64_t i, double value) {
  switch (dtype) {
    case DType::f64: reinterpret_cast<double*>(to)[i] = value; return;
    case DType::i32: reinterpret_cast<int32_t*>(to)[i] = to_integer<int32_t>(value); return;
    case DType::i64: reinterpret_cast<int64_t*>(to)[i] = to_integer<int64_t>(value); return;
    case DType::u8: reinterpret_cast<uint8_t*>(to)[i] = to_integer<uint8_t>(value); return;
    case DType::boolean: reinterpret_cast<uint8_t*>(to)[i] = value != 0; return;
    default: {
      const float narrower = static_cast<float>(value);
      narrow(dtype, &narrower, to, i, 1);
    }
  }
}

void run_wide(const PointwisePlan& plan, const KernelArguments& a, int64_t begin, int64_t end) {
  Walk walk[kMaxPointwiseInputs];
  for (int i = 0; i < plan.inputs; ++i) walk[i] = walk_to(plan.loops, i, begin);
  double source[kMaxPointwiseInputs + kMaxPointwiseSteps];
  for (int64_t index = begin; index < end; ++index) {
    for (int i = 0; i < plan.inputs; ++i) {
      source[i] = read_wide(plan.input[i].dtype, a.inputs[i], walk[i].offset);
      advance(plan.loops, i, walk[i], 1);
    }
    for (int s = 0; s < plan.steps; ++s) {
      const auto& step = plan.step[s];
      source[step.to] = wide_step(step.code, source[step.a], step.b < 0 ? 0 : source[step.b], step.immediate);
    }
    for (int r = 0; r < plan.results; ++r)
      write_wide(plan.result[r].dtype, a.outputs[r], index, source[plan.result[r].place]);
  }
}

bool is_whole(DType dtype) { return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8; }

int64_t read_whole(DType dtype, const std::byte* from, int64_t i) {
  switch (dtype) {
    case DType::i32: return reinterpret_cast<const int32_t*>(from)[i];
    case DType::i64: return reinterpret_cast<const int64_t*>(from)[i];
    default: return reinterpret_cast<const uint8_t*>(from)[i];
  }
}

// Between integers, without the detour through f64 that would cost large values their last digits.
std::unique_ptr<Kernel> prepare_whole_cast(const PointwisePlan& plan) {
  return make_kernel([elements = plan.elements, from = plan.input[0].dtype,
                      to = plan.result[0].dtype](const KernelArguments& a) {
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t value = read_whole(from, a.inputs[0], i);
      if (to == DType::i32)
        a.out<int32_t>(0)[i] = to_integer<int32_t>(value);
      else if (to == DType::i64)
        a.out<int64_t>(0)[i] = value;
      else
        a.out<uint8_t>(0)[i] = to_integer<uint8_t>(value);
    }
  });
}

std::unique_ptr<Kernel> prepare_elementwise(const KernelRequest& request) {
  const PointwisePlan plan = plan_pointwise(request);
  if (plan.wide) {
    if (plan.step[0].code == Pointwise::cast && is_whole(plan.input[0].dtype) &&
        is_whole(plan.result[0].dtype))
      return prepare_whole_cast(plan);
    return make_kernel([plan](const KernelArguments& a) {
      parallel_for(plan.elements, kHeavyGrain,
                   [&](int64_t begin, int64_t end) { run_wide(plan, a, begin, end); });
    });
  }
  const int64_t tiles = (plan.elements + plan.tile - 1) / plan.tile;
  const int64_t parts = parts_for(plan.elements, plan.heavy ? kHeavyGrain : kLightGrain);
  const int64_t scratch = plan.slots * PointwisePlan::kTile;
  return make_kernel(
      [plan, tiles, parts, scratch](const KernelArguments& a) {
        parallel_parts(parts, [&](int64_t part) {
          run_tiles(plan, a, reinterpret_cast<float*>(a.workspace) + part * scratch,
                    share_of(tiles, parts, part));
        });
      },
      parts * scratch * 4);
}

}  // namespace

std::vector<KernelEntry> elementwise_kernels() {
  std::vector<KernelEntry> entries;
  for (const std::string_view name : elementwise_names()) entries.push_back({name, prepare_elementwise});
  return entries;
}

}  // namespace het::cpu::HET_ISA
