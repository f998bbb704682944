// The snapshots that a run takes of its state, and the state as ranks restore it.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/visible.h"
#include "core/cluster/notice.h"
#include "core/cluster/secret.h"
#include "core/comm/loopback.h"
#include "core/net/socket.h"
#include "core/run/cluster.h"
#include "core/run/memory_folder.h"
#include "core/run/restore.h"
#include "core/tensor/convert.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/migrate/migrate.h"
#include "planner/migrate/recovery.h"
#include "snapshot/run_snapshots.h"
#include "snapshot/store/store.h"
#include "snapshot/store_claim.h"

namespace het::lua {
namespace {

// {run, in_memory, folder, store, keep, replicas, secret_file, cluster, memory_bytes, zone}. `cluster`: of
// the run, where in_memory.
SnapshotsHandle run_snapshots(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  RunSnapshots::Options options;
  options.run = field<std::string>(L, 1, "run").value_or("");
  options.replicas = field<int>(L, 1, "replicas").value_or(options.replicas);
  options.disk_folder = field<Path>(L, 1, "folder");
  options.keep = field<int>(L, 1, "keep").value_or(options.keep);
  if (const auto store = field<Path>(L, 1, "store")) options.store = open_store(*store);
  if (field<bool>(L, 1, "in_memory").value_or(false)) {
    const std::string folder = memory_folder(process_environment(), secret_of(L, 1));
    const std::string of_run = hex_of(hmac_sha256("run", options.run)).substr(0, 12);
    if (!folder.empty()) options.memory_folder = folder + "/" + of_run;
    const auto& cluster = object_field<ClusterHandle>(L, 1, "cluster");
    if (cluster != nullptr && cluster->generation() != nullptr) {
      const auto& formation = cluster->generation()->formation();
      options.address = parse_endpoint(formation.members[static_cast<size_t>(formation.rank)].address).host;
    }
    const EnvironmentLookup lookup = process_environment();
    options.secret = secret_of(L, 1);
    options.host = host_of_process(lookup);
    options.zone = field<std::string>(L, 1, "zone").value_or("");
    options.memory_bytes = to_integer<int64_t>(field<double>(L, 1, "memory_bytes").value_or(0));
    options.warn = [](const std::string& sentence) {
      std::cerr << visible("hetrun: " + sentence) + "\n" << std::flush;
    };
  }
  return std::make_shared<RunSnapshots>(std::move(options));
}
int new_run_snapshots(lua_State* L) { return Convert<SnapshotsHandle>::push(L, run_snapshots(L)); }

Communicator* world_of(lua_State* L, int index) {
  return lua_isnoneornil(L, index) ? nullptr : &check_object<ClusterHandle>(L, index)->world();
}

// snapshots, cluster or nil, program, plan as text: the plan that the run follows from here on. All ranks
// call it.
int snapshots_follow(lua_State* L) {
  const auto& snapshots = check_object<SnapshotsHandle>(L, 1);
  Communicator* const world = world_of(L, 2);
  const auto& program = check_object<ProgramHandle>(L, 3);
  std::vector<ReplicaPeer> peers{snapshots->own()};
  if (world != nullptr) {
    peers.clear();
    for (const std::string& text : all_gather_text(*world, to_text(snapshots->own()), "who keeps replicas"))
      peers.push_back(parse_replica_peer(text, fmt::format("rank {}", peers.size())));
  }
  snapshots->follow(layout_of(world, needs_of(*program)), world == nullptr ? 0 : world->rank(), peers,
                    Convert<std::string>::get(L, 4));
  return 0;
}
double snapshots_hosts(SnapshotsHandle& snapshots) { return snapshots->hosts(); }
double snapshots_behind_bytes(SnapshotsHandle& snapshots) {
  return static_cast<double>(snapshots->behind_bytes());
}
// By rank, the ranks that keep copies of its parts: a list of lists.
int snapshots_keepers(lua_State* L) {
  Json::array_t all;
  for (const std::vector<int>& of_rank : check_object<SnapshotsHandle>(L, 1)->keepers())
    all.push_back(Json::array_t(of_rank.begin(), of_rank.end()));
  push_json(L, all);
  return 1;
}
bool snapshots_scarce(SnapshotsHandle& snapshots) { return snapshots->is_scarce(); }
// {limit_bytes, own_bytes, short_rank}: of this process; nil as a rank: those of all fit.
int snapshots_memory(lua_State* L) {
  const RunSnapshots::Memory& memory = check_object<SnapshotsHandle>(L, 1)->memory();
  lua_newtable(L);
  set_field(L, "limit_bytes", static_cast<double>(memory.limit_bytes));
  set_field(L, "own_bytes", static_cast<double>(memory.own_bytes));
  if (memory.short_rank >= 0) set_field(L, "short_rank", static_cast<double>(memory.short_rank));
  return 1;
}

// snapshots, state, {memory, disk, cursor, seed, about = JSON} -> what is written beside the steps: in
// memory, and on disk; nil: nothing
int snapshots_take(lua_State* L) {
  const auto& snapshots = check_object<SnapshotsHandle>(L, 1);
  const auto& state = check_object<StateHandle>(L, 2);
  RunSnapshots::About about;
  about.cursor = field<int64_t>(L, 3, "cursor").value_or(0);
  about.seed = field<int64_t>(L, 3, "seed").value_or(0);
  about.text = field<std::string>(L, 3, "about").value_or("{}");
  const RunSnapshots::Taken taken = snapshots->take(*state, field<bool>(L, 3, "memory").value_or(false),
                                                    field<bool>(L, 3, "disk").value_or(false), about);
  for (const SnapshotTaskHandle& task : {taken.memory, taken.disk})
    task == nullptr ? lua_pushnil(L) : static_cast<void>(Convert<SnapshotTaskHandle>::push(L, task));
  return 2;
}

std::vector<std::string> snapshots_warnings(SnapshotsHandle& snapshots) {
  return snapshots->tiers().take_warnings();
}
// The snapshot in memory after this step is whole: `older` says that what others left before it goes.
void snapshots_keep(SnapshotsHandle& snapshots, int64_t step, int64_t generation, bool older) {
  snapshots->keep({step, generation});
  if (older) snapshots->remove_older();
}
void snapshots_discard_sent(SnapshotsHandle& snapshots, SnapshotTaskHandle& task) {
  snapshots->discard_sent(*task);
}
// folder, the field that names it, number of the run -> a claim, until it is released.
ClaimHandle claim_folder(Path folder, std::string field, int64_t run) {
  return std::make_shared<FolderClaim>(folder, field.c_str(), run);
}
void claim_release(ClaimHandle& claim) { *claim = {}; }
void claim_renew(ClaimHandle& claim) { claim->renew(); }
// URL, number of the run, whether another rank of it had the claim -> a claim on a bucket, until stop or
// leave; nil: the store is a folder.
int claim_store(lua_State* L) {
  StoreAccess access;
  access.tries = 3;
  access.longest_wait = std::chrono::milliseconds(2'000);
  access.stall = std::chrono::milliseconds(10'000);
  std::shared_ptr<ObjectStore> store = open_store(Convert<Path>::get(L, 1), access);
  if (store->file_of("claimed")) return 0;
  return Convert<StoreClaimHandle>::push(
      L,
      std::make_shared<StoreClaim>(std::move(store), Convert<int64_t>::get(L, 2), lua_toboolean(L, 3) != 0));
}
// claim, seconds -> "looking", "held", "refused" or "failed": waits so long while it is looking
std::string store_claim_wait(StoreClaimHandle& claim, double seconds) {
  const double wait = std::min(std::max(seconds, 0.0), 1.0);
  switch (claim->wait(std::chrono::milliseconds(static_cast<int64_t>(wait * 1000)))) {
    case StoreClaim::State::looking: return "looking";
    case StoreClaim::State::held: return "held";
    case StoreClaim::State::refused: return "refused";
    case StoreClaim::State::failed: break;
  }
  return "failed";
}
std::string store_claim_sentence(StoreClaimHandle& claim) { return claim->sentence(); }
std::string store_claim_foreign(StoreClaimHandle& claim) { return claim->foreign(); }
void store_claim_stop(StoreClaimHandle& claim) { claim->stop(); }
void store_claim_leave(StoreClaimHandle& claim) { claim->leave(); }
void snapshots_claim(SnapshotsHandle& snapshots, int64_t run) { snapshots->claim(run); }
void snapshots_release(SnapshotsHandle& snapshots) { snapshots->release(); }
void snapshots_clear_memory(SnapshotsHandle& snapshots) { snapshots->clear_memory(); }
void snapshots_stop_replicas(SnapshotsHandle& snapshots) { snapshots->stop_replicas(); }
void snapshots_leave(SnapshotsHandle& snapshots) { snapshots->leave(); }

bool task_done(SnapshotTaskHandle& task) { return task->done(); }
bool task_failed(SnapshotTaskHandle& task) { return task->failed(); }
double task_step(SnapshotTaskHandle& task) { return static_cast<double>(task->version().step); }
double task_generation(SnapshotTaskHandle& task) { return static_cast<double>(task->version().generation); }
// Waits; a list of {tier, path}.
int task_wait(lua_State* L) {
  Json::array_t list;
  for (const SnapshotTask::Written& written : check_object<SnapshotTaskHandle>(L, 1)->wait())
    list.push_back(Json::object_t{
        {"tier", std::string(name_of(written.tier))}, {"path", written.path}, {"problem", written.problem}});
  push_json(L, list);
  return 1;
}

void push_restored(lua_State* L, const Restored& restored) {
  Json::object_t json{{"step", restored.version.step},
                      {"generation", restored.version.generation},
                      {"finished", restored.finished},
                      {"moved_bytes", restored.moved_bytes},
                      {"damaged", Json::array_t(restored.damaged.begin(), restored.damaged.end())},
                      {"other_runs", Json::array_t(restored.other_runs.begin(), restored.other_runs.end())}};
  if (restored.recovery) {
    const RecoveryPlan& recovery = *restored.recovery;
    Json::object_t bytes;
    for (int tier = 0; tier < kTiers; ++tier) {
      const auto found = recovery.bytes.find(static_cast<Tier>(tier));
      bytes.emplace_back(std::string(name_of(static_cast<Tier>(tier))),
                         found == recovery.bytes.end() ? int64_t{0} : found->second);
    }
    json.emplace_back("about", restored.about);
    json.emplace_back("bytes", std::move(bytes));
  }
  push_json(L, json);
}

// cluster or nil, state, program, frozen executor or nil, snapshots or nil, {step_seconds, host, bandwidth}:
// every rank has of its state exactly what its program needs, from whichever ranks have it, or from
// snapshots. All ranks call it at the same place. Returns {step, generation, finished, moved_bytes, damaged},
// and of a state that comes from snapshots {about, bytes by tier}; nil: there is none; nil and
// why: nothing has all of it, as all ranks have found.
int restore_state(lua_State* L) {
  Communicator* world = world_of(L, 1);
  std::shared_ptr<Communicator> alone;
  if (world == nullptr) {
    alone = make_loopback(1).front()->group("alone", {0});
    world = alone.get();
  }
  auto& state = check_object<StateHandle>(L, 2);
  const auto& program = check_object<ProgramHandle>(L, 3);
  Executor* const trainer = lua_isnoneornil(L, 4) ? nullptr : check_object<ExecutorHandle>(L, 4).get();
  RestoreOptions options;
  options.plan_moves = planner::plan_moves();
  options.plan_recovery = planner::recovery_planner();
  if (!lua_isnoneornil(L, 1)) {
    const auto& cluster = check_object<ClusterHandle>(L, 1);
    if (cluster->generation() != nullptr) options.generation = cluster->generation()->number();
    options.connect_lanes = [cluster] { return cluster->lanes(kMovingLanes); };
  }
  if (!lua_isnoneornil(L, 5)) options.tiers = &check_object<SnapshotsHandle>(L, 5)->tiers();
  if (lua_istable(L, 6)) {
    options.step_seconds = field<double>(L, 6, "step_seconds").value_or(0);
    options.host = field<std::string>(L, 6, "host").value_or("");
    options.link_bytes_per_second = std::max(0.0, field<double>(L, 6, "bandwidth").value_or(0));
  }
  std::optional<Restored> restored;
  try {
    restored = restore(*world, *state, trainer, needs_of(*program), options);
  } catch (const StateLost& lost) {
    lua_pushnil(L);
    return 1 + Convert<std::string>::push(L, lost.sentence());
  }
  if (!restored) return 0;
  push_restored(L, *restored);
  return 1;
}

// Asks the cloud whether this machine is taken away, until it is dropped. A first SIGTERM, or SIGHUP,
// counts as such a notice.
NoticesHandle watch_for_notices() {
  let_sigterm_leave(true);
  return std::make_shared<NoticeWatch>(read_notice_options(process_environment()));
}
// {source, detail, seconds_left}, or nil.
int notices_notice(lua_State* L) {
  const auto& notices = check_object<NoticesHandle>(L, 1);
  const auto notice = notices->notice();
  if (notice && notice->kind == Notice::Kind::terminate) {
    lua_newtable(L);
    set_field(L, "source", notice->source);
    set_field(L, "detail", notice->detail);
    if (notice->seconds_left) set_field(L, "seconds_left", *notice->seconds_left);
    return 1;
  }
  if (!asked_to_leave()) return 0;
  lua_newtable(L);
  set_field(L, "source", std::string(asked_to_leave_by()));
  return 1;
}
// Of the store at a URL: the step of its newest snapshot; nil: it has none.
int store_newest(lua_State* L) {
  const auto store = open_store(Convert<Path>::get(L, 1));
  const auto listed = list_snapshots(*store);
  return listed.empty() ? 0 : Convert<double>::push(L, static_cast<double>(listed.front().version.step));
}
void store_clear(Path url) {
  const auto store = open_store(url);
  for (const ListedSnapshot& listed : list_snapshots(*store))
    for (const std::string& key : listed.files) store->remove(key);
  store->remove("vocabulary.json");
}
// URL, key, path: the file becomes the object.
void store_put(Path url, std::string key, Path file) { open_store(url)->put(key, file); }
// URL, key -> all of an object that holds text; nil: there is none.
int store_text(lua_State* L) {
  const auto store = open_store(Convert<Path>::get(L, 1));
  const std::string key = Convert<std::string>::get(L, 2);
  const auto bytes = store->size(key);
  if (!bytes) return 0;
  constexpr int64_t kMost = int64_t{256} << 20;
  if (*bytes > kMost)
    fail_usage("{} has {} bytes; text of at most {} is read", store->url_of(key), *bytes, kMost);
  std::string text(static_cast<size_t>(*bytes), '\0');
  store->get_range(key, 0, std::as_writable_bytes(std::span(text)));
  return Convert<std::string>::push(L, text);
}
bool notices_acknowledge(NoticesHandle& notices) { return notices->acknowledge(); }
void end_notices() { let_sigterm_leave(false); }

std::string host() { return host_of_process(process_environment()); }

}  // namespace

bool has_notice(const NoticesHandle& notices) {
  if (asked_to_leave()) return true;
  const auto notice = notices == nullptr ? std::nullopt : notices->notice();
  return notice && notice->kind == Notice::Kind::terminate;
}

void add_recovery(lua_State* L) {
  make_class<SnapshotsHandle>(
      L, {bind<&snapshots_follow>("follow"), bind<&snapshots_scarce>("is_scarce"),
          bind<&snapshots_hosts>("hosts"), bind<&snapshots_keepers>("keepers"),
          bind<&snapshots_behind_bytes>("behind_bytes"), bind<&snapshots_take>("take"),
          bind<&snapshots_warnings>("warnings"), bind<&snapshots_keep>("keep"),
          bind<&snapshots_clear_memory>("clear_memory"), bind<&snapshots_stop_replicas>("stop_replicas"),
          bind<&snapshots_memory>("memory"), bind<&snapshots_discard_sent>("discard_sent"),
          bind<&snapshots_leave>("leave"), bind<&snapshots_claim>("claim"),
          bind<&snapshots_release>("release")});
  make_class<ClaimHandle>(L, {bind<&claim_release>("release"), bind<&claim_renew>("renew")});
  make_class<StoreClaimHandle>(L, {bind<&store_claim_wait>("wait"), bind<&store_claim_sentence>("sentence"),
                                   bind<&store_claim_foreign>("foreign"), bind<&store_claim_stop>("stop"),
                                   bind<&store_claim_leave>("leave")});
  make_class<SnapshotTaskHandle>(
      L, {bind<&task_done>("done"), bind<&task_failed>("failed"), bind<&task_wait>("wait"),
          bind<&task_step>("step"), bind<&task_generation>("generation")});
  make_class<NoticesHandle>(L, {bind<&notices_notice>("notice"), bind<&notices_acknowledge>("acknowledge")});
  set_functions(
      L, "native.",
      {bind<&watch_for_notices>("watch_for_notices"), bind<&end_notices>("end_notices"),
       bind<&store_newest>("store_newest"), bind<&store_clear>("store_clear"), bind<&store_put>("store_put"),
       bind<&store_text>("store_text"), bind<&claim_folder>("claim_folder"),
       bind<&claim_store>("claim_store"), bind<&new_run_snapshots>("run_snapshots"),
       bind<&restore_state>("restore"), bind<&host>("host")});
}

}  // namespace het::lua
