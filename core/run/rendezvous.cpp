#include "core/run/rendezvous.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/cluster/etcd_store.h"
#include "core/net/network.h"
#include "core/net/socket.h"

namespace het {
namespace {

// NCCL finds its interfaces by itself: it is given the one that was named for the traffic, unless it was
// given one.
void tell_nccl(const std::string& address, const std::vector<NetworkAddress>& addresses) {
  const std::string interface = interface_of(address, addresses);
  if (interface.empty() || std::getenv("NCCL_SOCKET_IFNAME") != nullptr) return;
  ::setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 0);  // this one, not all that begin so
  ::setenv("NCCL_SOCKET_FAMILY", address.find(':') == std::string::npos ? "AF_INET" : "AF_INET6", 0);
}

std::string own_address(const RendezvousOptions& options, const std::string& towards) {
  if (!options.interface) return address_towards(towards);
  const auto addresses = list_addresses();
  std::string address = address_to_bind(*options.interface, addresses);
  tell_nccl(address, addresses);
  return address;
}

Rendezvous find_etcd(const RendezvousOptions& options) {
  EtcdPlaces places = parse_etcd_rendezvous(*options.etcd);
  EtcdOptions etcd;
  etcd.endpoints = std::move(places.endpoints);
  etcd.timeout = options.call;
  Rendezvous found;
  found.store = connect_etcd(etcd);
  etcd.timeout = options.brief;
  found.brief = connect_etcd(std::move(etcd));
  found.address = options.store ? "127.0.0.1" : own_address(options, places.host);
  return found;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

Rendezvous find_store(const RendezvousOptions& options) {
  if (options.etcd) return find_etcd(options);
  const LaunchedRank& launched = options.launched;
  if (!options.store && (launched.master_host.empty() || launched.master_port == 0))
    fail_usage(
        "{} ranks are to meet, but it is not said where: set MASTER_ADDR and MASTER_PORT, or give "
        "`rendezvous`",
        launched.world_size.value_or(1));
  Rendezvous found;
  StoreClientOptions client;
  client.secret = options.secret;
  client.timeout = options.call;
  client.connect_timeout = options.timeout;
  client.warn_after = options.warn_after;
  client.warn = options.warn;
  client.endpoint = options.store.value_or(fmt::format("{}:{}", launched.master_host, launched.master_port));
  const std::string host = options.store ? parse_endpoint(*options.store).host : launched.master_host;
  // The launcher of this machine alone; MASTER_ADDR may be such a name on rank 0's machine.
  found.address = options.store && is_loopback(host) ? "127.0.0.1" : own_address(options, host);
  if (!options.store && launched.rank == 0) {
    StoreServerOptions server;
    server.address = found.address;
    server.port = launched.master_port;
    server.secret = options.secret;
    server.goodbye = std::chrono::seconds(2);
    found.server = serve_store(std::move(server));
    client.endpoint = found.server->endpoint();  // the name may lead elsewhere from here
    if (is_loopback(found.address) && !is_loopback(launched.master_host))
      options.warn(fmt::format(
          "MASTER_ADDR = {} is {} here, which no other machine reaches; if ranks are to come from others, "
          "name an address or interface of this one with --interface",
          launched.master_host, found.address));
  }
  if (!options.store && launched.rank > 0) client.server = "rank 0";
  found.store = connect_store(client);
  client.timeout = options.brief;
  found.brief = connect_store(std::move(client));
  return found;
}

}  // namespace het
