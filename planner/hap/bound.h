// A lower bound of what any program costs with any shares.
#pragma once

#include "planner/hap/search.h"

namespace het::planner::hap {

struct BoundOptions {
  double gap = 0.005;  // of the known cost: no closer bound is sought
  int most_searches = 32;
};

struct Bound {
  Ticks cost = 0;    // no program costs less
  ShareRange where;  // where the bound is lowest
  int searches = 0;
};

// `known`: the cost of some program. Shares may be any, also unequal ones on equal devices.
//
// Proof. A search without shares gives each node and each conversion at most what it costs with any shares in
// ShardingCosts::range(). Programs' costs are sums and minima of these, so that the cheapest program costs at
// most what any program costs with any shares in the range. The ranges that are looked at cover all shares,
// and the least of their bounds is a bound for all. Where that is lowest, ranges are cut in two.
//
// A range says what devices of one kind have together, and what the largest port of a kind has. Three facts
// make it enough, though shares have as many dimensions as there are devices: of the devices of a kind, which
// have s together, one has at least s divided by their number and one at most that; a device with the share b
// has floor(units b) units of an axis or one more; and all have all units together.
Bound bound_of_all_shares(ShardingCosts& costs, Ticks known, const BoundOptions& options = {});

}  // namespace het::planner::hap
