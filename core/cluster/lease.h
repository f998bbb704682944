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

// Kept alive by a separate thread until it is destroyed, which revokes it. A store that cannot be reached
// for a while is tried again; while the lease could not be kept alive for as long as it lives it counts as
// lost.
class HeldLease {
 public:
  // `lease_store`: the same store with a shorter timeout, to keep the lease alive by; absent: the store.
  HeldLease(std::shared_ptr<Store> store, std::chrono::milliseconds ttl,
            std::shared_ptr<Store> lease_store = nullptr);
  ~HeldLease();
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  int64_t id() const { return lease_.id; }
  std::chrono::milliseconds ttl() const { return lease_.ttl; }  // as granted
  bool lost() const { return lost_; }
  void revoke();   // now, unless the store is silent; no error of the store comes out
  void abandon();  // keep it no longer, so that its keys go in a while

 private:
  void keep();
  void end();

  std::shared_ptr<Store> store_, lease_store_;
  StoreLease lease_;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false, revoked_ = false;
  bool silent_ = false;  // the store, when it was last asked; of the thread, and of revoke() after it
  std::thread thread_;
};

}  // namespace het
