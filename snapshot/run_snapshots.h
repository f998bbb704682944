// The snapshots that one process takes of its run's state, beside the steps: in the memory of its host, where
// they outlive the process, and on a disk. Reads them, and others' that lie there, as tiers.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/program/state.h"
#include "core/run/state_layout.h"
#include "snapshot/folder_claim.h"
#include "snapshot/run_replicas.h"
#include "snapshot/slot.h"
#include "snapshot/tiers.h"

namespace het {

// What is written on a thread of its own. Used from one thread.
class SnapshotTask {
 public:
  struct Written {
    Tier tier = Tier::memory;
    std::string path;
    std::string problem =
        {};  // why this copy is not there, though the one on the disk is; empty: it is there
  };
  using Write = std::function<std::vector<Written>()>;

  SnapshotTask(Version version, Write write);
  ~SnapshotTask();  // waits; a failure not asked for is lost
  SnapshotTask(const SnapshotTask&) = delete;
  SnapshotTask& operator=(const SnapshotTask&) = delete;

  Version version() const { return version_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  bool failed() const { return done() && failure_ != nullptr; }
  // Waits. Throws what kept a file from being written.
  const std::vector<Written>& wait();

 private:
  const Version version_;
  Write write_;
  std::vector<Written> written_;
  std::exception_ptr failure_;  // read when done
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Used from one thread. Lives as long as what it writes.
class RunSnapshots : public std::enable_shared_from_this<RunSnapshots> {
 public:
  struct Options {
    std::string run;            // its name
    std::string memory_folder;  // of the run on this host, in memory; empty: none
    std::optional<Path> disk_folder;
    std::shared_ptr<ObjectStore> store;  // gets a copy of what is written to the disk, and of vocabulary.json
                                         // there; null: none
    int keep = 2;                        // whole snapshots in the store
    // Of the run, to exchange replicas with other hosts: its secret, where this process listens, and what it
    // tells of what went wrong. No address: it keeps none and has none made.
    std::string secret, address, host, zone;
    // Of the host's memory, for the snapshots of this process and its copies of others'. 0: its own without a
    // limit, and no copies.
    int64_t memory_bytes = 0;
    std::function<void(const std::string& sentence)> warn;
    int replicas = 2;  // copies of each part on several hosts that make its loss unlikely, live ones included
  };
  explicit RunSnapshots(Options options);
  ~RunSnapshots();
  RunSnapshots(const RunSnapshots&) = delete;
  RunSnapshots& operator=(const RunSnapshots&) = delete;

  // Keeps other runs out of the folder on disk, and of a store that is one, until release(): FolderClaim.
  // A bucket has a StoreClaim.
  void claim(int64_t run);
  void release();

  // What this process tells the others of itself, for follow().
  ReplicaPeer own() const;
  // Of the plan that the run follows from here on, on every rank. `peers`: own() of each rank; of ranks on
  // one host each counts as a host of its own.
  void follow(const StateLayout& layout, int rank, const std::vector<ReplicaPeer>& peers, std::string plan);
  // Whether a part of the state is on fewer than `replicas` hosts, or in one zone of several: only then do
  // snapshots in memory gain something. The same on every rank. False where they do not fit in memory.
  bool is_scarce() const { return is_scarce_; }
  // The memory of the plan that is followed: what this process may take, and what two versions of its parts
  // do; and the first rank whose parts do not fit, -1: there is none.
  struct Memory {
    int64_t limit_bytes = 0, own_bytes = 0;
    int short_rank = -1;
  };
  const Memory& memory() const { return memory_; }
  // Hosts that hold a snapshot in memory of the plan that is followed, as parts or as copies of these.
  int hosts() const { return hosts_; }
  // By rank, the ranks that keep copies of its parts in memory which too few hosts have; empty: there are no
  // such parts, or the ranks of one host keep none.
  const std::vector<std::vector<int>>& keepers() const { return keepers_; }
  // Of the newest snapshot of this process: bytes that those lack who keep copies of it.
  int64_t behind_bytes() const { return exchange_ == nullptr ? 0 : exchange_->behind_bytes(); }

  // What goes with the state beside its tensors.
  struct About {
    int64_t cursor = 0, seed = 0;
    std::string text;  // JSON
  };
  // Writes the state as it is beside what follows: to memory alone from where it is, while what changes it
  // waits; else from a copy. After a step by the plan: a version has one snapshot, of one layout. Memory
  // holds the version that is kept and one other, which gives way.
  struct Taken {
    std::shared_ptr<SnapshotTask> memory, disk;  // null: none
  };
  Taken take(StateStore& state, bool in_memory, bool on_disk, const About& about);

  // What this task has sent to the store is of a snapshot that another rank has not sent its part of: the
  // next one that is written to the disk removes it there first.
  void discard_sent(SnapshotTask& task);

  // The snapshot in memory of this version is whole: every rank has written its part.
  void keep(Version version);
  // Removes from memory what is older than the kept version, or was trained again since: also what processes
  // that are gone have left.
  void remove_older();

  // What there is to read.
  SnapshotTiers& tiers() { return tiers_; }
  // Copies for other hosts that are under way fail, and no more are made until follow(): the ranks change.
  void stop_replicas();
  // Removes the snapshots in memory, of this process and others of this host: they are of an earlier run.
  void clear_memory();
  // The run has ended: removes all of it from memory.
  void leave();

  // Folders in memory: of parts that too few hosts have, of other parts, of copies of other hosts' parts.
  static std::string scarce_folder(const std::string& memory) { return memory + "/scarce"; }
  static std::string rest_folder(const std::string& memory) { return memory + "/rest"; }
  static std::string replica_folder(const std::string& memory) { return memory + "/replicas"; }

 private:
  struct Slots {  // of one version
    std::unique_ptr<SnapshotSlot> scarce, rest;
    std::optional<Version> version;
    int64_t written = 0;  // counts
  };

  void renew(FolderClaim& claim);
  void send(ObjectStore& store, const Path& file, int64_t bytes);
  void send_vocabulary(ObjectStore& store, const Path& folder);
  SnapshotManifest manifest_of(const StateCopy& copy, const About& about) const;
  static std::vector<SnapshotTiers::Place> places_of(const Options& options);
  void make_folders();
  std::vector<ReplicaPeer> share_memory(const std::vector<std::vector<WrittenPart>>& written,
                                        std::vector<ReplicaPeer> peers);
  Slots& free_slots();

  const Options options_;
  SnapshotTiers tiers_;
  std::vector<SnapshotTensor> tensors_;
  std::vector<StatePart> scarce_, rest_, disk_;
  bool is_scarce_ = false;
  Memory memory_;
  int rank_ = 0, ranks_ = 1, hosts_ = 1;
  std::vector<std::vector<int>> keepers_;
  std::string plan_;
  std::unique_ptr<RunReplicas> exchange_;
  std::mutex claiming_;  // of the claims, which what is written to disk renews
  FolderClaim folder_claim_, store_claim_;
  bool is_claimed_ = false;
  std::array<Slots, 2> slots_;
  int64_t written_ = 0;
  std::optional<Version> kept_;
  std::vector<std::string> discarded_;  // keys in the store
  std::atomic<bool> vocabulary_sent_ = false;
};

}  // namespace het
