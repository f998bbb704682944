// The Communicator between GPUs by NCCL. Beside it goes the host's communicator of the same group, by which
// it is connected and which ranks are lost. Connecting is in nccl_connect.cpp. Internal to nccl*.cpp.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/nccl_context.h"

namespace het::HET_CUDA {

inline constexpr int64_t kScratchBytes = 256;

class NcclGroup final : public Communicator, public std::enable_shared_from_this<NcclGroup> {
 public:
  NcclGroup(std::shared_ptr<NcclContext> context, std::shared_ptr<Communicator> host);
  ~NcclGroup() override;

  const std::string& name() const override { return host_->name(); }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::vector<int>& ranks() const override { return host_->ranks(); }
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override;
  void connect() override;
  void abort(std::string_view why) override;

  void start(NcclLane& lane, NcclOperation& operation, const std::byte* in, std::byte* out);
  void wait(NcclOperation& operation);
  bool done(NcclOperation& operation);
  CollectiveTimes times(NcclOperation& operation);
  void drop(NcclOperation& operation);

  std::list<NcclLane>& lanes() { return lanes_; }
  const std::shared_ptr<Communicator>& host() const { return host_; }
  FailureDetector& failure_detector() const { return detector_; }
  std::vector<int> peers_of(const NcclLane& lane) const;
  // What the wait for an operation throws that is lost in a failure. With the context's mutex held.
  std::string reason_for(const TrackedOperation& operation) const;

 private:
  using Lock = OperationTracker::Lock;
  struct Entry;

  std::string peer_name(int peer) const { return detector_.peer_name(peer); }
  std::string self() const { return peer_name(rank()); }
  std::vector<int> all_peers() const;
  NcclLane& lane_for(const CollectiveRequest& request);
  std::vector<Entry> exchange(const std::vector<Entry>& own);
  std::vector<Entry> agree(const std::vector<NcclLane*>& fresh);
  void begin(NcclLane& lane, const Entry& entry);
  void warm(NcclLane& lane);
  template <typename Ready>
  void await_peers(const std::vector<NcclLane*>& lanes, const Ready& ready);
  nccl::Result enqueue(NcclLane& lane, const CollectiveRequest& request, const std::byte* in, std::byte* out);
  nccl::Result blocks(NcclLane& lane, const CollectiveRequest& request, const std::byte* in, std::byte* out);
  nccl::Result all_to_all(NcclLane& lane, const CollectiveRequest& request, const std::byte* in,
                          std::byte* out);
  int64_t leaving(const CollectiveRequest& request) const;
  // These two with the context's mutex held.
  [[noreturn]] void throw_cause() const;
  bool in_progress(NcclLane& lane, nccl::Result result);
  void fail_named(const std::vector<int>& peers, const std::string& what, const Error& error);

  std::shared_ptr<NcclContext> context_;
  std::shared_ptr<Communicator> host_;
  FailureDetector& detector_;
  std::list<NcclLane> lanes_;
  std::byte* scratch_ = nullptr;  // of the device: for barriers and first messages
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace het::HET_CUDA
