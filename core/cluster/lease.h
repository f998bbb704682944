// A lease that is kept alive: a resource around Store::grant, keep_alive and revoke.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/cluster/store.h"

namespace het {

// Kept alive by a thread of its own until it is destroyed, which revokes it. A store that cannot be reached
// for a while is tried again; the lease is lost when it could not be kept alive for as long as it lives.
class HeldLease {
 public:
  HeldLease(std::shared_ptr<Store> store, std::chrono::milliseconds ttl);
  ~HeldLease();
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  int64_t id() const { return lease_.id; }
  std::chrono::milliseconds ttl() const { return lease_.ttl; }  // as granted
  bool lost() const { return lost_; }
  void revoke();  // now; no error of the store comes out

 private:
  void keep();

  std::shared_ptr<Store> store_;
  StoreLease lease_;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false, revoked_ = false;
  std::thread thread_;
};

}  // namespace het
