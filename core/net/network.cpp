#include "core/net/network.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/net/socket.h"

namespace het {
namespace {

std::string numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes =
      address.sa_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return ::inet_ntop(address.sa_family, bytes, text.data(), text.size()) ? text.data() : "";
}

// Written in one way, so that "::0" is found as "::"; empty when it is no numeric address.
std::string canonical(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  for (const int family : {AF_INET, AF_INET6})
    if (::inet_pton(family, address.c_str(), bytes.data()) == 1 &&
        ::inet_ntop(family, bytes.data(), text.data(), text.size()))
      return text.data();
  return {};
}

std::string show(const std::vector<NetworkAddress>& addresses) {
  std::vector<std::string> names;
  for (const NetworkAddress& a : addresses)
    if (!a.link_local) names.push_back(fmt::format("{} ({})", a.interface, a.address));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<NetworkAddress> list_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first))
    fail_environment("the network's interfaces cannot be listed: {}", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(first, &::freeifaddrs);
  std::vector<NetworkAddress> addresses;
  for (const ifaddrs* at = first; at; at = at->ifa_next) {
    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    NetworkAddress found;
    found.interface = at->ifa_name;
    found.address = numeric(*at->ifa_addr);
    found.v6 = family == AF_INET6;
    found.loopback = at->ifa_flags & IFF_LOOPBACK;
    found.link_local =
        found.v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr);
    addresses.push_back(std::move(found));
  }
  return addresses;
}

std::string address_to_bind(const std::string& wanted, const std::vector<NetworkAddress>& addresses) {
  if (wanted.empty()) fail_usage("no interface or address is named; this machine has {}", show(addresses));
  std::string address = canonical(wanted);
  if (address == "0.0.0.0" || address == "::" || wanted == "*")
    fail_usage("'{}' means every address of this machine, for everyone who reaches it; name one of {}",
               wanted, show(addresses));
  if (!address.empty()) {
    // All of 127/8 is this machine's, though one of it is listed.
    const bool local = address.starts_with("127.") ||
                       std::any_of(addresses.begin(), addresses.end(),
                                   [&](const NetworkAddress& a) { return a.address == address; });
    if (local) return address;
    fail_usage("this machine does not have the address {}; it has {}", wanted, show(addresses));
  }
  const NetworkAddress* best = nullptr;
  for (const NetworkAddress& candidate : addresses)
    if (candidate.interface == wanted && !candidate.link_local && (!best || (best->v6 && !candidate.v6)))
      best = &candidate;
  if (!best)
    fail_usage("'{}' is no address, and no interface that is up and has one; this machine has {}", wanted,
               show(addresses));
  return best->address;
}

std::string interface_of(const std::string& address, const std::vector<NetworkAddress>& addresses) {
  const bool local = address.starts_with("127.");
  for (const NetworkAddress& a : addresses)
    if (a.address == address || (local && a.loopback && !a.v6)) return a.interface;
  return {};
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string address_towards(const std::string& host) {
  if (host.empty()) return "127.0.0.1";
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  constexpr const char* kAnyPort = "9";
  if (const int error = ::getaddrinfo(host.c_str(), kAnyPort, &hints, &first))
    fail_usage("'{}' is no host known here: {}", host, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(first, &::freeaddrinfo);
  int problem = EADDRNOTAVAIL;
  for (const addrinfo* at = first; at; at = at->ai_next) {
    // Connecting a datagram socket chooses a route, and sends nothing.
    const Descriptor socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    if (socket && ::connect(socket.number(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&local), &size) == 0)
      return numeric(reinterpret_cast<const sockaddr&>(local));
    problem = errno;
  }
  fail_environment("there is no way from this machine to '{}': {}", host, std::strerror(problem));
}

}  // namespace het
