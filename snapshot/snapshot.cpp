#include "snapshot/snapshot.h"

#include <algorithm>
#include <charconv>
#include <compare>
#include <functional>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/io/file.h"
#include "snapshot/store/parts.h"

namespace het {
namespace {

constexpr std::string_view kFileEnd = ".snapshot";

// What two files of one snapshot must agree on; empty: they do.
std::string difference_of(const SnapshotManifest& a, const SnapshotManifest& b) {
  if (a.run != b.run) return fmt::format("of the run '{}', and of '{}'", a.run, b.run);
  if (a.version.step != b.version.step)
    return fmt::format("after step {}, and after step {}", a.version.step, b.version.step);
  if (a.version != b.version)
    return fmt::format("of generation {}, and of generation {}", a.version.generation, b.version.generation);
  if (a.history != b.history) return "of two runs of the same name, or of two attempts of one";
  if (a.cursor != b.cursor) return fmt::format("at sample {}, and at sample {}", a.cursor, b.cursor);
  if (a.seed != b.seed) return fmt::format("of seed {}, and of seed {}", a.seed, b.seed);
  if (a.tensors != b.tensors) return "of states with other tensors";
  return {};
}

// A folder or a store of snapshots.
struct Place {
  std::string name;
  std::vector<ListedSnapshot> listed;  // the newest first
  std::function<std::shared_ptr<const SnapshotFile>(const std::string& file)> open;
  int threads = 1;  // that open files: a store's answers take their time
};

constexpr int kOpening = 8;

Place place_of(const Path& folder) {
  return {
      folder.text, {}, [folder](const std::string& path) { return SnapshotFile::open(folder.with(path)); }};
}

Place place_of(const std::shared_ptr<ObjectStore>& store) {
  return {store->url(),
          {},
          [store](const std::string& key) { return SnapshotFile::open(object_source(store, key)); },
          kOpening};
}

// Opens the files; what kept some from being opened goes to `problems`, or is thrown where that is null.
Snapshot open_files_of(const Place& place, const std::vector<std::string>& names,
                       std::vector<std::string>* problems) {
  std::vector<std::shared_ptr<const SnapshotFile>> files(names.size());
  std::vector<std::string> failures(names.size());
  each_part(static_cast<int64_t>(names.size()), place.threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      files[at] = place.open(names[at]);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage || problems == nullptr) throw;
      failures[at] = error.sentence();  // a damaged file counts as one that is not there
    }
  });
  std::erase(files, nullptr);
  if (problems != nullptr)
    for (std::string& failure : failures)
      if (!failure.empty()) problems->push_back(std::move(failure));
  if (files.empty())
    fail_usage("{}", problems == nullptr || problems->empty() ? "it has no files" : problems->front());
  return Snapshot(std::move(files));
}

std::string describe(const std::vector<Inventory::Need>& missing) {
  return fmt::format("no file has {} {}{}", missing[0].name, to_string(missing[0].slice),
                     missing.size() == 1 ? "" : fmt::format(", nor {} other slices", missing.size() - 1));
}

Snapshot choose(const Place& place, std::optional<int64_t> step, std::vector<std::string>* passed_over) {
  if (place.listed.empty()) fail_usage("'{}' holds no snapshot", place.name);
  if (step) {
    std::vector<std::string> steps;
    std::vector<const ListedSnapshot*> found;  // several where the step was trained again
    for (const ListedSnapshot& candidate : place.listed) {
      if (candidate.version.step == *step) found.push_back(&candidate);
      steps.push_back(std::to_string(candidate.version.step));
    }
    for (const ListedSnapshot* candidate : found) {
      if (found.size() == 1) break;
      try {
        Snapshot snapshot = open_files_of(place, candidate->files, nullptr);
        if (snapshot.missing().empty()) return snapshot;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
      }
    }
    if (!found.empty()) return open_files_of(place, found.front()->files, nullptr);
    fail_usage("'{}' holds no snapshot of step {}; it has steps {}", place.name, *step,
               fmt::join(steps.rbegin(), steps.rend(), ", "));
  }
  std::string first_reason;
  for (const ListedSnapshot& candidate : place.listed) {
    std::vector<std::string> problems;
    try {
      Snapshot snapshot = open_files_of(place, candidate.files, &problems);
      const std::vector<Inventory::Need> missing = snapshot.missing();
      if (missing.empty()) return snapshot;
      problems.push_back(describe(missing));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      if (problems.empty()) problems.push_back(error.sentence());
    }
    std::string reason =
        fmt::format("the snapshot of step {} is not complete: {}", candidate.version.step, problems.front());
    if (first_reason.empty()) first_reason = reason;
    if (passed_over != nullptr) passed_over->push_back(std::move(reason));
  }
  fail_usage("'{}' holds no complete snapshot: {}", place.name, first_reason);
}

// By version, the newest first; of each the ranks and the paths or keys.
struct FoundFile {
  int64_t rank = 0;
  std::string file;
  int64_t modified = 0;
  auto operator<=>(const FoundFile&) const = default;
};
using FoundFiles = std::map<Version, std::vector<FoundFile>, std::greater<>>;

// `modified`: asked only for the name of a snapshot.
template <typename Modified>
void add(FoundFiles& found, std::string_view name, std::string file, Modified modified) {
  if (const auto parsed = parse_snapshot_name(name))
    found[parsed->version].push_back({parsed->rank, std::move(file), modified()});
}

std::vector<ListedSnapshot> by_version(FoundFiles found) {
  std::vector<ListedSnapshot> snapshots;
  for (auto& [version, files] : found) {
    std::sort(files.begin(), files.end());
    ListedSnapshot& listed = snapshots.emplace_back();
    listed.version = version;
    for (FoundFile& file : files) {
      listed.files.push_back(std::move(file.file));
      listed.modified = std::max(listed.modified, file.modified);
    }
  }
  return snapshots;
}

}  // namespace

Snapshot::Snapshot(std::vector<std::shared_ptr<const SnapshotFile>> files) : files_(std::move(files)) {
  HET_REQUIRE(!files_.empty());
  for (const SnapshotTensor& tensor : manifest().tensors) held_[tensor.name];
  for (size_t file = 0; file < files_.size(); ++file) {
    const SnapshotManifest& other = files_[file]->manifest();
    if (const std::string difference = difference_of(manifest(), other); !difference.empty())
      fail_usage("'{}' and '{}' are not of one snapshot: they are {}", files_[0]->path(),
                 files_[file]->path(), difference);
    for (size_t unit = 0; unit < other.units.size(); ++unit)
      held_[other.tensors[other.units[unit].tensor].name].push_back({other.units[unit].slice, file, unit});
  }
}

const SnapshotTensor* Snapshot::find(const std::string& name) const {
  const auto& tensors = manifest().tensors;
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const SnapshotTensor& tensor, const std::string& n) { return tensor.name < n; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

const std::vector<Snapshot::Held>& Snapshot::held(const std::string& name) const {
  if (const auto found = held_.find(name); found != held_.end()) return found->second;
  std::vector<std::string> names;
  for (const SnapshotTensor& tensor : manifest().tensors) names.push_back(tensor.name);
  const std::string near = nearest_name(name, names);
  fail_usage("the snapshot has no tensor '{}'{}", name,
             near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

std::vector<Inventory::Need> Snapshot::missing() const {
  std::vector<Inventory::Need> missing;
  for (const SnapshotTensor& tensor : manifest().tensors) {
    std::vector<TensorSlice> have;
    for (const Held& held : held_.at(tensor.name)) have.push_back(held.slice);
    for (TensorSlice& slice : het::missing(TensorSlice::whole(tensor.type.shape), have))
      missing.push_back({tensor.name, std::move(slice)});
  }
  return missing;
}

Tensor Snapshot::read(const std::string& name, const TensorSlice& slice) const {
  const std::vector<Held>& held = this->held(name);
  const TensorType& type = find(name)->type;
  if (slice.whole_shape() != type.shape)
    fail_usage("the slice {} is not one of '{}', which is {}", to_string(slice), name, to_string(type));
  for (const Held& part : held)
    if (shared_elements(part.slice, slice) == slice.elements())
      return files_[part.file]->read(part.unit, slice);
  Tensor result({type.dtype, slice.shape()});
  std::vector<TensorSlice> left{slice};
  for (const Held& part : held) {
    std::vector<TensorSlice> next;
    for (const TensorSlice& need : left) {
      const auto shared = intersection(need, part.slice);
      if (!shared) {
        next.push_back(need);
        continue;
      }
      copy(result, slice, files_[part.file]->read(part.unit, *shared), *shared);
      for (TensorSlice& rest : difference(need, part.slice)) next.push_back(std::move(rest));
    }
    left = std::move(next);
  }
  std::erase_if(left, [](const TensorSlice& rest) { return rest.is_empty(); });
  if (!left.empty())
    fail_usage("the snapshot of step {} lacks {} {}: no file has it", manifest().version.step, name,
               to_string(left.front()));
  return result;
}

std::string to_string(const SnapshotName& name) {
  return fmt::format("{}{}-generation-{}-rank-{}-of-{}{}", kSnapshotPrefix, name.version.step,
                     name.version.generation, name.rank, name.ranks, kFileEnd);
}

std::optional<SnapshotName> parse_snapshot_name(std::string_view text) {
  std::string_view rest = text;
  // The number after `words`.
  const auto number_after = [&](std::string_view words) -> std::optional<int64_t> {
    int64_t value = 0;
    if (!rest.starts_with(words)) return std::nullopt;
    rest.remove_prefix(words.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc{} || value < 0) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return value;
  };
  const auto step = number_after(kSnapshotPrefix);
  const auto generation = step ? number_after("-generation-") : step;
  const auto rank = generation ? number_after("-rank-") : generation;
  const auto ranks = rank ? number_after("-of-") : rank;
  if (!ranks || *rank >= *ranks) return std::nullopt;
  const SnapshotName name{{*step, *generation}, *rank, *ranks};
  if (to_string(name) != text) return std::nullopt;  // another end, or leading zeros
  return name;
}

std::string snapshot_name(const SnapshotManifest& manifest) {
  return to_string(SnapshotName{manifest.version, manifest.rank, manifest.ranks});
}

Path snapshot_path(const Path& folder, const SnapshotManifest& manifest) {
  return folder.child(snapshot_name(manifest));
}

std::vector<ListedSnapshot> list_snapshots(const Path& folder) {
  FoundFiles found;
  for (const FolderEntry& entry : list_folder(folder))
    if (entry.kind == FileKind::file)
      add(found, entry.name, folder.child(entry.name).text,
          [&] { return modified_at(folder.child(entry.name)); });
  return by_version(std::move(found));
}

std::vector<ListedSnapshot> list_place(const Path& folder) {
  std::vector<ListedSnapshot> listed = list_snapshots(folder);
  const Path saved = folder.child(kSavedSnapshot);
  if (listed.empty() && kind_of(saved) == FileKind::file)
    listed.push_back({SnapshotFile::open(saved)->manifest().version, {saved.text}, modified_at(saved)});
  return listed;
}

std::vector<ListedSnapshot> list_snapshots(ObjectStore& store) {
  FoundFiles found;
  for (const StoredObject& object : store.list(kSnapshotPrefix))
    add(found, object.key, object.key, [&] { return object.modified; });
  return by_version(std::move(found));
}

Snapshot open_files(const Path& place, const std::vector<std::string>& paths) {
  return open_files_of(place_of(place), paths, nullptr);
}

Snapshot open_files(const std::shared_ptr<ObjectStore>& store, const std::vector<std::string>& keys) {
  return open_files_of(place_of(store), keys, nullptr);
}

Snapshot open_snapshot(const Path& place, std::optional<int64_t> step,
                       std::vector<std::string>* passed_over) {
  if (kind_of(place) == FileKind::none) fail_usage("there is no file or folder '{}'", place.text);
  if (kind_of(place) != FileKind::folder) return open_files(place, {place.text});
  Place folder = place_of(place);
  folder.listed = list_place(place);
  return choose(folder, step, passed_over);
}

Snapshot open_snapshot(const std::shared_ptr<ObjectStore>& store, std::optional<int64_t> step,
                       std::vector<std::string>* passed_over) {
  Place place = place_of(store);
  place.listed = list_snapshots(*store);
  return choose(place, step, passed_over);
}

}  // namespace het
