#include "kernels/cuda/nccl.h"

#include "core/base/error.h"
#include "kernels/cuda/nccl_group.h"
#include "kernels/cuda/nccl_library.h"

namespace het::HET_CUDA {

using Lock = OperationTracker::Lock;

DeviceTransport Interconnect::way() {
  DeviceTransport way;
  if (!nccl_library().library.problem.empty()) {
    way.problem = nccl_library().library.problem;
    return way;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context_.ordinal), "say what it is");
  way.library = "NCCL " + nccl_library().version_text();
  for (const char byte : properties.uuid.bytes)
    way.device += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return way;
}

std::shared_ptr<Communicator> Interconnect::connect(std::shared_ptr<Communicator> host) {
  HET_REQUIRE(host->failure_detector() != nullptr, host->name());
  bool is_dead = true;
  if (nccl_ != nullptr) {
    Lock lock(nccl_->mutex);
    nccl_->await_failure(lock);
    is_dead = nccl_->dead();
  }
  if (is_dead) nccl_ = std::make_shared<NcclContext>(context_);
  return std::make_shared<NcclGroup>(nccl_, std::move(host));
}

void Interconnect::synchronize() {
  if (nccl_ == nullptr) return check(cudaStreamSynchronize(context_.stream), "finish its work");
  // Not cudaStreamSynchronize: its wait for a peer that is lost could not be ended.
  const CommClock::time_point since = CommClock::now();
  CommClock::time_point dead_since{};
  cudaError_t result = cudaSuccess;
  while ((result = cudaStreamQuery(context_.stream)) == cudaErrorNotReady) {
    Lock lock(nccl_->mutex);
    if (nccl_->dead()) {
      if (dead_since == CommClock::time_point{}) dead_since = CommClock::now();
      if (CommClock::now() - dead_since > kDrain)
        fail_environment("the GPU does not end what was aborted: {}", nccl_->cause());
    }
    pause(lock, since);
  }
  Lock lock(nccl_->mutex);
  nccl_->await_failure(lock);
  nccl_->reap();
  nccl_->throw_untold();
  lock.unlock();
  check(result, "finish its work");
}

void Interconnect::close() {
  if (nccl_ == nullptr) return;
  bool used = false;
  {
    const Lock lock(nccl_->mutex);
    used = !nccl_->groups.empty();
  }
  if (used) nccl_->fail("its device is no more");
}

}  // namespace het::HET_CUDA
