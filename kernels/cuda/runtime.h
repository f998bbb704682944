// What every file here includes: the CUDA runtime, its errors as sentences, and how a kernel is launched. The
// emulation of the tests provides the same headers (tests/emulated_cuda).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device.h"

namespace het::HET_CUDA {

using bf16 = __nv_bfloat16;
using f16 = __half;

// Throws Error(environment) naming what was asked for and what CUDA says.
void check(cudaError_t result, const char* what);

// Set by a kernel that meets a value which no launch can refuse beforehand, such as an index outside its
// table; in host memory that the GPU writes to, by report() of vector.h. Device::synchronize() throws it.
struct Failure {
  enum Kind : int { none, bad_index, bad_position, bad_start };
  int kind;
  long long position, value, limit;
  const char* op = nullptr;  // the operator's name: a literal of the host's, which the GPU only passes on
};

// Of shared memory, what a launch may ask for without allow_shared, and what is left to variables that a
// kernel declares itself.
inline constexpr size_t kFreeShared = 32u << 10;
inline constexpr int kOwnShared = 2 << 10;

// What the kernels of one device share. Outlives them.
struct Context {
  int ordinal = 0;
  int multiprocessors = 1;
  int shared_bytes = 46 << 10;    // that a launch may ask for
  int generation = 8;             // the first number of the compute capability: 8 Ampere and Ada, 9 Hopper
  cudaStream_t stream = nullptr;  // compute: kernels run on it in the order in which they are launched
  Failure* failure = nullptr;     // as the device sees it
  mutable std::shared_ptr<void> products;  // what gemm.cpp keeps for all products; made with the first
};

// Queue kernel<<<grid, block, shared>>>(arguments...) on the compute stream. Nothing when the grid is empty.
// Ask for more than kFreeShared bytes with allow_shared when the kernel is prepared.
template <typename... Parameters, typename... Arguments>
void launch(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
        "launch a kernel");
}

// Blocks of a kernel that the GPU runs at a time: a grid that goes round its work need not be larger.
template <typename... Parameters>
int64_t resident_blocks(const Context& context, void (*kernel)(Parameters...), int threads, size_t shared) {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared),
        "say how many blocks fit");
  return static_cast<int64_t>(std::max(1, blocks)) * context.multiprocessors;
}

// Lets launches of a kernel ask for so many bytes of shared memory; never fewer than they could before.
template <typename... Parameters>
void allow_shared(void (*kernel)(Parameters...), size_t bytes) {
  if (bytes <= kFreeShared) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, address), "say what a kernel may use");
  check(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             std::max(now.maxDynamicSharedSizeBytes, static_cast<int>(bytes))),
        "give a kernel its shared memory");
}

}  // namespace het::HET_CUDA
