// What the planner finds, as pages, scripts and Lua have it.
#include <fmt/format.h>

#include "core/base/units.h"
#include "lua/planning.h"
#include "planner/explain.h"
#include "planner/fallback.h"

namespace het::lua {

Json plan_json(const Plan& plan) {
  Json::array_t pipelines;
  for (const Pipeline& pipeline : plan.pipelines) {
    Json::array_t stages;
    for (const Stage& stage : pipeline.stages) {
      Json::array_t devices(stage.devices.begin(), stage.devices.end());
      const Shares shares = tensor_shares(plan, stage);
      stages.push_back(Json::object_t{{"devices", std::move(devices)},
                                      {"shares", Json::array_t(shares.begin(), shares.end())},
                                      {"first_layer", stage.first_layer},
                                      {"layers", stage.layers},
                                      {"recompute", stage.recompute},
                                      {"optimizer_share", stage.optimizer_share}});
    }
    pipelines.push_back(
        Json::object_t{{"microbatches", pipeline.microbatches}, {"stages", std::move(stages)}});
  }
  return Json::object_t{{"tensor", plan.tensor},
                        {"microbatch", plan.microbatch},
                        {"schedule", std::string(name_of(plan.schedule))},
                        {"chunks", plan.chunks},
                        {"warmup", plan.warmup},
                        {"sharded_optimizer", plan.sharded_optimizer},
                        {"unlike_devices", plan.unlike_devices},
                        {"pipelines", std::move(pipelines)}};
}

Json parts_json(const planner::StepParts& parts) {
  Json answer = Json::object_t{};
  for (const planner::StepPart& part : planner::step_parts()) answer[part.name] = parts.*part.seconds;
  return answer;
}

void add_lack(Json& answer, double bytes) {
  answer["feasible"] = false;
  answer["problems"] =
      Json::array_t{fmt::format("the plan does not fit: a device lacks {}", show_bytes(bytes))};
  answer["over_bytes"] = bytes;
}

Json cluster_json(const planner::Cluster& cluster) {
  const auto link = [](const Link& of) {
    return Json::object_t{{"bandwidth", of.bytes_per_second}, {"latency", of.latency_seconds}};
  };
  Json::array_t nodes;
  for (size_t n = 0; n < cluster.nodes.size(); ++n) {
    const planner::Machine& node = cluster.nodes[n];
    nodes.push_back(
        Json::object_t{{"hosts", Json::array_t(node.hosts.begin(), node.hosts.end())},
                       {"type", node.type},
                       {"devices", node.devices},
                       {"zone", node.zone},
                       {"memory_bytes", planner::type_of(cluster, static_cast<int>(n)).memory_bytes},
                       {"inside", link(planner::inside_link(cluster, static_cast<int>(n)))},
                       {"interfaces", planner::interfaces_of(cluster, static_cast<int>(n))},
                       {"price_per_hour", node.price_per_hour},
                       {"preemptions_per_hour", node.preemptions_per_hour}});
  }
  return Json::object_t{{"nodes", std::move(nodes)}, {"between", link(cluster.between)}};
}

namespace {

Json json_of(const planner::Replanned& moved) {
  Json::array_t devices;
  for (const planner::DeviceMove& device : moved.move.devices)
    devices.push_back(Json::object_t{{"device", device.device},
                                     {"weight_bytes", device.weight_bytes},
                                     {"optimizer_bytes", device.optimizer_bytes}});
  return Json::object_t{{"bytes", moved.move.bytes},
                        {"unavailable_bytes", moved.move.unavailable_bytes},
                        {"seconds", moved.move.seconds},
                        {"devices", std::move(devices)},
                        {"best_step_seconds", moved.best_seconds},
                        {"best_bytes", moved.best_bytes},
                        {"near", moved.near}};
}

Json json_of(const planner::WhatIf& what) {
  Json answer = Json::object_t{{"kind", std::string(planner::name_of(what.kind))},
                               {"what", what.words},
                               {"text", planner::to_text(what)},
                               {"step_seconds", what.step_seconds},
                               {"gain", what.gain},
                               {"lacks_bytes", what.lacks_bytes}};
  if (!what.from.empty()) {
    answer["from"] = what.from;
    answer["to"] = what.to;
    answer["bandwidth"] = what.bandwidth;
  }
  return answer;
}

Json json_of(const planner::PlanReport& report) {
  Json::array_t devices, links;
  for (const planner::LinkReport& link : report.links)
    links.push_back(Json::object_t{{"from", link.a},
                                   {"to", link.b},
                                   {"bandwidth", link.link.bytes_per_second},
                                   {"latency", link.link.latency_seconds},
                                   {"source", std::string(link.source)}});
  for (const planner::DeviceReport& device : report.devices) {
    Json::array_t chunks;
    int layers = 0;
    for (const planner::StageLayout& chunk : device.chunks) {
      chunks.push_back(Json::object_t{
          {"first_layer", chunk.first}, {"layers", chunk.layers}, {"recompute", chunk.recompute}});
      layers += chunk.layers;
    }
    devices.push_back(Json::object_t{{"device", device.device},
                                     {"type", device.type},
                                     {"pipeline", device.pipeline + 1},
                                     {"stage", device.stage + 1},
                                     {"layers", layers},
                                     {"chunks", std::move(chunks)},
                                     {"memory_bytes", device.memory_bytes},
                                     {"free_bytes", device.free_bytes},
                                     {"busy_share", device.busy_share},
                                     {"parts", parts_json(device.parts)},
                                     {"share", device.share},
                                     {"why", device.why}});
  }
  Json::array_t helps;
  for (const planner::WhatIf& what : report.helps) helps.push_back(json_of(what));
  Json::array_t sources;
  for (const planner::SourceReport& source : report.sources)
    sources.push_back(Json::object_t{{"type", source.type},
                                     {"layers_measured", source.layers_measured},
                                     {"layers_interpolated", source.layers_interpolated},
                                     {"layers_extrapolated", source.layers_extrapolated},
                                     {"layers_calibrated", source.layers_calibrated},
                                     {"calibrated_by", source.calibrated_by},
                                     {"layers_estimated", source.layers_estimated},
                                     {"link_measured", source.link_measured},
                                     {"link", source.link}});
  Json answer = Json::object_t{{"devices", std::move(devices)},
                               {"sources", std::move(sources)},
                               {"idle", Json::array_t(report.idle.begin(), report.idle.end())},
                               {"step_seconds", report.step_seconds},
                               {"tokens_per_second", report.tokens_per_second},
                               {"unit", report.unit},
                               {"bubble", report.bubble},
                               {"slowest", report.slowest},
                               {"parts", parts_json(report.parts)},
                               {"binds", Json::array_t(report.binds.begin(), report.binds.end())},
                               {"helps", std::move(helps)},
                               {"exposed_seconds", report.exposed_seconds},
                               {"update_seconds", report.update_seconds},
                               {"pieces", report.pieces},
                               {"packing_seconds", report.packing_seconds},
                               {"lower_bound_seconds", report.lower_bound_seconds},
                               {"gap", report.gap},
                               {"price_per_hour", report.price_per_hour},
                               {"price_per_billion_tokens", report.price_per_billion_tokens},
                               {"preemptions_per_hour", report.preemptions_per_hour},
                               {"goodput", report.goodput},
                               {"layers_measured", report.layers_measured},
                               {"layers_interpolated", report.layers_interpolated},
                               {"layers_extrapolated", report.layers_extrapolated},
                               {"layers_calibrated", report.layers_calibrated},
                               {"layers_estimated", report.layers_estimated},
                               {"links_measured", report.links_measured},
                               {"links_stated", report.links_stated},
                               {"links_assumed", report.links_assumed},
                               {"links", std::move(links)}};
  if (report.moved) answer["moved"] = json_of(*report.moved);
  return answer;
}

Json json_of(const std::vector<planner::SimEvent>& events) {
  Json::array_t list;
  for (const planner::SimEvent& event : events)
    list.push_back(Json::object_t{{"kind", std::string(planner::name_of(event.kind))},
                                  {"pipeline", event.pipeline + 1},
                                  {"stage", event.stage + 1},
                                  {"item", event.item + 1},
                                  {"start", event.start},
                                  {"end", event.end}});
  return list;
}

Json json_of(const planner::Model& model, const Graph& graph) {
  Json::array_t layers, kinds;
  for (size_t i = 0; i < model.layers.size(); ++i)
    layers.push_back(
        Json::object_t{{"name", graph.layers[i].name}, {"kind", model.layer(static_cast<int>(i)).name}});
  for (const planner::LayerKind& kind : model.kinds)
    kinds.push_back(Json::object_t{{"name", kind.name},
                                   {"parameters", kind.parameters},
                                   {"activation_bytes", kind.activation_bytes},
                                   {"checkpoint_bytes", kind.checkpoint_bytes},
                                   {"workspace_bytes", kind.workspace_bytes},
                                   {"forward_flops", kind.forward_flops},
                                   {"recompute_flops", kind.flops_again()},
                                   {"input_flops", kind.input_flops},
                                   {"weight_flops", kind.weight_flops},
                                   {"boundary_bytes", kind.boundary_bytes},
                                   {"tensor_reductions", kind.tensor_reductions}});
  return Json::object_t{{"name", model.name},
                        {"precision", std::string(planner::name_of(model.precision))},
                        {"parameters", planner::total_parameters(model)},
                        {"layers", std::move(layers)},
                        {"kinds", std::move(kinds)}};
}

}  // namespace

Json answer_json(const planner::Request& request, const planner::Planned& planned, const Graph& graph,
                 bool events) {
  Json answer = Json::object_t{{"feasible", planned.feasible},
                               {"problems", Json::array_t(planned.problems.begin(), planned.problems.end())},
                               {"model", json_of(request.model, graph)}};
  if (!planned.feasible) return answer;
  const planner::PlanReport report = planner::explain(request, planned);
  const std::vector<std::string> notes = planner::notes_of(request);
  std::string text = planner::to_text(report);
  for (const std::string& note : notes) text += "note: " + note + "\n";
  answer["text"] = std::move(text);
  answer["notes"] = Json::array_t(notes.begin(), notes.end());
  answer["lua"] = to_lua(planned.plan);
  answer["origin"] = planned.best.origin;
  answer["simulations"] = planned.simulations;
  answer["plan"] = plan_json(planned.plan);
  answer["report"] = json_of(report);
  answer["cluster"] = cluster_json(request.cluster);
  if (const auto& cheaper = planned.cheaper)
    answer["cheaper"] = Json::object_t{{"text", planner::to_text(*cheaper)},
                                       {"devices", cheaper->devices},
                                       {"step_seconds", cheaper->seconds},
                                       {"speed", cheaper->speed},
                                       {"price", cheaper->price},
                                       {"by_price", cheaper->by_price},
                                       {"plan", plan_json(cheaper->plan)},
                                       {"lua", to_lua(cheaper->plan)}};
  if (events) {
    planner::SimulateOptions options;
    options.events = true;
    options.runtime = request.runtime;
    answer["events"] = (json_of(
        planner::simulate(planned.plan, request.cluster, request.model, request.profile, options).events));
  }
  return answer;
}

Json fallback_json(const planner::Fallback& fallback) {
  Json entry = Json::object_t{
      {"lost", fallback.loss.name},
      {"preemptions_per_hour", fallback.loss.preemptions_per_hour},
      {"devices", Json::array_t(fallback.loss.devices.begin(), fallback.loss.devices.end())},
      {"feasible", fallback.planned.feasible},
      {"problems", Json::array_t(fallback.planned.problems.begin(), fallback.planned.problems.end())}};
  if (fallback.planned.feasible) {
    entry["lua"] = to_lua(fallback.planned.plan);
    entry["plan"] = plan_json(fallback.planned.plan);
    entry["report"] = json_of(planner::explain(fallback.request, fallback.planned, false));
  }
  return entry;
}

}  // namespace het::lua
