// Links slower than the machine's own: a finished operation is held back on its communication thread until
// its bytes would have arrived, while compute goes on. For trying plans for mixed clusters on one machine.
//
// The model, with n ranks, B the bytes of the whole tensor, and the slowest bandwidth and longest latency l
// of the links between neighbours of the ring that the group forms in its order:
//   all_reduce                        2 (n-1)/n B / bandwidth + 2 (n-1) l
//   all_gather, grouped_broadcast     max over r of (B - block of r) / bandwidth to r + (n-1) l
//   reduce_scatter                    the same
//   broadcast                         B / bandwidth + (n-1) l   (in segments, along the ring)
//   all_to_all                        what this rank sends to, or gets from, each other in turn, whichever is
//   longer send, receive                     B / bandwidth + l of that link barrier 2 (n-1) l
// Time runs from when the last rank arrives. Each rank has one way out and one way in, each used by one
// operation at a time: those that overlap, in whatever group, follow each other, their latencies aside.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

struct Link {
  double bytes_per_second = 0;  // more than 0
  double latency_seconds = 0;
};
// The link from one rank of the fabric to another.
using LinkOf = std::function<Link(int from, int to)>;

// Seconds on the wire of an operation that nothing delays, and the latency that comes after.
struct WireTime {
  double busy = 0, latency = 0;
};
WireTime wire_time(const CollectiveRequest& request, const std::vector<int>& ranks, int rank,
                   const LinkOf& link);

// One for each rank's fabric.
std::shared_ptr<Pacer> make_shaped_links(LinkOf link);

}  // namespace het
