#include "planner/migrate/transfers.h"

#include <algorithm>

#include "planner/migrate/flow.h"

namespace het::planner {
namespace {

constexpr size_t kSenders = 8;  // that one demand may take from

struct Transfer {
  int to = 0, from = 0;  // hosts
  int demand = 0;
  double seconds = 0;  // of all of the demand
};

struct Flows {
  std::vector<Transfer> flows;
  int demands = 0, hosts = 0;
  double latency = 0;  // of the slowest link, in seconds

  // What limits a flow: the port it leaves and the port it enters; inside a host the link.
  std::vector<int> limits(const Transfer& flow) const {
    return flow.from == flow.to ? std::vector<int>{2 * hosts + flow.from}
                                : std::vector<int>{flow.from, hosts + flow.to};
  }
};

Flows flows_of(const Demands& demands, const Cluster& cluster) {
  std::vector<int> node_of;  // by host
  for (size_t n = 0; n < cluster.nodes.size(); ++n)
    node_of.insert(node_of.end(), cluster.nodes[n].hosts.size(), static_cast<int>(n));
  Flows all;
  all.hosts = static_cast<int>(node_of.size());
  for (const auto& [key, bytes] : demands) {
    const auto& [to, senders] = key;
    // Of very many senders a few, others for each demand.
    const size_t count = std::min(senders.size(), kSenders);
    for (size_t i = 0; i < count; ++i) {
      const size_t sender = static_cast<size_t>(all.demands) + i * senders.size() / count;
      const int from = senders[sender % senders.size()];
      const int a = node_of[static_cast<size_t>(from)], b = node_of[static_cast<size_t>(to)];
      const Link link = from == to ? inside_link(cluster, a) : between_link(cluster, a, b);
      const auto interfaces = [&](int node) {
        return std::max(1, cluster.nodes[static_cast<size_t>(node)].interfaces);
      };
      const int lanes = from == to ? 1 : std::min(interfaces(a), interfaces(b));
      all.flows.push_back({to, from, all.demands, bytes / (lanes * link.bytes_per_second)});
      all.latency = std::max(all.latency, link.latency_seconds);
    }
    ++all.demands;
  }
  return all;
}

// Each demand taken evenly from all its senders: the busiest limit.
double even_seconds(const Flows& all) {
  std::vector<int> senders(static_cast<size_t>(all.demands), 0);
  for (const Transfer& flow : all.flows) ++senders[static_cast<size_t>(flow.demand)];
  std::map<int, double> seconds;
  double longest = 0;
  for (const Transfer& flow : all.flows)
    for (const int limit : all.limits(flow))
      longest = std::max(longest, seconds[limit] += flow.seconds / senders[static_cast<size_t>(flow.demand)]);
  return longest;
}

// Each demand from the senders that make the busiest port or link least busy.
double least_seconds(const Flows& all) {
  std::vector<FlowDemand> demands(static_cast<size_t>(all.demands));
  for (const Transfer& flow : all.flows) {
    FlowChoice& choice = demands[static_cast<size_t>(flow.demand)].emplace_back();
    for (const int limit : all.limits(flow)) choice.uses.push_back({limit, flow.seconds});
  }
  return least_time_flow(demands).bound_seconds;
}

}  // namespace

double transfer_seconds(const Demands& demands, const Cluster& cluster) {
  if (demands.empty()) return 0;
  const Flows all = flows_of(demands, cluster);
  return (all.flows.size() > kExactChoices ? even_seconds(all) : least_seconds(all)) + all.latency;
}

}  // namespace het::planner
