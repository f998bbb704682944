// Ranks as processes over TCP. Every group has connections of its ranks for itself, so that groups
// neither wait for nor break each other; the lower rank connects to the one listening socket of the higher
// one's process. Both ends prove that they know the run's secret. Threads of a fabric: one for I/O, one that
// reports lost peers, and that of its Acceptor.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/key_value.h"
#include "core/comm/tcp_acceptor.h"

namespace het {

struct TcpAddress {
  std::string host;  // the machine, for messages
  Endpoint endpoint;
};

struct TcpOptions {
  int rank = 0, size = 1;
  // Where to listen and from where to connect: one of the two. Never every address of the machine. Neither is
  // needed with an acceptor.
  std::string interface;               // "eth0"
  std::string address;                 // "10.0.0.7", "127.0.0.1", "fd00::7"
  std::shared_ptr<Acceptor> acceptor;  // of the process; absent: one is made for this fabric alone
  std::string run;         // its name and secret, alike on all ranks; with an acceptor: those it has
  std::string secret;      // 16 bytes or more
  int64_t generation = 1;  // higher than every one before at the same acceptor
  // Where all ranks listen, by rank; empty: they leave their addresses in the store.
  std::vector<TcpAddress> addresses;
  std::shared_ptr<KeyValue> store;  // not needed with addresses and a board
  std::shared_ptr<KeyValue> board;  // the same, but giving up soon: asked when a peer is lost; absent: store
  std::string prefix;               // of its keys: the run and the generation. A second fabric needs another.
  std::string store_host;           // "rank 0 on host-a", when a rank serves store and board; empty: none
  std::string host;                 // this machine, for messages; empty: its host name
  bool one_host = false;            // of all ranks: messages name none
  Timeouts timeouts;
  std::shared_ptr<Pacer> pacer;
  // The connection of a group with that rank was closed by the other end, or could not be made, or the rank
  // was waited for in vain; `goodbye`: it closed it, and lives. On any thread; absent: no call.
  std::function<void(int rank, bool goodbye)> ended;
};

// Throws Error(usage) for an address or interface that this machine does not have, or a short secret.
std::shared_ptr<Fabric> make_tcp(TcpOptions options);

}  // namespace het
