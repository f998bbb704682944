// The runs of this user over several processes of this machine, as /proc shows them: where their ranks meet,
// and with which secret. For who looks at a run from outside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace het {

struct LocalRun {
  int pid = 0;                      // of the process that started the ranks: the launcher, where there is one
  int64_t started = 0;              // clock ticks since the machine was started
  std::string store;                // "127.0.0.1:4711": of the launcher, or of rank 0
  std::optional<std::string> etcd;  // "etcd://host:2379": where the ranks meet instead
  std::string secret;
};

// The newest first. `processes`: the folder that lists them, as proc(5) says.
std::vector<LocalRun> list_local_runs(const std::string& processes = "/proc");

}  // namespace het
