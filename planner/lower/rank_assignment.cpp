#include "planner/lower/rank_assignment.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "planner/lower/rank_assigner.h"
#include "planner/lower/stage_graphs.h"

namespace het {

std::vector<std::string> devices_of(const Plan& plan) {
  std::vector<std::string> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices)
        if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  return devices;
}

namespace {

// The first stage that a rank runs, and which of its devices the rank is.
std::pair<const Stage*, size_t> stage_of(const Plan& plan, int rank) {
  const std::vector<std::string> devices = devices_of(plan);
  if (rank < 0 || rank >= static_cast<int>(devices.size()))
    fail_usage("the plan has {} devices; there is no rank {}", devices.size(), rank);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (size_t t = 0; t < stage.devices.size(); ++t)
        if (stage.devices[t] == devices[static_cast<size_t>(rank)]) return {&stage, t};
  HET_REQUIRE(false, rank);
  return {};
}

}  // namespace

int tensor_rank_of(const Plan& plan, int rank) { return static_cast<int>(stage_of(plan, rank).second); }

StageCut cut_of(const Plan& plan, int rank) { return cut_of(plan, *stage_of(plan, rank).first); }

RankAssignment assignment_of(const Graph& graph, const Plan& plan, int rank, StageGraphs* graphs) {
  const StageCut cut = cut_of(plan, rank);
  const std::vector<StageValue>* values = graphs == nullptr ? nullptr : &graphs->of(cut, 0).values;
  return RankAssigner(graph, plan, cut, graphs, values).assign(rank);
}

}  // namespace het
