// Removes the snapshots that a folder or a store no longer needs. One member of a run calls it, after a
// snapshot has become whole; others may write and read meanwhile.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "snapshot/snapshot.h"

namespace het {

// A version as a look at its files shows it.
struct SeenVersion {
  Version version;
  bool whole = false;
  std::string run;  // empty: none of its files can be read
  History history;  // that led to it
};
// The versions that are not needed: of all that were decided before the latest whole one, those that are not
// among the `keep` newest whole versions, on its history or from before the run restored other state. What
// was decided later may still be on its way, and what another run left is not ours to judge. Without a whole
// version everything is needed.
std::vector<Version> unneeded(const std::vector<SeenVersion>& seen, int keep);

struct CollectOptions {
  int keep = 2;                                              // whole versions
  std::set<Version> in_use;                                  // these stay
  std::chrono::seconds unfinished = std::chrono::hours(24);  // uploads begun before are given up
};
struct Collected {
  std::vector<Version> removed;
  std::vector<std::string> unfinished;  // keys
};
// Throws Error, having removed nothing, when a file cannot be read for another reason than that it is damaged
// or gone. For a folder: open_store(folder).
Collected collect(const std::shared_ptr<ObjectStore>& store, const CollectOptions& options = {});

}  // namespace het
