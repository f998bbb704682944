// Which address of this machine a run's traffic is bound to: one that was named, or that of the interface on
// the way to the master. Never all of them.
#pragma once

#include <string>
#include <vector>

namespace het {

struct NetworkAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric, without a zone
  bool v6 = false;
  bool loopback = false;
  bool link_local = false;  // reaches one link only, and needs a zone to be used

  bool operator==(const NetworkAddress&) const = default;
};
// Of the interfaces that are up.
std::vector<NetworkAddress> list_addresses();

// The numeric address for what a person named: an address of this machine, or an interface. Of several, IPv4
// first, then an IPv6 address that is not link-local. Throws Error(usage), listing what there is, also for
// every address at once ("0.0.0.0", "::").
std::string address_to_bind(const std::string& wanted, const std::vector<NetworkAddress>& addresses);
// The interface that has an address of this machine, as address_to_bind gives it; empty: none of those
// listed.
std::string interface_of(const std::string& address, const std::vector<NetworkAddress>& addresses);
// The address from which packets go to `host` (a name or a number); "127.0.0.1" where it is empty: all is
// local. Nothing is sent. Throws Error(usage) for an unknown host, Error(environment) where there is no way.
std::string address_towards(const std::string& host);

// What this machine calls itself; empty: nothing.
std::string host_name();

}  // namespace het
