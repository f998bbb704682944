// Where a member can read parts of the state from, beside the memory of its device.
#pragma once

#include <cstdint>

namespace het {

// The nearest first: its device's memory, snapshots in the memory of its host, on its disk, and in a store that
// all members reach.
enum class Tier : uint8_t { live, memory, disk, store };

// A member and a tier that it reads. Holders in an inventory of several tiers are places in a list of these.
struct StateSource {
  int member = 0;  // its rank
  Tier tier = Tier::live;
  double bytes_per_second = 0;  // that it reads at most; 0: so fast that it does not count
  bool operator==(const StateSource&) const = default;
};

}  // namespace het
