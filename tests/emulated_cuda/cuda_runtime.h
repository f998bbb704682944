// The part of the CUDA runtime and of CUDA C++ that kernels/cuda uses, on the processor. See README.md.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local  // blocks of several devices run at once
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the thread that runs.
inline thread_local constinit uint3 threadIdx, blockIdx;
inline thread_local constinit dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace emulated {

// The barriers end the run with an exception when threads can never meet there.
void block_barrier();
void warp_barrier(unsigned mask);
// Where lanes of a warp leave values for each other, up to 64 bytes each; `turn` changes with each exchange,
// so that one barrier is enough.
std::byte* exchange_slot(unsigned lane, unsigned turn);
unsigned next_turn();
bool lane_is_there(unsigned lane);
int lane_id();
std::byte* dynamic_shared();

void run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread);
[[noreturn]] void broken(const char* what);

// The value of `lane`, which must take part.
template <typename T>
T from_lane(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 64 && std::is_trivially_copyable_v<T>);
  if ((mask >> lane_id() & 1) == 0) broken("a lane that its own mask does not name");
  const unsigned turn = next_turn();
  std::memcpy(exchange_slot(lane_id(), turn), &value, sizeof value);
  warp_barrier(mask);
  if ((mask >> lane & 1) == 0) broken("a shuffle from a lane outside the mask");
  T result;
  std::memcpy(&result, exchange_slot(lane, turn), sizeof result);
  return result;
}

}  // namespace emulated

inline std::byte* emulated_shared() { return emulated::dynamic_shared(); }

inline void __syncthreads() { emulated::block_barrier(); }
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);
inline void __syncwarp(unsigned mask = ~0u) { emulated::warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = emulated::lane_id(), first = lane / width * width;
  return emulated::from_lane(mask, value, first + source % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const int lane = emulated::lane_id(), source = lane ^ other;
  return emulated::from_lane(mask, value, source / width > lane / width ? lane : source);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
  const unsigned lane = emulated::lane_id();
  return emulated::from_lane(mask, value,
                             lane % width + step < static_cast<unsigned>(width) ? lane + step : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned step, int width = 32) {
  const unsigned lane = emulated::lane_id();
  return emulated::from_lane(mask, value, lane % width >= step ? lane - step : lane);
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
inline unsigned __activemask() { return ~0u; }

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old | value;
  return old;
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

long long clock64();  // in nanoseconds

using std::max;
using std::min;
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T value) {
  *p = value;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

// ---- the runtime ----
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// What is queued runs in order, each step again and again until it says that it is done.
struct EmulatedStream {
  virtual ~EmulatedStream() = default;
  virtual void push(std::function<bool()> step) = 0;
  virtual int device() const = 0;
};
using cudaStream_t = EmulatedStream*;
struct EmulatedGraph;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
struct EmulatedEvent;
using cudaEvent_t = EmulatedEvent*;

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, memoryBusWidth;
  size_t totalGlobalMem;
  cudaUUID_t uuid;
};
enum cudaDeviceAttr {
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMemoryClockRate = 36,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
  int maxDynamicSharedSizeBytes;
};
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2, cudaHostAllocDefault = 0,
                          cudaEventDefault = 0, cudaEventDisableTiming = 2;

cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal);
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int ordinal);
cudaError_t cudaMalloc(void** address, size_t bytes);
cudaError_t cudaFree(void* address);
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* address);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes,
                              size_t* count);  // nodes: null, only their count
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
  return *blocks = 2, cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};
namespace emulated {
// Whether a GPU would take the launch.
bool fits(const cudaLaunchConfig_t& config, const void* kernel);
cudaError_t queue(const cudaLaunchConfig_t& config, std::function<void()> thread);
}  // namespace emulated
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (!emulated::fits(*config, reinterpret_cast<const void*>(kernel))) return cudaErrorInvalidValue;
  return emulated::queue(*config,
                         [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); });
}
