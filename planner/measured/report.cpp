#include <cmath>

#include "core/base/median.h"
#include "planner/measured/measured.h"

namespace het::planner {
namespace {

struct Spread {  // of errors
  int count = 0, within = 0;
  double median = 0, worst = 0;
};
Spread spread_of(std::vector<double> errors, double asked) {
  Spread spread;
  if (errors.empty()) return spread;
  for (double& error : errors) {
    if (std::abs(error) > std::abs(spread.worst)) spread.worst = error;
    error = std::abs(error);
    spread.within += error <= asked;
  }
  spread.count = static_cast<int>(errors.size());
  spread.median = median(std::move(errors));
  return spread;
}
Json json_of(const Spread& spread, double asked) {
  if (spread.count == 0) return Json::object_t{{"plans", 0}, {"asked", asked}, {"within", 0}};
  return Json::object_t{{"plans", spread.count},
                        {"asked", asked},
                        {"within", spread.within},
                        {"median", spread.median},
                        {"worst", spread.worst}};
}

Json json_of(const GpuMemory& memory) {
  return Json::object_t{{"state", memory.state},
                        {"flat_gradients", memory.flat_gradients},
                        {"activations", memory.activations},
                        {"loss", memory.loss},
                        {"backward", memory.backward},
                        {"weight_gradient", memory.weight_gradient},
                        {"segments", memory.segments},
                        {"communication", memory.communication},
                        {"framework", memory.framework}};
}

}  // namespace

Json to_json(const Ranking& ranking) {
  Json::array_t cases;
  for (const RankingCase& each : ranking.cases)
    cases.push_back(Json::object_t{{"bandwidth", each.bandwidth},
                                   {"latency", each.latency},
                                   {"changed", each.changed},
                                   {"fastest", each.fastest}});
  return Json::object_t{{"model", ranking.model},     {"batch", ranking.batch},
                        {"plans", ranking.plans},     {"pairs", ranking.pairs},
                        {"fastest", ranking.fastest}, {"depends_on_links", ranking.depends_on_links()},
                        {"cases", std::move(cases)}};
}

Json to_json(const MeasuredReport& report) {
  const auto maybe = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const auto texts = [](const std::vector<std::string>& list) {
    return Json::array_t(list.begin(), list.end());
  };
  Json::array_t plans;
  std::vector<double> errors, memory_errors;
  int simulated = 0, marked = 0;
  for (const MeasuredPlan& plan : report.plans) {
    Json::object_t entry{{"plan", plan.name},
                         {"file", plan.path},
                         {"measured_seconds", maybe(plan.measured_seconds)},
                         {"measured_memory_bytes", maybe(plan.measured_memory_bytes)},
                         {"measured_gradient_seconds", maybe(plan.measured_gradient_seconds)},
                         {"contradicts", plan.contradicts},
                         {"reason", plan.reason},
                         {"notes", texts(plan.notes)},
                         {"suspicious", texts(plan.suspicious)},
                         {"problems", texts(plan.problems)}};
    if (plan.problems.empty()) {
      ++simulated;
      marked += plan.contradicts;
      if (plan.judged()) errors.push_back(plan.error());
      if (plan.judged() && plan.measured_memory_bytes) memory_errors.push_back(plan.memory_error());
      Json::array_t stages;
      for (const MeasuredGroup& group : plan.groups)
        stages.push_back(Json::object_t{{"pipeline", group.pipeline + 1},
                                        {"stage", group.stage + 1},
                                        {"group", group.group},
                                        {"replicas", group.replicas},
                                        {"first_layer", group.first},
                                        {"layers", group.layers},
                                        {"in_flight", group.in_flight},
                                        {"microbatch_seconds", group.microbatch_seconds},
                                        {"predicted_memory_bytes", group.memory.total()},
                                        {"memory_parts", json_of(group.memory)}});
      for (auto& [key, value] :
           Json::object_t{{"model", plan.model},
                          {"gpus", plan.gpus},
                          {"microbatch", plan.microbatch},
                          {"microbatches", plan.microbatches},
                          {"predicted_seconds", plan.seconds},
                          {"error", plan.measured_seconds ? Json(plan.error()) : Json()},
                          {"link_spread", json_of(plan.links)},
                          {"pipeline_seconds", plan.pipeline_seconds},
                          {"gradient_seconds", plan.gradient_seconds},
                          {"update_seconds", plan.update_seconds},
                          {"bound_seconds", plan.bound_seconds},
                          {"predicted_memory_bytes", plan.memory_bytes},
                          {"memory_error", plan.measured_memory_bytes ? Json(plan.memory_error()) : Json()},
                          {"interpolated", plan.interpolated},
                          {"other_seconds", maybe(plan.other_seconds)},
                          {"other_contradicts", plan.other_contradicts},
                          {"stages", std::move(stages)}})
        entry.emplace_back(key, value);
    }
    plans.emplace_back(std::move(entry));
  }
  Json::object_t summary{{"plans", static_cast<int>(report.plans.size())},
                         {"simulated", simulated},
                         {"marked", marked},
                         {"seconds", json_of(spread_of(errors, kSecondsAsked), kSecondsAsked)},
                         {"memory", json_of(spread_of(memory_errors, kMemoryAsked), kMemoryAsked)}};
  Json::array_t rankings, warnings;
  for (const Ranking& ranking : report.rankings) {
    rankings.push_back(to_json(ranking));
    if (ranking.depends_on_links()) warnings.push_back(to_text(ranking));
  }
  return Json::object_t{{"plans", std::move(plans)},          {"summary", std::move(summary)},
                        {"rankings", std::move(rankings)},    {"warnings", std::move(warnings)},
                        {"problems", texts(report.problems)}, {"skipped", texts(report.skipped)}};
}

}  // namespace het::planner
