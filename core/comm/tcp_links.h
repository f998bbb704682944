// The Links of one group over TCP connections: channels, waits, and the watch for peers that go. Internal to
// core/comm.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/status_board.h"
#include "core/comm/tcp_connection.h"
#include "core/comm/wire.h"

namespace het {

struct TcpPeer {
  PendingPeer rank;   // of the fabric, and its host
  Descriptor socket;  // after the hellos; none for this rank
};

class TcpWire;

class TcpLinks final : public Links {
 public:
  // `peers`: all of the group, by rank of the group; `self`: this one. `ended`: of the connection with this
  // rank of the fabric, on a thread of `io`.
  TcpLinks(std::shared_ptr<TcpIo> io, std::vector<TcpPeer> peers, int self,
           std::function<void(int rank, bool goodbye)> ended);
  ~TcpLinks() override;

  std::unique_ptr<Wire> wire(uint64_t channel) override;
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
    std::vector<TcpWire*> wires;  // guarded by mutex
  };
  friend class TcpWire;

  const std::shared_ptr<TcpIo> io_;  // goes last
  std::vector<PendingPeer> ranks_;
  std::vector<std::shared_ptr<TcpConnection>> connections_;  // by peer; null for this rank
  const std::shared_ptr<Watch> watch_;
};

}  // namespace het
