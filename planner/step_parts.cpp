#include "planner/step_parts.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/base/error.h"

namespace het::planner {
namespace {

// The same cluster with links that take no time.
Cluster without_links(const Cluster& cluster) {
  constexpr Link kFree{0, 1e30};
  Cluster free = cluster;
  for (Machine& node : free.nodes) node.inside = kFree;
  for (ZoneLink& zone : free.zone_links) zone.link = kFree;
  free.between = kFree;
  return free;
}

double seconds_of(const std::vector<double>& prefix, const StageLayout& stage) {
  return prefix[static_cast<size_t>(stage.first + stage.layers)] - prefix[static_cast<size_t>(stage.first)];
}

// What a stage computes of one micro-batch; `again`: of it the forward that is run again.
struct Computes {
  double all = 0, again = 0;
};

// Costs of stages, with links or without.
class StageCosts {
 public:
  StageCosts(const Request& request, const PlanLayout& layout, const Cluster& cluster)
      : layout_(layout), tables_(cluster, request.model, request.profile, layout.microbatch) {
    for (const TensorGroup& group : layout.groups)
      groups_.push_back(make_group_costs(group, tables_.provider()));
  }

  Computes of(const std::vector<StageLayout>& chunks) {
    Computes computes;
    for (const StageLayout& chunk : chunks) {
      const NodeCosts& costs = chunk.group < 0
                                   ? tables_.with_links(layout_.tensor).nodes[static_cast<size_t>(chunk.node)]
                                   : groups_[static_cast<size_t>(chunk.group)].pace;
      const double again = chunk.recompute ? seconds_of(costs.recompute, chunk) : 0;
      computes.again += again;
      computes.all += again + seconds_of(costs.forward, chunk) + seconds_of(costs.input, chunk) +
                      seconds_of(costs.weight, chunk);
    }
    return computes;
  }

 private:
  const PlanLayout& layout_;
  CostTables tables_;
  std::vector<GroupCosts> groups_;
};

}  // namespace

std::vector<StepParts> parts_of_stages(const Request& request, const Planned& planned) {
  const PlanLayout& layout = planned.best.layout;
  const Simulation& simulation = planned.best.simulation;
  HET_REQUIRE(!simulation.stages.empty());
  SimulateOptions options;
  options.details = true;
  options.transfers = false;
  options.runtime = request.runtime;
  CostTables tables(request.cluster, request.model, request.profile, layout.microbatch);
  Simulator simulator(tables.with_links(layout.tensor), request.cluster, tables.provider());
  const Simulation free = simulator.run(layout, options);
  const Cluster cluster = without_links(request.cluster);
  StageCosts with_links(request, layout, request.cluster), computing(request, layout, cluster);
  std::vector<StepParts> all;
  for (size_t i = 0; i < simulation.stages.size(); ++i) {
    const StageUse& use = simulation.stages[i];
    const std::vector<StageLayout> chunks = chunks_of(layout, use.pipeline, use.stage);
    const Computes with = with_links.of(chunks), without = computing.of(chunks);
    StepParts parts;
    parts.again = use.busy_seconds * without.again / with.all;
    parts.tensor = use.busy_seconds * std::max(0.0, with.all - without.all) / with.all;
    parts.compute = use.busy_seconds - parts.again - parts.tensor;
    parts.gradients = use.exchange_seconds;
    parts.update = use.update_seconds;
    parts.gather = use.gather_seconds;
    // What is left after the last backward: until its pipeline's end it is the pipeline's draining.
    const double rest =
        std::max(0.0, simulation.seconds - use.end_seconds - parts.gradients - parts.update - parts.gather);
    const double draining = std::min(rest, use.pipeline_end_seconds - use.end_seconds);
    parts.waiting = rest - draining;
    const double idle = std::max(0.0, use.end_seconds - use.busy_seconds) + draining;
    parts.transfers = std::clamp(use.pipeline_end_seconds - free.stages[i].pipeline_end_seconds, 0.0, idle);
    parts.bubble = idle - parts.transfers;
    all.push_back(parts);
  }
  return all;
}

size_t slowest_stage(const Simulation& simulation) {
  const auto& stages = simulation.stages;
  HET_REQUIRE(!stages.empty());
  return static_cast<size_t>(
      std::max_element(stages.begin(), stages.end(),
                       [](const StageUse& a, const StageUse& b) { return a.busy_seconds < b.busy_seconds; }) -
      stages.begin());
}

}  // namespace het::planner
