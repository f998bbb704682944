// How much a predicted step depends on link speeds: what it takes with other values that the links may
// plausibly have. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "planner/cluster/cluster.h"

namespace het::planner {

// Bandwidths and latencies of all links, as multiples of what the cluster says.
struct LinkCase {
  double bandwidth = 1, latency = 1;
  double seconds = 0;  // of a step
};
struct LinkSpread {
  double seconds = 0;           // as the cluster says
  double least = 0, most = 0;   // of all cases, that one included
  std::vector<LinkCase> cases;  // the others
  // With nearly the same bandwidth. Transfers that meet at an interface may then pass it in another order,
  // and a stage that waits for the one that comes second holds up all others: a step may jump, also up.
  std::vector<LinkCase> nearby;
};

// What links have beside what is said of them. Stated bandwidths are those of the wire: transports reach 70 %
// (sockets, with one thread for each connection) to nearly all of it, and measured ones were measured between
// idle machines; several ports, where one is counted, give more. Latencies of a message between processes
// are half to twice what is stated.
inline constexpr double kSlowLinks = 0.7, kFastLinks = 1.4, kShortLatency = 0.5, kLongLatency = 2;
// A step that scales with the links moves by as much as they do; one that moves by more than kJump does not.
inline constexpr double kNearby = 0.03, kJump = 0.035;

Cluster with_links(const Cluster& cluster, double bandwidth, double latency);
// `seconds`: of a step on this cluster. `seconds_of`: of one on another.
LinkSpread link_spread(const Cluster& cluster, double seconds,
                       const std::function<double(const Cluster&)>& seconds_of);

// {least, most, cases, nearby}: of seconds of a step; a case has {bandwidth, latency, step_seconds}.
Json json_of(const LinkSpread& spread);
// "links: 1.20 s to 1.31 s a step (-2 % to +7 %) ...", a line.
std::string to_text(const LinkSpread& spread);

}  // namespace het::planner
