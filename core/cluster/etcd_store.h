// A store kept by etcd (v3, over its JSON gateway): for clusters, where the authority outlives any one node.
// Leases of etcd are of whole seconds, and as a rule of 2 or more. Who may connect is etcd's own affair: user
// and password, or client certificates; the run's secret seals what members write (membership.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster/http.h"
#include "core/cluster/store.h"

namespace het {

// Where a rendezvous such as "etcd://10.0.0.7:2379,10.0.0.8:2379" is.
struct EtcdPlaces {
  std::vector<std::string> endpoints;  // "http://10.0.0.7:2379"
  std::string host;                    // of the first, without brackets
};
// Throws Error(usage) for anything else.
EtcdPlaces parse_etcd_rendezvous(std::string_view text);

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "http://10.0.0.7:2379"; the next one is asked when one fails
  std::string prefix;                  // before every key, so that one etcd serves many runs
  std::string user, password;          // empty: none
  HttpOptions http;
  std::chrono::milliseconds timeout{10'000};  // of one call, over all endpoints
};
// Throws Error(usage) for endpoints that are none, Error(peer) when none answers.
std::shared_ptr<Store> connect_etcd(EtcdOptions options);

}  // namespace het
