// A plan that a test gives, as an answer of the planner.
#pragma once

#include "planner/policy.h"

namespace het::testing {

// A layout of a request's cluster with its simulation, as simulate gives it.
inline planner::Planned planned_of(const planner::Request& request, const planner::PlanLayout& layout) {
  planner::Evaluator evaluator(request);
  planner::Planned planned;
  planned.best = evaluator.simulate(layout, "given");
  planned.plan = to_plan(layout, request.cluster);
  planner::SimulateOptions details;
  details.details = true;
  details.runtime = request.runtime;
  planned.best.simulation = simulate(planned.plan, request.cluster, request.model, request.profile, details);
  planned.feasible = true;
  return planned;
}

}  // namespace het::testing
