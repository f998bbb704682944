// `native.synthesise`: a sharding program for a graph on a cluster (planner/hap).
#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "core/base/elapsed.h"
#include "core/base/units.h"
#include "core/graph/fuse.h"
#include "lua/planning.h"
#include "planner/hap/fitting.h"
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

Json json_of(const planner::hap::Check& check) {
  using planner::hap::seconds_of;
  return Json::object_t{
      {"nodes", check.nodes},
      {"strategies", check.strategies},
      {"edges", check.edges},
      {"checked_seconds", seconds_of(check.checked)},
      {"found_seconds", check.cost < planner::hap::kNever ? Json(seconds_of(check.cost)) : Json()},
      {"bound_seconds", seconds_of(check.bound)},
      {"exact", check.is_exact()},
      {"linear_bound_seconds", seconds_of(check.linear_bound)},
      {"linear_entries", check.linear_entries},
      {"solve_seconds", check.seconds},
      {"linear_solve_seconds", check.linear_seconds}};
}

Json json_of(const Report& report) {
  Json::array_t devices, instructions, baselines, meshes;
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
                                          {"exchange", instruction.is_exchange},
                                          {"axis", instruction.axis}});
  const auto json = [](const Compared& other) {
    return Json::object_t{{"name", other.name},
                          {"found", other.found},
                          {"step_seconds", other.simulated_seconds},
                          {"fits", other.fits},
                          {"summed_seconds", other.summed_seconds},
                          {"lua", other.found ? to_lua(other.plan) : std::string()},
                          {"problem", other.problem}};
  };
  for (const Compared& other : report.baselines) baselines.push_back(json(other));
  for (const Compared& other : report.meshes) meshes.push_back(json(other));
  Json::array_t gains;
  if (report.gains)
    for (const planner::hap::Gain& gain : report.gains->of)
      gains.push_back(Json::object_t{{"name", std::string(name_of(gain.addition))},
                                     {"published_seconds", planner::hap::seconds_of(report.gains->published)},
                                     {"alone_seconds", planner::hap::seconds_of(gain.alone)},
                                     {"all_seconds", planner::hap::seconds_of(report.gains->all)},
                                     {"without_seconds", planner::hap::seconds_of(gain.without)}});
  Json smaller;
  if (report.smaller)
    smaller = Json::object_t{
        {"without", Json::array_t(report.smaller->without.begin(), report.smaller->without.end())},
        {"step_seconds", report.smaller->simulated_seconds}};
  Json check;
  if (report.check) check = json_of(*report.check);
  return Json::object_t{{"devices", std::move(devices)},
                        {"check", std::move(check)},
                        {"gains", std::move(gains)},
                        {"instructions", std::move(instructions)},
                        {"baselines", std::move(baselines)},
                        {"meshes", std::move(meshes)},
                        {"step_seconds", report.simulated_seconds},
                        {"exposed_seconds", report.exposed_seconds},
                        {"slowest", report.slowest},
                        {"parts", parts_json(report.parts)},
                        {"cut", report.is_cut},
                        {"chosen", report.chosen},
                        {"too_large", report.too_large},
                        {"summed_seconds", report.seconds},
                        {"compute_seconds", report.compute_seconds},
                        {"communication_seconds", report.communication_seconds},
                        {"bound_seconds", report.bound_seconds},
                        {"gap", report.gap},
                        {"smaller", std::move(smaller)},
                        {"table_seconds", report.table_seconds},
                        {"search_seconds", report.search_seconds},
                        {"searches", report.searches},
                        {"mesh_search_seconds", report.mesh_seconds},
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
  bool baselines = false, gains = false, check = false;
};

// What no program changes: all devices together have less memory than the state takes. Shares by memory lack
// least. nullopt: they have enough.
std::optional<Json> without_room(const Graph& graph, const planner::hap::DeviceGroup& group) {
  const double state = planner::hap::state_bytes(graph);
  double room = 0;
  for (const planner::hap::Device& device : group.devices()) room += device.memory_bytes;
  if (state <= room) return std::nullopt;
  Json::array_t problems{Json(fmt::format(
      "parameters and the optimizer's state take {}; {} together have {}", show_bytes(state),
      group.size() == 1 ? "all devices" : fmt::format("the {} devices", group.size()), show_bytes(room)))};
  for (size_t d = 0; d < group.devices().size() && d < 4; ++d) {
    const planner::hap::Device& device = group.devices()[d];
    const double part = state * device.memory_bytes / room;
    problems.push_back(
        fmt::format("{} ({}) lacks {} at least, with a share of them like its memory: {}, it has {}",
                    device.name, device.type, show_bytes(part - device.memory_bytes), show_bytes(part),
                    show_bytes(device.memory_bytes)));
  }
  return Json::object_t{
      {"feasible", false}, {"text", std::string()},    {"lua", std::string()},           {"origin", "hap"},
      {"proven", true},    {"lack", state / room - 1}, {"problems", std::move(problems)}};
}

Json answer_of(const Graph& whole, const Asked& asked) {
  const Graph graph = prune(whole);  // as it is lowered
  const planner::hap::DeviceGroup group(asked.cluster, precision_of(graph));
  if (auto refused = without_room(graph, group)) return *std::move(refused);
  const double begin = steady_seconds();
  const PlacementTable table(graph);
  const double table_seconds = steady_seconds() - begin;
  const planner::hap::Request request{&table, &group, asked.microbatches, {}, asked.microbatch};
  const planner::hap::Answer answer = planner::hap::synthesise(request);
  Report report = planner::hap::report_of(request, answer, asked.baselines);
  report.table_seconds = table_seconds;
  if (asked.gains) report.gains = planner::hap::gains_of(request);
  if (asked.check && report.too_large.empty()) report.check = planner::hap::check(request, answer.best);
  Json::array_t problems;
  double lack = 0;
  for (const DeviceShare& device : report.devices)
    lack = std::max(lack, device.memory_bytes / std::max(1.0, device.limit_bytes) - 1);
  for (const DeviceShare& device : report.devices)
    if (device.memory_bytes > device.limit_bytes && problems.size() < 4)
      problems.push_back(fmt::format("{} ({}) lacks {}: its part needs {}, it has {}", device.device,
                                     device.type, show_bytes(device.memory_bytes - device.limit_bytes),
                                     show_bytes(device.memory_bytes), show_bytes(device.limit_bytes)));
  Json result = Json::object_t{{"feasible", problems.empty()},
                               {"text", planner::hap::to_text(report)},
                               {"lua", to_lua(report.plan)},
                               {"report", json_of(report)},
                               {"origin", "hap"},
                               {"lack", lack}};
  result["problems"] = std::move(problems);
  return result;
}

// graph of a micro-batch, {cluster, microbatch, microbatches, baselines, gains, check}: a planning, as
// native.plan gives one.
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
  asked.check = field<bool>(L, 2, "check").value_or(false);
  auto planning = std::make_shared<Planning>();
  planning->answer =
      std::async(std::launch::async, [graph = graph->graph, asked] { return answer_of(graph, asked); });
  return Convert<PlanningHandle>::push(L, std::move(planning));
}

// A rank of a plan with what it takes, in the order of ranks.
struct RankUse {
  std::string device, type;
  size_t pipeline = 0, stage = 0;
  double part = 1;                   // of what its stage cuts
  std::vector<const Stage*> stages;  // several where they are interleaved
  planner::ProgramUse use;
};

std::vector<RankUse> ranks_of(const planner::ProgramsTime& time, const Plan& plan,
                              const planner::hap::DeviceGroup& group) {
  std::map<std::string, const planner::hap::Device*> devices;
  for (const planner::hap::Device& device : group.devices()) devices[device.name] = &device;
  std::vector<RankUse> ranks;
  std::map<std::string, size_t> known;
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const Stage& stage = plan.pipelines[p].stages[s];
      const StageCut cut = cut_of(plan, stage);
      for (size_t d = 0; d < stage.devices.size(); ++d) {
        const auto [place, fresh] = known.emplace(stage.devices[d], ranks.size());
        if (fresh) {
          double part = 1.0 / static_cast<double>(stage.devices.size());
          if (cut.axes.size() == 1) {
            const Shares& shares = cut.axes[0].shares;
            part = static_cast<double>(shares[d]) /
                   static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
          }
          ranks.push_back({stage.devices[d],
                           devices.at(stage.devices[d])->type,
                           p,
                           s,
                           part,
                           {},
                           time.ranks[ranks.size()]});
        }
        ranks[place->second].stages.push_back(&stage);
      }
    }
  return ranks;
}

// A table of the devices, by pipeline and stage.
std::string text_of(const planner::ProgramsTime& time, const Plan& plan, const std::vector<RankUse>& ranks) {
  std::string text = fmt::format("{:<16} {:<16} {:<8} {:>7} {:>10} {:>10} {:>10} {:>10}\n", "device", "type",
                                 "layers", "share", "memory", "free", "computes", "waits");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankUse& rank = ranks[r];
    if (plan.pipelines.size() > 1 && (r == 0 || ranks[r - 1].pipeline != rank.pipeline))
      text += fmt::format("pipeline {}\n", rank.pipeline + 1);
    const Stage& stage = *rank.stages[0];
    text +=
        fmt::format("{:<16} {:<16} {:<8} {:>5.1f} % {:>10} {:>10} {:>10} {:>10}\n", rank.device, rank.type,
                    fmt::format("{}-{}", stage.first_layer, stage.first_layer + stage.layers - 1),
                    100 * rank.part, show_bytes(rank.use.memory_bytes),
                    show_bytes(std::max(0.0, rank.use.limit_bytes - rank.use.memory_bytes)),
                    show_seconds(rank.use.compute_seconds), show_seconds(rank.use.exposed_seconds));
  }
  const planner::StepParts& parts = ranks[time.longest()].use.parts;
  text += fmt::format("step {}, simulated from the programs of all ranks\n", show_seconds(time.seconds));
  text += fmt::format("a step on {}, slowest in compute: {}\n", ranks[time.longest()].device,
                      planner::to_text(parts));
  std::string binds;
  for (const std::string_view name : planner::what_binds(parts))
    binds += (binds.empty() ? "" : ", ") + planner::to_text(parts, name);
  return text + fmt::format("what binds: {}\n", binds.empty() ? "no single part" : binds);
}

struct StagesAsked {
  planner::Cluster cluster;
  std::vector<std::pair<int, GraphHandle>> graphs;  // by samples of a micro-batch
  Plan rival;
  int batch = 1;
  bool pipelines = false;
  double rival_seconds = 0;
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
  request.rival_seconds = asked.rival_seconds;
  const planner::hap::StagesAnswer answer = planner::hap::plan_stages(request);
  Json::array_t candidates;
  for (const auto& each : answer.candidates)
    candidates.push_back(
        Json::object_t{{"name", each.name}, {"step_seconds", each.time.seconds}, {"fits", each.time.fits()}});
  Json result = Json::object_t{{"rival_seconds", answer.rival_seconds},
                               {"candidates", std::move(candidates)},
                               {"cuts_state", answer.cuts_state}};
  if (const auto* best = answer.best()) {
    result["name"] = best->name;
    result["step_seconds"] = best->time.seconds;
    result["lua"] = to_lua(best->plan);
    result["text"] = text_of(best->time, best->plan, ranks_of(best->time, best->plan, group));
  }
  return result;
}

// {{microbatch, graph}, ...} (of a batch and its parts), {cluster, batch, plan, pipelines, rival_seconds}: a
// planning of pipelines whose stages run sharding programs, beside the plan.
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
  asked->rival_seconds = field<double>(L, 2, "rival_seconds").value_or(0);
  auto planning = std::make_shared<Planning>();
  planning->answer = std::async(std::launch::async, [asked] { return answer_of(*asked); });
  return Convert<PlanningHandle>::push(L, std::move(planning));
}

Json json_of(const std::vector<RankUse>& ranks, double step_seconds) {
  Json::array_t list;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankUse& rank = ranks[r];
    Json::array_t chunks;
    int layers = 0;
    for (const Stage* stage : rank.stages) {
      chunks.push_back(Json::object_t{
          {"first_layer", stage->first_layer}, {"layers", stage->layers}, {"recompute", stage->recompute}});
      layers += stage->layers;
    }
    list.push_back(Json::object_t{{"device", rank.device},
                                  {"type", rank.type},
                                  {"rank", r},
                                  {"pipeline", rank.pipeline + 1},
                                  {"stage", rank.stage + 1},
                                  {"layers", layers},
                                  {"chunks", std::move(chunks)},
                                  {"share", rank.part},
                                  {"memory_bytes", rank.use.memory_bytes},
                                  {"free_bytes", rank.use.limit_bytes - rank.use.memory_bytes},
                                  {"busy_share", rank.use.compute_seconds / step_seconds},
                                  {"compute_seconds", rank.use.compute_seconds},
                                  {"exposed_seconds", rank.use.exposed_seconds},
                                  {"parts", parts_json(rank.use.parts)},
                                  {"why", fmt::format("{:.1f} % of what is cut; waits {}", 100 * rank.part,
                                                      show_seconds(rank.use.exposed_seconds))}});
  }
  return list;
}

// What a page says an event is, of those that simulations of layers have, and exchanges of activations.
std::string_view kind_of(const planner::ProgramEvent& event) {
  using planner::StepParts;
  if (!event.is_exchange) return name_of(event.phase);
  if (event.part == &StepParts::transfers) return "send";
  if (event.part == &StepParts::tensor) return "exchange";
  return event.part == &StepParts::gather ? "gather" : "reduce";
}

Json json_of(const std::vector<planner::ProgramEvent>& events, const std::vector<RankUse>& ranks,
             const Graph& graph) {
  Json::array_t list;
  for (const planner::ProgramEvent& event : events) {
    const RankUse& rank = ranks[static_cast<size_t>(event.rank)];
    std::string name = event.what;
    if (event.layer >= 0) name += " of " + graph.layers[static_cast<size_t>(event.layer)].name;
    if (event.microbatch >= 0) name += fmt::format(", micro-batch {}", event.microbatch + 1);
    list.push_back(Json::object_t{{"kind", std::string(kind_of(event))},
                                  {"name", std::move(name)},
                                  {"rank", event.rank},
                                  {"pipeline", rank.pipeline + 1},
                                  {"stage", rank.stage + 1},
                                  {"start", event.start},
                                  {"end", event.end}});
  }
  return list;
}

// graph of a micro-batch, {cluster, plan, events, spread}: a step of any plan, sharding programs included, at
// once; with other links, too, unless `spread` is false.
int simulate_programs_of(lua_State* L) {
  const Graph graph = prune(check_object<GraphHandle>(L, 1)->graph);
  luaL_checktype(L, 2, LUA_TTABLE);
  const planner::Cluster cluster = cluster_of(L, 2, "this cannot be simulated");
  const planner::hap::DeviceGroup group(cluster, precision_of(graph));
  const Plan plan = plan_of(L, 2, graph);
  const bool events = field<bool>(L, 2, "events").value_or(false);
  const planner::ProgramsTime time = planner::simulate_plan(graph, plan, group, events);
  const std::vector<RankUse> ranks = ranks_of(time, plan, group);
  double over = 0;
  std::set<std::string> used;
  for (const RankUse& rank : ranks) {
    over = std::max(over, rank.use.memory_bytes - rank.use.limit_bytes);
    used.insert(rank.device);
  }
  const auto binds = planner::what_binds(ranks[time.longest()].use.parts);
  Json::array_t idle, layers, links;
  for (const planner::ZoneLink& link : cluster.zone_links)
    links.push_back(Json::object_t{{"from", link.a},
                                   {"to", link.b},
                                   {"bandwidth", link.link.bytes_per_second},
                                   {"latency", link.link.latency_seconds},
                                   {"source", link.assumed ? "assumed" : "stated"}});
  for (const planner::hap::Device& device : group.devices())
    if (used.count(device.name) == 0) idle.push_back(device.name);
  for (const Layer& layer : graph.layers) layers.push_back(Json::object_t{{"name", layer.name}});
  double parameters = 0;
  for (const Value& value : graph.values)
    if (value.role == Role::parameter) parameters += static_cast<double>(value.type.elements());
  Json result =
      Json::object_t{{"feasible", true},
                     {"text", text_of(time, plan, ranks)},
                     {"lua", to_lua(plan)},
                     {"plan", plan_json(plan)},
                     {"cluster", cluster_json(cluster)},
                     {"model", Json::object_t{{"precision", std::string(name_of(precision_of(graph)))},
                                              {"parameters", parameters},
                                              {"layers", std::move(layers)}}},
                     {"report", Json::object_t{{"step_seconds", time.seconds},
                                               {"exposed_seconds", time.exposed_seconds()},
                                               {"slowest", ranks[time.longest()].device},
                                               {"parts", parts_json(ranks[time.longest()].use.parts)},
                                               {"binds", Json::array_t(binds.begin(), binds.end())},
                                               {"devices", json_of(ranks, time.seconds)},
                                               {"links", std::move(links)},
                                               {"idle", std::move(idle)}}}};
  if (field<bool>(L, 2, "spread").value_or(true)) {
    const planner::LinkSpread spread =
        planner::link_spread(cluster, time.seconds, [&](const planner::Cluster& other) {
          return planner::simulate_plan(graph, plan, {other, precision_of(graph)}).seconds;
        });
    result["link_spread"] = json_of(spread);
    result["text"] = *as_string(result["text"]) + planner::to_text(spread);
  }
  if (events) result["events"] = json_of(time.events, ranks, graph);
  if (over > 0) add_lack(result, over);
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
