// Which members keep replicas of which members' snapshots: a pure function of the roster, so that all members
// find the same without a message, and a change of the roster moves few replicas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace het {

struct ReplicaMember {
  std::string id;          // of the roster, another one for each
  std::string host, zone;  // that it shares with others, and fails with
  int64_t free_bytes = 0;  // for replicas; 0: it keeps none
};

// For each member the indices of those that keep its replicas: `replicas` of them, the most important first;
// fewer where there are fewer members. Never itself. In this order of importance: another host than its own,
// another zone, another host than its other replicas, a member that has less than twice its share so far,
// another zone than its other replicas. Among those the choice is by weighted rendezvous hashing
// (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005): a member is chosen in
// proportion to its free bytes, and one that goes or comes changes only choices for it. Does not depend on
// the order of `members`.
std::vector<std::vector<int>> place_replicas(const std::vector<ReplicaMember>& members, int replicas);

}  // namespace het
