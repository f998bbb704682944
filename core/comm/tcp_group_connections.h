// The Connections of one group over TCP connections: channels, waits, and the watch for peers that go.
// Internal to core/comm.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/channel.h"
#include "core/comm/status_board.h"
#include "core/comm/tcp_connection.h"

namespace het {

struct TcpPeer {
  PendingPeer rank;   // of the fabric, and its host
  Descriptor socket;  // after the hellos; none for this rank
};

class TcpChannel;

class TcpGroupConnections final : public Connections {
 public:
  // `peers`: all of the group, by rank of the group; `self`: this one. `ended`: of the connection with this
  // rank of the fabric, on a thread of `io`.
  TcpGroupConnections(std::shared_ptr<TcpIo> io, std::vector<TcpPeer> peers, int self,
                      std::function<void(int rank, bool goodbye)> ended);
  ~TcpGroupConnections() override;

  std::unique_ptr<Channel> open_channel(uint64_t number) override;
  void cut() override;
  void watch(std::function<void(int peer)> gone) override;
  void unwatch() override;
  std::string host(int peer) const override;
  bool gone(int peer) const override;

 private:
  // Apart from the links, for a call that is on its way when they go.
  struct Watch {
    std::recursive_mutex calling;  // held in a call: unwatch() may come from within it
    std::function<void(int)> gone;
    std::mutex mutex;
    std::vector<TcpChannel*> channels;  // guarded by mutex
  };
  friend class TcpChannel;

  const std::shared_ptr<TcpIo> io_;  // goes last
  std::vector<PendingPeer> ranks_;
  std::vector<std::shared_ptr<TcpConnection>> connections_;  // by peer; null for this rank
  const std::shared_ptr<Watch> watch_;
};

}  // namespace het
