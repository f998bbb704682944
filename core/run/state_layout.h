// Which rank of a plan has which parts of the state, and what follows from it for snapshots: who writes what,
// and how many hosts have it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/run/state_part.h"

namespace het {

// Plain data, the same on every rank.
struct StateLayout {
  std::vector<std::vector<StatePart>> parts;         // by rank: what its program needs
  std::map<std::string, Inventory::Tensor> tensors;  // all of the state
};

// Every rank of the group calls it with what its program needs (needs_of). `group` null: one rank.
StateLayout layout_of(Communicator* group, const std::vector<StatePart>& needs);

// A part that one rank writes for all that have it.
struct WrittenPart {
  StatePart part;
  int hosts = 1;  // that have it
  int zones = 1;  // that these are in
};
// By rank, what each writes so that every element is written once: of parts that several ranks have, the
// largest first, each by the rank that has the fewest bytes to write until then. `hosts`: of each rank.
std::vector<std::vector<WrittenPart>> assign_writers(const StateLayout& layout,
                                                     std::span<const std::string> hosts);
// The same, but every element once for each host that has it. `zones`: of each rank; empty: one for all.
std::vector<std::vector<WrittenPart>> assign_writers_of_hosts(const StateLayout& layout,
                                                              std::span<const std::string> hosts,
                                                              std::span<const std::string> zones = {});

}  // namespace het
