#include "planner/hap/devices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "planner/simulate/costs.h"

namespace het::planner::hap {
namespace {

double sum_of(const std::vector<double>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

}  // namespace

bool is_half(std::span<const TensorType> inputs) {
  for (const TensorType& type : inputs)
    if (type.present() && is_float(type.dtype)) return bytes_of(type.dtype) == 2;
  return false;
}

DeviceGroup::DeviceGroup(const Cluster& cluster, Precision precision)
    : half_(precision != Precision::f32), mesh_(cluster.mesh) {
  std::map<std::tuple<double, double, double>, int> known;
  for (size_t n = 0; n < cluster.nodes.size(); ++n) {
    const int node = static_cast<int>(n);
    const DeviceType& type = type_of(cluster, node);
    const Precision half = precision == Precision::f32 ? Precision::bf16 : precision;
    const double f32 = type.f32_flops * type.efficiency;
    const int interfaces = interfaces_of(cluster, node), count = cluster.nodes[n].devices;
    const double halves = (type.flops(half) > 0 ? type.flops(half) : type.f32_flops) * type.efficiency;
    for (size_t host = 0; host < cluster.nodes[n].hosts.size(); ++host)
      for (int device = 0; device < count; ++device) {
        devices_.push_back({device_name(cluster, node, static_cast<int>(host), device), type.name, node,
                            static_cast<int>(host), f32, halves, type.memory_bytes_per_second,
                            type.memory_bytes * kUsableMemory,
                            static_cast<int>(int64_t{device} * interfaces / count), interfaces,
                            cluster.nodes[n].zone, type.launch_seconds});
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
      Link between = together ? inside_link(cluster, a.node) : between_link(cluster, a.node, b.node);
      // A device with several interfaces uses them together.
      const auto own = [&](const Device& d) {
        return std::max(1, d.host_interfaces / cluster.nodes[static_cast<size_t>(d.node)].devices);
      };
      if (!together) between.bytes_per_second *= std::min(own(a), own(b));
      links_.push_back(from == to ? Link{} : between);
    }
  find_slowest();
  find_kinds();
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
  part.half_ = half_;
  part.mesh_ = mesh_;
  part.gather_ = gather_;
  std::map<int, int> known;  // kinds
  for (const int d : devices) {
    part.devices_.push_back(devices_[static_cast<size_t>(d)]);
    part.kinds_.push_back(known.emplace(kind_of(d), static_cast<int>(known.size())).first->second);
    for (const int other : devices) part.links_.push_back(link(d, other));
  }
  part.kind_count_ = static_cast<int>(known.size());
  part.find_slowest();
  part.find_kinds();
  return part;
}

DeviceGroup DeviceGroup::merged(const std::vector<std::vector<int>>& sets) const {
  DeviceGroup whole;
  whole.half_ = half_;
  whole.mesh_ = mesh_;
  whole.gather_ = gather_;
  std::map<std::tuple<double, double, double>, int> known;  // kinds
  for (const std::vector<int>& set : sets) {
    Device all = devices_[static_cast<size_t>(set[0])];
    all.node = static_cast<int>(whole.devices_.size());
    all.host = 0;
    for (size_t i = 1; i < set.size(); ++i) {
      const Device& each = devices_[static_cast<size_t>(set[i])];
      all.f32_flops += each.f32_flops;
      all.half_flops += each.half_flops;
      all.memory_bytes_per_second += each.memory_bytes_per_second;
      all.memory_bytes += each.memory_bytes;
    }
    whole.kinds_.push_back(
        known
            .emplace(std::tuple(all.f32_flops, all.half_flops, all.memory_bytes_per_second),
                     std::ssize(known))
            .first->second);
    whole.devices_.push_back(std::move(all));
    for (const std::vector<int>& other : sets)
      whole.links_.push_back(&set == &other ? Link{} : link_between(set, other));
  }
  whole.kind_count_ = static_cast<int>(known.size());
  whole.find_slowest();
  whole.find_kinds();
  for (const std::vector<int>& set : sets)
    for (const int d : set)
      whole.unlike_types_ |= devices_[static_cast<size_t>(d)].type != whole.devices_[0].type;
  return whole;
}

Link DeviceGroup::link_between(const std::vector<int>& set, const std::vector<int>& other) const {
  Link all{0, 0};
  std::set<std::pair<std::tuple<int, int, int>, std::tuple<int, int, int>>> interfaces;  // that are used
  for (size_t i = 0; i < set.size(); ++i) {
    const Link& between = link(set[i], other[i]);
    all.latency_seconds = std::max(all.latency_seconds, between.latency_seconds);
    const Device &a = devices_[static_cast<size_t>(set[i])], &b = devices_[static_cast<size_t>(other[i])];
    const bool shares = !mesh_ && std::pair(a.node, a.host) != std::pair(b.node, b.host);
    if (!shares || interfaces.emplace(a.port(), b.port()).second)
      all.bytes_per_second += between.bytes_per_second;
  }
  return all;
}

DeviceGroup DeviceGroup::with_gather(Gather gather) const {
  DeviceGroup group = *this;
  group.gather_ = gather;
  return group;
}

void DeviceGroup::find_kinds() {
  of_kind_.resize(static_cast<size_t>(kind_count_));
  std::map<std::pair<int, int>, int> hosts;
  for (const Device& device : devices_) ++hosts[{device.node, device.host}];
  const bool by_host = !mesh_ && hosts.size() > 1;
  std::set<std::pair<int, int>> seen;
  ports_ = by_host ? static_cast<int>(hosts.size()) : size();
  constexpr double kNone = std::numeric_limits<double>::infinity();
  for (Kind& kind : of_kind_)
    for (const int way : {0, 1}) kind.to_all[way] = kind.from_any[way] = kNone;
  for (int d = 0; d < size(); ++d) {
    const Device& device = devices_[static_cast<size_t>(d)];
    unlike_types_ |= device.type != devices_[0].type;
    const std::pair host{device.node, device.host};
    Kind& kind = of_kind_[static_cast<size_t>(kind_of(d))];
    if (kind.devices++ == 0) kind.first = static_cast<size_t>(d);
    kind.port_devices = std::max(kind.port_devices, by_host ? hosts[host] : 1);
    if (!by_host || seen.insert(host).second) ++kind.ports;
    double out = 0, in = 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == d) continue;
      const Device& other = devices_[static_cast<size_t>(peer)];
      const double sent = 1 / link(d, peer).bytes_per_second, received = 1 / link(peer, d).bytes_per_second;
      out += sent;
      in += received;
      kind.from_any[0] = std::min(kind.from_any[0], received);
      kind.from_any[1] = std::min(kind.from_any[1], sent);
      latency_ = std::max(latency_, link(d, peer).latency_seconds);
      if (!by_host || std::pair(other.node, other.host) != host)
        port_bytes_per_second_ = std::max(
            port_bytes_per_second_, (by_host ? device.host_interfaces : 1) * link(d, peer).bytes_per_second);
    }
    kind.to_all[0] = std::min(kind.to_all[0], out);
    kind.to_all[1] = std::min(kind.to_all[1], in);
  }
}

double DeviceGroup::total_rate() const {
  double total = 0;
  for (int d = 0; d < size(); ++d) total += rate(d);
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
      return gather_of(counts) == Gather::padded ? padded_seconds(counts) : grouped_seconds(counts);
    case CollectiveKind::all_to_all: return exchange_seconds(counts);
    case CollectiveKind::broadcast:  // passes along the ring in small pieces
      return counts[0] / slowest_.bytes_per_second + (size() - 1) * slowest_.latency_seconds;
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
  return {subgroup(devices).seconds(request.kind, counts), 0};
}

Gather DeviceGroup::gather_of(const std::vector<double>& counts) const {
  if (gather_ && !mesh_) return *gather_;
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
  struct Busy {
    double out = 0, in = 0;  // seconds
  };
  const auto n = static_cast<size_t>(size());
  std::vector<Busy> with_all(n), outside(n);  // by device: with all others, and those of other hosts
  for (size_t from = 0; from < n; ++from) {
    const Device& own = devices_[from];
    for (size_t to = 0; to < n; ++to) {
      if (to == from) continue;
      const double seconds = counts[from * n + to] / links_[from * n + to].bytes_per_second;
      with_all[from].out += seconds;
      with_all[to].in += seconds;
      if (own.node == devices_[to].node && own.host == devices_[to].host) continue;
      outside[from].out += seconds;
      outside[to].in += seconds;
    }
  }
  double busiest = 0;
  const auto add = [&](const Busy& each) { busiest = std::max({busiest, each.out, each.in}); };
  std::map<std::tuple<int, int, int>, Busy> interfaces;
  for (size_t d = 0; d < n; ++d) {
    add(with_all[d]);
    if (mesh_) continue;
    Busy& interface = interfaces[devices_[d].port()];
    interface.out += outside[d].out;
    interface.in += outside[d].in;
  }
  for (const auto& [port, each] : interfaces) add(each);
  return latency_ + busiest;
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

ShareRange DeviceGroup::all_shares() const {
  const std::vector<Interval> whole(static_cast<size_t>(kinds()));
  ShareRange range{whole, whole};
  tighten(range);
  return range;
}

bool DeviceGroup::tighten(ShareRange& range) const {
  const auto narrow = [](Interval& interval, double least, double most) {
    interval.least = std::max(interval.least, least);
    interval.most = std::min(interval.most, most);
  };
  constexpr int kTurns = 3;
  for (int turn = 0; turn < kTurns; ++turn)
    for (size_t k = 0; k < range.total.size(); ++k) {
      double least = 1, most = 1;  // what other kinds leave
      for (size_t other = 0; other < range.total.size(); ++other) {
        if (other == k) continue;
        least -= range.total[other].most;
        most -= range.total[other].least;
      }
      const double ports = of_kind_[k].ports;
      narrow(range.total[k], std::max(least, range.port[k].least),
             std::min(most, ports * range.port[k].most));
      narrow(range.port[k], range.total[k].least / ports, range.total[k].most);
      if (range.total[k].least > range.total[k].most || range.port[k].least > range.port[k].most)
        return false;
    }
  return true;
}

namespace {

// Against the rounding of products of units and parts, where that would make a bound too high.
constexpr double kRounding = 1e-7;

double part(int64_t units, int64_t of) { return static_cast<double>(units) / static_cast<double>(of); }

}  // namespace

// A device with the share b has floor(units b) units or one more. Of devices with the share s together, one
// has at least s divided by their number.
int64_t DeviceGroup::least_units(const ShareRange& range, int kind, int64_t units) const {
  const auto k = static_cast<size_t>(kind);
  const double share =
      std::max(range.total[k].least / of_kind_[k].devices, range.port[k].least / of_kind_[k].port_devices);
  return std::max<int64_t>(1,
                           static_cast<int64_t>(std::floor(static_cast<double>(units) * share - kRounding)));
}

double DeviceGroup::least_seconds(CollectiveKind kind, double bytes, const ShareRange& range, int64_t units,
                                  int64_t to_units) const {
  if (size() == 1) return 0;
  switch (kind) {
    case CollectiveKind::all_reduce: return seconds(kind, {bytes});
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      return least_gather_seconds(bytes, kind == CollectiveKind::reduce_scatter, range, units);
    case CollectiveKind::all_to_all: return least_exchange_seconds(bytes, range, units, to_units);
    default: break;
  }
  fail(ErrorKind::bug, "no bound of {}", name_of(kind));
}

double DeviceGroup::least_gather_seconds(double bytes, bool scatter, const ShareRange& range,
                                         int64_t units) const {
  // Some device has at least an even part, and another one at most that.
  int64_t largest = (units + size() - 1) / size(), smallest = units / size();
  double busiest = 0;
  const int way = scatter ? 1 : 0;
  for (int kind = 0; kind < kinds(); ++kind) {
    const Kind& own = of_kind_[static_cast<size_t>(kind)];
    const int64_t least = least_units(range, kind, units);
    const double share = range.total[static_cast<size_t>(kind)].most / own.devices;
    const auto most = static_cast<int64_t>(std::ceil(static_cast<double>(units) * share + kRounding));
    largest = std::max(largest, least);
    smallest = std::min(smallest, most);  // some device of this kind has no more
    busiest = std::max({busiest, part(least, units) * own.to_all[way],
                        (1 - std::min(1.0, part(most, units))) * own.from_any[way]});
  }
  if (!mesh_)
    return std::min((size() - 1) * slowest_.seconds(bytes * part(largest, units)),
                    (2 * size() - 1) * slowest_.latency_seconds +
                        bytes * (1 - part(smallest, units)) / slowest_.bytes_per_second);
  double to_all = of_kind_[0].to_all[way], from_any = of_kind_[0].from_any[way];
  for (const Kind& kind : of_kind_) {
    to_all = std::min(to_all, kind.to_all[way]);
    from_any = std::min(from_any, kind.from_any[way]);
  }
  busiest = std::max({busiest, part(largest, units) * to_all, (1 - part(smallest, units)) * from_any});
  return latency_ + bytes * busiest;
}

// A port that has the part p of what is sent and q of what is received sends p (1 - q) of all and receives
// q (1 - p). With m, the larger of p and q, the longer of both is at least m (1 - min(m, h)), where p or q is
// at most h: that falls and rises again below h, and rises above. The port where m is largest has m between
// what some port has at least and what any can have at most.
double DeviceGroup::least_exchange_seconds(double bytes, const ShareRange& range, int64_t units,
                                           int64_t to_units) const {
  double least = 0, most = 0, both_most = 0;
  for (const int64_t each : {units, to_units})
    least = std::max(least, part((each + ports_ - 1) / ports_, each));
  for (int kind = 0; kind < kinds(); ++kind) {
    double smaller = 1;
    for (const int64_t each : {units, to_units}) {
      const auto [low, high] = port_units(range, kind, each);
      least = std::max(least, part(low, each));
      most = std::max(most, part(high, each));
      smaller = std::min(smaller, part(high, each));
    }
    both_most = std::max(both_most, smaller);
  }
  const auto sent = [&](double m) { return m * (1 - std::min(m, both_most)); };
  const double sends = std::min(sent(least), sent(std::max(least, std::min(most, both_most))));
  return latency_ + sends * bytes / port_bytes_per_second_;
}

// Of the port of a kind that has most: every device of it has less than one unit less or more than its share,
// and all others have one unit at least.
std::pair<int64_t, int64_t> DeviceGroup::port_units(const ShareRange& range, int kind, int64_t units) const {
  const auto k = static_cast<size_t>(kind);
  const int devices = of_kind_[k].port_devices;
  const auto all = static_cast<double>(units);
  const auto low = static_cast<int64_t>(std::floor(all * range.port[k].least - devices - kRounding)) + 1,
             high = static_cast<int64_t>(std::ceil(all * range.port[k].most + devices + kRounding)) - 1;
  return {std::max<int64_t>(low, 1), std::min(high, units - (size() - devices))};
}

bool DeviceGroup::can_cut(const ShareRange& range, int64_t units) const {
  if (units < size()) return false;
  for (int kind = 0; kind < kinds(); ++kind) {
    const auto [low, high] = port_units(range, kind, units);
    if (low > high || least_units(range, kind, units) > units - (size() - 1)) return false;
  }
  return true;
}

}  // namespace het::planner::hap
