// Ends the traffic of a rank when a member of its run is lost, though this rank does not wait for that
// member: it may be the one that another waits for, or forms a group with. Of runs whose ranks are fixed.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "core/cluster/membership.h"
#include "core/cluster/store.h"
#include "core/comm/clock.h"
#include "core/comm/communicator.h"

namespace het {

// Watches in a thread of its own, until it is destroyed.
class MemberWatch {
 public:
  // `store_host`: "rank 0 on host-a", when another rank serves the store; empty: none does.
  MemberWatch(Membership& membership, std::shared_ptr<Store> store, Fabric& fabric, std::string store_host);
  ~MemberWatch();
  MemberWatch(const MemberWatch&) = delete;
  MemberWatch& operator=(const MemberWatch&) = delete;

  // All ranks are connected. From here on who dies closes a connection, and who is merely stopped, so that
  // its lease lapses, is waited for as long as any that is silent.
  void connected(Communicator& world) { world_ = &world; }

 private:
  void watch();
  void hear(const MemberChange& change);
  void look();
  void abort(const std::string& why);
  std::string closed(int rank) const;
  bool store_answers();

  Membership& membership_;
  std::shared_ptr<Store> store_;
  Fabric& fabric_;
  const std::string store_host_;
  std::atomic<Communicator*> world_ = nullptr;
  std::atomic<bool> ending_ = false;
  std::set<int> left_;                           // of the thread
  std::map<int, CommClock::time_point> closed_;  // of the thread
  std::thread thread_;
};

}  // namespace het
