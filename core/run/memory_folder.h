// The folder in a host's memory (tmpfs) where the processes of a run keep snapshots: it outlives each of
// them, and goes with the run.
#pragma once

#include <string>
#include <string_view>

#include "core/base/descriptor.h"
#include "core/cluster/environment.h"

namespace het {

// Of this run on this host: HETRUN_MEMORY, which the launcher sets, else by the run's secret and the host's
// name, so that a process that is started again finds it. Empty: the host has no file system in memory.
std::string memory_folder(const EnvironmentLookup& lookup, std::string_view secret);

// One process of a host, the launcher, owns the folder.
class MemoryFolder {
 public:
  // Makes it, and removes those of launchers that were killed. `store`: the port of the store by which the
  // ranks meet, for runs that share a secret; empty: the secret and the host's name are enough. Throws
  // Error(environment).
  MemoryFolder(const EnvironmentLookup& lookup, std::string_view secret, std::string_view store);
  ~MemoryFolder();  // removes it, with all that it holds
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::string& path() const { return path_; }  // empty: the host has none

 private:
  std::string path_;
  Descriptor lock_;
};

}  // namespace het
