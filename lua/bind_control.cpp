// Looking at a running job and steering it: the first rank's end, and that of who attaches.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <unistd.h>

#include "core/cluster/etcd_store.h"
#include "core/cluster/secret.h"
#include "core/io/json.h"
#include "core/net/socket.h"
#include "core/run/cluster.h"
#include "core/run/control.h"
#include "core/run/local_runs.h"
#include "lua/objects.h"

namespace het::lua {
namespace {

// --- the first rank

// {cluster, run, secret_file}
int new_control(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const auto cluster = object_field<ClusterHandle>(L, 1, "cluster");
  if (cluster == nullptr) fail_usage("native.control needs a cluster");
  return Convert<ControlHandle>::push(
      L, std::make_shared<RunControl>(cluster->store(), field<std::string>(L, 1, "run").value_or("hetrun"),
                                      secret_of(L, 1)));
}
void control_post(ControlHandle& control, std::string status) { control->post(std::move(status)); }
// control, seconds that it is waited for -> what another first rank has left, "" without it; nil: not read
// yet
std::optional<std::string> control_earlier(ControlHandle& control, std::optional<double> seconds) {
  const double wait = std::min(std::max(seconds.value_or(0), 0.0), 10.0);
  return control->earlier(std::chrono::milliseconds(static_cast<int64_t>(wait * 1000)));
}
// control, seconds that it is waited for -> id, text; nil: no command waits
int control_command(lua_State* L) {
  constexpr double kMost = 10;
  const double seconds =
      std::min(std::max(Convert<std::optional<double>>::get(L, 2).value_or(0), 0.0), kMost);
  const auto command = check_object<ControlHandle>(L, 1)->command(
      std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  if (!command) return 0;
  Convert<std::string>::push(L, command->id);
  Convert<std::string>::push(L, command->text);
  return 2;
}
void control_done(ControlHandle& control, std::string id) { control->done(id); }

// --- who attaches

// Of who attaches: between two looks. Seconds, at most 1.
void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(std::max(seconds, 0.0), 1.0)));
}
// Who looks at a run from outside is ended by Ctrl-C at once: nothing is to be finished.
void let_interrupts_end() { std::signal(SIGINT, SIG_DFL); }
int process_id() { return getpid(); }

// A list of {pid, store, etcd}, the newest first.
int local_runs(lua_State* L) {
  Json::array_t list;
  for (const LocalRun& run : list_local_runs()) {
    Json::object_t json{{"pid", int64_t{run.pid}}, {"store", run.store}};
    if (run.etcd) json.emplace_back("etcd", *run.etcd);
    list.push_back(std::move(json));
  }
  push_json(L, list);
  return 1;
}

std::shared_ptr<Store> store_at(const std::string& place, const std::string& secret) {
  constexpr std::chrono::milliseconds kCall{5'000};
  if (place.find("://") != std::string::npos) {
    EtcdOptions etcd;
    etcd.endpoints = parse_etcd_rendezvous(place).endpoints;
    etcd.timeout = kCall;
    return connect_etcd(std::move(etcd));
  }
  parse_endpoint(place);
  StoreClientOptions client;
  client.endpoint = place;
  client.secret = secret;
  client.timeout = kCall;
  return connect_store(std::move(client));
}

// {pid} of one of local_runs(), or {rendezvous, secret_file}; with either {run}, a name -> what is attached,
// and the name of the run. Throws Error(usage) when there is no such run, Error(peer) when its store does not
// answer.
int attach(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  std::string place, secret;
  if (const auto pid = field<int>(L, 1, "pid")) {
    for (const LocalRun& run : list_local_runs())
      if (run.pid == *pid) place = run.etcd.value_or(run.store), secret = run.secret;
    if (place.empty()) fail_usage("there is no run of process {} (any more)", *pid);
  } else {
    place = field<std::string>(L, 1, "rendezvous").value_or("");
    secret = secret_of(L, 1);
  }
  const auto store = store_at(place, secret);
  std::string name = field<std::string>(L, 1, "run").value_or("");
  if (name.empty()) {
    // A launcher's store has one run; in etcd there may be many.
    const auto names =
        place.find("://") == std::string::npos ? runs_with_status(*store) : std::vector<std::string>();
    name = names.empty() ? "hetrun" : names.front();
  }
  Convert<AttachedHandle>::push(L, std::make_shared<ControlClient>(store, name, secret));
  Convert<std::string>::push(L, name);
  return 2;
}
std::optional<std::string> attached_status(AttachedHandle& attached) { return attached->status(); }
// The id of the command; nil: another one waits.
std::optional<std::string> attached_send(AttachedHandle& attached, std::string text) {
  const RunCommand command{hex_of(random_bytes(8)), std::move(text)};
  return attached->send(command) ? std::optional(command.id) : std::nullopt;
}
void attached_withdraw(AttachedHandle& attached, std::string id, std::string text) {
  attached->withdraw({std::move(id), std::move(text)});
}

}  // namespace

void add_control(lua_State* L) {
  make_class<ControlHandle>(L, {bind<&control_post>("post"), bind<&control_earlier>("earlier"),
                                bind<&control_command>("command"), bind<&control_done>("done")});
  make_class<AttachedHandle>(L, {bind<&attached_status>("status"), bind<&attached_send>("send"),
                                 bind<&attached_withdraw>("withdraw")});
  set_functions(
      L, "native.",
      {bind<&new_control>("control"), bind<&local_runs>("local_runs"), bind<&process_id>("process_id"),
       bind<&pause>("sleep"), bind<&let_interrupts_end>("let_interrupts_end"), bind<&attach>("attach")});
}

}  // namespace het::lua
