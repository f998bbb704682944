// The planner as Lua sees it: clusters, plans and requests from tables. Its answers: planner_answers.cpp.
#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "core/base/nearest.h"
#include "core/base/sequential.h"
#include "core/base/units.h"
#include "lua/objects.h"
#include "lua/planning.h"
#include "planner/cluster/type_sources.h"
#include "planner/explain.h"
#include "planner/fallback.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/lower/stage_graphs.h"
#include "planner/measured/measured.h"
#include "planner/megatron/sharding.h"
#include "planner/migrate/graph_state.h"
#include "planner/model/graph_model.h"
#include "planner/policy.h"
#include "planner/simulate/sensitivity.h"

namespace het::lua {

bool SearchPace::goes_on() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kTurn{2};  // of work; then it rests three times as long
  if (given_up) return false;
  if (!gentle) return true;
  const auto now = Clock::now();
  if (since_ == Clock::time_point{}) since_ = now;
  if (now - since_ < kTurn) return true;
  const auto rested = now + 3 * (now - since_);
  while (gentle && !given_up && Clock::now() < rested) std::this_thread::sleep_for(kTurn);
  since_ = Clock::now();
  return !given_up;
}

namespace {

using planner::Cluster;
using planner::Planned;
using planner::Request;

constexpr int kMostHosts = 1 << 16, kMostBatch = 1 << 20;

Link link_at(lua_State* L, int index) {
  return {field<double>(L, index, "latency").value_or(0), field<double>(L, index, "bandwidth").value_or(0)};
}

// Every mistake of a cluster, a list of sentences.
int cluster_problems(lua_State* L) {
  return Convert<std::vector<std::string>>::push(L, planner::validate(cluster_at(L, 1)));
}

int known_types(lua_State* L) {
  std::vector<std::string> names;
  for (const planner::DeviceType& type : planner::known_device_types()) names.push_back(type.name);
  return Convert<std::vector<std::string>>::push(L, names);
}

// What is known of each type: {name, f32, bf16, f16 (FLOP/s; 0: none), memory, memory_bandwidth, bandwidth
// and latency between two of a machine, efficiency, source, remark}.
int device_type_list(lua_State* L) {
  Json::array_t types;
  for (const planner::DeviceType& type : planner::known_device_types()) {
    const planner::TypeSource published = planner::source_of(type.name);
    types.push_back(Json::object_t{{"name", type.name},
                                   {"f32", type.f32_flops},
                                   {"bf16", type.bf16_flops},
                                   {"f16", type.f16_flops},
                                   {"memory", type.memory_bytes},
                                   {"memory_bandwidth", type.memory_bytes_per_second},
                                   {"bandwidth", type.inside.bytes_per_second},
                                   {"latency", type.inside.latency_seconds},
                                   {"efficiency", type.efficiency},
                                   {"source", std::string(published.source)},
                                   {"remark", std::string(published.remark)}});
  }
  push_json(L, types);
  return 1;
}

planner::Objective objective_named(const std::string& name) {
  for (const auto objective :
       {planner::Objective::time, planner::Objective::cost, planner::Objective::progress})
    if (planner::name_of(objective) == name) return objective;
  fail_usage("'{}' is no objective; there are time, cost and progress", name);
}

// cluster, objective: what the objective lacks of the cluster, a sentence; nil: nothing.
int price_problem(lua_State* L) {
  return Convert<std::optional<std::string>>::push(
      L, planner::price_problem(cluster_at(L, 1), objective_named(Convert<std::string>::get(L, 2))));
}

struct Extension {
  const char* name;
  bool planner::Extensions::*on;
};
constexpr Extension kExtensions[] = {
    {"uneven_microbatches", &planner::Extensions::uneven_microbatches},
    {"placed_optimizer", &planner::Extensions::placed_optimizer},
    {"recompute_per_stage", &planner::Extensions::recompute_per_stage},
    {"schedules", &planner::Extensions::schedules},
    {"mixed_stages", &planner::Extensions::mixed_stages},
    {"local_search", &planner::Extensions::local_search},
};

// {name = false} switches one off.
planner::Extensions extensions_at(lua_State* L, int index) {
  planner::Extensions extensions;
  for (const Extension& extension : kExtensions)
    extensions.*extension.on = field<bool>(L, index, extension.name).value_or(extensions.*extension.on);
  return extensions;
}

bool says_sharding(const Plan& plan) {
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (!cut_of(plan, stage).is_megatron()) return true;
  return false;
}

// {cluster, batch, tokens, name, objective, profile, extensions, old, near, cheaper} of the graph of a
// micro-batch of one sample.
Request request_at(lua_State* L, const Graph& graph, int index) {
  Request request;
  lua_getfield(L, index, "cluster");
  request.cluster = planner::merged(cluster_at(L, lua_gettop(L)));
  lua_pop(L, 1);
  request.batch = field<int>(L, index, "batch").value_or(1);
  if (request.batch > kMostBatch) fail_usage("batch = {}; {} are the most", request.batch, kMostBatch);
  request.model = planner::model_of_graph(graph, field<std::string>(L, index, "name").value_or("model"), 1,
                                          field<int>(L, index, "tokens").value_or(1));
  request.objective = objective_named(field<std::string>(L, index, "objective").value_or("time"));
  lua_getfield(L, index, "extensions");
  if (lua_istable(L, -1)) request.extensions = extensions_at(L, lua_gettop(L));
  lua_pop(L, 1);
  if (const auto path = field<Path>(L, index, "profile")) {
    request.profile = planner::read_profile(*path, request.model);
    planner::apply_links(request.profile, request.cluster);
  }
  lua_getfield(L, index, "old");
  if (lua_istable(L, -1)) request.old = plan_at(L, lua_gettop(L), static_cast<int>(graph.layers.size()));
  lua_pop(L, 1);
  if (request.old && says_sharding(*request.old))
    request.state = std::make_shared<planner::ModelState>(planner::state_of(graph));
  request.near = field<double>(L, index, "near").value_or(request.near);
  request.cheaper = field<bool>(L, index, "cheaper").value_or(false);
  request.runtime = runtime_of(field<std::string>(L, index, "runtime").value_or(""));
  int most = 1;
  for (const planner::Machine& node : request.cluster.nodes) most = std::max(most, node.devices);
  request.tensors = planner::tensor_degrees_of(graph, std::min(most, kMostTensor));
  std::erase_if(request.tensors, [&](int k) {  // a model without attention counts as one of one head
    return request.model.heads % k != 0 || request.model.kv_heads % k != 0;
  });
  request.can_divide = [graph](const Shares& shares) {
    try {
      tensor_parallel(graph, shares, 0);
      return true;
    } catch (const Error&) {
      return false;  // too few heads or features, or they do not come out even
    }
  };
  return request;
}

// Refuses a plan whose stages cannot exchange what passes between them, or the gradients that they share,
// because they divide their layers differently.
void require_exchange(const Graph& graph, const Plan& plan) {
  if (has_uniform_cut(plan)) return;
  StageGraphs graphs(graph, plan, false);
  for (int rank = 0; rank < static_cast<int>(devices_of(plan).size()); ++rank)
    if (tensor_rank_of(plan, rank) == 0)
      assignment_of(graphs.of(cut_of(plan, rank), 0).graph, plan, rank, &graphs);
}

// Where ranks could not run the plan that the planner found, the best whose stages share layers alike.
Planned runnable_plan(const Request& request, const std::string& policy, const Graph& graph) {
  Planned planned = planner::plan_with(request, policy);
  if (!planned.feasible) return planned;
  try {
    require_exchange(graph, planned.plan);
  } catch (const Error&) {
    Request alike = request;
    alike.extensions.mixed_stages = false;
    planned = planner::plan_with(alike, policy);
  }
  if (planned.cheaper) {
    try {
      require_exchange(graph, planned.cheaper->plan);
    } catch (const Error&) {
      planned.cheaper.reset();
    }
  }
  return planned;
}

Json plan_and_fallbacks(const Request& request, const std::string& policy, const Graph& graph, bool events,
                        int fallbacks) {
  const Planned planned = runnable_plan(request, policy, graph);
  Json answer = answer_json(request, planned, graph, events);
  if (!planned.feasible || fallbacks < 1) return answer;
  const auto found = planner::plan_fallbacks(request, planned.plan, policy, fallbacks);
  Json::array_t list;
  for (const planner::Fallback& fallback : found) list.push_back(fallback_json(fallback));
  answer["fallbacks"] = std::move(list);
  answer["fallbacks_text"] = planner::to_text(found);
  return answer;
}

// graph, {policy, events, fallbacks, gentle, ... as request_at}: a planning, which runs in a separate thread.
// Its :wait() gives the answer, or raises what went wrong; :done([seconds]) waits so long (a moment), and
// says whether wait() returns at once; :hurry() ends what `gentle` asked for, to leave the cores to others
// most of the time; :give_up() ends the search. Mistakes of the request are raised at once.
int begin_planning(lua_State* L) {
  const GraphHandle graph = check_object<GraphHandle>(L, 1);
  graph->finished = true;
  luaL_checktype(L, 2, LUA_TTABLE);
  auto request = std::make_shared<Request>(request_at(L, graph->graph, 2));
  const auto policy = field<std::string>(L, 2, "policy").value_or("auto");
  const bool events = field<bool>(L, 2, "events").value_or(false);
  const int fallbacks = field<int>(L, 2, "fallbacks").value_or(0);
  auto planning = std::make_shared<Planning>();
  const bool gentle = field<bool>(L, 2, "gentle").value_or(false);
  planning->pace->gentle = gentle;
  // A copy: Lua may go on building the graph.
  planning->answer = std::async(std::launch::async, [graph = graph->graph, request, policy, events, fallbacks,
                                                     gentle, pace = planning->pace] {
    std::optional<SequentialScope> alone;  // until it is hurried
    if (gentle) alone.emplace();
    request->goes_on = [&alone, pace] {
      if (!pace->gentle) alone.reset();
      return pace->goes_on();
    };
    return plan_and_fallbacks(*request, policy, graph, events, fallbacks);
  });
  return Convert<PlanningHandle>::push(L, std::move(planning));
}

Json json_of(const planner::Cluster& cluster, int node, int host, int device, planner::Precision precision) {
  const planner::Machine& machine = cluster.nodes[static_cast<size_t>(node)];
  const planner::DeviceType& type = planner::type_of(cluster, node);
  return Json::object_t{{"name", planner::device_name(cluster, node, host, device)},
                        {"host", machine.hosts[static_cast<size_t>(host)]},
                        {"type", machine.type},
                        {"zone", machine.zone},
                        {"memory", type.memory_bytes},
                        {"flops", type.flops(precision)}};
}

void require_sound(const std::vector<std::string>& problems) {
  if (!problems.empty()) fail_usage("this cannot be simulated:\n  {}", fmt::join(problems, "\n  "));
}

int planning_problem(lua_State* L) {  // graph, {... as request_at}: what het.plan.policy gives to functions
  const Graph& graph = check_object<GraphHandle>(L, 1)->graph;
  luaL_checktype(L, 2, LUA_TTABLE);
  const Request request = request_at(L, graph, 2);
  require_sound(validate(request));
  const planner::Model& model = request.model;
  Json::array_t devices, layers, shared;
  for (int n = 0; n < static_cast<int>(request.cluster.nodes.size()); ++n)
    for (int h = 0; h < static_cast<int>(request.cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
      for (int d = 0; d < request.cluster.nodes[static_cast<size_t>(n)].devices; ++d)
        devices.push_back(json_of(request.cluster, n, h, d, model.precision));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const planner::LayerKind& kind = model.layer(static_cast<int>(i));
    layers.push_back(Json::object_t{{"name", graph.layers[i].name},
                                    {"kind", kind.name},
                                    {"parameters", kind.parameters},
                                    {"activation_bytes", kind.activation_bytes},
                                    {"boundary_bytes", kind.boundary_bytes},
                                    {"forward_flops", kind.forward_flops}});
  }
  for (const planner::SharedParameter& one : model.shared) {
    Json::array_t users;  // as Lua counts
    for (const int layer : one.layers) users.push_back(layer + 1);
    shared.push_back(Json::object_t{{"layers", std::move(users)}, {"parameters", one.parameters}});
  }
  push_json(L, Json::object_t{{"devices", std::move(devices)},
                              {"layers", std::move(layers)},
                              {"shared", std::move(shared)},
                              {"batch", request.batch},
                              {"precision", std::string(planner::name_of(model.precision))}});
  return 1;
}

int wait_for_planning(lua_State* L) {
  Planning& planning = *check_object<PlanningHandle>(L, 1);
  if (!planning.answer.valid()) fail_usage("this planning was waited for before");
  push_json(L, planning.answer.get());
  return 1;
}

constexpr double kMoment = 0.05, kLongest = 60.0;  // seconds

bool planning_is_done(PlanningHandle& planning, std::optional<double> seconds) {
  const bool waited_for = !planning->answer.valid();
  const double given = seconds.value_or(kMoment);
  const std::chrono::duration<double> patience(given > 0 ? std::min(given, kLongest) : 0.0);  // nan: none
  return waited_for || planning->answer.wait_for(patience) == std::future_status::ready;
}
void hurry_planning(PlanningHandle& planning) { planning->pace->gentle = false; }
void give_up_planning(PlanningHandle& planning) { planning->pace->given_up = true; }

int simulate_graph(lua_State* L) {  // graph, {plan, events, ... as request_at}
  const Graph& graph = check_object<GraphHandle>(L, 1)->graph;
  luaL_checktype(L, 2, LUA_TTABLE);
  Request request = request_at(L, graph, 2);
  require_sound(validate(request));
  lua_getfield(L, 2, "plan");
  const Plan plan = plan_at(L, lua_gettop(L), static_cast<int>(graph.layers.size()));
  lua_pop(L, 1);
  auto problems = validate(plan, subject_of(graph, request.batch));
  for (std::string& problem : problems_of(request.runtime, plan.schedule, plan.warmup))
    problems.push_back(std::move(problem));
  if (!problems.empty()) fail_usage("the plan cannot be run:\n  {}", fmt::join(problems, "\n  "));
  const planner::PlanLayout layout = planner::to_layout(plan, request.cluster);
  std::set<Shares> divisions;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) divisions.insert(tensor_shares(plan, stage));
  for (const Shares& shares : divisions)
    tensor_parallel(graph, shares, 0, plan.sequence);  // refuses what no rank could run
  require_exchange(graph, plan);
  planner::Evaluator evaluator(request);
  Planned planned;
  planned.plan = plan;
  planned.best = evaluator.simulate(layout, "given");
  planner::SimulateOptions details;
  details.details = true;
  details.runtime = request.runtime;
  planned.best.simulation = planner::simulate(plan, request.cluster, request.model, request.profile, details);
  planned.lower_bound_seconds = planner::lower_bound_seconds(request, evaluator, &layout);
  planned.feasible = true;
  planned.simulations = 1;
  Json answer = answer_json(request, planned, graph, field<bool>(L, 2, "events").value_or(false));
  const double seconds = planned.best.simulation.seconds;
  const planner::LinkSpread spread =
      planner::link_spread(request.cluster, seconds, [&](const Cluster& other) {
        return planner::simulate(plan, other, request.model, request.profile, details).seconds;
      });
  answer["link_spread"] = json_of(spread);
  answer["text"] = *as_string(answer["text"]) + planner::to_text(spread);
  if (!planned.best.simulation.fits) add_lack(answer, planned.best.simulation.over_bytes);
  push_json(L, answer);
  return 1;
}

// Where a device of a cluster is.
struct Place {
  int node = -1, host = 0;
};

// "; did you mean 'a:1'?", or which devices there are.
std::string what_is_meant(const std::string& name, const std::map<std::string, Place>& places) {
  std::vector<std::string> names;
  for (const auto& [device, place] : places) names.push_back(device);
  if (const std::string nearest = nearest_name(name, names); !nearest.empty())
    return fmt::format("; did you mean '{}'?", nearest);
  constexpr size_t kMost = 8;
  const bool more = names.size() > kMost;
  names.resize(std::min(names.size(), kMost));
  return fmt::format("; it has {}{}", fmt::join(names, ", "), more ? ", ..." : "");
}

// What it takes to run ranks as if they were devices of a cluster: {devices = {{flops, bandwidth, memory}},
// links = {{latency, bandwidth}}}, a device a rank, links by rank from and then rank to.
int pace_of(lua_State* L) {  // cluster, names of devices by rank
  const Cluster cluster = cluster_at(L, 1);
  require_sound(planner::validate(cluster));
  std::map<std::string, Place> places;
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n)
    for (int h = 0; h < static_cast<int>(cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
      for (int d = 0; d < cluster.nodes[static_cast<size_t>(n)].devices; ++d)
        places[planner::device_name(cluster, n, h, d)] = {n, h};
  std::vector<Place> ranks;
  for (const std::string& name : Convert<std::vector<std::string>>::get(L, 2)) {
    const auto found = places.find(name);
    if (found == places.end())
      fail_usage("the cluster has no device '{}'{}", name, what_is_meant(name, places));
    ranks.push_back(found->second);
  }
  Json::array_t devices, links;
  for (const Place& place : ranks) {
    const planner::DeviceType& type = planner::type_of(cluster, place.node);
    devices.push_back(Json::object_t{{"flops", type.f32_flops * type.efficiency},
                                     {"bandwidth", type.memory_bytes_per_second},
                                     {"memory", type.memory_bytes}});
  }
  for (const Place& from : ranks)
    for (const Place& to : ranks) {
      const bool same = from.node == to.node && from.host == to.host;
      const Link link = same ? planner::inside_link(cluster, from.node)
                             : planner::between_link(cluster, from.node, to.node);
      links.push_back(
          Json::object_t{{"latency", link.latency_seconds}, {"bandwidth", link.bytes_per_second}});
    }
  push_json(L, Json::object_t{{"devices", std::move(devices)}, {"links", std::move(links)}});
  return 1;
}

// {profiles, model_info, plans, model, bandwidth, latency, interfaces}: plans that were really run,
// predicted; as a table and as JSON.
int simulate_measured(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  planner::MeasuredRequest request;
  const auto text = [&](const char* name) { return field<std::string>(L, 1, name).value_or(""); };
  request.profiles = text("profiles");
  request.other_profiles = text("other_profiles");
  request.model_info = text("model_info");
  request.plans = text("plans");
  request.model = text("model");
  request.between = link_at(L, 1);
  request.interfaces = field<int>(L, 1, "interfaces").value_or(1);
  if (request.interfaces < 1 || request.interfaces > planner::kMostInterfaces)
    fail_usage("interfaces = {}; a machine has 1 to {}", request.interfaces, planner::kMostInterfaces);
  const Json answer = planner::to_json(planner::simulate_measured(request));
  push_json(L, answer);
  Convert<std::string>::push(L, dump(answer));
  return 2;
}

// {{name, seconds, cases = {{bandwidth, latency, step_seconds}}}}, model, batch: whether the order of plans
// depends on link speeds: the ranking, and `warning`, a sentence, where it does.
int rank_plans(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  std::vector<planner::RankedPlan> plans;
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    luaL_checktype(L, -1, LUA_TTABLE);
    const int at = lua_gettop(L);
    planner::RankedPlan plan;
    plan.name = field<std::string>(L, at, "name").value_or("");
    plan.links.seconds = field<double>(L, at, "seconds").value_or(0);
    each_in(L, at, "cases", [&](int, int with) {
      plan.links.cases.push_back({field<double>(L, with, "bandwidth").value_or(1),
                                  field<double>(L, with, "latency").value_or(1),
                                  field<double>(L, with, "step_seconds").value_or(0)});
    });
    if (!plans.empty() && plan.links.cases.size() != plans[0].links.cases.size())
      fail_usage("{} has {} cases, {} has {}", plan.name, plan.links.cases.size(), plans[0].name,
                 plans[0].links.cases.size());
    plans.push_back(std::move(plan));
    lua_pop(L, 1);
  }
  if (plans.empty()) fail_usage("native.rank_plans needs a plan");
  const planner::Ranking ranking =
      planner::rank(plans, Convert<std::string>::get(L, 2), Convert<int>::get(L, 3));
  Json answer = planner::to_json(ranking);
  if (ranking.depends_on_links()) answer["warning"] = planner::to_text(ranking);
  push_json(L, answer);
  return 1;
}

double bandwidth_from(std::string text) { return parse_bandwidth(text); }
double seconds_from(std::string text) { return parse_seconds(text); }
double rate_from(std::string text) { return parse_rate(text); }
std::vector<std::string> policies() { return planner::policy_names(); }
std::vector<std::string> extensions() {
  std::vector<std::string> names;
  for (const Extension& extension : kExtensions) names.emplace_back(extension.name);
  return names;
}
std::string bandwidth_text(double bytes_per_second) { return planner::show_bandwidth(bytes_per_second); }
bool takes_extensions(std::string policy) { return planner::takes_extensions(policy); }

}  // namespace

// {latency, bandwidth, all_reduce, types = {...}, nodes = {...}, links = {...}}, as lua/het/plan/cluster.lua
// makes it.
planner::Cluster cluster_at(lua_State* L, int index) {
  Cluster cluster;
  cluster.between = link_at(L, index);
  cluster.mesh = field<std::string>(L, index, "all_reduce").value_or("") == "mesh";
  each_in(L, index, "types", [&](int, int at) {
    planner::DeviceType type;
    type.name = field<std::string>(L, at, "name").value_or("");
    type.f32_flops = field<double>(L, at, "f32").value_or(0);
    type.bf16_flops = field<double>(L, at, "bf16").value_or(0);
    type.f16_flops = field<double>(L, at, "f16").value_or(0);
    type.memory_bytes = field<double>(L, at, "memory").value_or(0);
    type.memory_bytes_per_second = field<double>(L, at, "memory_bandwidth").value_or(0);
    type.inside = link_at(L, at);
    type.efficiency = field<double>(L, at, "efficiency").value_or(0.5);
    type.launch_seconds = field<double>(L, at, "launch").value_or(planner::kLaunchSeconds);
    cluster.types.push_back(std::move(type));
  });
  int64_t hosts = 0;
  each_in(L, index, "nodes", [&](int, int at) {
    planner::Machine node;
    const std::string name = field<std::string>(L, at, "name").value_or("");
    const int count = field<int>(L, at, "count").value_or(1);
    hosts += std::max(count, 0);
    if (hosts > kMostHosts) fail_usage("a cluster of more than {} machines", kMostHosts);
    for (int i = 1; i <= count; ++i) node.hosts.push_back(count == 1 ? name : fmt::format("{}{}", name, i));
    node.type = field<std::string>(L, at, "type").value_or("");
    node.devices = field<int>(L, at, "devices").value_or(1);
    node.zone = field<std::string>(L, at, "zone").value_or("");
    node.inside = link_at(L, at);
    node.interfaces = field<int>(L, at, "interfaces").value_or(0);
    node.price_per_hour = field<double>(L, at, "price").value_or(0);
    node.preemptions_per_hour = field<double>(L, at, "preemptions").value_or(0);
    cluster.nodes.push_back(std::move(node));
  });
  each_in(L, index, "links", [&](int, int at) {
    cluster.zone_links.push_back({field<std::string>(L, at, "from").value_or(""),
                                  field<std::string>(L, at, "to").value_or(""), link_at(L, at),
                                  field<bool>(L, at, "assumed").value_or(false)});
  });
  planner::add_known_types(cluster);
  return cluster;
}

void add_planner(lua_State* L) {
  make_class<PlanningHandle>(L, {bind<&wait_for_planning>("wait"), bind<&planning_is_done>("done"),
                                 bind<&hurry_planning>("hurry"), bind<&give_up_planning>("give_up")});
  set_functions(
      L, "native.",
      {bind<&begin_planning>("plan"), bind<&simulate_graph>("simulate"),
       bind<&simulate_measured>("simulate_measured"), bind<&rank_plans>("rank_plans"),
       bind<&planning_problem>("planning_problem"), bind<&cluster_problems>("cluster_problems"),
       bind<&price_problem>("price_problem"), bind<&known_types>("device_types"),
       bind<&device_type_list>("device_type_list"), bind<&pace_of>("pace"), bind<&policies>("policies"),
       bind<&extensions>("extensions"), bind<&bandwidth_text>("show_bandwidth"),
       bind<&takes_extensions>("takes_extensions"), bind<&bandwidth_from>("parse_bandwidth"),
       bind<&seconds_from>("parse_seconds"), bind<&rate_from>("parse_rate")});
}

}  // namespace het::lua
