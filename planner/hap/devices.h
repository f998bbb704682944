// The devices that run one sharding program: their rates, and how long their collectives take. Plain data
// and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/range.h"
#include "core/comm/communicator.h"
#include "core/ops/op.h"
#include "planner/cluster/cluster.h"

namespace het::planner::hap {

struct Device {
  std::string name;  // "a:0"
  std::string type;
  int node = 0, host = 0;  // of the cluster
  double f32_flops = 0;    // per second, as layers reach them
  double half_flops = 0;   // of bf16 or f16, whichever the device is planned for
  double memory_bytes_per_second = 0;
  double memory_bytes = 0;  // that plans may use
  int interface = 0;        // to the network, by which it leaves its host: the first, where it has several
  int host_interfaces = 1;  // of its host
  std::string zone = {};    // of its machine
  double launch_seconds = kLaunchSeconds;

  // What others that leave the host share with it.
  auto port() const { return std::tuple(node, host, interface); }
  double flops(bool half) const { return half ? half_flops : f32_flops; }
  // Of work in one precision: the longer of its arithmetic and its memory traffic.
  double seconds(const Cost& cost, bool half) const {
    return std::max(cost.flops / flops(half), cost.bytes / memory_bytes_per_second);
  }
};

// Whether a call with these operands computes in bf16 or f16: as the first that is not of integers.
bool is_half(std::span<const TensorType> inputs);

// How the blocks of an uneven gather travel.
enum class Gather : uint8_t {
  padded,            // blocks as long as the longest, in a ring
  grouped_broadcast  // each rank broadcasts its block: no padding, more latencies
};

// A set of shares, by what devices of a kind have together and what one port has, as parts of all. A port is
// what an exchange between devices goes through: the network interface of a host, or a device where that has
// a network interface alone, or where there is but one host.
struct Interval {
  double least = 0, most = 1;
  bool operator==(const Interval&) const = default;
};
struct ShareRange {
  std::vector<Interval> total;  // by kind: of all its devices together
  std::vector<Interval> port;   // by kind: of the port that has most, of those of that kind
  bool operator==(const ShareRange&) const = default;
};

class DeviceGroup {
 public:
  // All devices of the cluster, host by host. `precision`: of the half rates; types that lack it take f32's.
  DeviceGroup(const Cluster& cluster, Precision precision);

  // Some of them, by number, in this order.
  DeviceGroup subgroup(const std::vector<int>& devices) const;
  // Each of these sets of equally many as one device, whose rates are those of all its devices together. What
  // two sets exchange goes between their first devices, between their second ones, and so on, at once; those
  // of one host share its network interface.
  DeviceGroup merged(const std::vector<std::vector<int>>& sets) const;
  // The same, where all gathers are of one kind. Between processors there is no choice.
  DeviceGroup with_gather(Gather gather) const;

  int size() const { return static_cast<int>(devices_.size()); }
  // Whether collectives go between all pairs at once, not around a ring.
  bool is_mesh() const { return mesh_; }
  const std::vector<Device>& devices() const { return devices_; }
  // Devices of one kind have equal rates; kinds are numbered in the order of their first devices.
  int kind_of(int device) const { return kinds_[static_cast<size_t>(device)]; }
  int kinds() const { return kind_count_; }
  // Whether types differ, by name: such devices differ in the last bits of what they compute.
  bool has_unlike_types() const { return unlike_types_; }
  const Device& of_kind(int kind) const { return devices_[of_kind_[static_cast<size_t>(kind)].first]; }
  // FLOPs per second in the precision of the plan, in which most of a model is computed.
  double rate(int device) const { return devices_[static_cast<size_t>(device)].flops(half_); }
  double total_rate() const;
  const Link& link(int from, int to) const { return links_[static_cast<size_t>(from * size() + to)]; }

  // Seconds of one collective. `counts`: bytes of each device's block; of an all_reduce and of a broadcast
  // one number, all bytes; of an all_to_all [from * size + to].
  double seconds(CollectiveKind kind, const std::vector<double>& counts) const;
  // Of a collective or a message among some of them, by number (a message: from the first to the second).
  WireTime wire_time(const CollectiveRequest& request, const std::vector<int>& devices) const;
  // Of an all_gather or a reduce_scatter, what is faster; between processors there is no choice: blocks are
  // never padded.
  Gather gather_of(const std::vector<double>& counts) const;
  // Seconds of an all_gather or a reduce_scatter of one byte, latencies apart, as the largest of several sums
  // over devices of a coefficient times the device's part: [sum][device].
  std::vector<std::vector<double>> gather_rows() const;

  // --- what holds for all shares of a range, also when devices of one kind have unequal ones

  ShareRange all_shares() const;
  // Without what no shares reach; false: there are none.
  bool tighten(ShareRange& range) const;
  int count_of(int kind) const { return of_kind_[static_cast<size_t>(kind)].devices; }
  // Units that some device of a kind has at least, when an axis of so many is cut by largest remainders and
  // every device has some.
  int64_t least_units(const ShareRange& range, int kind, int64_t units) const;
  // Whether every device can get some of so many units.
  bool can_cut(const ShareRange& range, int64_t units) const;
  // No such collective of `bytes` takes less, of what lies along an axis of so many units; an all_to_all goes
  // on to an axis of `to_units`.
  double least_seconds(CollectiveKind kind, double bytes, const ShareRange& range, int64_t units,
                       int64_t to_units = 0) const;

 private:
  DeviceGroup() = default;
  Link link_between(const std::vector<int>& set, const std::vector<int>& other) const;
  void find_slowest();
  double padded_seconds(const std::vector<double>& counts) const;
  double grouped_seconds(const std::vector<double>& counts) const;
  double mesh_seconds(const std::vector<double>& counts, bool scatter) const;
  double exchange_seconds(const std::vector<double>& counts) const;
  double least_gather_seconds(double bytes, bool scatter, const ShareRange& range, int64_t units) const;
  double least_exchange_seconds(double bytes, const ShareRange& range, int64_t units, int64_t to_units) const;
  std::pair<int64_t, int64_t> port_units(const ShareRange& range, int kind, int64_t units) const;
  void find_kinds();

  std::vector<Device> devices_;
  std::vector<int> kinds_;
  int kind_count_ = 0;
  struct Kind {
    size_t first = 0;  // device
    int devices = 0, ports = 0;
    int port_devices = 0;  // of its port with most
    // Seconds for a byte: from one of its devices to all others, and to one of them from any, at least; and
    // the same the other way round.
    double to_all[2] = {0, 0}, from_any[2] = {0, 0};
  };
  std::vector<Kind> of_kind_;
  int ports_ = 0;
  double port_bytes_per_second_ = 0;  // between ports, at most
  double latency_ = 0;                // the longest
  std::vector<Link> links_;           // [from * size + to]
  Link slowest_;                      // of the ring through all devices, host by host
  bool half_ = false;                 // the plan's precision is bf16 or f16
  bool mesh_ = false;
  bool unlike_types_ = false;
  std::optional<Gather> gather_;  // of all gathers; nullopt: what is faster
};

}  // namespace het::planner::hap
