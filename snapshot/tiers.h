// The snapshot files that a member of a run can read, as tiers of the run's state.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/run/tier.h"
#include "snapshot/rate_meter.h"
#include "snapshot/snapshot.h"

namespace het {

// Used from one thread, but for read().
class SnapshotTiers : public TierReader {
 public:
  struct Place {
    Tier tier;
    Path folder;  // of snapshots, or of folders with them; one that is missing is empty
    std::shared_ptr<ObjectStore> store;  // instead of a folder; of the tier `store`
  };
  explicit SnapshotTiers(std::vector<Place> places) : places_(std::move(places)) {}

  // Looks into the folders again: the newest versions of each. Files that cannot be read are left out, and
  // reported once (take_warnings). `about` is JSON: {run, cursor, seed, about}, of the manifest.
  std::vector<TierState> states(bool far) override;
  void follow(const History& history) override;
  void release() override;
  // Thread-safe. A file that is damaged there is left out from then on.
  Tensor read(Tier tier, Version version, const std::string& tensor, const TensorSlice& slice) override;

  // For what this process writes to a tier: states() says this rate of it until it has read enough there.
  RateMeter& written(Tier tier) { return written_[static_cast<size_t>(tier)]; }

  // Sentences about files that cannot be used, since the last call.
  std::vector<std::string> take_warnings();

 private:
  using Files = std::vector<std::shared_ptr<const SnapshotFile>>;
  struct Alike {  // files of one version of one run
    History history;
    Files files;
  };
  void look_into_store(const Place& place, std::vector<TierState>& states);
  void look_into(const Place& place, const std::vector<ListedSnapshot>& listed,
                 std::vector<TierState>& states);
  void open(const Place& place, const std::string& path, std::vector<Alike>& known);
  std::shared_ptr<const Snapshot> snapshot_of(Tier tier, Version version);
  void leave_out(const std::string& path, const std::string& why);
  bool is_left_out(const std::string& path);
  void warn(const std::string& sentence);
  double bytes_per_second(Tier tier);

  const std::vector<Place> places_;
  std::array<RateMeter, kTiers> read_, written_;
  std::map<std::pair<Tier, Version>, std::vector<Alike>> files_;
  std::mutex mutex_;                                                               // of all below
  std::map<std::pair<Tier, Version>, std::shared_ptr<const Snapshot>> snapshots_;  // of files not left out
  History history_;                                                                // that is followed
  std::set<std::string> left_out_;                                                 // paths
  std::vector<std::string> warnings_;
};

}  // namespace het
