// A snapshot: the files of one version of a run's state. Together they have all of it, or a part.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan/inventory.h"
#include "snapshot/reader.h"

namespace het {

// Used from several threads.
class Snapshot {
 public:
  // Throws Error(usage) naming two files that are not of one version, or of one state.
  explicit Snapshot(std::vector<std::shared_ptr<const SnapshotFile>> files);

  // What the files agree on; `plan`, `rank`, `ranks`, `about` and `units` are those of the first.
  const SnapshotManifest& manifest() const { return files_.front()->manifest(); }
  const std::vector<std::shared_ptr<const SnapshotFile>>& files() const { return files_; }

  const SnapshotTensor* find(const std::string& name) const;  // null: the state has no such tensor
  // The slices of a tensor that the files have, with the files that have them.
  struct Held {
    TensorSlice slice;
    size_t file, unit;  // indices in files(), and in the units of its manifest
  };
  const std::vector<Held>& held(const std::string& name) const;
  // What no file has, tensor by tensor. Empty: the snapshot is whole.
  std::vector<Inventory::Need> missing() const;

  // The elements of `slice`, packed. A slice that is a unit of a mapped file is a view of the file. Throws
  // Error(usage) for a tensor that the state does not have, for a slice that no file has, and for damage.
  Tensor read(const std::string& name, const TensorSlice& slice) const;

 private:
  std::vector<std::shared_ptr<const SnapshotFile>> files_;
  std::map<std::string, std::vector<Held>> held_;  // of every tensor
};

// The name of the file of one rank in a folder of snapshots:
// step-STEP-generation-GENERATION-rank-RANK-of-RANKS.snapshot
inline constexpr const char* kSnapshotPrefix = "step-";  // of every name
struct SnapshotName {
  Version version;
  int64_t rank = 0, ranks = 1;
  bool operator==(const SnapshotName&) const = default;
};
std::string to_string(const SnapshotName& name);
// Of a name without folders; nothing for any text that is no such name.
std::optional<SnapshotName> parse_snapshot_name(std::string_view text);
std::string snapshot_name(const SnapshotManifest& manifest);
Path snapshot_path(const Path& folder, const SnapshotManifest& manifest);

struct ListedSnapshot {
  Version version;
  std::vector<std::string> files;  // paths or keys, by rank
  int64_t modified = 0;            // when the last of them was written, in seconds since 1970
};
// The snapshot of a saved model has this name in the model's folder.
inline constexpr const char* kSavedSnapshot = "training.snapshot";
// The snapshots in a folder or a store by the names of their files, the newest first. Their contents are not
// read; files in a folder are opened to see when they were written.
std::vector<ListedSnapshot> list_snapshots(const Path& folder);
std::vector<ListedSnapshot> list_snapshots(ObjectStore& store);
// Those in a folder of snapshots; in the folder of a saved model that of the model. Throws Error(usage) where
// the latter cannot be read.
std::vector<ListedSnapshot> list_place(const Path& folder);

// The snapshot of the files at `paths`, or of the objects at `keys`, whole or not. Throws Error(usage) if one
// of them cannot be read.
Snapshot open_files(const Path& place, const std::vector<std::string>& paths);
Snapshot open_files(const std::shared_ptr<ObjectStore>& store, const std::vector<std::string>& keys);
// The snapshot at `place`: a file; that of the folder of a saved model; or of a folder of snapshots the one
// after `step`, by default the newest whole one. `passed_over`, where given, gets a sentence for every newer
// one that is damaged or not whole. Throws Error(usage).
Snapshot open_snapshot(const Path& place, std::optional<int64_t> step = std::nullopt,
                       std::vector<std::string>* passed_over = nullptr);
// The same of a store. A store that does not answer is an Error: it says nothing about what is whole.
Snapshot open_snapshot(const std::shared_ptr<ObjectStore>& store, std::optional<int64_t> step = std::nullopt,
                       std::vector<std::string>* passed_over = nullptr);

}  // namespace het
