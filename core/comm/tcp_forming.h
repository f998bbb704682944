// Connects the members of one group: the lower rank connects to the higher one, hellos go both ways, and who
// is missing at the end is named. Internal to core/comm.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.h"
#include "core/comm/group.h"
#include "core/comm/tcp.h"
#include "core/comm/tcp_group_connections.h"

namespace het {

// Connections of a generation that came before their group was asked for, and the way to wake who forms one.
// Thread-safe.
class TcpArrivals {
 public:
  TcpArrivals(std::shared_ptr<Acceptor> acceptor, int rank, int size)
      : acceptor_(std::move(acceptor)), rank_(rank), size_(size) {}
  void deliver(Acceptor::Arrival arrival);
  // The connection of rank `from` for that group, already answered; none yet: empty.
  Descriptor claim(const std::string& group, int from);
  // Refuse what waits and what comes from now on, and wake all who form a group.
  void refuse_all();
  void watch(int eventfd);  // written when something came
  void unwatch(int eventfd);

 private:
  void wake() const;

  const std::shared_ptr<Acceptor> acceptor_;
  const int rank_, size_;
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Acceptor::Arrival> waiting_;
  std::vector<int> watchers_;
  bool refusing_ = false;
};

struct TcpForming {
  const TcpOptions& options;
  Acceptor& acceptor;
  TcpArrivals& arrivals;
  StatusBoard& board;
  const GroupList& groups;  // aborted: forming ends
  // The address of a rank, within `limit`; empty: it is not known yet. Without a port: the store has
  // something else in its place.
  std::function<std::optional<TcpAddress>(int rank, std::chrono::milliseconds limit)> look_up;

  // The connections to `ranks`; this one is at `place`. Throws Error(peer) naming who is missing.
  std::vector<TcpPeer> connect(const std::string& name, const std::vector<int>& ranks, int place) const;
};

}  // namespace het
