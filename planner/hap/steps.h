// The decisions of a search: groups of nodes that are decided together, with what each needs of values and
// leaves of them.
#pragma once

#include <bit>
#include <optional>

#include "planner/hap/forms.h"
#include "planner/hap/search.h"

namespace het::planner::hap {

// How a value is made, if that is decided, and which placements of it are needed so far.
struct Slot {
  static constexpr uint16_t kUndecided = 0xffff;
  uint16_t made = kUndecided;
  Needs needs{};

  PlacementId placement() const { return static_cast<PlacementId>(made); }
  uint64_t bits() const { return std::bit_cast<uint64_t>(*this); }
  bool operator==(const Slot& other) const { return bits() == other.bits(); }
};

// One node, or an output of the graph that is needed whole. Slots are those of its group.
struct Step {
  struct Read {
    int slot;
    int phase;
    bool changes;  // state that it updates, where it lies
  };
  struct Way {
    int number = 0;  // of the node
    Ticks cost = 0;
    std::vector<PlacementId> reads, writes;  // as the step's
    uint32_t once = 0;                       // reads of state that has to be replicated
    std::optional<PlacementId> wanted;       // how the parameter of Step::wanted has to lie
  };
  NodeId node = -1;  // -1: an output
  std::vector<Read> reads;
  std::vector<int> writes;  // slots
  // The slot of the parameter as which the result of a sum over layers has to lie, unless it is partial, and
  // what another axis of a mesh sums for the update, if it is sharded.
  int wanted = -1;
  std::vector<Way> ways;
};

// A node of the forward pass with those of the backward pass and the update that use the same values.
struct Group {
  struct Member {
    ValueId value;
    bool is_state;
    bool is_outer;  // other groups use it, too
    // Outer ones: whether later groups use it, and how these may need it, and other groups at all.
    bool closed = false;
    Needs left{}, others{};
  };
  std::vector<Member> members;  // by slot
  std::vector<Step> steps;
  std::vector<int> last;  // by slot: the last step that touches it
  int32_t layer = -1;
  int kind = 0;  // groups of one kind decide alike, in slots that correspond
};

struct Groups {
  std::vector<Group> list;
  std::vector<std::optional<ValueCosts>> costs;  // by class of values
  std::vector<int> class_of;                     // of values
  std::vector<bool> free;                        // values that cost nothing however they are needed
  bool is_free(ValueId id) const { return free[static_cast<size_t>(id)]; }
  const ValueCosts& of(ValueId id) const {
    return *costs[static_cast<size_t>(class_of[static_cast<size_t>(id)])];
  }
};

// How the steps of a group may need the value of a slot.
Needs may_need(const Group& group, int slot);

Groups make_groups(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options);

}  // namespace het::planner::hap
