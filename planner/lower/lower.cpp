#include "planner/lower/lower.h"

#include <limits>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/units.h"
#include "planner/lower/lowering.h"
#include "planner/lower/rank_assignment.h"
#include "planner/lower/stage_graphs.h"

namespace het {
namespace {

// Each micro-batch has separate instructions: absurd numbers of them are refused before they are written.
void require_size(const Graph& graph, int microbatches) {
  constexpr double kMostBytes = 0x1p60;  // all sums of bytes stay far below 2^63
  double bytes = 0;
  for (const Value& value : graph.values) bytes += static_cast<double>(value.type.bytes());
  const double slots = microbatches + 1.0;
  if (bytes * slots > kMostBytes)
    fail_usage("the tensors of {} micro-batches together have {}; no machine holds them", microbatches,
               show_bytes(bytes * slots));
  constexpr double kBytesEach = 256;  // of a program, for each value of each micro-batch: rather less
  const double needed =
      static_cast<double>(graph.values.size() + graph.nodes.size() + 8) * slots * kBytesEach;
  constexpr double kSmall = 0x1p26;
  if (needed < kSmall) return;
  if (const auto available = static_cast<double>(available_memory()); needed > available)
    fail_environment("the program of {} micro-batches takes {} or more; {} are available", microbatches,
                     show_bytes(needed), show_bytes(available));
}

}  // namespace

Program lower_single(const Graph& graph, int microbatches) {
  HET_REQUIRE(microbatches >= 1, microbatches);
  require_size(graph, microbatches);
  Plan plan;
  Stage stage;
  stage.devices = {"here:0"};
  stage.layers = static_cast<int>(graph.layers.size());
  plan.pipelines.push_back({microbatches, {stage}});
  plan.schedule = Schedule::one_f_one_b;
  return Lowering(graph, assignment_of(graph, plan, 0)).run();
}

PlanSubject subject_of(const Graph& graph, int batch) {
  PlanSubject subject{static_cast<int>(graph.layers.size()), batch};
  for (const auto& layer : graph.layers) subject.names.push_back(layer.name);
  return subject;
}

namespace {

// Throws Error(usage) for a plan that cannot be run.
void require_runs(const Graph& graph, const Plan& plan, const Runtime& runtime) {
  int64_t samples = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    samples += static_cast<int64_t>(pipeline.microbatches) * plan.microbatch;
  if (samples > std::numeric_limits<int>::max())
    fail_usage("the plan runs {} samples in a step; {} are the most", samples,
               std::numeric_limits<int>::max());
  auto problems = validate(plan, subject_of(graph, static_cast<int>(samples)));
  for (std::string& problem : problems_of(runtime, plan.schedule, plan.warmup))
    problems.push_back(std::move(problem));
  if (!problems.empty()) fail_usage("the plan cannot be run:\n  {}", fmt::join(problems, "\n  "));
  for (const Pipeline& pipeline : plan.pipelines) require_size(graph, pipeline.microbatches);
}

// What one rank cannot run, all refuse.
void require_stages(StageGraphs& graphs, const Plan& plan) {
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s)
      with_context([&] { return fmt::format("pipeline {}, stage {}", p + 1, s + 1); },
                   [&] { graphs.require(cut_of(plan, plan.pipelines[p].stages[s])); });
}

RankAssignment with_runtime(RankAssignment assignment, const Runtime& runtime) {
  assignment.runtime = runtime;
  return assignment;
}

Program lower_one(StageGraphs& graphs, const Plan& plan, int rank, const Runtime& runtime) {
  const Graph& own = graphs.of(cut_of(plan, rank), tensor_rank_of(plan, rank)).graph;
  const RankAssignment assignment = with_runtime(assignment_of(own, plan, rank, &graphs), runtime);
  return Lowering(own, assignment).run();
}

}  // namespace

Program lower(const Graph& graph, const Plan& plan, int rank, bool fused, const Runtime& runtime) {
  require_runs(graph, plan, runtime);
  const StageCut cut = cut_of(plan, rank);
  if (has_uniform_cut(plan) && cut.parts() == 1 && !fused) {
    const RankAssignment assignment = with_runtime(assignment_of(graph, plan, rank), runtime);
    return Lowering(graph, assignment).run();
  }
  StageGraphs graphs(graph, plan, fused);
  require_stages(graphs, plan);
  return lower_one(graphs, plan, rank, runtime);
}

std::vector<Program> lower_all(const Graph& graph, const Plan& plan, bool fused, const Runtime& runtime) {
  std::vector<int> ranks(devices_of(plan).size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return lower_ranks(graph, plan, ranks, fused, runtime);
}

std::vector<Program> lower_ranks(const Graph& graph, const Plan& plan, const std::vector<int>& ranks,
                                 bool fused, const Runtime& runtime, const PlacementTable* table) {
  require_runs(graph, plan, runtime);
  StageGraphs graphs(graph, plan, fused, table);
  require_stages(graphs, plan);
  std::vector<Program> programs;
  programs.reserve(ranks.size());
  for (const int rank : ranks) programs.push_back(lower_one(graphs, plan, rank, runtime));
  return programs;
}

}  // namespace het
