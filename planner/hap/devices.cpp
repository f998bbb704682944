#include "planner/hap/devices.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "core/base/error.h"
#include "planner/simulate/costs.h"

namespace het::planner::hap {
namespace {

double sum_of(const std::vector<double>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

}  // namespace

DeviceGroup::DeviceGroup(const Cluster& cluster, Precision precision) : mesh_(cluster.mesh) {
  std::map<std::tuple<double, double, double>, int> known;
  for (size_t n = 0; n < cluster.nodes.size(); ++n) {
    const int node = static_cast<int>(n);
    const DeviceType& type = type_of(cluster, node);
    const Precision half = precision == Precision::f32 ? Precision::bf16 : precision;
    const double f32 = type.f32_flops * type.efficiency;
    const double halves = (type.flops(half) > 0 ? type.flops(half) : type.f32_flops) * type.efficiency;
    for (size_t host = 0; host < cluster.nodes[n].hosts.size(); ++host)
      for (int device = 0; device < cluster.nodes[n].devices; ++device) {
        devices_.push_back({device_name(cluster, node, static_cast<int>(host), device), type.name, node,
                            static_cast<int>(host), f32, halves, type.memory_bytes_per_second,
                            type.memory_bytes * kUsableMemory});
        const auto kind =
            known.emplace(std::tuple(f32, halves, type.memory_bytes_per_second), kind_count_).first;
        kind_count_ = std::max(kind_count_, kind->second + 1);
        kinds_.push_back(kind->second);
      }
  }
  HET_REQUIRE(!devices_.empty());
  for (int from = 0; from < size(); ++from)
    for (int to = 0; to < size(); ++to) {
      const Device &a = devices_[static_cast<size_t>(from)], &b = devices_[static_cast<size_t>(to)];
      const bool together = a.node == b.node && a.host == b.host;
      const Link between = together ? inside_link(cluster, a.node) : between_link(cluster, a.node, b.node);
      links_.push_back(from == to ? Link{} : between);
    }
  find_slowest();
}

void DeviceGroup::find_slowest() {
  slowest_ = {0, std::numeric_limits<double>::infinity()};
  for (int from = 0; size() > 1 && from < size(); ++from) {
    const Link& next = link(from, (from + 1) % size());
    slowest_.latency_seconds = std::max(slowest_.latency_seconds, next.latency_seconds);
    slowest_.bytes_per_second = std::min(slowest_.bytes_per_second, next.bytes_per_second);
  }
}

DeviceGroup DeviceGroup::subgroup(const std::vector<int>& devices) const {
  DeviceGroup part;
  part.mesh_ = mesh_;
  std::map<int, int> known;  // kinds
  for (const int d : devices) {
    part.devices_.push_back(devices_[static_cast<size_t>(d)]);
    part.kinds_.push_back(known.emplace(kind_of(d), static_cast<int>(known.size())).first->second);
    for (const int other : devices) part.links_.push_back(link(d, other));
  }
  part.kind_count_ = static_cast<int>(known.size());
  part.find_slowest();
  return part;
}

const Device& DeviceGroup::of_kind(int kind) const {
  const auto first = std::find(kinds_.begin(), kinds_.end(), kind);
  HET_REQUIRE(first != kinds_.end(), kind);
  return devices_[static_cast<size_t>(first - kinds_.begin())];
}

double DeviceGroup::total_f32_flops() const {
  double total = 0;
  for (const Device& device : devices_) total += device.f32_flops;
  return total;
}

double DeviceGroup::seconds(CollectiveKind kind, const std::vector<double>& counts) const {
  if (size() == 1) return 0;
  switch (kind) {
    case CollectiveKind::all_reduce:
      if (mesh_) {
        const std::vector<double> even(static_cast<size_t>(size()), counts[0] / size());
        return mesh_seconds(even, true) + mesh_seconds(even, false);
      }
      return std::min(seconds_of(even_steps(kind, Algorithm::ring, size(), counts[0]), slowest_),
                      seconds_of(even_steps(kind, Algorithm::tree, size(), counts[0]), slowest_));
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast:
    case CollectiveKind::reduce_scatter:
      if (mesh_) return mesh_seconds(counts, kind == CollectiveKind::reduce_scatter);
      return std::min(padded_seconds(counts), grouped_seconds(counts));
    case CollectiveKind::all_to_all: return exchange_seconds(counts);
    default: break;
  }
  fail(ErrorKind::bug, "no cost of {}", name_of(kind));
}

WireTime DeviceGroup::wire_time(const CollectiveRequest& request, const std::vector<int>& devices) const {
  const double size = static_cast<double>(bytes_of(request.dtype));
  const auto way = [&](int from, int to) {
    return link(devices[static_cast<size_t>(from)], devices[static_cast<size_t>(to)]);
  };
  if (request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive) {
    const Link between = way(0, 1);
    return {static_cast<double>(request.counts[0]) * size / between.bytes_per_second,
            between.latency_seconds};
  }
  const int members = static_cast<int>(devices.size());
  if (mesh_) return het::wire_time(mesh_steps(request, 0, members), members, way);
  if (request.kind == CollectiveKind::barrier) return {0, slowest_.latency_seconds};
  std::vector<double> counts;
  for (const int64_t count : request.counts) counts.push_back(static_cast<double>(count) * size);
  const DeviceGroup group = subgroup(devices);
  // A broadcast passes along the ring in small pieces.
  if (request.kind == CollectiveKind::broadcast)
    return {counts[0] / group.slowest_.bytes_per_second, (members - 1) * group.slowest_.latency_seconds};
  return {group.seconds(request.kind, counts), 0};
}

Gather DeviceGroup::gather_of(const std::vector<double>& counts) const {
  return mesh_ || grouped_seconds(counts) < padded_seconds(counts) ? Gather::grouped_broadcast
                                                                   : Gather::padded;
}

// n - 1 steps around the ring, a longest block each.
double DeviceGroup::padded_seconds(const std::vector<double>& counts) const {
  const double longest = *std::max_element(counts.begin(), counts.end());
  return (size() - 1) * slowest_.seconds(longest);
}

// n broadcasts, each along the ring in small pieces: every block passes each link but one, and each broadcast
// adds a latency.
double DeviceGroup::grouped_seconds(const std::vector<double>& counts) const {
  const double least = *std::min_element(counts.begin(), counts.end());
  return (size() - 1 + size()) * slowest_.latency_seconds +
         (sum_of(counts) - least) / slowest_.bytes_per_second;
}

// Every rank sends its block to each other one (core/comm/steps.h): the busiest way, out or in, decides. In a
// reduce_scatter the ways are reversed.
double DeviceGroup::mesh_seconds(const std::vector<double>& counts, bool scatter) const {
  double busiest = 0, latency = 0;
  for (int rank = 0; rank < size(); ++rank) {
    double own = 0, others = 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      const Link &out = scatter ? link(peer, rank) : link(rank, peer),
                 &in = scatter ? link(rank, peer) : link(peer, rank);
      own += counts[static_cast<size_t>(rank)] / out.bytes_per_second;
      others += counts[static_cast<size_t>(peer)] / in.bytes_per_second;
      latency = std::max(latency, out.latency_seconds);
    }
    busiest = std::max({busiest, own, others});
  }
  return latency + busiest;
}

// All messages at once: the busiest device decides, and between hosts the busiest network interface, which
// the devices of a host share; in a mesh every device counts as having one.
double DeviceGroup::exchange_seconds(const std::vector<double>& counts) const {
  double busiest = 0, latency = 0;
  std::map<std::pair<int, int>, std::pair<double, double>> hosts;  // seconds out and in
  for (int rank = 0; rank < size(); ++rank) {
    double out = 0, in = 0;
    const Device& own = devices_[static_cast<size_t>(rank)];
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      const Device& other = devices_[static_cast<size_t>(peer)];
      const double sent =
          counts[static_cast<size_t>(rank * size() + peer)] / link(rank, peer).bytes_per_second;
      const double received =
          counts[static_cast<size_t>(peer * size() + rank)] / link(peer, rank).bytes_per_second;
      out += sent;
      in += received;
      latency = std::max(latency, link(rank, peer).latency_seconds);
      if (mesh_ || (own.node == other.node && own.host == other.host)) continue;
      auto& [host_out, host_in] = hosts[{own.node, own.host}];
      host_out += sent;
      host_in += received;
    }
    busiest = std::max({busiest, out, in});
  }
  for (const auto& [host, both] : hosts) busiest = std::max({busiest, both.first, both.second});
  return latency + busiest;
}

std::vector<std::vector<double>> DeviceGroup::gather_rows() const {
  std::vector<std::vector<double>> rows;
  const auto n = static_cast<size_t>(size());
  for (size_t rank = 0; rank < n; ++rank) {
    std::vector<double> own(n, 0), others(n, 0);
    if (!mesh_) {
      own[rank] = (size() - 1) / slowest_.bytes_per_second;
      rows.push_back(std::move(own));
      continue;
    }
    for (size_t peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      own[rank] += 1 / link(static_cast<int>(rank), static_cast<int>(peer)).bytes_per_second;
      others[peer] = 1 / link(static_cast<int>(peer), static_cast<int>(rank)).bytes_per_second;
    }
    rows.push_back(std::move(own));
    rows.push_back(std::move(others));
  }
  return rows;
}

double DeviceGroup::least_seconds(CollectiveKind kind, double bytes, double least, double most) const {
  if (size() == 1) return 0;
  const double even = 1.0 / size();
  least = std::max(least, even);
  most = std::max(most, least);
  double fastest = 0, latency = 0;
  for (int from = 0; from < size(); ++from)
    for (int to = 0; to < size(); ++to) {
      if (from == to) continue;
      fastest = std::max(fastest, link(from, to).bytes_per_second);
      latency = std::max(latency, link(from, to).latency_seconds);
    }
  switch (kind) {
    case CollectiveKind::all_reduce: return seconds(kind, {bytes});
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter: {
      // Padded blocks are as long as the largest; broadcasts leave out the smallest, which is at most an even
      // one.
      if (!mesh_)
        return std::min(
            (size() - 1) * slowest_.seconds(bytes * least),
            (2 * size() - 1) * slowest_.latency_seconds + bytes * (1 - even) / slowest_.bytes_per_second);
      // The largest is sent to all others; some rank has at most an even part, and gets the rest.
      return latency + std::max((size() - 1) * least, 1 - even) * bytes / fastest;
    }
    default: {
      // A device with the part p sends p (1 - p) of all to others, and a host with the part P shares one
      // network interface for P (1 - P). Both are least at an end of the range.
      const auto sent = [](double low, double high) { return std::min(low * (1 - low), high * (1 - high)); };
      double seconds = sent(least, std::min(most, 1.0)) * bytes / fastest;
      std::map<std::pair<int, int>, int> hosts;
      int largest = 0;
      for (const Device& device : devices_) largest = std::max(largest, ++hosts[{device.node, device.host}]);
      if (!mesh_ && hosts.size() > 1) {
        double between = 0;
        for (int from = 0; from < size(); ++from)
          for (int to = 0; to < size(); ++to) {
            const Device &a = devices_[static_cast<size_t>(from)], &b = devices_[static_cast<size_t>(to)];
            if (a.node != b.node || a.host != b.host)
              between = std::max(between, link(from, to).bytes_per_second);
          }
        const double low = std::max(least, 1.0 / static_cast<double>(hosts.size()));
        seconds =
            std::max(seconds, sent(low, std::max(low, std::min(1.0, most * largest))) * bytes / between);
      }
      return latency + seconds;
    }
  }
}

}  // namespace het::planner::hap
