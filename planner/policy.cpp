#include "planner/policy.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/base/units.h"
#include "planner/autohet/anneal.h"
#include "planner/autohet/mix.h"
#include "planner/autohet/parts.h"
#include "planner/autohet/refine.h"
#include "planner/autohet/replan.h"
#include "planner/autohet/search.h"
#include "planner/baseline/baseline.h"

namespace het::planner {
namespace {

struct Policy {
  const char* name;
  void (*run)(Evaluator& evaluator);
  bool extensions = false;  // it reads Request::extensions
};

void plan_autohet(Evaluator& evaluator) { search_plans(evaluator, kPublished, "autohet"); }

// What comes after the search: plans near an old one, degrees and shares of single stages, small edits.
void finish(Evaluator& evaluator, std::string_view policy) {
  const std::string edited = fmt::format("{}, edited", policy);
  search_near(evaluator);
  refine_best(evaluator, edited);
  const PlanLayout refined = evaluator.best().layout;
  mix_stages(evaluator, evaluator.request().extensions, policy);
  if (evaluator.best().layout != refined) refine_best(evaluator, edited);
}

void plan_search(Evaluator& evaluator) {
  search_plans(evaluator, evaluator.request().extensions, "search");
  anneal_plans(evaluator, evaluator.request().extensions, "search");
  finish(evaluator, "search");
}

// The baselines' plans are candidates like any other, so that auto is never slower than them in the
// simulator's eyes; but for Whale's, whose micro-batches are uneven, where those are switched off.
void plan_auto(Evaluator& evaluator) {
  plan_megatron(evaluator);
  if (evaluator.request().extensions.uneven_microbatches) plan_whale(evaluator);
  if (total_devices(evaluator.request().cluster) <= 128) plan_autohet(evaluator);
  search_plans(evaluator, evaluator.request().extensions, "auto");
  const auto parts = search_parts(evaluator);
  anneal_plans(evaluator, evaluator.request().extensions, "auto");
  anneal_parts(evaluator, parts);
  finish(evaluator, "auto");
}

constexpr Policy kPolicies[] = {
    {"autohet", plan_autohet},       {"megatron", plan_megatron},   {"whale", plan_whale},
    {"exhaustive", plan_exhaustive}, {"search", plan_search, true}, {"auto", plan_auto, true},
};

// By how much the nearest plan fails, where, and what would help.
std::vector<std::string> why_infeasible(const Request& request, Evaluator& evaluator) {
  std::vector<std::string> problems;
  const Candidate& nearest = evaluator.nearest();
  const double state =
      request.model.weight_bytes + request.model.gradient_bytes + request.model.optimizer_bytes;
  double memory = 0;
  for (size_t n = 0; n < request.cluster.nodes.size(); ++n)
    memory += type_of(request.cluster, static_cast<int>(n)).memory_bytes * kUsableMemory *
              request.cluster.nodes[n].devices * static_cast<double>(request.cluster.nodes[n].hosts.size());
  const double needed = total_parameters(request.model) * state;
  if (needed > memory)
    problems.push_back(
        fmt::format("weights, gradients and optimizer state of {} take {}, all devices together have {}; "
                    "more or larger devices are needed",
                    request.model.name, show_bytes(needed), show_bytes(memory)));
  if (!nearest.layout.pipelines.empty()) {
    const Simulation simulation = evaluator.details(nearest.layout);
    const StageUse* worst = nullptr;
    for (const StageUse& use : simulation.stages)
      if (worst == nullptr || use.memory_bytes - use.limit_bytes > worst->memory_bytes - worst->limit_bytes)
        worst = &use;
    if (worst != nullptr) {
      const std::vector<StageLayout> chunks = chunks_of(nearest.layout, worst->pipeline, worst->stage);
      const StageLayout& stage = chunks[0];
      problems.push_back(fmt::format(
          "the nearest plan (tensor = {}, micro-batch {}) lacks {} on {} ({}): layers {} need {}, it has "
          "{}",
          nearest.layout.tensor, nearest.layout.microbatch,
          show_bytes(worst->memory_bytes - worst->limit_bytes),
          request.cluster.nodes[static_cast<size_t>(stage.node)].hosts[static_cast<size_t>(stage.host)],
          request.cluster.nodes[static_cast<size_t>(stage.node)].type, show_layers(chunks),
          show_bytes(worst->memory_bytes), show_bytes(worst->limit_bytes)));
      std::string help;
      if (std::any_of(chunks.begin(), chunks.end(), [](const StageLayout& c) { return !c.recompute; }))
        help += " recompute;";
      if (nearest.layout.microbatch > 1) help += " a micro-batch of 1;";
      if (nearest.layout.tensor < tensor_degrees(request).back()) help += " a larger tensor-parallel degree;";
      help += " more stages on more devices; fewer bytes of optimizer state for each parameter";
      problems.push_back("what would help:" + help);
    }
  }
  if (problems.empty())
    problems.push_back(fmt::format(
        "no plan could be formed: {} layers, a batch of {}, {} devices; tensor-parallel degrees tried: {}",
        request.model.count(), request.batch, total_devices(request.cluster),
        fmt::join(tensor_degrees(request), ", ")));
  return problems;
}

// Where no pipeline has two stages 1F1B takes no longer and no more memory than other schedules, and is
// named.
void name_schedule(PlanLayout& layout) {
  for (const PipelineLayout& pipeline : layout.pipelines)
    if (pipeline.stages.size() > 1) return;
  layout.schedule = Schedule::one_f_one_b;
  layout.warmup = 0;
}

}  // namespace

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Policy& policy : kPolicies) all.emplace_back(policy.name);
    return all;
  }();
  return names;
}

bool takes_extensions(std::string_view policy) {
  return std::any_of(std::begin(kPolicies), std::end(kPolicies),
                     [&](const Policy& known) { return known.name == policy && known.extensions; });
}

Planned plan_with(const Request& request, std::string_view policy) {
  const std::vector<std::string> problems = validate(request);
  if (!problems.empty()) fail_usage("it cannot be planned:\n  {}", fmt::join(problems, "\n  "));
  const Policy* chosen = nullptr;
  for (const Policy& known : kPolicies)
    if (known.name == policy) chosen = &known;
  if (chosen == nullptr) {
    const std::string near = nearest_name(policy, policy_names());
    fail_usage("there is no policy \"{}\"; {}", policy,
               near.empty() ? fmt::format("there are {}", fmt::join(policy_names(), ", "))
                            : fmt::format("did you mean \"{}\"?", near));
  }
  Evaluator evaluator(request);
  chosen->run(evaluator);
  Planned planned;
  planned.simulations = evaluator.simulations();
  planned.feasible = evaluator.best().feasible();
  planned.lower_bound_seconds =
      lower_bound_seconds(request, evaluator, planned.feasible ? &evaluator.best().layout : nullptr);
  if (!planned.feasible) {
    planned.problems = why_infeasible(request, evaluator);
    return planned;
  }
  planned.best = evaluator.best();
  if (evaluator.migration() != nullptr) {
    const Evaluator::Near &best = evaluator.near().front(), &least = evaluator.near().back();
    planned.best = least.candidate;
    planned.moved = Replanned{{}, best.candidate.simulation.seconds, best.bytes, request.near};
  }
  name_schedule(planned.best.layout);
  planned.best.simulation = evaluator.details(planned.best.layout);
  planned.plan = evaluator.migration() != nullptr ? evaluator.migration()->place(planned.best.layout)
                                                  : to_plan(planned.best.layout, request.cluster);
  if (planned.moved) planned.moved->move = evaluator.migration()->move(planned.plan);
  if (request.cheaper && policy == "auto" && request.objective == Objective::time)
    planned.cheaper = find_cheaper(request, planned);
  return planned;
}

std::string to_text(const CheaperPlan& cheaper) {
  return fmt::format("cheaper: {} devices where this plan has {} reach {:.1f} % of its speed{}: {} a step\n",
                     cheaper.devices, cheaper.answer_devices, 100 * cheaper.speed,
                     cheaper.by_price ? fmt::format(" at {:.0f} % of its price", 100 * cheaper.price) : "",
                     show_seconds(cheaper.seconds));
}

}  // namespace het::planner
