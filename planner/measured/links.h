// How fast GPUs reach each other where a plan's file says only types and zones: the link fits that
// eth-easl/sailor publishes beside its plans (MIT), as bandwidth over message size.
#pragma once

#include <string>

#include "planner/cluster/cluster.h"

namespace het::planner {

struct PublishedLink {
  Link link;
  bool assumed = false;  // nothing is published for the pair; kAssumedBandwidth
};
inline constexpr double kAssumedBandwidth = 12.5e9;  // 100 Gbit/s

// From a machine of type `a` in zone `zone_a` to one of type `b`, for messages of `bytes`, while `pairs` of
// GPUs send at once; the bandwidth is of all of them together.
PublishedLink published_link(const std::string& a, const std::string& zone_a, const std::string& b,
                             const std::string& zone_b, int pairs, double bytes);

// Network interfaces of a machine, as bandwidths show them: as many as there are pairs of GPUs that together
// have that many times the bandwidth of one. Where bandwidth grows less, pairs are connections over one
// interface.
int published_interfaces(const std::string& type);

// Between two GPUs of one machine: as published, else as the data sheet has it, else PCIe 3 x16.
Link inside_link_of(const std::string& type);

}  // namespace het::planner
