// What a step goes to on one stage, or one rank, in seconds that add up to the step; and what of it binds the
// step, in words. Plain data.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace het::planner {

struct StepParts {
  double compute = 0;    // forward and backward
  double again = 0;      // forward run again, where the stage recomputes; in programs it is compute
  double tensor = 0;     // collectives of its tensor-parallel group, or of a sharding program's activations
  double transfers = 0;  // how much later its pipeline ends than if nothing passed between stages
  double bubble = 0;     // it waits for other stages of its pipeline, the filling and the draining included
  double gradients = 0;  // it exchanges gradients, beside no compute
  double norms = 0;      // all ranks exchange single numbers: gradient norms, losses, that a step is whole
  double update = 0;     // optimizer
  double gather = 0;     // it gathers the weights of a sharded optimizer
  double waiting = 0;    // it waits for other pipelines, or for ranks that come later to a collective
  double total() const;
};

struct StepPart {
  const char* name;   // "bubble"
  const char* words;  // "bubble", "transfers between stages"
  double StepParts::*seconds;
};
// All parts, in the order of StepParts.
const std::array<StepPart, 10>& step_parts();

// The parts that bind the step, of its slowest stage, the largest first: computing where it fills half of the
// step or more, and all others with a share of kBinds or more.
inline constexpr double kComputeBinds = 0.5, kBinds = 0.15;
std::vector<std::string_view> what_binds(const StepParts& slowest);

// "bubble (30 %)": a part by its name, and its share.
std::string to_text(const StepParts& parts, std::string_view name);

// "compute 61.2 %, bubble 30.1 %, gradients 8.7 %": all parts of a tenth of a percent or more.
std::string to_text(const StepParts& parts);

}  // namespace het::planner
