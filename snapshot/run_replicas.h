// Copies of a run's snapshots in memory that too few hosts have: this process serves its own, keeps those of
// others, and has others keep its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "snapshot/exchange_client.h"
#include "snapshot/exchange_server.h"
#include "snapshot/replica_store.h"

namespace het {

// What a rank says of itself, for all to place replicas alike.
struct ReplicaPeer {
  std::string id, host, zone;  // as ReplicaMember has them
  std::string endpoint;        // of its server; empty: it keeps none
  int64_t free_bytes = 0;
};
std::string to_text(const ReplicaPeer& peer);
// Throws Error(peer) naming `who` for a text that is none.
ReplicaPeer parse_replica_peer(const std::string& text, const std::string& who);

// Thread-safe.
class RunReplicas {
 public:
  struct Options {
    std::string run, secret;
    std::string address;       // that this process listens at
    std::string own_folder;    // snapshots that others may read
    std::string folder;        // of replicas; this process's alone
    std::string host, zone;    // empty: not known
    int64_t budget_bytes = 0;  // of replicas
    std::function<void(const std::string& sentence)> warn;
  };
  explicit RunReplicas(Options options);
  ~RunReplicas();
  RunReplicas(const RunReplicas&) = delete;
  RunReplicas& operator=(const RunReplicas&) = delete;

  ReplicaPeer own() const;
  // From here on those of `peers`, by rank, that place_replicas() chooses keep this rank's snapshots:
  // `copies` each, on other hosts.
  void follow(const std::vector<ReplicaPeer>& peers, int rank, int copies);
  // Waits until each of these has a copy of the snapshot at `path`, which is served. Throws Error(peer)
  // naming one that has not.
  void replicate(const std::string& path);
  // Ends replicate(), under way and to come, until the next follow().
  void stop();
  // Older versions of all ranks are not needed any more.
  void drop_before(Version version) { store_.drop_before(version); }

 private:
  ExchangeIdentity identity() const;

  const Options options_;
  ReplicaStore store_;
  std::unique_ptr<SnapshotServer> server_;
  mutable std::mutex mutex_;              // of what follows
  std::shared_ptr<PeerSnapshots> peers_;  // null: stopped
  std::vector<Endpoint> holders_;
};

}  // namespace het
