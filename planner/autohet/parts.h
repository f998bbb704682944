// Plans that leave devices out: a small model is done sooner by a few devices that are near each other.
#pragma once

#include "planner/request.h"

namespace het::planner {

// Searches parts of the cluster (the fastest types, each zone, each kind of node, one host of it) that could
// still beat the best plan so far, and offers what it finds to `judge`. Comes after a search of the whole.
void search_parts(Judge& judge);

}  // namespace het::planner
