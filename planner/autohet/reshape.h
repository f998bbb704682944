// Other shapes of a plan's pipelines: with other chunks, or another tensor-parallel degree. Only the layout
// changes; whether it is any good, or fits, is not asked here.
#pragma once

#include <optional>
#include <vector>

#include "planner/request.h"

namespace het::planner {

// The stages of a pipeline without interleaving: each device group has all its layers in one.
std::vector<StageLayout> joined_chunks(const std::vector<StageLayout>& stages, int chunks);
// Each stage's layers over `chunks` stages that take turns; empty where one has fewer layers.
std::vector<StageLayout> cut_into_chunks(const std::vector<StageLayout>& stages, int chunks);

// With twice the tensor-parallel degree. Their stages keep the hosts that they had: place_again().
// Each two pipelines over the same nodes become one; nothing where one is left over.
std::optional<PlanLayout> with_joined_pipelines(const PlanLayout& from);
// Each two neighbours of a pipeline become one; nothing where they are not on one node.
std::optional<PlanLayout> with_joined_stages(const PlanLayout& from);
// With half the degree: each pipeline becomes two, with half the micro-batches.
std::optional<PlanLayout> with_twice_the_pipelines(const PlanLayout& from);
// Each stage becomes two, with half the layers.
std::optional<PlanLayout> with_twice_the_stages(const PlanLayout& from);
// Gives all stages hosts again; false where a node has too few devices. `costs`: of the layout's degree;
// `packed` as in place().
bool place_again(PlanLayout& layout, const Cluster& cluster, const CostTable& costs, bool packed);

}  // namespace het::planner
