// The ranks of a run: how this process finds the others, and what they do together outside a program.
#include <algorithm>
#include <future>
#include <iostream>
#include <thread>

#include <unistd.h>

#include "core/base/units.h"
#include "core/base/visible.h"
#include "core/cluster/environment.h"
#include "core/cluster/membership.h"
#include "core/cluster/secret.h"
#include "core/cluster/store_key_value.h"
#include "core/comm/shaped.h"
#include "core/comm/tcp.h"
#include "core/net/network.h"
#include "core/run/generation.h"
#include "core/run/member_watch.h"
#include "core/run/migration.h"
#include "core/run/rendezvous.h"
#include "core/run/restore.h"
#include "core/tensor/convert.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/migrate.h"

namespace het::lua {

// What a rank keeps while it is a member. Destroyed in reverse: traffic first, the store last.
struct Cluster {
  std::unique_ptr<StoreServer> server;
  std::shared_ptr<Store> store;
  std::unique_ptr<Membership> membership;
  std::shared_ptr<Fabric> fabric;
  std::unique_ptr<MemberWatch> watch;
  std::shared_ptr<Groups> groups;
  std::future<void> connecting;  // all ranks, from the moment they know each other; of the groups until then
  std::unique_ptr<Collective> agree;
  std::shared_ptr<Agreement> agreement;
  int paced = 0;  // groups over slowed links that were made
  std::unique_ptr<StoreWatch> lines;
  std::shared_ptr<Generation> generation;  // of a run that outlives its members; else null
  std::string closed;                      // why it is

  ~Cluster() {
    if (watch == nullptr || left) return;
    std::string why = fabric->cause();
    if (why.empty()) why = fmt::format("rank {} ended before the run did", membership->rank());
    fabric->abort(why);
    if (connecting.valid()) connecting.wait();
    watch.reset();
    membership->give_up(why);
  }

  bool left = false;  // in good order

  // Groups are made on first use, but that of all ranks at once: who dies from then on closes a connection.
  // Not on this thread, for a mistake that all ranks find in their recipe is told by each of them.
  void connect() {
    connecting = std::async(std::launch::async, [this] { watch->connected(make_world()); });
  }
  Groups& connected_groups() {
    if (connecting.valid()) connecting.get();
    return *groups;
  }
  Communicator& world() {
    if (generation != nullptr) return generation->world();
    connected_groups();
    return make_world();
  }
  void close(const std::string& why, bool agreed) {
    closed = why;
    agree = nullptr;
    agreement = nullptr;
    groups = nullptr;
    if (generation != nullptr) generation->close(why, agreed);
    generation = nullptr;
    fabric = nullptr;
  }

 private:
  Communicator& make_world() {
    std::vector<int> ranks(groups->size());
    for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
    return groups->group(ranks);
  }
};

std::shared_ptr<Groups> groups_of(const ClusterHandle& cluster) {
  if (!cluster->closed.empty()) fail_usage("the generation of the run has ended: {}", cluster->closed);
  cluster->connected_groups();
  return cluster->groups;
}
Communicator& world_of(const ClusterHandle& cluster) { return cluster->world(); }
std::shared_ptr<Agreement> agreement_of(const ClusterHandle& cluster) {
  if (cluster->agreement == nullptr)
    cluster->agreement = std::make_shared<Agreement>(cluster->world(), [] { return interrupt_pending(); });
  return cluster->agreement;
}

namespace {

std::string line_key(const ClusterHandle& cluster, int64_t number) {
  return fmt::format("{}line/{}", cluster->membership->prefix(), number);
}

}  // namespace

void give_line(const ClusterHandle& cluster, int64_t number, const std::string& text) {
  cluster->store->put(line_key(cluster, number), text);
  if (number > 2) cluster->store->remove(line_key(cluster, number - 2));
}

std::optional<std::string> take_line(const ClusterHandle& cluster, int64_t number,
                                     std::chrono::milliseconds timeout) {
  if (cluster->lines == nullptr)
    cluster->lines = cluster->store->watch(fmt::format("{}line/", cluster->membership->prefix()));
  for (const bool waited : {false, true}) {
    if (waited) cluster->lines->next(timeout);
    if (auto entry = cluster->store->get(line_key(cluster, number))) return std::move(entry->value);
  }
  if (const std::string cause = cluster->fabric->cause(); !cause.empty()) throw Error(ErrorKind::peer, cause);
  return std::nullopt;
}

namespace {

// What the run was told by this name (an option, or the recipe), else by the environment.
std::optional<std::string> setting(lua_State* L, const EnvironmentLookup& lookup, const char* name,
                                   const char* variable) {
  auto said = field<std::string>(L, 1, name);
  return said ? said : lookup(variable);
}

std::optional<std::chrono::milliseconds> duration_setting(lua_State* L, const EnvironmentLookup& lookup,
                                                          const char* name, const char* variable) {
  const auto text = setting(L, lookup, name, variable);
  if (!text) return std::nullopt;
  double seconds = 0;
  try {
    seconds = parse_seconds(*text);
  } catch (const Error& error) {
    fail_usage("{} = {}", name, error.sentence());
  }
  constexpr double kLeast = 0.1, kMost = 1e6;
  if (seconds < kLeast)
    fail_usage("{} = {} is too short to wait for anybody; 0.1 s is the least", name, *text);
  if (seconds > kMost)
    fail_usage("{} = {} is longer than a run waits for anybody; 1000000 s is the most", name, *text);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Links as slow as the entries of `links` say, by rank from and then rank to; null: there is no such list.
std::shared_ptr<Pacer> slow_links_at(lua_State* L, int index, int ranks) {
  std::vector<Link> links;
  each_in(L, index, "links", [&](int, int at) {
    links.push_back(
        {field<double>(L, at, "latency").value_or(0), field<double>(L, at, "bandwidth").value_or(0)});
  });
  if (links.empty()) return nullptr;
  if (static_cast<int>(links.size()) != ranks * ranks)
    fail_usage("there are {} links between {} ranks; {} are needed", links.size(), ranks, ranks * ranks);
  return make_shaped_links([links = std::move(links), ranks](int from, int to) {
    return links[static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(to)];
  });
}

bool is_alone() { return !is_one_of_several(process_environment()); }

// What a process says of itself, and how it finds the others; the same for a run of fixed ranks and for one
// that outlives its members.
struct Joining {
  EnvironmentLookup lookup = process_environment();
  LaunchedRank launched = read_launched_rank(lookup);
  bool by_workers = lookup("HETRUN_STORE").has_value();  // the launcher handed on the run's secret
  bool by_etcd = false;
  JoinOptions options;
  std::optional<std::chrono::milliseconds> timeout, warn_after;
  Rendezvous rendezvous;
  std::string host;
};

Joining read_joining(lua_State* L) {
  Joining joining;
  const auto secret_file = setting(L, joining.lookup, "secret_file", "HETRUN_SECRET_FILE");
  joining.by_etcd = setting(L, joining.lookup, "rendezvous", "HETRUN_RENDEZVOUS").has_value();
  JoinOptions& options = joining.options;
  options.run = field<std::string>(L, 1, "run").value_or("hetrun");
  options.world_size = joining.launched.world_size.value_or(1);
  Host& host = host_of(L);
  if (host.secret_problem != nullptr) std::rethrow_exception(host.secret_problem);
  options.secret = host.secret
                       ? *host.secret
                       : load_secret(joining.lookup, joining.by_workers ? "" : secret_file.value_or(""));
  joining.timeout = duration_setting(L, joining.lookup, "timeout", "HETRUN_TIMEOUT");
  joining.warn_after = duration_setting(L, joining.lookup, "warn_after", "HETRUN_WARN_AFTER");
  options.warn = [](const std::string& sentence) { std::cerr << visible(sentence) + "\n" << std::flush; };
  if (joining.timeout) options.timeout = *joining.timeout;
  if (joining.warn_after) options.warn_after = *joining.warn_after;
  return joining;
}

// Calls to the store take no longer than one waits for anybody; in the moment of failure a fraction of that.
void find_rendezvous(lua_State* L, Joining& joining) {
  RendezvousOptions options;
  options.launched = joining.launched;
  options.etcd = setting(L, joining.lookup, "rendezvous", "HETRUN_RENDEZVOUS");
  options.store = joining.lookup("HETRUN_STORE");  // by `hetrun --workers`
  options.interface = setting(L, joining.lookup, "interface", "HETRUN_INTERFACE");
  options.secret = joining.options.secret;
  options.timeout = joining.options.timeout;
  options.warn_after = joining.options.warn_after;
  options.warn = joining.options.warn;
  if (joining.timeout) {
    options.call = std::min(options.call, *joining.timeout);
    options.brief = std::min(options.brief, *joining.timeout / 10);
  }
  joining.rendezvous = find_store(options);
  joining.host = host_name();
  if (joining.host.empty()) joining.host = joining.rendezvous.address;
  joining.options.keeper = joining.rendezvous.brief;
}

std::string device_of(lua_State* L) { return field<std::string>(L, 1, "device").value_or("cpu"); }
int64_t memory_of(lua_State* L) { return to_integer<int64_t>(field<double>(L, 1, "memory").value_or(0)); }
std::string digest_of(lua_State* L, const char* what) {
  return hex_of(hmac_sha256(what, field<std::string>(L, 1, what).value_or("")));
}

TcpOptions tcp_options(const Joining& joining, const std::string& prefix, int64_t lease) {
  TcpOptions tcp;
  tcp.run = joining.options.run;
  tcp.secret = joining.options.secret;
  tcp.host = joining.host;
  tcp.store = make_store_key_value(joining.rendezvous.store, prefix, lease);
  tcp.board = make_store_key_value(joining.rendezvous.brief, prefix, lease);
  tcp.prefix = "traffic";
  tcp.patience.warn = joining.options.warn;
  if (joining.timeout) tcp.patience.timeout = *joining.timeout;
  if (joining.warn_after) tcp.patience.warn_after = *joining.warn_after;
  return tcp;
}

// {recipe, data, device, memory, rendezvous, interface, secret_file, timeout, warn_after, run, links}: nil
// where no launcher says that there are several ranks.
int join_run(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  if (is_alone()) return 0;
  auto cluster = std::make_shared<Cluster>();  // goes after the options, which keep a client of its server
  Joining joining = read_joining(L);
  find_rendezvous(L, joining);
  cluster->server = std::move(joining.rendezvous.server);
  cluster->store = joining.rendezvous.store;
  JoinOptions& options = joining.options;
  if (cluster->server != nullptr)
    options.turned_away = [server = cluster->server.get()] { return server->turned_away(); };
  // To etcd a member that dies while the ranks meet is lost when its lease lapses; the embedded store sees
  // its connection close.
  constexpr std::chrono::milliseconds kEtcdLease{3000};
  if (joining.by_etcd) options.lease_ttl = kEtcdLease;
  MemberInfo member;
  member.rank = joining.launched.rank;
  member.host = joining.host;
  member.device = device_of(L);
  member.device_memory = memory_of(L);
  member.address = joining.rendezvous.address;
  member.version = HET_VERSION;
  member.recipe_digest = digest_of(L, "recipe");
  member.data_digest = digest_of(L, "data");
  cluster->membership = join(cluster->store, member, options);
  TcpOptions tcp = tcp_options(joining, cluster->membership->prefix(), cluster->membership->lease());
  tcp.rank = cluster->membership->rank();
  tcp.size = options.world_size;
  tcp.generation = cluster->membership->generation();
  tcp.address = joining.rendezvous.address;
  if (!joining.by_workers && !joining.by_etcd)
    tcp.keeper = fmt::format("rank 0 ({})", cluster->membership->members()[0].host);
  const std::string keeper = tcp.rank == 0 ? "" : tcp.keeper;
  tcp.pacer = slow_links_at(L, 1, tcp.size);
  cluster->fabric = make_tcp(std::move(tcp));
  cluster->watch =
      std::make_unique<MemberWatch>(*cluster->membership, joining.rendezvous.brief, *cluster->fabric, keeper);
  cluster->groups = std::make_shared<Groups>(cluster->fabric);
  cluster->connect();
  return Convert<ClusterHandle>::push(L, std::move(cluster));
}

// What reaches other ranks cannot any more once this one has left.
void require_member(const ClusterHandle& cluster) {
  if (cluster->left) fail_usage("this rank has left the run");
  if (!cluster->closed.empty()) fail_usage("the generation of the run has ended: {}", cluster->closed);
}

int cluster_rank(ClusterHandle& cluster) { return cluster->groups->rank(); }
int cluster_size(ClusterHandle& cluster) { return cluster->groups->size(); }
// How what GPUs tell each other travels: a sentence for each of this rank's groups that has one.
std::vector<std::string> cluster_ways(ClusterHandle& cluster) { return cluster->groups->ways(); }

// Whether any rank says so: asked by all of them at the same place.
bool cluster_any(ClusterHandle& cluster, bool own) {
  require_member(cluster);
  if (cluster->agree == nullptr) {
    CollectiveRequest request;
    request.kind = CollectiveKind::all_reduce;
    request.dtype = DType::i32;
    request.counts = {1};
    request.reduction = Reduction::max;
    request.label = "whether to stop";
    cluster->agree = cluster->world().prepare(request);
  }
  int32_t value = own ? 1 : 0;
  auto* bytes = reinterpret_cast<std::byte*>(&value);
  cluster->agree->start(bytes, bytes);
  cluster->agree->wait();
  return value != 0;
}

// On rank 0 the whole state of the run: the rank's own where it has all of it, else a new one with every
// tensor, in the host's memory. nil on the others. All ranks call it at the same place.
int cluster_gather(lua_State* L) {  // cluster, state
  auto& cluster = check_object<ClusterHandle>(L, 1);
  auto& state = check_object<StateHandle>(L, 2);
  require_member(cluster);
  Communicator& world = cluster->world();
  Inventory inventory;
  const auto texts = all_gather_text(world, to_text(parts_of(*state)), "the names of the state");
  for (int rank = 0; rank < world.size(); ++rank)
    for (const StatePart& part : parse_parts(texts[static_cast<size_t>(rank)], fmt::format("rank {}", rank)))
      inventory.add(part.name, part.tensor, rank, part.slice);
  std::vector<std::vector<StatePart>> needs(static_cast<size_t>(world.size()));
  for (const auto& [name, tensor] : inventory.tensors())
    needs[0].push_back({name, tensor, TensorSlice::whole(tensor.type.shape)});
  const MigrationPlan moves = planner::plan_migration(inventory, {}, needs);
  const bool receives = world.rank() == 0;
  if (moved_bytes(moves) == 0) {
    if (receives) lua_pushvalue(L, 2);
    return receives ? 1 : 0;
  }
  StateHandle gathered = receives ? std::make_shared<StateStore>(host_of(L).cpu, 0) : nullptr;
  gather(world, moves, needs[static_cast<size_t>(world.rank())], *state, gathered.get());
  return receives ? Convert<StateHandle>::push(L, gathered) : 0;
}

// --- a run that outlives its members

}  // namespace

// A process of such a run.
struct MemberObject {
  Joining joining;
  std::shared_ptr<Acceptor> acceptor;  // of all generations
  std::unique_ptr<Member> member;
};

namespace {

// {run, recipe, data, device, memory, least, most, ...}, the other fields as of join(): this process as a
// member, for life.
int new_member(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  auto object = std::make_shared<MemberObject>();
  object->joining = read_joining(L);
  find_rendezvous(L, object->joining);
  const Rendezvous& rendezvous = object->joining.rendezvous;
  if (rendezvous.server != nullptr)
    fail_usage(
        "--elastic needs a store that outlives every rank: the launcher's (--workers, and --listen for other "
        "machines) or etcd (--rendezvous); here rank 0 would serve it");
  MemberOptions options;
  options.store = rendezvous.store;
  options.keeper = rendezvous.brief;
  options.run = object->joining.options.run;
  options.secret = object->joining.options.secret;
  options.launched = object->joining.options.world_size;
  options.least = field<int>(L, 1, "least").value_or(1);
  options.most = field<int>(L, 1, "most").value_or(options.launched);
  if (object->joining.timeout) options.timeout = *object->joining.timeout;
  MemberRecord& record = options.record;
  record.host = object->joining.host;
  record.device = device_of(L);
  record.device_memory = memory_of(L);
  AcceptorOptions listening;
  listening.address = rendezvous.address;
  listening.run = options.run;
  listening.secret = options.secret;
  object->acceptor = std::make_shared<Acceptor>(std::move(listening));
  record.address = to_string(object->acceptor->endpoint());
  record.pid = getpid();
  record.version = HET_VERSION;
  record.recipe_digest = digest_of(L, "recipe");
  record.data_digest = digest_of(L, "data");
  const bool joins = object->joining.lookup("HETRUN_JOINS").has_value();
  record.order = joins ? -1 : object->joining.launched.rank;
  // The launcher's store has this run alone; in etcd another of its name may have ended before.
  options.begins = object->joining.by_etcd && !object->joining.lookup("HETRUN_STARTED_AGAIN");
  object->member = std::make_unique<Member>(std::move(options));
  return Convert<MemberHandle>::push(L, std::move(object));
}

// The next generation that this member is in, connected; nil: the run has ended.
int member_open(lua_State* L) {
  auto& object = check_object<MemberHandle>(L, 1);
  const auto fabric_of = [&](const Member::Formation& formation, Generation::Ended ended) {
    const std::string prefix = fmt::format("{}/{}/", object->joining.options.run, formation.roster.number);
    TcpOptions tcp = tcp_options(object->joining, prefix, object->member->lease());
    tcp.rank = formation.rank;
    tcp.size = static_cast<int>(formation.members.size());
    tcp.generation = formation.roster.number;
    tcp.acceptor = object->acceptor;
    for (const MemberRecord& record : formation.members) {
      if (record.address.empty())
        fail(ErrorKind::peer, "a member of generation {} has gone", formation.roster.number);
      tcp.addresses.push_back({record.host, parse_endpoint(record.address)});
    }
    tcp.ended = std::move(ended);
    return make_tcp(std::move(tcp));
  };
  const auto began = std::chrono::steady_clock::now();
  const auto waited = [&object, began, said = false]() mutable {
    if (interrupt_pending()) throw Error(ErrorKind::peer, "interrupted while members of the run are missing");
    const JoinOptions& options = object->joining.options;
    if (said || std::chrono::steady_clock::now() - began < options.warn_after) return;
    said = true;
    const auto roster = object->member->roster();
    options.warn(roster
                     ? fmt::format("this process waits to join run '{}', which has {} of at most {} members",
                                   options.run, roster->members.size(), roster->most)
                     : fmt::format("run '{}' waits for its members to come", options.run));
  };
  auto cluster = std::make_shared<Cluster>();
  cluster->generation = next_generation(*object->member, fabric_of, waited);
  if (cluster->generation == nullptr) return 0;
  cluster->store = object->joining.rendezvous.store;
  cluster->fabric = cluster->generation->fabric();
  cluster->groups = cluster->generation->groups();
  return Convert<ClusterHandle>::push(L, std::move(cluster));
}

void member_end_run(MemberHandle& object) { object->member->end_run(); }
void member_leave(MemberHandle& object) { object->member->leave(); }
void member_ask_change(MemberHandle& object, int64_t generation, std::string reason) {
  object->member->ask_change(generation, reason);
}

}  // namespace

bool ranks_wait(const MemberHandle& member) { return member->member->waiting() > 0; }

namespace {

// `agreed`: all ranks end the generation after the same step.
void cluster_close(ClusterHandle& cluster, std::string why, std::optional<bool> agreed) {
  if (cluster->closed.empty()) cluster->close(why, agreed.value_or(false));
}
// {number, reason, members, came}: what the roster of this generation says; the members' ids by rank, and
// whether this one has joined with it.
int cluster_roster(lua_State* L) {
  auto& cluster = check_object<ClusterHandle>(L, 1);
  require_member(cluster);
  if (cluster->generation == nullptr) return 0;
  const Member::Formation& formation = cluster->generation->formation();
  lua_newtable(L);
  set_field(L, "number", static_cast<double>(formation.roster.number));
  set_field(L, "reason", formation.roster.reason);
  set_field(L, "came", formation.joined);
  Convert<std::vector<std::string>>::push(L, formation.roster.members);
  lua_setfield(L, -2, "members");
  return 1;
}

// Every rank has of its state exactly what its program needs, from whichever ranks have it. All ranks call it
// at the same place. Returns {step, moved_bytes, received_bytes}.
int cluster_restore(lua_State* L) {  // cluster, state, program, frozen executor or nil
  auto& cluster = check_object<ClusterHandle>(L, 1);
  auto& state = check_object<StateHandle>(L, 2);
  const auto& program = check_object<ProgramHandle>(L, 3);
  Executor* const trainer = lua_isnoneornil(L, 4) ? nullptr : check_object<ExecutorHandle>(L, 4).get();
  require_member(cluster);
  const int64_t generation = cluster->generation != nullptr ? cluster->generation->number() : 0;
  const Restored restored =
      restore(cluster->world(), *state, trainer, needs_of(*program), planner::plan_moves(), generation);
  lua_newtable(L);
  set_field(L, "step", static_cast<double>(restored.version.step));
  set_field(L, "finished", restored.finished);
  set_field(L, "moved_bytes", static_cast<double>(restored.moved_bytes));
  set_field(L, "received_bytes", static_cast<double>(restored.received_bytes));
  return 1;
}

// The texts of all ranks, in their order. All ranks call it at the same place.
std::vector<std::string> cluster_tell(ClusterHandle& cluster, std::string text) {
  require_member(cluster);
  return all_gather_text(cluster->world(), text, "what the ranks tell each other");
}

// Seconds to add to this rank's times (executor:timings()) to have the first rank's.
double cluster_clock_offset(ClusterHandle& cluster) {
  require_member(cluster);
  return clock_offset(cluster->world(), [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  });
}

// This rank runs no more lines: waits for the others to come as far, and tells those that do not.
void cluster_finish(ClusterHandle& cluster, std::string place) {
  require_member(cluster);
  if (cluster->groups->size() > 1) agreement_of(cluster)->at_end(place, "");
}

void cluster_leave(ClusterHandle& cluster) {
  if (cluster->left) return;
  cluster->connected_groups();
  cluster->watch.reset();
  cluster->left = true;
  cluster->membership->leave();
}

}  // namespace

std::shared_ptr<Groups> paced_groups_of(lua_State* L, int index, const ClusterHandle& cluster) {
  auto pacer = slow_links_at(L, index, groups_of(cluster)->size());
  return std::make_shared<Groups>(cluster->fabric, fmt::format("paced mesh {}: ", ++cluster->paced),
                                  std::move(pacer));
}

void add_cluster(lua_State* L) {
  make_class<ClusterHandle>(
      L, {bind<&cluster_rank>("rank"), bind<&cluster_size>("size"), bind<&cluster_any>("any"),
          bind<&cluster_gather>("gather"), bind<&cluster_restore>("restore"), bind<&cluster_tell>("tell"),
          bind<&cluster_leave>("leave"), bind<&cluster_finish>("finish"), bind<&cluster_ways>("ways"),
          bind<&cluster_clock_offset>("clock_offset"), bind<&cluster_close>("close"),
          bind<&cluster_roster>("roster")});
  make_class<MemberHandle>(L, {bind<&member_open>("open"), bind<&member_end_run>("end_run"),
                               bind<&member_leave>("leave"), bind<&member_ask_change>("ask_change")});
  set_functions(L, "native.",
                {bind<&join_run>("join"), bind<&new_member>("member"), bind<&is_alone>("is_alone")});
}

}  // namespace het::lua
