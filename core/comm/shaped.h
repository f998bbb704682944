// Links slower than the machine's own: a finished operation is held back on its communication thread until
// its bytes would have arrived, while compute goes on. For trying plans for mixed clusters on one machine.
//
// An operation takes as long as its steps (steps.h: mesh_steps, wire_time) from when the last rank arrives.
// The one way out and the one way in of each rank are used by one operation at a time: those that overlap, in
// whatever group, follow each other, their latencies aside.
#pragma once

#include <memory>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/steps.h"

namespace het {

// One for each rank's fabric. `link`: from one rank of the fabric to another.
std::shared_ptr<Pacer> make_shaped_links(LinkOf link);
// The same of a list: by rank from and then rank to. Null for an empty one. Throws Error(usage) for one that
// is not of `ranks` x `ranks` links.
std::shared_ptr<Pacer> make_shaped_links(std::vector<Link> links, int ranks);

}  // namespace het
