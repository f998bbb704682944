// Policies by name: the planner's front door.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/request.h"

namespace het::planner {

// With an old plan: what moves, and what the plan moves that is best by the objective alone.
struct Replanned {
  Move move;
  double best_seconds = 0;  // of its step
  double best_bytes = 0;
  double near = 0;  // the share that plans may be worse by
};

// A plan of a part of the cluster that is nearly as fast as the answer and much cheaper.
struct CheaperPlan {
  Plan plan;
  int devices = 0, answer_devices = 0;  // that it and the answer use
  double seconds = 0;                   // of its step
  double speed = 0;                     // a share of the answer's
  double price = 0;                     // a share of the answer's; where nodes state no price, of its devices
  bool by_price = false;
};
// What counts as nearly as fast, and as much cheaper.
inline constexpr double kNearlyAsFast = 0.95, kMuchCheaper = 0.80;
struct Planned {
  bool feasible = false;
  Plan plan;
  Candidate best;                     // the same plan as a layout, with its simulation (details filled)
  double lower_bound_seconds = 0;     // proven: no plan takes less
  int64_t simulations = 0;            // plans that were simulated
  std::vector<std::string> problems;  // why there is no plan, and what would help
  std::optional<Replanned> moved;
  std::optional<CheaperPlan> cheaper;  // of Request::cheaper; nothing: no part that was tried is one
};

// "cheaper: 64 of the 192 devices reach 97.1 % of the speed at 22 % of the price, 9.34 s a step".
std::string to_text(const CheaperPlan& cheaper);

// "autohet", "megatron", "whale", "exhaustive", "auto"; and "search": auto's own part, with only the
// extensions that the request switches on and without the baselines' plans as candidates.
const std::vector<std::string>& policy_names();

// Whether a policy reads Request::extensions.
bool takes_extensions(std::string_view policy);

// Throws Error(usage) with every problem of the request, or for an unknown policy. A request that no plan
// fits is an answer, not an error: Planned::problems says what lacks where.
Planned plan_with(const Request& request, std::string_view policy);

}  // namespace het::planner
