#include "core/run/cluster.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/cluster/store_key_value.h"
#include "core/comm/shaped.h"

namespace het {
namespace {

Communicator& group_of_all(Groups& groups, int lane = 0) {
  std::vector<int> ranks(static_cast<size_t>(groups.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return groups.group(ranks, lane);
}

}  // namespace

std::shared_ptr<Cluster> Cluster::join(JoinSettings settings) {
  Joining joining = begin_joining(std::move(settings));
  const bool by_etcd = joining.settings.etcd.has_value();
  const std::shared_ptr<Cluster> cluster(new Cluster(joining.settings));
  cluster->server_ = std::move(joining.rendezvous.server);
  cluster->store_ = joining.rendezvous.store;
  JoinOptions options;
  options.run = joining.settings.run;
  options.world_size = joining.launched_ranks();
  options.secret = joining.settings.secret;
  options.timeout = joining.timeout;
  options.warn_after = joining.warn_after;
  options.warn = joining.settings.warn;
  options.lease_store = joining.rendezvous.brief;
  if (cluster->server_ != nullptr)
    options.rejected = [server = cluster->server_.get()] { return server->rejected(); };
  // To etcd a member that dies while the ranks meet is lost when its lease lapses; the embedded store sees
  // its connection close.
  constexpr std::chrono::milliseconds kEtcdLease{3000};
  if (by_etcd) options.lease_ttl = kEtcdLease;
  MemberInfo member;
  member.rank = joining.launched.rank;
  member.host = joining.host;
  member.device = joining.settings.device;
  member.device_memory = joining.settings.device_memory;
  member.address = joining.rendezvous.address;
  member.version = HET_VERSION;
  member.recipe_digest = joining.settings.recipe_digest;
  member.data_digest = joining.settings.data_digest;
  cluster->membership_ = het::join(cluster->store_, member, options);
  const Membership& membership = *cluster->membership_;
  const auto words_in = [&](const std::shared_ptr<Store>& store) {
    return make_store_key_value(store, membership.prefix(), [lease = membership.lease()] { return lease; });
  };
  TcpOptions tcp =
      tcp_options(joining, words_in(joining.rendezvous.store), words_in(joining.rendezvous.brief));
  cluster->rank_ = tcp.rank = membership.rank();
  cluster->size_ = tcp.size = options.world_size;
  tcp.generation = membership.generation();
  tcp.address = joining.rendezvous.address;
  const std::vector<MemberInfo>& members = membership.members();
  tcp.one_host = std::all_of(members.begin(), members.end(),
                             [&](const MemberInfo& each) { return each.host == members[0].host; });
  if (!joining.by_launcher() && !by_etcd)
    tcp.store_host = tcp.one_host ? "rank 0" : fmt::format("rank 0 on {}", members[0].host);
  const std::string store_host = tcp.rank == 0 ? "" : tcp.store_host;
  tcp.pacer = make_shaped_links(joining.settings.links, tcp.size);
  cluster->fabric_ = make_tcp(std::move(tcp));
  cluster->watch_ = std::make_unique<MemberWatch>(*cluster->membership_, joining.rendezvous.brief,
                                                  *cluster->fabric_, store_host);
  cluster->groups_ = std::make_shared<Groups>(cluster->fabric_);
  // Groups are made on first use, but that of all ranks at once: who dies from then on closes a connection.
  // Not on this thread, for a mistake that all ranks find in their recipe is reported by each of them.
  cluster->connecting_ = std::async(
      std::launch::async, [self = cluster.get()] { self->watch_->connected(group_of_all(*self->groups_)); });
  return cluster;
}

Cluster::Cluster(std::shared_ptr<Store> store, std::shared_ptr<Generation> generation, JoinSettings settings)
    : settings_(std::move(settings)),
      rank_(generation->rank()),
      size_(static_cast<int>(generation->formation().members.size())),
      store_(std::move(store)),
      generation_(std::move(generation)),
      fabric_(generation_->fabric()),
      groups_(generation_->groups()) {}

Cluster::~Cluster() {
  if (watch_ == nullptr || left_) return;
  std::string why = fabric_->cause();
  if (why.empty())
    why = std::uncaught_exceptions() > 0 ? "it ended with an error" : "it ended before the run did";
  fabric_->abort(why);
  if (connecting_.valid()) connecting_.wait();
  watch_.reset();
  membership_->give_up(why);
}

void Cluster::require_open() const {
  if (left_) fail_usage("this rank has left the run");
  if (closed_) fail_usage("the generation of the run has ended: {}", *closed_);
}

std::shared_ptr<Groups> Cluster::groups() {
  require_open();
  if (connecting_.valid()) connecting_.get();
  return groups_;
}

void Cluster::arrange(std::vector<int> by_plan) {
  std::vector<int> ranks = by_plan, all(static_cast<size_t>(size_));
  std::sort(ranks.begin(), ranks.end());
  std::iota(all.begin(), all.end(), 0);
  if (ranks != all) fail_usage("a plan of {} ranks is not for each of {} ranks once", by_plan.size(), size_);
  groups();
  arranged_ = by_plan == all
                  ? nullptr
                  : std::make_shared<Groups>(fabric_, fmt::format("arrangement {}: ", ++arrangements_),
                                             nullptr, std::move(by_plan));
}

std::shared_ptr<Groups> Cluster::groups_of_plan() {
  auto all = groups();
  return arranged_ != nullptr ? arranged_ : all;
}

std::shared_ptr<Groups> Cluster::paced_groups(std::vector<Link> links) {
  groups();
  return std::make_shared<Groups>(fabric_, fmt::format("paced mesh {}: ", ++paced_),
                                  make_shaped_links(std::move(links), size_));
}

Communicator& Cluster::world() {
  const auto connected = groups();
  return generation_ != nullptr ? generation_->world() : group_of_all(*connected);
}

std::vector<Communicator*> Cluster::lanes(int count) {
  std::vector<Communicator*> lanes;
  for (int lane = 1; lane <= count; ++lane) lanes.push_back(&group_of_all(*groups(), lane));
  return lanes;
}

std::shared_ptr<Agreement> Cluster::agreement() {
  if (agreement_ == nullptr) agreement_ = std::make_shared<Agreement>(world(), settings_.is_interrupted);
  return agreement_;
}

std::vector<std::string> Cluster::ways() { return groups_of_plan()->ways(); }

std::vector<std::string> Cluster::all_gather(const std::string& text) {
  return all_gather_text(world(), text, "texts of the ranks");
}

bool Cluster::any(bool own) {
  require_open();
  if (any_ == nullptr) {
    CollectiveRequest request;
    request.kind = CollectiveKind::all_reduce;
    request.dtype = DType::i32;
    request.counts = {1};
    request.reduction = Reduction::max;
    request.label = "whether to stop";
    any_ = world().prepare(request);
  }
  int32_t value = own ? 1 : 0;
  auto* bytes = reinterpret_cast<std::byte*>(&value);
  any_->start(bytes, bytes);
  any_->wait();
  return value != 0;
}

std::string Cluster::lines_prefix() const {
  HET_REQUIRE(membership_ != nullptr, rank_);  // a prompt's ranks are fixed
  return membership_->prefix() + "line/";
}
std::string Cluster::line_key(int64_t number) const { return lines_prefix() + std::to_string(number); }

void Cluster::give_line(int64_t number, const std::string& text) {
  store_->put(line_key(number), text);
  if (number > 2) store_->remove(line_key(number - 2));
}

std::optional<std::string> Cluster::take_line(int64_t number, std::chrono::milliseconds timeout) {
  require_open();
  if (lines_ == nullptr) lines_ = store_->watch(lines_prefix());
  for (const bool waited : {false, true}) {
    if (waited) lines_->next(timeout);
    if (auto entry = store_->get(line_key(number))) return std::move(entry->value);
  }
  if (const std::string cause = fabric_->cause(); !cause.empty()) throw Error(ErrorKind::peer, cause);
  return std::nullopt;
}

void Cluster::close(const std::string& why, bool agreed) {
  if (closed_) return;
  HET_REQUIRE(generation_ != nullptr, why);  // fixed ranks leave
  closed_ = why;
  any_ = nullptr;
  agreement_ = nullptr;
  arranged_ = nullptr;
  groups_ = nullptr;
  generation_->close(why, agreed);
  generation_ = nullptr;
  fabric_ = nullptr;
}

void Cluster::leave() {
  if (left_) return;
  HET_REQUIRE(membership_ != nullptr, rank_);  // members of generations leave by Member::leave()
  groups();
  watch_.reset();
  left_ = true;
  membership_->leave();
}

}  // namespace het
