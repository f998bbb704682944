#include "core/cluster/lease.h"

#include <algorithm>

#include "core/base/error.h"

namespace het {

using Clock = std::chrono::steady_clock;

HeldLease::HeldLease(std::shared_ptr<Store> store, std::chrono::milliseconds ttl,
                     std::shared_ptr<Store> lease_store)
    : store_(std::move(store)),
      lease_store_(lease_store != nullptr ? std::move(lease_store) : store_),
      lease_(store_->grant(ttl)),
      thread_([this] { keep(); }) {}

HeldLease::~HeldLease() { revoke(); }

void HeldLease::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HeldLease::abandon() {
  end();
  revoked_ = true;
}

void HeldLease::revoke() {
  end();
  if (std::exchange(revoked_, true) || silent_) return;
  try {
    store_->revoke(lease_.id);
  } catch (const Error&) {  // a store that is gone keeps no lease; one that is cut off lets it lapse
  }
}

void HeldLease::keep() {
  // Soon again after one that failed.
  const auto interval = std::max(lease_.every, std::chrono::milliseconds(1));
  const auto again = std::max(lease_.ttl / 20, std::chrono::milliseconds(1));
  auto kept = Clock::now();
  auto pause = interval;
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, pause, [&] { return ended_; })) {
    lock.unlock();
    const auto asked = Clock::now();
    try {
      lease_store_->keep_alive(lease_.id);
      kept = asked;
      pause = interval;
      silent_ = lost_ = false;
    } catch (const Error&) {
      silent_ = true;
      if (Clock::now() - kept > lease_.ttl) lost_ = true;
      pause = again;
    }
    lock.lock();
  }
}

}  // namespace het
