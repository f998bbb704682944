#include "planner/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"

namespace het::planner {
namespace {

bool absent(const Link& link) { return link == Link{}; }
constexpr int kMostDevices = 1024;      // of a host
constexpr size_t kMostHosts = 100'000;  // of a cluster

bool positive(double value) { return std::isfinite(value) && value > 0; }
bool not_negative(double value) { return std::isfinite(value) && value >= 0; }

const Link* find_link(const Cluster& cluster, const std::string& a, const std::string& b) {
  for (const ZoneLink& entry : cluster.zone_links)
    if ((entry.a == a && entry.b == b) || (entry.a == b && entry.b == a)) return &entry.link;
  return absent(cluster.between) ? nullptr : &cluster.between;
}

class Checker {
 public:
  explicit Checker(const Cluster& cluster) : cluster_(cluster) {}

  std::vector<std::string> run() {
    if (cluster_.nodes.empty()) add("the cluster has no node; at least one is needed");
    for (const DeviceType& type : cluster_.types) check(type);
    for (const Machine& node : cluster_.nodes) check(node);
    if (hosts_.size() > kMostHosts)
      add(fmt::format("the cluster has {} hosts; {} is the most that can be planned for", hosts_.size(),
                      kMostHosts));
    if (!absent(cluster_.between)) check("link between hosts", cluster_.between);
    std::set<std::pair<std::string, std::string>> linked;
    for (const ZoneLink& entry : cluster_.zone_links) {
      if (!linked.insert(std::minmax(entry.a, entry.b)).second)
        add(fmt::format("two links between zones \"{}\" and \"{}\"; leave one out", entry.a, entry.b));
      check(fmt::format("link {} - {}", entry.a, entry.b), entry.link);
      for (const std::string& zone : {entry.a, entry.b})
        if (std::none_of(cluster_.nodes.begin(), cluster_.nodes.end(),
                         [&](const Machine& node) { return node.zone == zone; }))
          add(fmt::format("link {} - {}: no node is in zone \"{}\"", entry.a, entry.b, zone));
    }
    check_missing_links();
    return std::move(problems_);
  }

 private:
  void add(std::string text) { problems_.push_back(std::move(text)); }

  void check(const std::string& where, const Link& link) {
    if (!not_negative(link.latency_seconds))
      add(fmt::format("{}: latency = {} s; it is 0 or more", where, link.latency_seconds));
    if (!positive(link.bytes_per_second))
      add(fmt::format("{}: bandwidth = {} bytes/s; it is more than 0", where, link.bytes_per_second));
  }

  void check(const DeviceType& type) {
    const std::string where = fmt::format("device type {}", type.name);
    if (!types_.insert(type.name).second) add(where + " is described twice");
    const auto require = [&](const char* field, double value, bool good, const char* rule) {
      if (!good) add(fmt::format("{}: {} = {}; it is {}", where, field, value, rule));
    };
    require("f32_flops", type.f32_flops, positive(type.f32_flops), "more than 0");
    require("bf16_flops", type.bf16_flops, not_negative(type.bf16_flops), "0 (not supported) or more");
    require("f16_flops", type.f16_flops, not_negative(type.f16_flops), "0 (not supported) or more");
    require("memory", type.memory_bytes, positive(type.memory_bytes), "more than 0");
    require("memory bandwidth", type.memory_bytes_per_second, positive(type.memory_bytes_per_second),
            "more than 0");
    require("launch", type.launch_seconds, not_negative(type.launch_seconds), "0 or more");
    require("efficiency", type.efficiency, positive(type.efficiency) && type.efficiency <= 1,
            "above 0, at most 1");
    if (!absent(type.inside)) check(where + ", link inside", type.inside);
  }

  void check(const Machine& node) {
    const std::string where = node.hosts.empty() ? "a node" : fmt::format("node {}", node.hosts[0]);
    if (node.hosts.empty()) add("a node of type " + node.type + " has no host; its count is at least 1");
    bool named = true;  // of several hosts that are named alike, the first mistake is enough
    for (const std::string& host : node.hosts) {
      if (!hosts_.insert(host).second)
        add(fmt::format("host {} is named twice; give each node another name", host));
      if (named) named = check_name(host);
    }
    if (node.devices < 1) add(fmt::format("{}: devices = {}; a node has at least 1", where, node.devices));
    if (node.devices > kMostDevices)
      add(fmt::format("{}: devices = {}; a machine has at most {}, `count` says how many machines", where,
                      node.devices, kMostDevices));
    const auto type = std::find_if(cluster_.types.begin(), cluster_.types.end(),
                                   [&](const DeviceType& t) { return t.name == node.type; });
    if (type == cluster_.types.end()) {
      std::vector<std::string> names;
      for (const DeviceType& known : known_device_types()) names.push_back(known.name);
      for (const DeviceType& known : cluster_.types) names.push_back(known.name);
      const std::string near = nearest_name(node.type, names);
      add(fmt::format("{}: type \"{}\" is not described{}", where, node.type,
                      near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
    } else if (node.devices > 1 && absent(node.inside) && absent(type->inside)) {
      add(fmt::format("{}: {} devices and no link between them; give latency and bandwidth", where,
                      node.devices));
    }
    if (!absent(node.inside)) check(where + ", link inside", node.inside);
    if (node.interfaces < 0 || node.interfaces > kMostInterfaces)
      add(fmt::format("{}: interfaces = {}; a machine has 1 to {} to the network", where, node.interfaces,
                      kMostInterfaces));
    if (!not_negative(node.price_per_hour))
      add(fmt::format("{}: price = {} per hour; it is 0 or more", where, node.price_per_hour));
    if (!not_negative(node.preemptions_per_hour))
      add(fmt::format("{}: preemptions = {} per hour; they are 0 or more", where, node.preemptions_per_hour));
  }

  // Names of hosts stand in plans between quotes, with a colon before the device's number.
  bool check_name(const std::string& host) {
    std::string shown;
    bool good = !host.empty();
    for (const char c : host) {
      const bool control = static_cast<unsigned char>(c) < ' ' || c == 127;
      good = good && !control && std::string_view("\"'\\:").find(c) == std::string_view::npos;
      shown += control ? '?' : c;
    }
    if (!good)
      add(
          fmt::format("the node name \"{}\" cannot stand in a plan; letters, digits, dots, dashes and "
                      "underscores do",
                      shown));
    return good;
  }

  void check_missing_links() {
    std::map<std::string, size_t> zones;
    for (const Machine& node : cluster_.nodes) zones[node.zone] += node.hosts.size();
    for (auto a = zones.begin(); a != zones.end(); ++a)
      for (auto b = a; b != zones.end(); ++b)
        if ((a != b || a->second > 1) && find_link(cluster_, a->first, b->first) == nullptr)
          add(fmt::format(
              "no link between zones \"{0}\" and \"{1}\"{2}; add het.link {{ from = \"{0}\", to = "
              "\"{1}\", ... }}, or bandwidth = to het.cluster for all zones without one",
              a->first, b->first, a->first.empty() ? " (\"\": nodes without a zone)" : ""));
  }

  const Cluster& cluster_;
  std::vector<std::string> problems_;
  std::set<std::string> types_, hosts_;
};

}  // namespace

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::f32: return "f32";
    case Precision::bf16: return "bf16";
    case Precision::f16: return "f16";
  }
  return "unknown";
}

double DeviceType::flops(Precision precision) const {
  switch (precision) {
    case Precision::f32: return f32_flops;
    case Precision::bf16: return bf16_flops;
    case Precision::f16: return f16_flops;
  }
  return 0;
}

std::vector<std::string> validate(const Cluster& cluster) { return Checker(cluster).run(); }

Cluster merged(Cluster cluster) {
  std::vector<Machine> nodes;
  for (Machine& node : cluster.nodes) {
    const auto same = std::find_if(nodes.begin(), nodes.end(), [&](const Machine& other) {
      return other.type == node.type && other.devices == node.devices && other.zone == node.zone &&
             other.inside == node.inside && other.interfaces == node.interfaces &&
             other.price_per_hour == node.price_per_hour &&
             other.preemptions_per_hour == node.preemptions_per_hour && other.gone == node.gone;
    });
    if (same == nodes.end())
      nodes.push_back(std::move(node));
    else
      same->hosts.insert(same->hosts.end(), node.hosts.begin(), node.hosts.end());
  }
  cluster.nodes = std::move(nodes);
  return cluster;
}

const DeviceType& type_of(const Cluster& cluster, int node) {
  const std::string& name = cluster.nodes[static_cast<size_t>(node)].type;
  for (const DeviceType& type : cluster.types)
    if (type.name == name) return type;
  fail(ErrorKind::bug, "device type {} is not in the cluster", name);
}

Link inside_link(const Cluster& cluster, int node) {
  const Link& own = cluster.nodes[static_cast<size_t>(node)].inside;
  return absent(own) ? type_of(cluster, node).inside : own;
}

Link between_link(const Cluster& cluster, int a, int b) {
  const Link* link = find_link(cluster, cluster.nodes[static_cast<size_t>(a)].zone,
                               cluster.nodes[static_cast<size_t>(b)].zone);
  return link == nullptr ? Link{} : *link;
}

int interfaces_of(const Cluster& cluster, int node) {
  const Machine& machine = cluster.nodes[static_cast<size_t>(node)];
  if (machine.interfaces > 0) return machine.interfaces;
  return cluster.mesh ? machine.devices : 1;
}

int total_devices(const Cluster& cluster) {
  int total = 0;
  for (const Machine& node : cluster.nodes) total += node.devices * static_cast<int>(node.hosts.size());
  return total;
}

double price_per_hour(const Cluster& cluster) {
  double total = 0;
  for (const Machine& node : cluster.nodes)
    total += node.price_per_hour * static_cast<double>(node.hosts.size());
  return total;
}

std::string device_name(const Cluster& cluster, int node, int host, int device) {
  const Machine& of = cluster.nodes[static_cast<size_t>(node)];
  for (const int gone : of.gone)
    if (gone <= device) ++device;
  return fmt::format("{}:{}", of.hosts[static_cast<size_t>(host)], device);
}

Cluster without(const Cluster& cluster, const std::string& name) {
  Cluster left = cluster;
  bool found = false;
  for (size_t n = 0; n < left.nodes.size() && !found; ++n)
    for (size_t h = 0; h < left.nodes[n].hosts.size() && !found; ++h) {
      const bool whole = left.nodes[n].hosts[h] == name;
      int device = -1;
      for (int d = 0; d < left.nodes[n].devices && !whole; ++d)
        if (device_name(left, static_cast<int>(n), static_cast<int>(h), d) == name) device = d;
      if (!whole && device < 0) continue;
      found = true;
      Machine own = left.nodes[n];
      own.hosts = {left.nodes[n].hosts[h]};
      left.nodes[n].hosts.erase(left.nodes[n].hosts.begin() + static_cast<std::ptrdiff_t>(h));
      if (!whole && own.devices > 1) {
        --own.devices;
        for (const int gone : own.gone)
          if (gone <= device) ++device;
        own.gone.insert(std::upper_bound(own.gone.begin(), own.gone.end(), device), device);
        left.nodes.insert(left.nodes.begin() + static_cast<std::ptrdiff_t>(n) + 1, std::move(own));
      }
      if (left.nodes[n].hosts.empty()) left.nodes.erase(left.nodes.begin() + static_cast<std::ptrdiff_t>(n));
      break;
    }
  if (!found) fail_usage("the cluster has no host and no device {}", name);
  std::erase_if(left.zone_links, [&](const ZoneLink& link) {
    const auto empty = [&](const std::string& zone) {
      return std::none_of(left.nodes.begin(), left.nodes.end(),
                          [&](const Machine& node) { return node.zone == zone; });
    };
    return empty(link.a) || empty(link.b);
  });
  return left;
}

const DeviceType* find_device_type(std::string_view name) {
  for (const DeviceType& type : known_device_types())
    if (type.name == name) return &type;
  return nullptr;
}

Machine known_machine(std::string name, std::string_view type, int devices, int count) {
  if (find_device_type(type) == nullptr) fail_usage("device type \"{}\" is not known", type);
  Machine node;
  for (int i = 1; i <= count; ++i) node.hosts.push_back(count == 1 ? name : fmt::format("{}{}", name, i));
  node.type = type;
  node.devices = devices;
  return node;
}

void add_known_types(Cluster& cluster) {
  for (const Machine& node : cluster.nodes) {
    const DeviceType* known = find_device_type(node.type);
    if (known != nullptr && std::none_of(cluster.types.begin(), cluster.types.end(),
                                         [&](const DeviceType& t) { return t.name == node.type; }))
      cluster.types.push_back(*known);
  }
}

}  // namespace het::planner
