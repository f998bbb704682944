#include "snapshot/collect.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "snapshot/store/parts.h"

namespace het {
namespace {

constexpr int kReading = 8;  // files at a time

// In the order in which a run decides: a generation after a rollback has smaller steps than what it replaces.
auto decided(Version version) { return std::pair(version.generation, version.step); }

SeenVersion look(const std::shared_ptr<ObjectStore>& store, const ListedSnapshot& listed) {
  SeenVersion seen;
  seen.version = listed.version;
  std::vector<std::shared_ptr<const SnapshotFile>> files(listed.files.size());
  each_part(static_cast<int64_t>(files.size()), kReading, [&](int64_t i) {
    try {
      files[static_cast<size_t>(i)] =
          SnapshotFile::open(object_source(store, listed.files[static_cast<size_t>(i)]));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
    }
  });
  std::erase(files, nullptr);
  if (files.empty()) return seen;
  seen.run = files.front()->manifest().run;
  seen.history = files.front()->manifest().history;
  try {
    seen.whole = Snapshot(std::move(files)).missing().empty();
  } catch (const Error& error) {  // files of two states
    if (error.kind() != ErrorKind::usage) throw;
  }
  return seen;
}

}  // namespace

std::vector<Version> unneeded(const std::vector<SeenVersion>& seen, int keep) {
  if (keep < 1) fail_usage("of snapshots at least 1 is kept, not {}", keep);
  std::vector<SeenVersion> ordered = seen;  // the latest first
  std::sort(ordered.begin(), ordered.end(), [](const SeenVersion& a, const SeenVersion& b) {
    return decided(a.version) > decided(b.version);
  });
  const auto latest =
      std::find_if(ordered.begin(), ordered.end(), [](const SeenVersion& each) { return each.whole; });
  std::vector<Version> removed;
  if (latest == ordered.end()) return removed;
  int kept = 1;
  for (auto each = latest + 1; each != ordered.end(); ++each) {
    if (!each->run.empty() && each->run != latest->run) continue;
    // Steps that were given up go. Of steps before a history begins, as run:restore begins one, it says
    // nothing.
    const bool is_before =
        !latest->history.empty() && each->version.step < latest->history.front().first_step;
    const bool led_here = each->version.step < latest->version.step && is_on(latest->history, each->version);
    if (each->whole && kept < keep && (led_here || is_before))
      ++kept;
    else
      removed.push_back(each->version);
  }
  return removed;
}

Collected collect(const std::shared_ptr<ObjectStore>& store, const CollectOptions& options) {
  const std::vector<ListedSnapshot> listed = list_snapshots(*store);
  std::vector<SeenVersion> seen;
  for (const ListedSnapshot& each : listed) seen.push_back(look(store, each));
  const std::vector<Version> removed = unneeded(seen, options.keep);
  Collected collected;
  for (const ListedSnapshot& each : listed) {
    if (std::find(removed.begin(), removed.end(), each.version) == removed.end() ||
        options.in_use.count(each.version) != 0)
      continue;
    for (const std::string& key : each.files) store->remove(key);
    collected.removed.push_back(each.version);
  }
  collected.unfinished = store->remove_unfinished(options.unfinished, kSnapshotPrefix);
  return collected;
}

}  // namespace het
