// Plans that leave devices out: a few devices near each other run a small model faster.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "planner/policy.h"

namespace het::planner {

// A part of the cluster, and the plans that were found for it.
struct PartPlans {
  PartPlans(Request part, std::vector<int> nodes)
      : request(std::move(part)), node_of(std::move(nodes)), evaluator(request) {}
  Request request;
  std::vector<int> node_of;  // the part's nodes, in the whole
  Evaluator evaluator;
};

// Searches parts of the cluster (the fastest types, each zone, each kind of node, one host of it; where few
// devices remain, all but one host) that could
// still beat the best plan so far, and submits what it finds to `evaluator`. Comes after a search of the
// whole.
std::vector<std::unique_ptr<PartPlans>> search_parts(Evaluator& evaluator);

// Improves the plans of parts that are nearly as good as the best by local search and small edits, as
// anneal_plans and refine_best do those of the whole; after anneal_plans.
void anneal_parts(Evaluator& evaluator, const std::vector<std::unique_ptr<PartPlans>>& parts);

// The cheapest part of the cluster whose plan has kNearlyAsFast of the speed of `answer` for at most
// kMuchCheaper of its price; nothing when none of those that are tried has: the parts of search_parts but
// those with one host less, and half the hosts of each kind of node. Plans for them from the cheapest on that
// their bound allows, as policy auto does: each may take as long as planning for the whole.
std::optional<CheaperPlan> find_cheaper(const Request& request, const Planned& answer);

}  // namespace het::planner
