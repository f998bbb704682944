// One clock for all ranks, for traces: hosts start theirs at different times.
#pragma once

#include <functional>

#include "core/comm/communicator.h"

namespace het {

// Seconds to add to this rank's clock to have that of rank 0 of the group. Each rank in turn asks rank 0 for
// its time over and over; the quickest answer counts, half of whose way is taken to be the way back
// (Cristian, "Probabilistic clock synchronization", 1989): the error is at most half of that round trip. All
// ranks call it at the same place. `now`: seconds, of a clock that never goes back.
double clock_offset(Communicator& group, const std::function<double()>& now);

}  // namespace het
