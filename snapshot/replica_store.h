// Replicas of other members' snapshot files, in a folder of this process: what is offered is fetched on a
// thread of its own, an older version of the same rank saving what has not changed, and stands under its name
// when all of it is there and checked. The folder belongs to the store alone. Later means: of a later
// generation, or of a later step of the same one, so that what is trained after a rollback replaces what was
// rolled back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "snapshot/exchange_client.h"
#include "snapshot/exchange_server.h"
#include "snapshot/fetch_priority.h"

namespace het {

// Whether `a` was trained after `b`.
constexpr bool is_later(const Version& a, const Version& b) {
  return a.generation != b.generation ? a.generation > b.generation : a.step > b.step;
}

struct ReplicaStoreOptions {
  std::string folder;        // made where it is missing; no other process uses it
  int64_t budget_bytes = 0;  // of all files in the folder, the one that is fetched included
  ExchangeIdentity identity;
  std::function<void(const std::string& sentence)> warn;  // gets what went wrong; on the store's thread
};

struct HeldReplica {
  std::string file;
  SnapshotName name;
  int64_t bytes = 0;
  bool operator==(const HeldReplica&) const = default;
};

// Thread-safe; has a thread.
class ReplicaStore {
 public:
  // Takes over what an earlier process has left in the folder: whole files are held, others are removed.
  // Throws Error(usage) when another process uses the folder.
  explicit ReplicaStore(ReplicaStoreOptions options);
  ~ReplicaStore();
  ReplicaStore(const ReplicaStore&) = delete;
  ReplicaStore& operator=(const ReplicaStore&) = delete;

  // Fetches the file when its turn comes. An offer of a rank that has not begun gives way to a later one.
  // Where the budget is short, earlier versions of the same rank go first, then earlier ones of other ranks,
  // but no rank's latest. Is for SnapshotServerOptions::on_offer; the server goes before the store.
  std::shared_ptr<OfferOutcome> on_offer(const SnapshotOffer& offer);

  // From here on; what is held stays until there is need for room.
  void set_budget(int64_t bytes);

  std::vector<HeldReplica> held() const;  // by rank, of each the latest first
  // Removes what is earlier than `version`, whatever rank it is of: the caller knows that a later version is
  // whole without it. Is quick: the memory of the last one of each rank serves the next, the store's thread
  // frees the rest.
  void drop_before(const Version& version);

 private:
  struct Pending {
    SnapshotOffer offer;
    SnapshotName name;
    std::shared_ptr<OfferOutcome> outcome;
  };
  // What was a replica, under a name that is none: the next one is written over it, for new pages of memory
  // cost more than the copy.
  struct SpentFile {
    std::string path;
    int64_t bytes = 0;
  };

  void take_over();
  void run();
  void fetch(const Pending& next);
  SnapshotTransfer transfer(const Pending& next, const FetchOptions& options);
  SnapshotTransfer transfer_from(PeerSnapshots& peers, const Pending& next,
                                 const FetchOptions& options) const;
  std::shared_ptr<PeerSnapshots> idle_peers();
  std::optional<SnapshotTransfer> transfer_idle(const Pending& next, const FetchOptions& options);
  std::string problem_of(const SnapshotOffer& offer, const SnapshotName& name) const;
  std::string make_room(const Pending& next);
  std::vector<HeldReplica>::iterator dispensable(int64_t rank, bool same_rank);
  bool is_held(const std::string& file) const;
  const HeldReplica* latest_of(int64_t rank) const;
  void remove(std::vector<HeldReplica>::iterator replica);
  void set_aside(std::vector<HeldReplica>::iterator replica);
  bool has_too_many_spent() const;
  std::string pop_spent();
  std::optional<std::string> take_spent(int64_t bytes);
  void warn(const std::string& sentence) const;

  const ReplicaStoreOptions options_;
  Descriptor folder_;  // open for as long as the folder is this store's
  PeerSnapshots peers_;
  std::map<int64_t, FetchPriority> priorities_;  // by rank; the thread's
  mutable std::mutex mutex_;                     // of what follows
  std::condition_variable changed_;
  int64_t budget_bytes_ = 0;
  std::vector<HeldReplica> held_;              // by rank, of each the latest first
  std::vector<Pending> pending_;               // at most one for each rank
  std::vector<SpentFile> spent_;               // their bytes count in the budget
  std::shared_ptr<PeerSnapshots> idle_peers_;  // of fetches at idle priority; stopped with one given up
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace het
