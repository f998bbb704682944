// Links slower than the machine's own: a finished operation is held back on its communication thread until
// its bytes would have arrived, while compute goes on. For trying plans for mixed clusters on one machine.
//
// An operation takes as long as its steps (steps.h: mesh_steps, wire_time) from when the last rank arrives.
// The one way out and the one way in of each rank are used by one operation at a time: those that overlap, in
// whatever group, follow each other, their latencies aside.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/steps.h"

namespace het {

// When a rank's one way out and one way in are next free. Time: of any clock, as numbers or time points.
template <class Time>
struct RankWays {
  Time out_free{}, in_free{};

  // An operation that came at `arrived` and keeps the ways that its kind uses for `busy`; returns when it has
  // used them.
  template <class Duration>
  Time use(CollectiveKind kind, Time arrived, Duration busy) {
    const bool out = kind != CollectiveKind::receive, in = kind != CollectiveKind::send;
    Time end = arrived;
    if (out) end = std::max(end, out_free);
    if (in) end = std::max(end, in_free);
    end += busy;
    if (out) out_free = end;
    if (in) in_free = end;
    return end;
  }
};

// One for each rank's fabric. `link`: from one rank of the fabric to another.
std::shared_ptr<Pacer> make_shaped_links(LinkOf link);
// The same of a list: by rank from and then rank to. Null for an empty one. Throws Error(usage) for one that
// is not of `ranks` x `ranks` links.
std::shared_ptr<Pacer> make_shaped_links(std::vector<Link> links, int ranks);

}  // namespace het
