// How long state takes to get to the hosts that need it, over the links of a cluster.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "planner/cluster/cluster.h"

namespace het::planner {

// Bytes by who needs them, and who can send them: {host, hosts that have them, ascending}. Hosts are numbered
// in the order of the cluster's nodes.
using Demands = std::map<std::pair<int, std::vector<int>>, double>;

// Seconds until every host has what it needs, each byte from the fastest sender; 0 without demands. A
// transfer takes the sender's port and the receiver's, or stays inside a host and takes its link; what is
// taken from where is a linear program. Of more than 8 senders 8 are used, and where there are very many
// demands they are served evenly by all of these.
double transfer_seconds(const Demands& demands, const Cluster& cluster);

}  // namespace het::planner
