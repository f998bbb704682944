// What the kernels of elementwise.cu and elementwise_wide.h know of a call: where its operands lie, and the
// loops over its elements. Plain data that kernels take by value.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/ops/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/loops.h"

namespace het::HET_CUDA {

// Where the operands and results of a call lie.
struct Pointers {
  const void* in[kMaxPointwiseInputs];
  void* out[kMaxPointwiseResults];
};

// The loops over the result's elements, and over packs of them where every operand can be read so.
struct Plan {
  int64_t elements = 0;
  Walk<kMaxPointwiseInputs> each, packed;
  bool repeats[kMaxPointwiseInputs] = {};  // one element of it serves a whole pack
  bool can_pack = false;
};

inline Plan plan_of(const KernelRequest& request, int64_t pack) {
  Plan plan;
  std::vector<const Layout*> operands;
  for (const Layout& input : request.inputs) operands.push_back(&input);
  for (const Layout& output : request.outputs) require_packed(request, output);
  // The result takes part in the merging, so that the loops run over its elements in order.
  operands.push_back(&request.outputs[0]);
  const Loops loops = merge_loops(request, request.outputs[0].type.shape, operands);
  const int inputs = static_cast<int>(request.inputs.size()), inner = loops.rank - 1;
  plan.elements = loops.elements();
  plan.each = walk_of<kMaxPointwiseInputs>(loops, inputs);
  plan.can_pack = loops.rank == 1 || loops.size[inner] % pack == 0;
  for (int i = 0; i < inputs; ++i) {
    plan.repeats[i] = loops.stride[i][inner] == 0;
    plan.can_pack &= plan.repeats[i] || loops.stride[i][inner] == 1;
    for (int d = 0; d < inner; ++d) plan.can_pack &= plan.repeats[i] || loops.stride[i][d] % pack == 0;
  }
  if (plan.can_pack) plan.packed = walk_of<kMaxPointwiseInputs>(loops, inputs, pack);
  return plan;
}

// Whether packs of so many elements may be read and written where the operands are this time.
inline bool aligned(const Plan& plan, const KernelArguments& a, const std::vector<int64_t>& in_bytes,
                    const std::vector<int64_t>& out_bytes, int64_t pack) {
  if (!plan.can_pack) return false;
  const auto fits = [&](const std::byte* address, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(address) %
               static_cast<uintptr_t>(std::min<int64_t>(bytes * pack, 32)) ==
           0;
  };
  for (size_t i = 0; i < in_bytes.size(); ++i)
    if (!plan.repeats[i] && !fits(a.inputs[i], in_bytes[i])) return false;
  for (size_t i = 0; i < out_bytes.size(); ++i)
    if (!fits(a.outputs[i], out_bytes[i])) return false;
  return true;
}

inline std::vector<int64_t> bytes_of_all(std::span<const Layout> layouts) {
  std::vector<int64_t> bytes;
  for (const Layout& layout : layouts) bytes.push_back(bytes_of(layout.type.dtype));
  return bytes;
}

inline Pointers pointers_of(const KernelArguments& a, size_t inputs, size_t outputs) {
  Pointers pointers{};
  for (size_t i = 0; i < inputs; ++i) pointers.in[i] = a.inputs[i];
  for (size_t i = 0; i < outputs; ++i) pointers.out[i] = a.outputs[i];
  return pointers;
}

}  // namespace het::HET_CUDA
