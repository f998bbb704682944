// A store without another program: one process (a head node, or what launched the others) serves it from
// memory over TCP, everyone connects to it, that process included. It lives as long as its server: when that
// is lost, so is what it held. Clients and server prove to each other that they know the shared secret.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cluster/ledger.h"
#include "core/cluster/store.h"

namespace het {

struct StoreServerOptions {
  std::string address;  // numeric, of this machine: "10.0.0.7", "127.0.0.1"; every address is refused
  int port = 0;         // 0: any that is free
  std::string secret;
  LedgerLimits limits;
  int clients = 8192;                      // connections at a time; watches have one each
  std::chrono::milliseconds auth{10'000};  // a client that has not shown its proof by then is dropped
  // At its end it goes on for so long, while clients are there to hear it: those that asked something lately.
  std::chrono::milliseconds goodbye{0};
};

// Serves until it is destroyed, on a separate thread. Time during which the whole process was stopped does
// not count against leases.
class StoreServer {
 public:
  virtual ~StoreServer() = default;
  virtual std::string endpoint() const = 0;  // "127.0.0.1:4711": for StoreClientOptions
  // From where clients came whose secret was another one, a few of them. From any thread.
  virtual std::vector<std::string> rejected() const = 0;
};
std::unique_ptr<StoreServer> serve_store(StoreServerOptions options);

struct StoreClientOptions {
  std::string endpoint;  // "head-node:4711"
  std::string source;    // numeric address of this machine to connect from; empty: the route decides
  std::string secret;
  std::chrono::milliseconds timeout{10'000};  // of one call
  // Until the server is there, for it may start after its clients; at least one timeout.
  std::chrono::milliseconds connect_timeout{0};
  std::chrono::milliseconds warn_after{10'000};           // of that: then, and as often, `warn` says so
  std::function<void(const std::string& sentence)> warn;  // on the calling thread; absent: not reported
  std::string server;  // who is to serve it, for messages: "rank 0"; empty: not known
};
// Throws Error(peer) when no server answers in time, Error(usage) when the secrets differ.
std::shared_ptr<Store> connect_store(StoreClientOptions options);

}  // namespace het
