#include "planner/autohet/parts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "planner/autohet/anneal.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/refine.h"
#include "planner/autohet/search.h"

namespace het::planner {
namespace {

using namespace limits::parts;

// Of each node of the cluster: how many of its hosts, from the first; 0: it is left out.
using Part = std::vector<size_t>;

// With `halves`, half the hosts of each node, alone and with all that is faster, too.
std::vector<Part> parts_of(const Request& request, bool halves = false) {
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
    if (!halves) {
      // Of what is left, if it is small, every grouping is tried.
      const auto fewer = [&](size_t n) { return nodes[n].hosts.size() - (n == own ? 1 : 0); };
      size_t devices = 0;
      for (size_t n = 0; n < nodes.size(); ++n) devices += fewer(n) * static_cast<size_t>(nodes[n].devices);
      if (devices <= kFewDevices && request.model.count() <= limits::kSmallLayers) add(fewer);
      continue;
    }
    const size_t half = (nodes[own].hosts.size() + 1) / 2;
    add([&](size_t n) { return n == own ? half : size_t{0}; });
    add([&](size_t n) { return n == own ? half : rate(n) > rate(own) ? nodes[n].hosts.size() : 0; });
  }
  // Without the whole, and each once.
  Part whole(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) whole[n] = nodes[n].hosts.size();
  std::set<Part> known{whole};
  std::erase_if(parts, [&](const Part& part) { return !known.insert(part).second; });
  return parts;
}

// A plan of a part, with the node numbers of the whole cluster.
PlanLayout in_whole(PlanLayout layout, const PartPlans& part) {
  for (PipelineLayout& pipeline : layout.pipelines)
    for (StageLayout& stage : pipeline.stages) stage.node = part.node_of[static_cast<size_t>(stage.node)];
  for (TensorGroup& group : layout.groups)
    for (DevicePlace& place : group.places) place.node = part.node_of[static_cast<size_t>(place.node)];
  return layout;
}

void submit_best(Evaluator& evaluator, const PartPlans& part) {
  PlanLayout layout = in_whole(part.evaluator.best().layout, part);
  evaluator.submit(evaluator.simulate(std::move(layout), "auto, without some devices"));
}

// The request for a part alone; nothing: it cannot be planned for.
std::unique_ptr<PartPlans> plans_for(const Request& request, const Part& part) {
  Request smaller = request;
  std::vector<int> node_of;
  smaller.cluster.nodes.clear();
  smaller.old.reset();
  smaller.cheaper = false;
  for (size_t n = 0; n < part.size(); ++n) {
    if (part[n] == 0) continue;
    node_of.push_back(static_cast<int>(n));
    smaller.cluster.nodes.push_back(request.cluster.nodes[n]);
    smaller.cluster.nodes.back().hosts.resize(part[n]);
  }
  if (!validate(smaller).empty()) return nullptr;
  return std::make_unique<PartPlans>(std::move(smaller), std::move(node_of));
}

int device_count(const PlanLayout& layout) {
  size_t devices = 0;
  for (const PipelineLayout& pipeline : layout.pipelines)
    for (size_t e = 0; e < pipeline.stages.size() / static_cast<size_t>(layout.chunks); ++e)
      devices += places_of(layout, pipeline.stages[e]).size();
  return static_cast<int>(devices);
}

bool has_prices(const Cluster& cluster) {
  return std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                     [](const Machine& node) { return node.price_per_hour > 0; });
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
    auto plans = plans_for(request, part);
    if (plans == nullptr) continue;
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
    if (part->evaluator.best_score() > limits::parts::kNear * evaluator.best_score()) continue;
    anneal_plans(part->evaluator, evaluator.request().extensions, "auto");
    refine_best(part->evaluator, "auto");
    submit_best(evaluator, *part);
  }
}

std::optional<CheaperPlan> find_cheaper(const Request& request, const Planned& answer) {
  const bool by_price = has_prices(request.cluster);
  const auto price_of = [&](const PlanLayout& layout) {
    if (by_price) return used_hosts(request.cluster, layout).price_per_hour;
    return static_cast<double>(device_count(layout));
  };
  const auto price_of_part = [&](const Part& part) {
    double price = 0;
    for (size_t n = 0; n < part.size(); ++n) {
      const Machine& node = request.cluster.nodes[n];
      price += static_cast<double>(part[n]) * (by_price ? node.price_per_hour : node.devices);
    }
    return price;
  };
  const double whole = price_of(answer.best.layout);
  const double longest = answer.best.simulation.seconds / kNearlyAsFast;
  std::vector<std::pair<double, Part>> parts;
  for (Part& part : parts_of(request, true))
    if (const double price = price_of_part(part); price <= kMuchCheaper * whole)
      parts.emplace_back(price, std::move(part));
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [price, part] : parts) {
    const auto plans = plans_for(request, part);
    if (plans == nullptr || lower_bound_seconds(plans->request, plans->evaluator) > longest) continue;
    const Planned symmetric = plan_with(plans->request, "megatron");
    if (symmetric.feasible && symmetric.best.simulation.seconds > kHopeless * longest) continue;
    const Planned planned = plan_with(plans->request, "auto");
    if (!planned.feasible || planned.best.simulation.seconds > longest) continue;
    CheaperPlan cheaper;
    const PlanLayout layout = in_whole(planned.best.layout, *plans);
    cheaper.plan = to_plan(layout, request.cluster);
    cheaper.devices = device_count(layout);
    cheaper.answer_devices = device_count(answer.best.layout);
    cheaper.seconds = planned.best.simulation.seconds;
    cheaper.speed = answer.best.simulation.seconds / cheaper.seconds;
    cheaper.price = price_of(layout) / whole;
    cheaper.by_price = by_price;
    return cheaper;
  }
  return std::nullopt;
}

}  // namespace het::planner
