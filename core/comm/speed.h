// How fast messages travel between two ranks: what profiles of links hold.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace het {

struct MessageTime {
  int64_t bytes = 0;
  double seconds = 0;  // one way
};

// The two ranks as a group of their own whose operands lie in the memory of `device` (Groups::direct).
struct DirectPair {
  Communicator* pair = nullptr;  // null: messages lie in the host's memory
  Device* device = nullptr;
};

// Of messages of each size from rank `from` to rank `to` and back, half the median of `rounds` round trips.
// Both ranks call it alike and get the same answer; the others get nothing and need not call it.
std::vector<MessageTime> time_messages(Communicator& group, int from, int to,
                                       const std::vector<int64_t>& sizes, int rounds,
                                       const DirectPair& direct = {});

// The same between two threads of this process, over TCP on the loopback interface.
std::vector<MessageTime> time_messages_here(const std::vector<int64_t>& sizes, int rounds);

}  // namespace het
