// Elementwise chains with f64 or integers among their operands: interpreted in f64, one element at a time;
// and casts between integers, as integers. None is tuned. elementwise.cu has all others.
#pragma once

#include <algorithm>

#include "kernels/cuda/dtype.h"
#include "kernels/cuda/elementwise_plan.h"
#include "kernels/wide.h"

namespace het::HET_CUDA {

inline constexpr int kWideThreads = 128;

__device__ inline double read_wide(DType dtype, const void* from, int64_t i) {
  switch (dtype) {
    case DType::f64: return static_cast<const double*>(from)[i];
    case DType::i32: return static_cast<const int32_t*>(from)[i];
    case DType::i64: return static_cast<double>(static_cast<const int64_t*>(from)[i]);
    case DType::u8: return static_cast<const uint8_t*>(from)[i];
    case DType::boolean: return static_cast<const uint8_t*>(from)[i] != 0;
    default: return read_narrow(dtype, from, i);
  }
}

__device__ inline void write_wide(DType dtype, void* to, int64_t i, double value) {
  switch (dtype) {
    case DType::f64: static_cast<double*>(to)[i] = value; return;
    case DType::i32: static_cast<int32_t*>(to)[i] = to_integer<int32_t>(value); return;
    case DType::i64: static_cast<int64_t*>(to)[i] = to_integer<int64_t>(value); return;
    case DType::u8: static_cast<uint8_t*>(to)[i] = to_integer<uint8_t>(value); return;
    case DType::boolean: static_cast<uint8_t*>(to)[i] = value != 0; return;
    default: write_narrow(dtype, to, i, static_cast<float>(value));
  }
}

struct WideScript {
  int inputs = 0, steps = 0, results = 0;
  PointwiseStep step[kMaxPointwiseSteps];
  int result[kMaxPointwiseResults];
  DType in[kMaxPointwiseInputs], out[kMaxPointwiseResults];
};

static __global__ void __launch_bounds__(kWideThreads)
    interpret_wide(const __grid_constant__ Plan plan, const __grid_constant__ WideScript script,
                   const __grid_constant__ Pointers pointers) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kWideThreads + threadIdx.x;
  if (e >= plan.elements) return;
  double source[kMaxPointwiseInputs + kMaxPointwiseSteps];
  int64_t offset[kMaxPointwiseInputs];
  plan.each.at(e, offset);
  for (int i = 0; i < script.inputs; ++i) source[i] = read_wide(script.in[i], pointers.in[i], offset[i]);
  for (int s = 0; s < script.steps; ++s) {
    const PointwiseStep& step = script.step[s];
    source[script.inputs + s] =
        wide_step(step.code, source[step.a], step.b < 0 ? 0 : source[step.b], step.immediate);
  }
  for (int r = 0; r < script.results; ++r)
    write_wide(script.out[r], pointers.out[r], e, source[script.result[r]]);
}

inline std::unique_ptr<Kernel> prepare_wide(const KernelRequest& request, const PointwiseProgram& program,
                                            const Context& context) {
  const Plan plan = plan_of(request, 1);
  WideScript script;
  script.inputs = program.inputs;
  script.steps = static_cast<int>(program.steps.size());
  script.results = static_cast<int>(program.results.size());
  std::copy(program.steps.begin(), program.steps.end(), script.step);
  std::copy(program.results.begin(), program.results.end(), script.result);
  for (int i = 0; i < script.inputs; ++i) script.in[i] = request.inputs[i].type.dtype;
  for (int r = 0; r < script.results; ++r) script.out[r] = request.outputs[r].type.dtype;
  return make_kernel([=, &context, inputs = request.inputs.size(),
                      outputs = request.outputs.size()](const KernelArguments& a) {
    launch(context, interpret_wide, static_cast<unsigned>(ceil_div(plan.elements, kWideThreads)),
           kWideThreads, 0, plan, script, pointers_of(a, inputs, outputs));
  });
}

__device__ inline int64_t read_whole(DType dtype, const void* from, int64_t i) {
  switch (dtype) {
    case DType::i32: return static_cast<const int32_t*>(from)[i];
    case DType::i64: return static_cast<const int64_t*>(from)[i];
    default: return static_cast<const uint8_t*>(from)[i];
  }
}

static __global__ void __launch_bounds__(kWideThreads)
    cast_whole(const void* x, DType from, void* y, DType to, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWideThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t value = read_whole(from, x, i);
  switch (to) {
    case DType::i32: static_cast<int32_t*>(y)[i] = to_integer<int32_t>(value); return;
    case DType::i64: static_cast<int64_t*>(y)[i] = value; return;
    default: static_cast<uint8_t*>(y)[i] = to_integer<uint8_t>(value);
  }
}

// Between integers, without the detour through f64 that would cost large values their last digits.
inline std::unique_ptr<Kernel> prepare_whole_cast(const KernelRequest& request, const Context& context) {
  require_packed(request, request.inputs[0]);
  return make_kernel([&context, elements = request.outputs[0].type.elements(),
                      from = request.inputs[0].type.dtype,
                      to = request.outputs[0].type.dtype](const KernelArguments& a) {
    launch(context, cast_whole, static_cast<unsigned>(ceil_div(elements, kWideThreads)), kWideThreads, 0,
           a.inputs[0], from, a.outputs[0], to, elements);
  });
}

}  // namespace het::HET_CUDA
