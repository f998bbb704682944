// What a process brings to a run and what it finds there: the store, and the addresses for its traffic. The
// same for a run of fixed ranks (cluster.h) and for one that outlives its members (run_member.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cluster/environment.h"
#include "core/comm/key_value.h"
#include "core/comm/steps.h"
#include "core/comm/tcp.h"
#include "core/run/rendezvous.h"

namespace het {

struct JoinSettings {
  EnvironmentLookup environment = process_environment();
  std::string run = "hetrun";            // its name in the store
  std::optional<std::string> etcd;       // "etcd://host:2379", where the ranks meet there
  std::optional<std::string> interface;  // or address of this machine, for the traffic
  std::string secret;
  std::optional<std::chrono::milliseconds> timeout, warn_after;  // of waiting for other ranks
  std::string device = "cpu", recipe_digest, data_digest;
  int64_t device_memory = 0;  // bytes
  std::string about;          // what this process says of itself to members that plan for it
  std::vector<Link> links;    // as slow as the traffic is to be, by rank from and then to; empty: as it is
  int least = 1;              // ranks of a run that outlives its members
  std::optional<int> most;    // absent: as many as were launched
  std::function<bool()> is_interrupted;  // while it waits
  std::function<void(const std::string& sentence)> warn;
};

// Of this process.
struct Joining {
  JoinSettings settings;
  LaunchedRank launched;
  Rendezvous rendezvous;
  std::string host;
  std::chrono::milliseconds timeout{300'000}, warn_after{10'000};

  int launched_ranks() const { return launched.world_size.value_or(1); }
  bool by_launcher() const { return settings.environment("HETRUN_STORE").has_value(); }
};

// Connects to the store. Throws what find_store() throws.
Joining begin_joining(JoinSettings settings);

// For the connections to other ranks, which find each other in `store` and leave word on `board`.
TcpOptions tcp_options(const Joining& joining, std::shared_ptr<KeyValue> store,
                       std::shared_ptr<KeyValue> board);

}  // namespace het
