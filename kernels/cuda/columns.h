// Sums over many rows for each column, such as gradients of weights and biases: blocks leave the sums of
// their rows in the workspace, and one launch adds those in order.
#pragma once

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {

// A block's threads: so many columns, and parts that are added side by side.
inline constexpr int kColumnLanes = 32, kColumnParts = 8;

// to[i] = (or +=) the sum over parts of from[part * step + i].
static __global__ void __launch_bounds__(kColumnLanes* kColumnParts)
    add_parts(const float* from, int64_t parts, int64_t step, float* to, int64_t count, bool accumulate) {
  __shared__ float sums[kColumnParts][kColumnLanes];
  const int lane = threadIdx.x % kColumnLanes, own = threadIdx.x / kColumnLanes;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kColumnLanes + lane;
  float sum = 0;
  if (i < count)
#pragma unroll 8
    for (int64_t part = own; part < parts; part += kColumnParts) sum += from[part * step + i];
  sums[own][lane] = sum;
  __syncthreads();
  if (own != 0 || i >= count) return;
  for (int other = 1; other < kColumnParts; ++other) sum += sums[other][lane];
  to[i] = accumulate ? to[i] + sum : sum;
}

inline void launch_add_parts(const Context& context, const float* from, int64_t parts, int64_t step,
                             float* to, int64_t count, bool accumulate) {
  launch(context, add_parts, static_cast<unsigned>(ceil_div(count, kColumnLanes)),
         kColumnLanes * kColumnParts, 0, from, parts, step, to, count, accumulate);
}

}  // namespace het::HET_CUDA
