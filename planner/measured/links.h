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

// From a machine of type `a` in zone `zone_a` to one of type `b`, for messages of `bytes`, while `groups` of
// `tensor` GPUs each send at once; the bandwidth is of all of them together.
PublishedLink published_link(const std::string& a, const std::string& zone_a, const std::string& b,
                             const std::string& zone_b, int groups, int tensor, double bytes);

// Between two GPUs of one machine: as published, else as the data sheet has it, else PCIe 3 x16.
Link inside_link_of(const std::string& type);

}  // namespace het::planner
