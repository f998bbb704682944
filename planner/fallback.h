// Plans made ahead for what is likely to be lost: when it happens, the next plan is there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/policy.h"

namespace het::planner {

struct Loss {
  std::string name;  // a host, "a", or a device, "a:1"
  double preemptions_per_hour = 0;
  std::vector<std::string> devices = {};  // that the plan uses and that go with it
  bool operator==(const Loss&) const = default;
};

// What the plan may lose, one at a time, most likely first: hosts by their preemption rate, then hosts that
// state none and single devices of hosts with several, in the order of the plan. A cluster's only host is
// among them only when it states a rate: nothing is left without it.
std::vector<Loss> likely_losses(const Cluster& cluster, const Plan& plan);

struct Fallback {
  Loss loss;
  Request request;  // of what is left, with the current plan as the old one
  Planned planned;  // its problems say why there is no plan
};

// For the `count` likeliest losses, or as many as there are.
std::vector<Fallback> plan_fallbacks(const Request& request, const Plan& plan, std::string_view policy,
                                     int count);

// Each in a line or two: what is lost, how fast the rest is, what moves.
std::string to_text(const std::vector<Fallback>& fallbacks);

}  // namespace het::planner
