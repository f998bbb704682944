// The devices that run one sharding program: their rates, and how long their collectives take. Plain data
// and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/comm/communicator.h"
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
};

// How the blocks of an uneven gather travel.
enum class Gather : uint8_t {
  padded,            // blocks as long as the longest, in a ring
  grouped_broadcast  // each rank broadcasts its block: no padding, more latencies
};

class DeviceGroup {
 public:
  // All devices of the cluster, host by host. `precision`: of the half rates; types that lack it take f32's.
  DeviceGroup(const Cluster& cluster, Precision precision);

  // Some of them, by number, in this order.
  DeviceGroup subgroup(const std::vector<int>& devices) const;

  int size() const { return static_cast<int>(devices_.size()); }
  const std::vector<Device>& devices() const { return devices_; }
  // Devices of one kind have equal rates; kinds are numbered in the order of their first devices.
  int kind_of(int device) const { return kinds_[static_cast<size_t>(device)]; }
  int kinds() const { return kind_count_; }
  const Device& of_kind(int kind) const;
  double total_f32_flops() const;
  const Link& link(int from, int to) const { return links_[static_cast<size_t>(from * size() + to)]; }

  // Seconds of one collective. `counts`: bytes of each device's block; of an all_reduce one number, all
  // bytes; of an all_to_all [from * size + to].
  double seconds(CollectiveKind kind, const std::vector<double>& counts) const;
  // Of a collective or a message among some of them, by number (a message: from the first to the second).
  WireTime wire_time(const CollectiveRequest& request, const std::vector<int>& devices) const;
  // Of an all_gather or a reduce_scatter, what is faster; between processors there is no choice: blocks are
  // never padded.
  Gather gather_of(const std::vector<double>& counts) const;
  // Seconds of an all_gather or a reduce_scatter of one byte, latencies apart, as the largest of several sums
  // over devices of a coefficient times the device's part: [sum][device].
  std::vector<std::vector<double>> gather_rows() const;
  // The least over all ways to cut `bytes` into parts whose largest is in [least, most].
  double least_seconds(CollectiveKind kind, double bytes, double least, double most) const;

 private:
  DeviceGroup() = default;
  void find_slowest();
  double padded_seconds(const std::vector<double>& counts) const;
  double grouped_seconds(const std::vector<double>& counts) const;
  double mesh_seconds(const std::vector<double>& counts, bool scatter) const;
  double exchange_seconds(const std::vector<double>& counts) const;
  std::vector<Device> devices_;
  std::vector<int> kinds_;
  int kind_count_ = 0;
  std::vector<Link> links_;  // [from * size + to]
  Link slowest_;             // of the ring through all devices, host by host
  bool mesh_ = false;
};

}  // namespace het::planner::hap
