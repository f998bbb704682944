// Ranks as threads of one process: for tests, and for plans that are tried without a network. Same
// collectives, same bits, same errors as over TCP; a message is a copy by whichever end comes second.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

struct LoopbackOptions {
  Timeouts timeouts;
  std::function<std::shared_ptr<Pacer>()> pacer;  // makes one for each rank; absent: none
};

// The fabrics of ranks 0 to size - 1, one for each thread. Destroying one (its communicators too) is how its
// rank dies.
std::vector<std::shared_ptr<Fabric>> make_loopback(int size, const LoopbackOptions& options = {});

}  // namespace het
