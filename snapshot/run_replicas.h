// Copies of a run's snapshots in memory that too few hosts have: this process serves its own, keeps those of
// others, and has others keep its own.
#pragma once

#include <atomic>
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
  int64_t free_bytes = 0;      // of memory, for its snapshots and copies of others
};
std::string to_text(const ReplicaPeer& peer);
// Throws Error(peer) naming `who` for a text that is none.
ReplicaPeer parse_replica_peer(const std::string& text, const std::string& who);

// By rank, those that keep its snapshots: as place_replicas() chooses `copies` each, of these the ones on
// other hosts. The same on every rank.
std::vector<std::vector<int>> replica_holders(const std::vector<ReplicaPeer>& peers, int copies);

// Thread-safe.
class RunReplicas {
 public:
  struct Options {
    std::string run, secret;
    std::string address;       // that this process listens at
    std::string own_folder;    // snapshots that others may read
    std::string folder;        // of replicas; this process's alone
    std::string host, zone;    // empty: not known
    int64_t budget_bytes = 0;  // of memory, for the snapshots of this process and replicas
    std::function<void(const std::string& sentence)> warn;
  };
  explicit RunReplicas(Options options);
  ~RunReplicas();
  RunReplicas(const RunReplicas&) = delete;
  RunReplicas& operator=(const RunReplicas&) = delete;

  ReplicaPeer own() const;
  // From here on these of `peers` keep this rank's snapshots, and replicas here take at most so many bytes.
  void follow(const std::vector<ReplicaPeer>& peers, const std::vector<int>& holders, int64_t replica_bytes);
  // Waits until each of these has a copy of the snapshot at `path`, which is served. Throws Error(peer)
  // naming one that has not.
  void replicate(const std::string& path);
  // Of the snapshot last given to replicate(): bytes that those lack who keep it, each for itself.
  int64_t behind_bytes() const { return behind_bytes_.load(std::memory_order_relaxed); }
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
  std::atomic<int64_t> behind_bytes_{0};
};

}  // namespace het
