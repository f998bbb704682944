// Where the processes of a run find each other: the store, and this machine's address for their traffic.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/cluster/embedded_store.h"
#include "core/cluster/environment.h"
#include "core/cluster/store.h"

namespace het {

struct RendezvousOptions {
  LaunchedRank launched;
  std::optional<std::string> etcd;   // "etcd://host:2379": it holds the store
  std::optional<std::string> store;  // "host:port" of a launcher that serves it
  std::optional<std::string>
      interface;  // interface or address for the traffic; absent: the one towards the store
  std::string secret;
  std::chrono::milliseconds timeout{300'000}, warn_after{10'000};  // of waiting for a store that is to come
  std::chrono::milliseconds call{10'000}, brief{1'000};  // of one call; and of one in the moment of failure
  std::function<void(const std::string& sentence)> warn;
};

// Destroyed in reverse: the server last.
struct Rendezvous {
  std::unique_ptr<StoreServer> server;  // on rank 0, where neither etcd nor a launcher has the store
  std::shared_ptr<Store> store;
  std::shared_ptr<Store> brief;  // the same, giving up soon: who serves it may be the rank that is lost
  std::string address;           // of this machine, for the traffic
};

// Connects to the store in which the ranks find each other: etcd where it is named, the launcher's, or one
// that rank 0 serves. Throws Error(usage) when nothing says where that is; Error(peer) when there is no
// answer.
Rendezvous find_store(const RendezvousOptions& options);

// Numbers and the one name that mean nothing else.
bool is_loopback(const std::string& host);

}  // namespace het
