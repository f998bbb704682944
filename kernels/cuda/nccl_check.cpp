// Our declarations of NCCL against the toolkit's, where it has them.
#if __has_include(<nccl.h>)
#include <type_traits>

#include <nccl.h>

#include "kernels/cuda/nccl_api.h"

namespace {

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(nccl::success) == ncclSuccess);
static_assert(static_cast<int>(nccl::unhandled_cuda_error) == ncclUnhandledCudaError);
static_assert(static_cast<int>(nccl::system_error) == ncclSystemError);
static_assert(static_cast<int>(nccl::internal_error) == ncclInternalError);
static_assert(static_cast<int>(nccl::invalid_argument) == ncclInvalidArgument);
static_assert(static_cast<int>(nccl::invalid_usage) == ncclInvalidUsage);
static_assert(static_cast<int>(nccl::remote_error) == ncclRemoteError);
static_assert(static_cast<int>(nccl::in_progress) == ncclInProgress);
static_assert(static_cast<int>(nccl::sum) == ncclSum && static_cast<int>(nccl::max) == ncclMax);
static_assert(static_cast<int>(nccl::u8) == ncclUint8 && static_cast<int>(nccl::i32) == ncclInt32);
static_assert(static_cast<int>(nccl::i64) == ncclInt64 && static_cast<int>(nccl::f16) == ncclFloat16);
static_assert(static_cast<int>(nccl::f32) == ncclFloat32 && static_cast<int>(nccl::f64) == ncclFloat64);
static_assert(static_cast<int>(nccl::bf16) == ncclBfloat16);
static_assert(sizeof(nccl::Op) == sizeof(ncclRedOp_t) && sizeof(nccl::Type) == sizeof(ncclDataType_t));

constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t) && nccl::Config{}.magic == kTheirs.magic);
static_assert(nccl::kConfigVersion == NCCL_VERSION(2, 18, 0) && nccl::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(nccl::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));

// Alike but for the names of types: as many parameters, each of the same size, in the same order.
template <typename Ours, typename Theirs>
constexpr bool kAlike = false;
template <typename R, typename... A, typename S, typename... B>
constexpr bool kAlike<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) == sizeof...(B))
    return sizeof(R) == sizeof(S) &&
           ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  else
    return false;
}();
#define HET_ALIKE(name) static_assert(kAlike<decltype(nccl::Functions::name), decltype(&::nccl##name)>)
HET_ALIKE(GetVersion);
HET_ALIKE(GetUniqueId);
HET_ALIKE(CommInitRankConfig);
HET_ALIKE(CommFinalize);
HET_ALIKE(CommDestroy);
HET_ALIKE(CommAbort);
HET_ALIKE(CommGetAsyncError);
HET_ALIKE(GetErrorString);
HET_ALIKE(GetLastError);
HET_ALIKE(GroupStart);
HET_ALIKE(GroupEnd);
HET_ALIKE(AllReduce);
HET_ALIKE(Reduce);
HET_ALIKE(Broadcast);
HET_ALIKE(AllGather);
HET_ALIKE(ReduceScatter);
HET_ALIKE(Send);
HET_ALIKE(Recv);

}  // namespace
#endif
