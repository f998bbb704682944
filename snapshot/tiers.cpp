#include "snapshot/tiers.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/io/json.h"

namespace het {
namespace {

constexpr size_t kVersions = 8;  // of a place that are looked at, the newest

TierState state_of(const SnapshotTiers::Place& place, int64_t modified,
                   std::span<const std::shared_ptr<const SnapshotFile>> files) {
  TierState state;
  const SnapshotManifest& first = files.front()->manifest();
  state.tier = place.tier;
  state.modified = modified;
  state.version = first.version;
  state.history = first.history;
  for (const auto& file : files) {
    const SnapshotManifest& manifest = file->manifest();
    for (const SnapshotUnit& unit : manifest.units) {
      const SnapshotTensor& tensor = manifest.tensors[unit.tensor];
      state.parts.push_back({tensor.name, {tensor.type, tensor.trained}, unit.slice});
    }
  }
  state.about = dump(Json(Json::object_t{
      {"run", first.run}, {"cursor", first.cursor}, {"seed", first.seed}, {"about", first.about}}));
  return state;
}

}  // namespace

std::vector<TierState> SnapshotTiers::states(bool far) {
  release();
  std::vector<TierState> states;
  for (const Place& place : places_) {
    if (place.store != nullptr) {
      if (far) look_into_store(place, states);
      continue;
    }
    if (kind_of(place.folder) != FileKind::folder) continue;
    look_into(place, list_snapshots(place.folder), states);
    for (const FolderEntry& entry : list_folder(place.folder))
      if (entry.kind == FileKind::folder) {
        const Place inner{place.tier, place.folder.child(entry.name), nullptr};
        look_into(inner, list_snapshots(inner.folder), states);
      }
  }
  for (TierState& state : states) state.bytes_per_second = bytes_per_second(state.tier);
  return states;
}

double SnapshotTiers::bytes_per_second(Tier tier) {
  const double read = read_[static_cast<size_t>(tier)].bytes_per_second();
  return read > 0 ? read : written(tier).bytes_per_second();
}

void SnapshotTiers::look_into_store(const Place& place, std::vector<TierState>& states) {
  try {
    look_into(place, list_snapshots(*place.store), states);
  } catch (const Error& error) {  // it says nothing of what it has
    warn(error.sentence());
  }
}

void SnapshotTiers::look_into(const Place& place, const std::vector<ListedSnapshot>& listed,
                              std::vector<TierState>& states) {
  // An earlier run may have left higher steps.
  std::vector<ListedSnapshot> newest = listed;
  std::stable_sort(newest.begin(), newest.end(),
                   [](const ListedSnapshot& a, const ListedSnapshot& b) { return a.modified > b.modified; });
  if (newest.size() > kVersions) newest.resize(kVersions);
  for (const ListedSnapshot& each : newest) {
    std::vector<Alike>& known = files_[{place.tier, each.version}];
    std::vector<size_t> before;
    for (const Alike& alike : known) before.push_back(alike.files.size());
    for (const std::string& path : each.files) open(place, path, known);
    before.resize(known.size());
    for (size_t i = 0; i < known.size(); ++i)
      if (known[i].files.size() > before[i])
        states.push_back(state_of(place, each.modified, std::span(known[i].files).subspan(before[i])));
  }
}

// Adds a file that can be read to those of its state.
void SnapshotTiers::open(const Place& place, const std::string& path, std::vector<Alike>& known) {
  // As the opened file is called.
  const auto in_folder = place.store != nullptr ? place.store->file_of(path) : place.folder.with(path);
  const std::string name = in_folder ? in_folder->text : place.store->url_of(path);
  if (is_left_out(name)) return;
  try {
    auto file = place.store != nullptr ? SnapshotFile::open(object_source(place.store, path))
                                       : SnapshotFile::open(place.folder.with(path));
    const History& history = file->manifest().history;
    auto alike = std::find_if(known.begin(), known.end(),
                              [&](const Alike& other) { return other.history == history; });
    if (alike == known.end()) alike = known.insert(known.end(), Alike{history, {}});
    Files all = alike->files;
    all.push_back(file);
    const Snapshot joined(std::move(all));  // throws for a file of another state
    alike->files.push_back(std::move(file));
  } catch (const Error& error) {
    // Others may write, replace and remove files meanwhile; what cannot be read now is not counted on.
    if (error.kind() == ErrorKind::usage && place.tier != Tier::memory) leave_out(name, error.sentence());
    if (error.kind() != ErrorKind::usage) warn(error.sentence());
  }
}

void SnapshotTiers::follow(const History& history) {
  const std::lock_guard lock(mutex_);
  history_ = history;
  snapshots_.clear();
}

std::shared_ptr<const Snapshot> SnapshotTiers::snapshot_of(Tier tier, Version version) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Snapshot>& snapshot = snapshots_[{tier, version}];
  if (snapshot != nullptr) return snapshot;
  Files sound;
  if (const auto known = files_.find({tier, version}); known != files_.end())
    for (const Alike& alike : known->second)
      for (const auto& file : alike.files)
        if (alike.history == up_to(history_, version) && left_out_.count(file->path()) == 0)
          sound.push_back(file);
  if (sound.empty())
    fail_usage("there is no snapshot in the tier '{}' after step {}", name_of(tier), version.step);
  return snapshot = std::make_shared<const Snapshot>(std::move(sound));
}

Tensor SnapshotTiers::read(Tier tier, Version version, const std::string& tensor, const TensorSlice& slice) {
  const std::shared_ptr<const Snapshot> snapshot = snapshot_of(tier, version);
  try {
    RateMeter::Transfer transfer(read_[static_cast<size_t>(tier)]);
    Tensor elements = snapshot->read(tensor, slice);
    transfer.arrived(elements.type().bytes());
    return elements;
  } catch (const Error&) {
    for (const Snapshot::Held& held : snapshot->held(tensor)) {
      const auto shared = intersection(held.slice, slice);
      const auto& file = snapshot->files()[held.file];
      try {
        if (shared) file->read(held.unit, *shared);
      } catch (const Error& damage) {
        leave_out(file->path(), damage.sentence());
      }
    }
    throw;
  }
}

void SnapshotTiers::release() {
  const std::lock_guard lock(mutex_);
  files_.clear();
  snapshots_.clear();
}

void SnapshotTiers::leave_out(const std::string& path, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!left_out_.insert(path).second) return;
  warnings_.push_back(why);
  snapshots_.clear();
}

bool SnapshotTiers::is_left_out(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return left_out_.count(path) != 0;
}

void SnapshotTiers::warn(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  warnings_.push_back(sentence);
}

std::vector<std::string> SnapshotTiers::take_warnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace het
