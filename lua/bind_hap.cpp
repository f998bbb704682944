// `native.synthesise`: a sharding program for a graph on a cluster (planner/hap).
#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <set>

#include "core/base/elapsed.h"
#include "core/base/units.h"
#include "core/graph/fuse.h"
#include "lua/planning.h"
#include "planner/hap/report.h"
#include "planner/hap/stages.h"
#include "planner/simulate/programs.h"

namespace het::lua {
namespace {

using planner::hap::Compared;
using planner::hap::DeviceShare;
using planner::hap::Instruction;
using planner::hap::Report;

// The half type that a graph computes in.
planner::Precision precision_of(const Graph& graph) {
  planner::Precision precision = planner::Precision::f32;
  for (const Value& value : graph.values) {
    if (value.type.dtype == DType::bf16) return planner::Precision::bf16;
    if (value.type.dtype == DType::f16) precision = planner::Precision::f16;
  }
  return precision;
}

Json json_of(const Report& report) {
  Json::array_t devices, instructions, baselines;
  for (const DeviceShare& device : report.devices)
    devices.push_back(Json::object_t{{"device", device.device},
                                     {"type", device.type},
                                     {"share", device.share},
                                     {"part", device.part},
                                     {"memory_bytes", device.memory_bytes},
                                     {"limit_bytes", device.limit_bytes}});
  for (const Instruction& instruction : report.instructions)
    instructions.push_back(Json::object_t{{"name", instruction.name},
                                          {"rule", instruction.rule},
                                          {"phase", std::string(name_of(instruction.phase))},
                                          {"count", instruction.count},
                                          {"bytes", instruction.bytes},
                                          {"seconds", instruction.seconds},
                                          {"exchange", instruction.is_exchange}});
  for (const Compared& other : report.baselines)
    baselines.push_back(Json::object_t{{"name", other.name},
                                       {"found", other.found},
                                       {"step_seconds", other.simulated_seconds},
                                       {"summed_seconds", other.summed_seconds},
                                       {"lua", other.found ? to_lua(other.plan) : std::string()},
                                       {"problem", other.problem}});
  Json::array_t gains;
  if (report.gains)
    for (const planner::hap::Gain& gain : report.gains->of)
      gains.push_back(Json::object_t{{"name", std::string(name_of(gain.addition))},
                                     {"published_seconds", planner::hap::seconds_of(report.gains->published)},
                                     {"alone_seconds", planner::hap::seconds_of(gain.alone)},
                                     {"all_seconds", planner::hap::seconds_of(report.gains->all)},
                                     {"without_seconds", planner::hap::seconds_of(gain.without)}});
  return Json::object_t{{"devices", std::move(devices)},
                        {"gains", std::move(gains)},
                        {"instructions", std::move(instructions)},
                        {"baselines", std::move(baselines)},
                        {"step_seconds", report.simulated_seconds},
                        {"exposed_seconds", report.exposed_seconds},
                        {"chosen", report.chosen},
                        {"summed_seconds", report.seconds},
                        {"compute_seconds", report.compute_seconds},
                        {"communication_seconds", report.communication_seconds},
                        {"bound_seconds", report.bound_seconds},
                        {"gap", report.gap},
                        {"table_seconds", report.table_seconds},
                        {"search_seconds", report.search_seconds},
                        {"searches", report.searches},
                        {"whole", Json::array_t(report.whole.begin(), report.whole.end())}};
}

// The field `cluster` of a table, equal machines together. Throws Error(usage): `refusal`, and all that is
// wrong.
planner::Cluster cluster_of(lua_State* L, int index, std::string_view refusal) {
  lua_getfield(L, index, "cluster");
  planner::Cluster cluster = cluster_at(L, lua_gettop(L));
  lua_pop(L, 1);
  const auto problems = planner::validate(cluster);
  if (!problems.empty()) fail_usage("{}:\n  {}", refusal, fmt::join(problems, "\n  "));
  return planner::merged(std::move(cluster));
}

// The field `plan`, of the graph's layers.
Plan plan_of(lua_State* L, int index, const Graph& graph) {
  lua_getfield(L, index, "plan");
  Plan plan = plan_at(L, lua_gettop(L), static_cast<int>(graph.layers.size()));
  lua_pop(L, 1);
  return plan;
}

struct Asked {
  planner::Cluster cluster;
  int microbatch = 1, microbatches = 1;
  bool baselines = false, gains = false;
};

Json answer_of(const Graph& whole, const Asked& asked) {
  const Graph graph = prune(whole);  // as it is lowered
  const double begin = steady_seconds();
  const PlacementTable table(graph);
  const double table_seconds = steady_seconds() - begin;
  const planner::hap::DeviceGroup group(asked.cluster, precision_of(graph));
  const planner::hap::Request request{&table, &group, asked.microbatches, {}, asked.microbatch};
  const planner::hap::Answer answer = planner::hap::synthesise(request);
  Report report = planner::hap::report_of(request, answer, asked.baselines);
  report.table_seconds = table_seconds;
  if (asked.gains) report.gains = planner::hap::gains_of(request);
  Json::array_t problems;
  for (const DeviceShare& device : report.devices)
    if (device.memory_bytes > device.limit_bytes && problems.size() < 4)
      problems.push_back(fmt::format("{} ({}) lacks {}: its part needs {}, it has {}", device.device,
                                     device.type, show_bytes(device.memory_bytes - device.limit_bytes),
                                     show_bytes(device.memory_bytes), show_bytes(device.limit_bytes)));
  Json result = Json::object_t{{"feasible", problems.empty()},
                               {"text", planner::hap::to_text(report)},
                               {"lua", to_lua(report.plan)},
                               {"report", json_of(report)},
                               {"origin", "hap"}};
  result["problems"] = std::move(problems);
  return result;
}

// graph of a micro-batch, {cluster, microbatch, microbatches, baselines, gains}: a planning, as native.plan
// gives one.
int begin_synthesis(lua_State* L) {
  const GraphHandle graph = check_object<GraphHandle>(L, 1);
  graph->finished = true;
  luaL_checktype(L, 2, LUA_TTABLE);
  Asked asked;
  asked.cluster = cluster_of(L, 2, "it cannot be planned");
  asked.microbatch = std::max(1, field<int>(L, 2, "microbatch").value_or(1));
  asked.microbatches = std::max(1, field<int>(L, 2, "microbatches").value_or(1));
  asked.baselines = field<bool>(L, 2, "baselines").value_or(false);
  asked.gains = field<bool>(L, 2, "gains").value_or(false);
  auto planning = std::make_shared<Planning>();
  planning->answer =
      std::async(std::launch::async, [graph = graph->graph, asked] { return answer_of(graph, asked); });
  return Convert<PlanningHandle>::push(L, std::move(planning));
}

struct StagesAsked {
  planner::Cluster cluster;
  std::vector<std::pair<int, GraphHandle>> graphs;  // by samples of a micro-batch
  Plan rival;
  int batch = 1;
  bool pipelines = false;
};

Json answer_of(const StagesAsked& asked) {
  std::vector<Graph> pruned;
  pruned.reserve(asked.graphs.size());
  planner::hap::StagesRequest request;
  for (const auto& [microbatch, graph] : asked.graphs) {
    pruned.push_back(prune(graph->graph));
    request.graphs.push_back({microbatch, &pruned.back()});
  }
  const planner::hap::DeviceGroup group(asked.cluster, precision_of(pruned[0]));
  request.group = &group;
  request.batch = asked.batch;
  request.rival = &asked.rival;
  request.pipelines = asked.pipelines;
  const planner::hap::StagesAnswer answer = planner::hap::plan_stages(request);
  Json::array_t candidates;
  for (const auto& each : answer.candidates)
    candidates.push_back(
        Json::object_t{{"name", each.name}, {"step_seconds", each.seconds}, {"fits", each.fits}});
  Json result = Json::object_t{{"rival_seconds", answer.rival_seconds},
                               {"candidates", std::move(candidates)},
                               {"cuts_state", answer.cuts_state}};
  if (const auto* best = answer.best()) {
    result["name"] = best->name;
    result["step_seconds"] = best->seconds;
    result["lua"] = to_lua(best->plan);
  }
  return result;
}

// {{microbatch, graph}, ...} (of a batch and its parts), {cluster, batch, plan}: a planning of pipelines
// whose stages run sharding programs, beside the plan.
int begin_stages(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  auto asked = std::make_shared<StagesAsked>();
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    const GraphHandle graph = check_object<GraphHandle>(L, lua_gettop(L));
    graph->finished = true;
    asked->graphs.emplace_back(Convert<int>::get(L, lua_gettop(L) - 1), graph);
    lua_pop(L, 3);
  }
  if (asked->graphs.empty()) fail_usage("native.sharded_stages needs a graph");
  asked->cluster = cluster_of(L, 2, "it cannot be planned");
  asked->rival = plan_of(L, 2, asked->graphs[0].second->graph);
  asked->batch = std::max(1, field<int>(L, 2, "batch").value_or(1));
  asked->pipelines = field<bool>(L, 2, "pipelines").value_or(false);
  auto planning = std::make_shared<Planning>();
  planning->answer = std::async(std::launch::async, [asked] { return answer_of(*asked); });
  return Convert<PlanningHandle>::push(L, std::move(planning));
}

// A table of the devices, by pipeline and stage.
std::string text_of(const planner::ProgramsTime& time, const Plan& plan,
                    const planner::hap::DeviceGroup& group) {
  std::map<std::string, const planner::hap::Device*> devices;
  for (const planner::hap::Device& device : group.devices()) devices[device.name] = &device;
  std::string text = fmt::format("{:<16} {:<16} {:<8} {:>10} {:>10} {:>10} {:>10}\n", "device", "type",
                                 "layers", "memory", "free", "computes", "waits");
  size_t rank = 0;
  std::set<std::string> listed;
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    if (plan.pipelines.size() > 1) text += fmt::format("pipeline {}\n", p + 1);
    for (const Stage& stage : plan.pipelines[p].stages)
      for (const std::string& name : stage.devices) {
        if (!listed.insert(name).second) continue;  // interleaved: a device of several stages
        const planner::ProgramUse& use = time.ranks[rank++];
        text += fmt::format("{:<16} {:<16} {:<8} {:>10} {:>10} {:>10} {:>10}\n", name, devices.at(name)->type,
                            fmt::format("{}-{}", stage.first_layer, stage.first_layer + stage.layers - 1),
                            show_bytes(use.memory_bytes),
                            show_bytes(std::max(0.0, use.limit_bytes - use.memory_bytes)),
                            show_seconds(use.compute_seconds), show_seconds(use.exposed_seconds));
      }
  }
  return text +
         fmt::format("step {}, simulated from the programs of all ranks\n", show_seconds(time.seconds));
}

// graph of a micro-batch, {cluster, plan}: a step of any plan, sharding programs included, at once.
int simulate_programs_of(lua_State* L) {
  const Graph graph = prune(check_object<GraphHandle>(L, 1)->graph);
  luaL_checktype(L, 2, LUA_TTABLE);
  const planner::hap::DeviceGroup group(cluster_of(L, 2, "this cannot be simulated"), precision_of(graph));
  const Plan plan = plan_of(L, 2, graph);
  const planner::ProgramsTime time = planner::simulate_plan(graph, plan, group);
  Json::array_t ranks;
  double over = 0;
  for (const planner::ProgramUse& use : time.ranks) {
    over = std::max(over, use.memory_bytes - use.limit_bytes);
    ranks.push_back(Json::object_t{{"compute_seconds", use.compute_seconds},
                                   {"exposed_seconds", use.exposed_seconds},
                                   {"memory_bytes", use.memory_bytes},
                                   {"limit_bytes", use.limit_bytes}});
  }
  Json result =
      Json::object_t{{"feasible", true},
                     {"text", text_of(time, plan, group)},
                     {"lua", to_lua(plan)},
                     {"report", Json::object_t{{"step_seconds", time.seconds}, {"ranks", std::move(ranks)}}}};
  if (over > 0) result["over_bytes"] = over;
  push_json(L, result);
  return 1;
}

}  // namespace

void add_hap(lua_State* L) {
  set_functions(L, "native.",
                {bind<&begin_synthesis>("synthesise"), bind<&begin_stages>("sharded_stages"),
                 bind<&simulate_programs_of>("simulate_programs")});
}

}  // namespace het::lua
