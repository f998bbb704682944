#include "planner/autohet/parts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "planner/autohet/anneal.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/search.h"

namespace het::planner {
namespace {

using namespace limits::parts;

// Of each node of the cluster: how many of its hosts, from the first; 0: it is left out.
using Part = std::vector<size_t>;

std::vector<Part> parts_of(const Request& request) {
  const std::vector<Machine>& nodes = request.cluster.nodes;
  const auto rate = [&](size_t n) {
    return type_of(request.cluster, static_cast<int>(n)).flops(request.model.precision);
  };
  std::vector<Part> parts;
  const auto add = [&](const auto& hosts_of) {
    Part part(nodes.size());
    for (size_t n = 0; n < nodes.size(); ++n) part[n] = hosts_of(n);
    parts.push_back(std::move(part));
  };
  const auto all_where = [&](const auto& chosen) {
    add([&](size_t n) { return chosen(n) ? nodes[n].hosts.size() : 0; });
  };
  std::set<double> rates;
  std::set<std::string> zones;
  for (size_t n = 0; n < nodes.size(); ++n) {
    rates.insert(rate(n));
    zones.insert(nodes[n].zone);
  }
  for (const double least : rates) all_where([&](size_t n) { return rate(n) >= least; });
  for (const std::string& zone : zones) all_where([&](size_t n) { return nodes[n].zone == zone; });
  for (size_t own = 0; own < nodes.size(); ++own) {
    all_where([&](size_t n) { return n == own; });
    add([&](size_t n) { return n == own ? size_t{1} : size_t{0}; });
  }
  // Without the whole, and each once.
  Part whole(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) whole[n] = nodes[n].hosts.size();
  std::set<Part> known{whole};
  std::erase_if(parts, [&](const Part& part) { return !known.insert(part).second; });
  return parts;
}

// Submits the best plan of a part, with the node numbers of the whole cluster.
void submit_best(Evaluator& evaluator, const PartPlans& part) {
  PlanLayout layout = part.evaluator.best().layout;
  for (PipelineLayout& pipeline : layout.pipelines)
    for (StageLayout& stage : pipeline.stages) stage.node = part.node_of[static_cast<size_t>(stage.node)];
  evaluator.submit(evaluator.simulate(std::move(layout), "auto, without some devices"));
}

}  // namespace

std::vector<std::unique_ptr<PartPlans>> search_parts(Evaluator& evaluator) {
  std::vector<std::unique_ptr<PartPlans>> found;
  const Request& request = evaluator.request();
  const bool few = total_devices(request.cluster) <= limits::kMediumDevices;
  if (!few && evaluator.best().feasible() &&
      evaluator.best().simulation.seconds < kPoor * lower_bound_seconds(request, evaluator))
    return found;
  for (const Part& part : parts_of(request)) {
    Request smaller = request;
    std::vector<int> node_of;
    smaller.cluster.nodes.clear();
    smaller.old.reset();
    for (size_t n = 0; n < part.size(); ++n) {
      if (part[n] == 0) continue;
      node_of.push_back(static_cast<int>(n));
      smaller.cluster.nodes.push_back(request.cluster.nodes[n]);
      smaller.cluster.nodes.back().hosts.resize(part[n]);
    }
    if (!validate(smaller).empty()) continue;
    auto plans = std::make_unique<PartPlans>(std::move(smaller), std::move(node_of));
    if (request.objective == Objective::time && evaluator.best().feasible() &&
        lower_bound_seconds(plans->request, plans->evaluator) * kNearest >=
            evaluator.best().simulation.seconds)
      continue;
    search_plans(plans->evaluator, request.extensions, "auto");
    if (!plans->evaluator.best().feasible()) continue;
    submit_best(evaluator, *plans);
    found.push_back(std::move(plans));
  }
  return found;
}

void anneal_parts(Evaluator& evaluator, const std::vector<std::unique_ptr<PartPlans>>& parts) {
  for (const auto& part : parts) {
    if (part->evaluator.best_score() > kNear * evaluator.best_score()) continue;
    anneal_plans(part->evaluator, evaluator.request().extensions, "auto");
    submit_best(evaluator, *part);
  }
}

}  // namespace het::planner
