// Lowering: a Graph and a Plan become the Program of one rank.
#pragma once

#include <vector>

#include "core/graph/graph.h"
#include "core/graph/placements.h"
#include "core/plan/plan.h"
#include "core/plan/runtime.h"
#include "core/program/program.h"

namespace het {

// What plans for a graph are checked against; `batch`: samples in one step.
PlanSubject subject_of(const Graph& graph, int batch);

// The Program of rank `rank` under `plan`. The graph is the single device's and describes one micro-batch of
// plan.microbatch samples; with `fused`, its nodes are joined where they can be (core/graph/fuse.h),
// after it was divided among tensor-parallel ranks. Throws Error(usage) with all the rules that the plan
// breaks, or for a runtime that cannot run its schedule.
Program lower(const Graph& graph, const Plan& plan, int rank = 0, bool fused = false,
              const Runtime& runtime = {});

// The Programs of all ranks: what lower() makes of each, with what they share made once.
std::vector<Program> lower_all(const Graph& graph, const Plan& plan, bool fused = false,
                               const Runtime& runtime = {});
// Of some ranks. `table`: of the graph, where there is one; null: it is made.
std::vector<Program> lower_ranks(const Graph& graph, const Plan& plan, const std::vector<int>& ranks,
                                 bool fused = false, const Runtime& runtime = {},
                                 const PlacementTable* table = nullptr);

// A Program that runs the graph once on one device, for evaluation, generation and tests.
Program lower_single(const Graph& graph, int microbatches = 1);

}  // namespace het
