// What a plan may use: device types, machines, links, prices. Plain data: written in a recipe, discovered, or
// invented for a dry run; nothing here talks to a machine. Equal machines are one entry of Cluster::nodes
// with several hosts, so that planning does not grow with copies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/comm/steps.h"

namespace het::planner {

enum class Precision { f32, bf16, f16 };
std::string_view name_of(Precision precision);

// What a pass of a layer takes beside on a GPU: its kernels are launched one after the other.
inline constexpr double kLaunchSeconds = 20e-6;

struct DeviceType {
  std::string name;
  double f32_flops = 0, bf16_flops = 0, f16_flops = 0;  // dense matrix products per second; 0: not supported
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  Link inside;                             // between two of them in one node
  double efficiency = 0.5;                 // share of the peak that layers reach where nothing was measured
  double launch_seconds = kLaunchSeconds;  // 0: of processors, and of paced devices, which launch nothing
  bool operator==(const DeviceType&) const = default;
  double flops(Precision precision) const;  // 0 when not supported
};

// One node of a cluster, or several that are alike.
struct Machine {
  std::vector<std::string> hosts;   // the name of each
  std::string type;                 // name of a DeviceType
  int devices = 1;                  // in each host
  std::string zone;                 // class of its network links (Cluster::zone_links)
  Link inside;                      // between its devices; all zero: as its device type says
  int interfaces = 0;               // of each host to the network; 0: not stated (interfaces_of)
  double price_per_hour = 0;        // of one host
  double preemptions_per_hour = 0;  // of one host
  std::vector<int> gone = {};  // numbers of devices that its hosts no longer have, ascending: names skip them
  bool operator==(const Machine&) const = default;
};

struct ZoneLink {
  std::string a, b;      // zones; the same twice for the links inside one
  Link link;             // of one network interface of a host
  bool assumed = false;  // the cluster does not state it
  bool operator==(const ZoneLink&) const = default;
};

struct Cluster {
  std::vector<DeviceType> types;
  std::vector<Machine> nodes;
  Link between;  // between hosts where no zone link says otherwise; all zero: none
  std::vector<ZoneLink> zone_links;
  // Collectives go as between processors, by the mesh of core/comm/steps.h; else by rings and trees, inside
  // hosts first, as NCCL does.
  bool mesh = false;
  bool operator==(const Cluster&) const = default;
};

inline constexpr int kMostInterfaces = 64;  // of a host

// Every mistake, each a sentence with the value and what would work; empty when it can be planned for.
std::vector<std::string> validate(const Cluster& cluster);

// Nodes that differ only in their hosts become one; order of first appearance is kept.
Cluster merged(Cluster cluster);

// These assume a valid cluster. `node`: an index of Cluster::nodes.
const DeviceType& type_of(const Cluster& cluster, int node);
Link inside_link(const Cluster& cluster, int node);
Link between_link(const Cluster& cluster, int a, int b);
// Network interfaces of each host: as stated; else one for all its devices, and in a mesh one for each, which
// is how links of paced devices are shaped.
int interfaces_of(const Cluster& cluster, int node);
int total_devices(const Cluster& cluster);
double price_per_hour(const Cluster& cluster);
std::string device_name(const Cluster& cluster, int node, int host, int device);  // "a:0"
// What is left when a host ("a") or a device ("a:1") is lost; perhaps no node at all. Throws Error(usage) for
// one that it has not.
Cluster without(const Cluster& cluster, const std::string& name);

// The common types, from public data sheets (device_types.cpp). Names as "A100-80", "RTX-4090".
const std::vector<DeviceType>& known_device_types();
const DeviceType* find_device_type(std::string_view name);  // nullptr when unknown

// `count` hosts named name1, name2, ... (name alone for one) of a known type; throws Error(usage) otherwise.
Machine known_machine(std::string name, std::string_view type, int devices, int count = 1);
// The types its nodes name, from the known ones, beside those it has.
void add_known_types(Cluster& cluster);

}  // namespace het::planner
