// The ranks of a run: how this process joins them, and what they do together outside a program.
#include <chrono>
#include <iostream>
#include <thread>

#include "core/base/elapsed.h"
#include "core/base/units.h"
#include "core/base/visible.h"
#include "core/cluster/secret.h"
#include "core/comm/link_rates.h"
#include "core/run/restore.h"
#include "core/run/run_member.h"
#include "core/tensor/convert.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/migrate/migrate.h"

namespace het::lua {

std::vector<Link> links_at(lua_State* L, int index) {
  std::vector<Link> links;
  each_in(L, index, "links", [&](int, int at) {
    links.push_back(
        {field<double>(L, at, "latency").value_or(0), field<double>(L, at, "bandwidth").value_or(0)});
  });
  return links;
}

std::string secret_of(lua_State* L, int index) {
  const Host& host = host_of(L);
  if (host.secret_problem != nullptr) std::rethrow_exception(host.secret_problem);
  if (host.secret) return *host.secret;
  const EnvironmentLookup lookup = process_environment();
  if (lookup("HETRUN_STORE")) return load_secret(lookup, "");  // of the launcher, which handed it on
  const auto named = field<std::string>(L, index, "secret_file");
  return load_secret(lookup, named ? *named : lookup("HETRUN_SECRET_FILE").value_or(""));
}

namespace {

bool is_alone() { return !is_one_of_several(process_environment()); }

// What the command line or the recipe says, else the environment.
std::optional<std::string> setting(lua_State* L, const char* name, const char* variable) {
  auto said = field<std::string>(L, 1, name);
  return said ? said : process_environment()(variable);
}

std::optional<std::chrono::milliseconds> duration_setting(lua_State* L, const char* name,
                                                          const char* variable) {
  const auto text = setting(L, name, variable);
  if (!text) return std::nullopt;
  double seconds = 0;
  try {
    seconds = parse_seconds(*text);
  } catch (const Error& error) {
    fail_usage("{} = {}", name, error.sentence());
  }
  constexpr double kLeast = 0.1, kMost = 1e6;
  if (seconds < kLeast) fail_usage("{} = {} is below 0.1 s, the least", name, *text);
  if (seconds > kMost) fail_usage("{} = {} is above 1000000 s, the most", name, *text);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// {recipe, settings, data, data_settings, device, memory, rendezvous, interface, secret_file, timeout,
// warn_after, run, links, least, most, about}.
JoinSettings settings_at(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  JoinSettings settings;
  settings.secret = secret_of(L, 1);
  settings.run = field<std::string>(L, 1, "run").value_or(settings.run);
  settings.etcd = setting(L, "rendezvous", "HETRUN_RENDEZVOUS");
  settings.interface = setting(L, "interface", "HETRUN_INTERFACE");
  settings.timeout = duration_setting(L, "timeout", "HETRUN_TIMEOUT");
  settings.warn_after = duration_setting(L, "warn_after", "HETRUN_WARN_AFTER");
  settings.device = field<std::string>(L, 1, "device").value_or(settings.device);
  settings.device_memory = to_integer<int64_t>(field<double>(L, 1, "memory").value_or(0));
  const auto digest_of = [&](const char* what, const char* settings) {
    return hex_of(hmac_sha256(what, field<std::string>(L, 1, what).value_or(""))) + '\n' +
           field<std::string>(L, 1, settings).value_or("");
  };
  settings.about = field<std::string>(L, 1, "about").value_or("");
  settings.recipe_digest = digest_of("recipe", "settings");
  settings.data_digest = digest_of("data", "data_settings");
  settings.links = links_at(L, 1);
  settings.least = field<int>(L, 1, "least").value_or(settings.least);
  settings.most = field<int>(L, 1, "most");
  settings.is_interrupted = [] { return interrupt_pending() || asked_to_leave(); };
  settings.warn = [](const std::string& sentence) { std::cerr << visible(sentence) + "\n" << std::flush; };
  return settings;
}

// --- runs of fixed ranks, and each generation of others

// nil where no launcher says that there are several ranks.
int join_run(lua_State* L) {
  if (is_alone()) return 0;
  return Convert<ClusterHandle>::push(L, Cluster::join(settings_at(L)));
}

int cluster_rank(ClusterHandle& cluster) { return cluster->rank(); }
int cluster_size(ClusterHandle& cluster) { return cluster->size(); }
std::vector<std::string> cluster_ways(ClusterHandle& cluster) { return cluster->ways(); }
bool cluster_any(ClusterHandle& cluster, bool own) { return cluster->any(own); }
std::vector<std::string> cluster_all_gather(ClusterHandle& cluster, std::string text) {
  return cluster->all_gather(text);
}
// cluster, by rank of the plan (from 1) the rank of the run (from 0) that computes this part
void cluster_arrange(ClusterHandle& cluster, std::vector<int> by_plan) {
  cluster->arrange(std::move(by_plan));
}
void cluster_leave(ClusterHandle& cluster) { cluster->leave(); }
void cluster_close(ClusterHandle& cluster, std::string why, std::optional<bool> agreed) {
  cluster->close(why, agreed.value_or(false));
}
int cluster_gather(lua_State* L) {  // cluster, state; nil on other ranks than the first
  auto& cluster = check_object<ClusterHandle>(L, 1);
  const auto gathered =
      gather_state(cluster->world(), check_object<StateHandle>(L, 2), host_of(L).cpu, planner::plan_moves());
  return gathered == nullptr ? 0 : Convert<StateHandle>::push(L, gathered);
}

// This rank runs no more lines: it waits until the others come as far, and ends those that do not.
void cluster_finish(ClusterHandle& cluster, std::string place) {
  if (cluster->size() > 1) cluster->agreement()->at_end(place, "");
}

// hosts by rank -> {bandwidth = by rank, of its host in bytes/s, 0: not measured; latency = s}. All ranks
// call it at the same place.
int cluster_measure_links(lua_State* L) {
  const auto& cluster = check_object<ClusterHandle>(L, 1);
  const auto hosts = Convert<std::vector<std::string>>::get(L, 2);
  if (static_cast<int>(hosts.size()) != cluster->size())
    fail_usage("measure_links takes the host of each of {} ranks", cluster->size());
  const LinkRates rates = measure_link_rates(cluster->world(), hosts);
  lua_newtable(L);
  Convert<std::vector<double>>::push(L, rates.bytes_per_second);
  lua_setfield(L, -2, "bandwidth");
  set_field(L, "latency", rates.latency_seconds);
  return 1;
}

// Seconds to add to this rank's times (executor:timings()) to have the first rank's.
double cluster_clock_offset(ClusterHandle& cluster) { return clock_offset(cluster->world(), steady_seconds); }

// {number, reason, members, came, least, most}: what the roster of this generation says; the members' ids by
// rank, whether this one has joined with it, and how many ranks the run needs and takes. nil of a run of
// fixed ranks.
int cluster_roster(lua_State* L) {
  const auto& cluster = check_object<ClusterHandle>(L, 1);
  if (cluster->generation() == nullptr) return 0;
  const Member::Formation& formation = cluster->generation()->formation();
  lua_newtable(L);
  set_field(L, "number", static_cast<double>(formation.roster.number));
  set_field(L, "first", static_cast<double>(formation.roster.first));
  set_field(L, "reason", formation.roster.reason);
  set_field(L, "came", formation.joined);
  set_field(L, "least", static_cast<double>(formation.roster.least));
  set_field(L, "most", static_cast<double>(formation.roster.most));
  Convert<std::vector<std::string>>::push(L, formation.roster.members);
  lua_setfield(L, -2, "members");
  return 1;
}

// --- runs that outlive their members

int new_member(lua_State* L) {
  return Convert<MemberHandle>::push(L, std::make_shared<RunMember>(settings_at(L)));
}
// The next generation that this process is in, connected; nil: the run has ended, and why its ranks have
// given it up.
int member_open(lua_State* L) {
  const auto& member = check_object<MemberHandle>(L, 1);
  if (const auto cluster = member->open()) return Convert<ClusterHandle>::push(L, cluster);
  const std::optional<Roster> last = member->member().roster();
  lua_pushnil(L);
  return last && last->reason != kRunEnded ? 1 + Convert<std::string>::push(L, last->reason) : 1;
}
double member_waiting(MemberHandle& member) { return static_cast<double>(member->member().waiting()); }
// Waits until so many others wait to come in; false: not after so many seconds, or this process shall end.
bool member_await(MemberHandle& member, int64_t count, double seconds) {
  const double began = steady_seconds();
  while (static_cast<int64_t>(member->member().waiting()) < count) {
    if (steady_seconds() - began > seconds || interrupt_pending() || asked_to_leave()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}
// Who waits to come in, in the order in which they are let in: a list of {id, host, about}.
int member_spares(lua_State* L) {
  const std::vector<MemberRecord> spares = check_object<MemberHandle>(L, 1)->member().spares();
  lua_createtable(L, static_cast<int>(spares.size()), 0);
  for (size_t i = 0; i < spares.size(); ++i) {
    lua_newtable(L);
    set_field(L, "id", spares[i].id);
    set_field(L, "host", spares[i].host);
    set_field(L, "about", spares[i].about);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}
void member_end_run(MemberHandle& member, std::optional<std::string> why) {
  member->member().end_run(why.value_or(std::string(kRunEnded)));
}
void member_leave(MemberHandle& member) { member->member().leave(); }
void member_ask_change(MemberHandle& member, int64_t generation, std::string reason) {
  member->member().ask_change(generation, reason);
}

}  // namespace

void add_cluster(lua_State* L) {
  make_class<ClusterHandle>(
      L, {bind<&cluster_rank>("rank"), bind<&cluster_size>("size"), bind<&cluster_any>("any"),
          bind<&cluster_gather>("gather"), bind<&cluster_all_gather>("all_gather"),
          bind<&cluster_leave>("leave"), bind<&cluster_finish>("finish"), bind<&cluster_ways>("ways"),
          bind<&cluster_clock_offset>("clock_offset"), bind<&cluster_close>("close"),
          bind<&cluster_roster>("roster"), bind<&cluster_arrange>("arrange"),
          bind<&cluster_measure_links>("measure_links")});
  make_class<MemberHandle>(
      L, {bind<&member_open>("open"), bind<&member_end_run>("end_run"), bind<&member_leave>("leave"),
          bind<&member_ask_change>("ask_change"), bind<&member_waiting>("waiting"),
          bind<&member_await>("await"), bind<&member_spares>("spares")});
  set_functions(L, "native.",
                {bind<&join_run>("join"), bind<&new_member>("member"), bind<&is_alone>("is_alone")});
}

}  // namespace het::lua
