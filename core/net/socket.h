// TCP connections with deadlines, for the embedded store and the mesh of a run. Addresses are numeric or
// names of hosts; errors name the endpoint. Internal to core.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/descriptor.h"

namespace het {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string host;  // "10.0.0.7", "fd00::7", "head-node"
  int port = 0;

  bool operator==(const Endpoint&) const = default;
};
// "10.0.0.7:4711", "[fd00::7]:4711". Throws Error(usage) for anything else.
Endpoint parse_endpoint(std::string_view text);
std::string to_string(const Endpoint& endpoint);

// Listen at a numeric address; port 0: any that is free. Fills in the port. Throws Error(usage) when the
// machine does not have the address, Error(environment) when the port is taken.
Descriptor listen_at(Endpoint& endpoint);
// A connection from the next client, non-blocking; empty when there is none now.
Descriptor accept_from(const Descriptor& listener, std::string& who);
// Connect, from the numeric address `source` where one is given. Throws Error(peer) when there is no answer
// by the deadline, Error(usage) for a host that is not known.
Descriptor connect_to(const Endpoint& endpoint, const std::string& source, Deadline deadline);

// Begin to connect to a numeric address, from `source`. The socket is writable when the attempt has ended;
// connect_error says how. Throws Error(usage) for what is no address.
Descriptor begin_connect(const Endpoint& endpoint, const std::string& source, int& error);
int connect_error(const Descriptor& connection);  // 0: connected

// Wait until there is something to read (or write) on the descriptor, or on `wake` (-1: none). False: the
// deadline passed, or only `wake` is ready.
enum class Ready { read, write };
bool wait_for(const Descriptor& descriptor, Ready ready, Deadline deadline, int wake = -1);

// Bytes moved; 0: none now; -1: the connection has ended.
long send_some(const Descriptor& descriptor, std::string_view bytes);
long receive_some(const Descriptor& descriptor, char* into, size_t most);

}  // namespace het
