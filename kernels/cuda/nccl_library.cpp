#include "kernels/cuda/nccl_library.h"

#include <type_traits>

#include <dlfcn.h>

#include "core/base/error.h"

namespace het::HET_CUDA {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr int kLeastVersion = 21800;  // non-blocking messages, and the fields of nccl_api.h

// As it numbers itself: 22809 is 2.28.9.
std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclLibrary open_nccl() {
  NcclLibrary opened{open_library(kFile)};
  void* const handle = opened.library.handle;
  if (handle == nullptr) return opened;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && opened.library.problem.empty())
      opened.library.problem = fmt::format("{} has no function {}", opened.library.path, name);
  };
  nccl::Functions& f = opened.functions;
  find(f.GetVersion, "ncclGetVersion");
  find(f.GetUniqueId, "ncclGetUniqueId");
  find(f.CommInitRankConfig, "ncclCommInitRankConfig");
  find(f.CommFinalize, "ncclCommFinalize");
  find(f.CommDestroy, "ncclCommDestroy");
  find(f.CommAbort, "ncclCommAbort");
  find(f.CommGetAsyncError, "ncclCommGetAsyncError");
  find(f.GetErrorString, "ncclGetErrorString");
  find(f.GetLastError, "ncclGetLastError");
  find(f.GroupStart, "ncclGroupStart");
  find(f.GroupEnd, "ncclGroupEnd");
  find(f.AllReduce, "ncclAllReduce");
  find(f.Reduce, "ncclReduce");
  find(f.Broadcast, "ncclBroadcast");
  find(f.AllGather, "ncclAllGather");
  find(f.ReduceScatter, "ncclReduceScatter");
  find(f.Send, "ncclSend");
  find(f.Recv, "ncclRecv");
  if (!opened.library.problem.empty()) return opened;
  f.GetVersion(&opened.version);
  if (opened.version < kLeastVersion)
    opened.library.problem = fmt::format("{} is version {}; {} or newer is needed", opened.library.path,
                                         nccl_version_text(opened.version), nccl_version_text(kLeastVersion));
  return opened;
}

}  // namespace

std::string NcclLibrary::version_text() const { return nccl_version_text(version); }

const NcclLibrary& nccl_library() {
  static const NcclLibrary opened = open_nccl();
  return opened;
}

nccl::Type nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return nccl::f32;
    case DType::f64: return nccl::f64;
    case DType::bf16: return nccl::bf16;
    case DType::f16: return nccl::f16;
    case DType::i32: return nccl::i32;
    case DType::i64: return nccl::i64;
    default: return nccl::u8;  // booleans are only moved
  }
}

LibraryReport find_nccl() {
  const NcclLibrary& opened = nccl_library();
  return {"NCCL", opened.library.path, opened.version == 0 ? "" : opened.version_text(),
          opened.library.problem};
}

}  // namespace het::HET_CUDA
