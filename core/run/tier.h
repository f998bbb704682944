// Where a member can read parts of the state from, beside the memory of its device: snapshots, near and far.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/history.h"
#include "core/run/state_part.h"
#include "core/tensor/tensor.h"

namespace het {

// The nearest first: its device's memory, snapshots in the memory of its host, on its disk, and in a store
// that all members reach.
enum class Tier : uint8_t { live, memory, disk, store };
inline constexpr int kTiers = 4;
std::string_view name_of(Tier tier);  // "memory"

// A member and a tier that it reads. Holders in an inventory of several tiers are places in a list of these.
struct StateSource {
  int member = 0;  // its rank
  Tier tier = Tier::live;
  double bytes_per_second = 0;  // that it reads at most; 0: so fast that it does not count
  bool operator==(const StateSource&) const = default;
};

// What a tier has of the state after one step.
struct TierState {
  Tier tier = Tier::memory;
  Version version;
  History history;               // that led to it
  std::vector<StatePart> parts;  // some of the state, or all
  std::string about;             // JSON: what goes with the state beside its tensors
  double bytes_per_second = 0;   // as StateSource has it
  int64_t modified = 0;          // when the last of its files was written, in seconds since 1970
};

// The tiers of one member but its device. Used from one thread; read() of the store from a second one.
class TierReader {
 public:
  virtual ~TierReader() = default;

  // What they have now; `far`: also the store, which is asked when no member has live state, when nothing
  // nearer has all of it, and when going on from what is near would repeat much.
  virtual std::vector<TierState> states(bool far) = 0;
  // What is read from here on is of states with this history, or one that led to it.
  virtual void follow(const History& history) = 0;
  // Lets go of what states() has opened.
  virtual void release() {}
  // The packed elements of a slice that lies within one part of states(), checked. Throws Error(usage) for
  // damage, Error(environment) for a store that does not answer: what is damaged counts no longer.
  virtual Tensor read(Tier tier, Version version, const std::string& tensor, const TensorSlice& slice) = 0;
};

}  // namespace het
