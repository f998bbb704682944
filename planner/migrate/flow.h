// A min-max flow: demands that are each served in one or several ways, ways that take time of limits (ports,
// links, disks), and the busiest limit's time, which is to be least. Plain data; a function of its arguments
// alone: no clock, no randomness.
#pragma once

#include <cstddef>
#include <vector>

namespace het::planner {

struct FlowUse {
  int limit = 0;
  double seconds = 0;  // of it, if all of the demand is served this way; above 0
};

struct FlowChoice {
  std::vector<FlowUse> uses;  // each limit once; none: it takes no time
  double cost = 0;            // at equal time less is better; of all of the demand
};

using FlowDemand = std::vector<FlowChoice>;  // at least one

struct Flow {
  std::vector<std::vector<double>> shares;  // [demand][choice], at least 0, of a demand 1 in all
  double seconds = 0;                       // of the busiest limit
  double bound_seconds = 0;                 // no flow takes less
};

inline constexpr size_t kExactChoices = 3000;  // of all demands: up to here the least time is exact

// Up to `exact_choices` by two linear programs: the least time, then the least cost in that time. Above, in
// rounds: each gives every demand a part to the way whose limits are least busy, weighed exponentially; the
// weights prove a bound (Garg and Koenemann, "Faster and simpler algorithms for multicommodity flow", 1998).
// Tests find flows 5 % above the least time and bounds 10 % below it for tens of choices, 1 % for thousands.
// The cost is then lowered as far as that goes one demand after the other.
Flow least_time_flow(const std::vector<FlowDemand>& demands, size_t exact_choices = kExactChoices);

}  // namespace het::planner
