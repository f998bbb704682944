// Ranks as processes over TCP, by Gloo's transport. Every group has its own connections between all its
// ranks, so that groups neither wait for nor break each other. One I/O thread for each fabric. SIGPIPE is
// ignored in the process from the first fabric on, unless it has a handler.
#pragma once

#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/comm/key_value.h"

namespace het {

struct GlooOptions {
  int rank = 0, size = 1;
  // Where to listen and from where to connect: one of the two. Never every address of the machine.
  std::string interface;  // "eth0"
  std::string address;    // "10.0.0.7", "127.0.0.1", "fd00::7"
  std::shared_ptr<KeyValue> store;
  std::shared_ptr<KeyValue> board;  // the same, but giving up soon: asked when a peer is lost; absent: store
  std::string prefix;               // of its keys: the run and the generation. A second fabric needs another.
  std::string keeper;               // "rank 0 (host-a)", when a rank serves store and board; empty: none
  std::string host;                 // this machine, for messages; empty: its own name
  Patience patience;
  std::shared_ptr<Pacer> pacer;
};

// Throws Error(usage) for an address or interface that this machine does not have.
std::shared_ptr<Fabric> make_gloo(GlooOptions options);

}  // namespace het
