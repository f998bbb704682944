// Solutions of the stages of a pipeline, by the groups that it is made of: many groupings share compositions.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "planner/autohet/drafts.h"

namespace het::planner {

// Solutions for compositions at one degree, micro-batch size and set of rules, each found once.
class CompositionCache {
 public:
  // `small`: few enough groups to try every order, and to let the simulator choose among them.
  CompositionCache(const Request& request, const CostTable& costs, StageRules rules, bool small)
      : request_(request), solver_(costs, rules), alone_(costs, request.cluster), small_(small) {}

  // A solution for the first order worth trying, or for another where that does not fit in memory; cheap.
  const StageSolution& estimate(const Composition& composition, int microbatches);
  // Solutions for the best orders, the best first. Beyond memory the bound does not depend on the order, so
  // where there are few groups the simulator chooses among the best by the bound.
  const std::vector<PipelineDraft>& solve(const Composition& composition, int microbatches, size_t limit);
  StageSolver& solver() { return solver_; }
  const Request& request() const { return request_; }

 private:
  double seconds_alone(const PipelineDraft& draft);
  // Moves single layers between stages while the pipeline alone gets faster; returns its seconds.
  double climb(PipelineDraft& draft, double seconds);

  const Request& request_;
  StageSolver solver_;
  Simulator alone_;
  bool small_;
  std::map<std::pair<Composition, int>, StageSolution> estimates_;
  std::map<std::pair<Composition, int>, std::vector<PipelineDraft>> solutions_;
};

}  // namespace het::planner
