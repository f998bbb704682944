#include "snapshot/run_replicas.h"

#include <utility>
#include <variant>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/io/json.h"
#include "snapshot/replica_placement.h"

namespace het {

std::string to_text(const ReplicaPeer& peer) {
  return dump(Json(Json::object_t{{"id", peer.id},
                                  {"host", peer.host},
                                  {"zone", peer.zone},
                                  {"endpoint", peer.endpoint},
                                  {"free_bytes", peer.free_bytes}}));
}

ReplicaPeer parse_replica_peer(const std::string& text, const std::string& who) {
  const Json json = parse_json(text, fmt::format("what {} says of its replicas", who));
  const auto words = [&](const char* name) {
    const std::string* value = as_string(find_member(json, name));
    if (value == nullptr) fail(ErrorKind::peer, "{} says of its replicas what cannot be read", who);
    return *value;
  };
  const int64_t* free_bytes = as_integer(find_member(json, "free_bytes"));
  if (free_bytes == nullptr || *free_bytes < 0)
    fail(ErrorKind::peer, "{} says of its replicas what cannot be read", who);
  return {words("id"), words("host"), words("zone"), words("endpoint"), *free_bytes};
}

std::vector<std::vector<int>> replica_holders(const std::vector<ReplicaPeer>& peers, int copies) {
  std::vector<ReplicaMember> members;
  for (const ReplicaPeer& peer : peers)
    members.push_back({peer.id, peer.host, peer.zone, peer.endpoint.empty() ? 0 : peer.free_bytes});
  auto placed = place_replicas(members, copies);
  for (size_t rank = 0; rank < placed.size(); ++rank)  // on the host of the rank one would be lost with it
    std::erase_if(placed[rank], [&](int holder) {
      return members[static_cast<size_t>(holder)].host == members[rank].host;
    });
  return placed;
}

RunReplicas::RunReplicas(Options options)
    : options_(std::move(options)),
      store_({options_.folder, options_.budget_bytes, identity(), options_.warn}) {
  SnapshotServerOptions server;
  server.address = options_.address;
  server.run = options_.run;
  server.secret = options_.secret;
  server.folders = {options_.own_folder, options_.folder};
  server.on_offer = [this](const SnapshotOffer& offer) { return store_.on_offer(offer); };
  server.warn = options_.warn;
  server_ = SnapshotServer::start(std::move(server));
}

RunReplicas::~RunReplicas() { stop(); }

ExchangeIdentity RunReplicas::identity() const { return {options_.address, options_.run, options_.secret}; }

ReplicaPeer RunReplicas::own() const {
  const std::string endpoint = to_string(server_->endpoint());
  return {endpoint, options_.host, options_.zone, endpoint, options_.budget_bytes};
}

void RunReplicas::follow(const std::vector<ReplicaPeer>& peers, const std::vector<int>& holders,
                         int64_t replica_bytes) {
  store_.set_budget(replica_bytes);
  std::vector<Endpoint> endpoints;
  for (const int holder : holders)
    endpoints.push_back(parse_endpoint(peers[static_cast<size_t>(holder)].endpoint));
  std::lock_guard lock(mutex_);
  holders_ = std::move(endpoints);
  peers_ = std::make_shared<PeerSnapshots>(identity());
  behind_bytes_ = 0;
}

void RunReplicas::replicate(const std::string& path) {
  std::shared_ptr<PeerSnapshots> peers;
  std::vector<Endpoint> holders;
  {
    std::lock_guard lock(mutex_);
    peers = peers_;
    holders = holders_;
  }
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) fail_environment("'{}' is not there any more", path);
  const std::string file = path.substr(path.rfind('/') + 1);
  behind_bytes_ = static_cast<int64_t>(about.st_size) * std::ssize(holders);
  for (const Endpoint& holder : holders) {
    if (peers == nullptr) fail(ErrorKind::peer, "no replica of {} was made: the ranks have changed", file);
    const SnapshotResponse response =
        peers->offer(holder, {file, static_cast<int64_t>(about.st_size), to_string(server_->endpoint())});
    if (const auto* refusal = std::get_if<SnapshotRefusal>(&response))
      fail(ErrorKind::peer, "{} keeps no replica of {}: {}", to_string(holder), file, refusal->sentence);
    behind_bytes_ -= static_cast<int64_t>(about.st_size);
  }
}

void RunReplicas::stop() {
  std::lock_guard lock(mutex_);
  if (peers_ != nullptr) peers_->stop();
  peers_ = nullptr;
}

}  // namespace het
