// Measuring as Lua sees it: models as counts, profiles as tables, messages between ranks.
#include <algorithm>
#include <map>

#include "core/comm/speed.h"
#include "core/net/network.h"
#include "core/run/cluster.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "lua/planning.h"
#include "planner/model/graph_model.h"
#include "planner/profile/measure.h"
#include "planner/profile/profile.h"

namespace het::lua {
namespace {

// {name, tokens} at `index` of the graph of a micro-batch of one sample.
planner::Model model_at(lua_State* L, const Graph& graph, int index) {
  return planner::model_of_graph(graph, field<std::string>(L, index, "name").value_or("model"), 1,
                                 field<int>(L, index, "tokens").value_or(1));
}

// graph of one sample, {name, tokens}: {name, digest, kinds = {{name, layers}}, tensors}.
int model_summary(lua_State* L) {
  const Graph& graph = check_object<GraphHandle>(L, 1)->graph;
  const planner::Model model = model_at(L, graph, 2);
  std::vector<int> layers(model.kinds.size(), 0);
  for (const int kind : model.layers) ++layers[static_cast<size_t>(kind)];
  Json::array_t kinds, tensors;
  for (size_t i = 0; i < layers.size(); ++i)
    kinds.push_back(Json::object_t{{"name", model.kinds[i].name}, {"layers", layers[i]}});
  for (const int degree : planner::tensor_degrees_of(graph, kMostTensor)) tensors.emplace_back(degree);
  push_json(L, Json::object_t{{"name", model.name},
                              {"digest", planner::digest_of(model)},
                              {"kinds", std::move(kinds)},
                              {"tensors", std::move(tensors)}});
  return 1;
}

// graph of a micro-batch, graph of one sample, device, {name, tokens, type, tensor, microbatch, runs, kinds,
// sharing, inputs = {name = tensor}}: {points, seconds, runs}, points as a profile has them; none after
// Ctrl-C.
int measure_graph(lua_State* L) {
  const Graph& graph = check_object<GraphHandle>(L, 1)->graph;
  const planner::Model model = model_at(L, check_object<GraphHandle>(L, 2)->graph, 4);
  const DeviceHandle device = check_object<DeviceHandle>(L, 3);
  planner::MeasureOptions options;
  options.type = field<std::string>(L, 4, "type").value_or(options.type);
  options.tensor = field<int>(L, 4, "tensor").value_or(1);
  options.microbatch = field<int>(L, 4, "microbatch").value_or(1);
  if (options.tensor < 1 || options.microbatch < 1)
    fail_usage("measure: tensor = {} and microbatch = {} are 1 or more", options.tensor, options.microbatch);
  if (const auto runs = field<int>(L, 4, "runs")) {
    constexpr int kMost = 1 << 20;
    if (*runs < 1 || *runs > kMost) fail_usage("measure: runs = {}; 1 to {} are possible", *runs, kMost);
    options.least_runs = options.most_runs = *runs;
  }
  if (auto kinds = field<std::vector<std::string>>(L, 4, "kinds")) options.kinds = std::move(*kinds);
  options.sharing = field<double>(L, 4, "sharing").value_or(1);
  if (!(options.sharing > 0)) fail_usage("measure: sharing = {} is above 0", options.sharing);
  options.stop = &interrupt_pending;
  std::map<std::string, Tensor> inputs;
  lua_getfield(L, 4, "inputs");
  if (lua_istable(L, -1)) {
    const int table = lua_gettop(L);
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
      if (lua_type(L, -2) != LUA_TSTRING) fail_usage("measure: inputs are named");
      inputs.emplace(Convert<std::string>::get(L, lua_gettop(L) - 1), check_object<Tensor>(L, lua_gettop(L)));
    }
  }
  lua_pop(L, 1);
  const planner::Measured measured = planner::measure_layers(graph, model, device, inputs, options);
  planner::Profile profile;
  profile.points = measured.points;
  push_json(L, Json::object_t{{"points", *find_member(planner::to_json(profile), "points")},
                              {"seconds", measured.seconds},
                              {"runs", measured.runs}});
  return 1;
}

// path [, graph of one sample, {name, tokens}]: the profile of that file. Raises when it is none, or not of
// this model.
int read_profile(lua_State* L) {
  const Path path = Convert<Path>::get(L, 1);
  if (lua_isnoneornil(L, 2)) {
    push_json(L, planner::to_json(planner::read_profile(path)));
    return 1;
  }
  const planner::Model model = model_at(L, check_object<GraphHandle>(L, 2)->graph, 3);
  push_json(L, planner::to_json(planner::read_profile(path, model)));
  return 1;
}

int push_messages(lua_State* L, const std::vector<MessageTime>& times) {
  Json::array_t list;
  for (const MessageTime& time : times)
    list.push_back(Json::object_t{{"bytes", time.bytes}, {"seconds", time.seconds}});
  push_json(L, list);
  return 1;
}

std::vector<int64_t> sizes_at(lua_State* L, int index) {
  constexpr int64_t kMost = int64_t{1} << 32;
  const auto sizes = Convert<std::vector<int64_t>>::get(L, index);
  for (const int64_t size : sizes)
    if (size < 1 || size > kMost) fail_usage("a message of {} bytes; 1 to {} are possible", size, kMost);
  return sizes;
}

int rounds_at(lua_State* L, int index) {
  constexpr int kMost = 1 << 20;
  const int rounds = Convert<int>::get(L, index);
  if (rounds < 1 || rounds > kMost) fail_usage("{} rounds of messages; 1 to {} are possible", rounds, kMost);
  return rounds;
}

// sizes, rounds: {{bytes, seconds}} between two threads of this process.
int messages_here(lua_State* L) {
  return push_messages(L, time_messages_here(sizes_at(L, 1), rounds_at(L, 2)));
}

// cluster, from, to (ranks from 0), sizes, rounds, device: the same between two ranks, from device to device
// where there is a way past the host; both of them call it.
int messages_between(lua_State* L) {
  const auto& cluster = check_object<ClusterHandle>(L, 1);
  const int from = Convert<int>::get(L, 2), to = Convert<int>::get(L, 3);
  const int ranks = cluster->groups()->size();
  if (from < 0 || to < 0 || from >= ranks || to >= ranks || from == to)
    fail_usage("messages between ranks {} and {} of {}", from, to, ranks);
  const auto& device = check_object<DeviceHandle>(L, 6);
  const DirectPair direct{cluster->groups()->direct({std::min(from, to), std::max(from, to)}, device),
                          device.get()};
  return push_messages(L, time_messages(cluster->world(), from, to, sizes_at(L, 4), rounds_at(L, 5), direct));
}

// {{bytes, seconds}}: latency and bandwidth.
int fit_link(lua_State* L) {
  std::vector<planner::Message> messages;
  const int count = list_size(L, 1);
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 1, i);
    const int at = lua_gettop(L);
    messages.push_back(
        {field<double>(L, at, "bytes").value_or(0), field<double>(L, at, "seconds").value_or(0)});
    lua_pop(L, 1);
  }
  const Link link = planner::fit(messages);
  lua_pushnumber(L, link.latency_seconds);
  lua_pushnumber(L, link.bytes_per_second);
  return 2;
}

std::string name_of_host() {
  const std::string name = host_name();
  return name.empty() ? "localhost" : name;
}

}  // namespace

void add_profile(lua_State* L) {
  set_functions(
      L, "native.",
      {bind<&model_summary>("model"), bind<&measure_graph>("measure"), bind<&read_profile>("profile"),
       bind<&messages_here>("messages_here"), bind<&messages_between>("messages_between"),
       bind<&fit_link>("fit_link"), bind<&name_of_host>("host_name")});
}

}  // namespace het::lua
