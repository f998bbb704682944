#include "core/net/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"

namespace het {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const Endpoint& endpoint, bool numeric) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error == EAI_AGAIN) fail(ErrorKind::peer, "the name '{}' cannot be looked up now", endpoint.host);
  if (error)
    fail_usage("'{}' is no {}: {}", endpoint.host, numeric ? "numeric address" : "host known here",
               ::gai_strerror(error));
  return {found, &::freeaddrinfo};
}

std::string show(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV))
    return "an unknown address";
  return to_string(Endpoint{host.data(), std::atoi(port.data())});
}

void make_prompt(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

// Begin an attempt; 0 or EINPROGRESS: it is under way.
int begin_once(const addrinfo& address, const addrinfo* source, Descriptor& connection) {
  connection = Descriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection) return errno;
  make_prompt(connection.number());
  const int on = 1;  // many connections from one address may share a port, towards different endpoints
  ::setsockopt(connection.number(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (source && ::bind(connection.number(), source->ai_addr, source->ai_addrlen)) return errno;
  return ::connect(connection.number(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
}

// The error of one attempt; 0: connected.
int connect_once(const addrinfo& address, const addrinfo* source, Deadline deadline, Descriptor& connection) {
  const int error = begin_once(address, source, connection);
  if (error != EINPROGRESS) return error;
  return wait_for(connection, Ready::write, deadline) ? connect_error(connection) : ETIMEDOUT;
}

}  // namespace

Endpoint parse_endpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  const std::string_view port = colon == text.npos ? "" : text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  Endpoint endpoint{std::string(host), 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (host.empty() || error != std::errc() || end != port.data() + port.size() || endpoint.port < 1 ||
      endpoint.port > 65535 || (!bracketed && host.find_first_of(":[]") != host.npos))
    fail_usage("'{}' is no endpoint; an endpoint is host:port, such as 10.0.0.7:4711 or [fd00::7]:4711",
               text);
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "", endpoint.port);
}

Descriptor listen_at(Endpoint& endpoint) {
  const Addresses address = resolve(endpoint, true);
  Descriptor listener(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) fail_environment("cannot make a socket: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(listener.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.number(), address->ai_addr, address->ai_addrlen) || ::listen(listener.number(), 512)) {
    const int error = errno;
    if (error == EADDRNOTAVAIL) fail_usage("this machine does not have the address {}", endpoint.host);
    fail_environment("cannot listen at {}: {}", to_string(endpoint), std::strerror(error));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(listener.number(), reinterpret_cast<sockaddr*>(&bound), &size);
  endpoint.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listener;
}

Descriptor accept_from(const Descriptor& listener, std::string& who) {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  Descriptor connection(
      ::accept4(listener.number(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection) {
    make_prompt(connection.number());
    who = show(from, size);
  }
  return connection;
}

Descriptor connect_to(const Endpoint& endpoint, const std::string& source, Deadline deadline) {
  const Addresses addresses = resolve(endpoint, false);
  const Addresses from = source.empty() ? Addresses(nullptr, &::freeaddrinfo) : resolve({source, 0}, true);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    if (from && from->ai_family != address->ai_family) continue;
    Descriptor connection;
    error = connect_once(*address, from.get(), deadline, connection);
    if (!error) return connection;
  }
  fail(ErrorKind::peer, "cannot connect to {}{}: {}", to_string(endpoint),
       source.empty() ? "" : " from " + source, std::strerror(error));
}

Descriptor begin_connect(const Endpoint& endpoint, const std::string& source, int& error) {
  const Addresses address = resolve(endpoint, true);
  const Addresses from = resolve({source, 0}, true);
  Descriptor connection;
  error = begin_once(*address, from.get(), connection);
  if (error == EINPROGRESS) error = 0;
  return connection;
}

int connect_error(const Descriptor& connection) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(connection.number(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool wait_for(const Descriptor& descriptor, Ready ready, Deadline deadline, int wake) {
  using namespace std::chrono;
  const short events = ready == Ready::read ? POLLIN : POLLOUT;
  while (true) {
    std::array<pollfd, 2> waited{{{descriptor.number(), events, 0}, {wake, POLLIN, 0}}};
    const auto left = ceil<milliseconds>(deadline - steady_clock::now()).count();
    constexpr long kLongest = 1'000'000;
    const int found =
        ::poll(waited.data(), wake < 0 ? 1 : 2, static_cast<int>(std::clamp(left, 0L, kLongest)));
    if (found > 0) return waited[0].revents != 0;
    if (found < 0 && errno != EINTR) fail_environment("poll failed: {}", std::strerror(errno));
    if (steady_clock::now() >= deadline) return false;
  }
}

long send_some(const Descriptor& descriptor, std::string_view bytes) {
  const ssize_t sent = ::send(descriptor.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

long receive_some(const Descriptor& descriptor, char* into, size_t most) {
  const ssize_t got = ::recv(descriptor.number(), into, most, 0);
  if (got > 0) return got;
  if (got == 0) return -1;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

}  // namespace het
