// What is used of NCCL, in declarations of our own: it is opened when the program runs, and neither its
// header nor its version is known when the program is built. Names, values and layouts are NCCL's (nccl.h);
// nccl_check.cpp compares them with the toolkit's header where there is one.
#pragma once

#include <climits>
#include <cstddef>

#include <cuda_runtime.h>

namespace nccl {

struct Comm;  // ncclComm
struct UniqueId {
  char internal[128];
};

enum Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum Op : int { sum = 0, max = 2 };
enum Type : int { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };

// As of 2.18, and said to be so: later versions fill in what they have added since.
inline constexpr int kConfigVersion = 21800, kUndefined = INT_MIN;
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kConfigVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

// The functions, by the names that they are found under, less "nccl".
struct Functions {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*CommFinalize)(Comm* comm);
  Result (*CommDestroy)(Comm* comm);
  Result (*CommAbort)(Comm* comm);
  Result (*CommGetAsyncError)(Comm* comm, Result* error);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm* comm);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*AllReduce)(const void* in, void* out, size_t count, Type type, Op op, Comm* comm,
                      cudaStream_t stream);
  Result (*Reduce)(const void* in, void* out, size_t count, Type type, Op op, int root, Comm* comm,
                   cudaStream_t stream);
  Result (*Broadcast)(const void* in, void* out, size_t count, Type type, int root, Comm* comm,
                      cudaStream_t stream);
  Result (*AllGather)(const void* in, void* out, size_t count, Type type, Comm* comm, cudaStream_t stream);
  Result (*ReduceScatter)(const void* in, void* out, size_t count, Type type, Op op, Comm* comm,
                          cudaStream_t stream);
  Result (*Send)(const void* in, size_t count, Type type, int peer, Comm* comm, cudaStream_t stream);
  Result (*Recv)(void* out, size_t count, Type type, int peer, Comm* comm, cudaStream_t stream);
};

}  // namespace nccl
