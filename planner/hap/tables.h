// What can be decided in a group of nodes by itself, as far as other groups see it.
#pragma once

#include <optional>
#include <vector>

#include "planner/hap/frontier.h"

namespace het::planner::hap {

// All that can be decided in a group, or in several that were joined, as far as other groups see it.
struct Entry {
  Ticks cost;
  std::vector<Slot> outer;
  std::vector<int32_t> ways;  // by step of the group; of two that were joined the entries of both
};
struct Table {
  std::vector<Entry> entries;  // the cheapest first
  bool is_complete = true;     // nothing was dropped for want of room
};

// Values that other groups make are undecided. Adds the states that it looks at to `states`; where these
// become more than `most_states`, the table has no entry.
Table table_of(const Groups& groups, const Group& group, const SearchOptions& options,
               Replacements& replacements, int64_t most_states, int64_t& states);

// How state that nothing updates is made at least cost; nullopt: it may not be made so that all needs are
// met.
std::optional<PlacementId> cheapest_made(const ValueCosts& costs, const SearchOptions& options,
                                         const Needs& needs, ValueId id);
Ticks cheapest(const ValueCosts& costs, const SearchOptions& options, const Needs& needs, ValueId id);

}  // namespace het::planner::hap
