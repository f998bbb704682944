// Small clusters and models for the planner's tests.
#pragma once

#include <string>
#include <vector>

#include "planner/cluster/cluster.h"
#include "planner/model/model.h"

namespace het::testing {

using namespace het::planner;

inline bool mentions(const std::vector<std::string>& problems, const std::string& text) {
  for (const std::string& problem : problems)
    if (problem.find(text) != std::string::npos) return true;
  return false;
}

// Machines "a", "b", ...: one entry for each {type, devices}, joined by 25 GB/s.
struct Machines {
  const char* type;
  int devices = 1;
  int count = 1;
};
inline Cluster cluster_of(const std::vector<Machines>& rows, double bytes_per_second = 25e9) {
  Cluster cluster;
  char name = 'a';
  for (const Machines& row : rows)
    cluster.nodes.push_back(known_machine(std::string(1, name++), row.type, row.devices, row.count));
  cluster.between = {20e-6, bytes_per_second};
  add_known_types(cluster);
  return cluster;
}

// `layers` equal layers of 2 GFLOP a sample forward, and a device type "unit" of 1 TFLOP/s: 2 ms a forward, 2
// ms for each half of the backward, whatever the micro-batch's memory traffic.
inline Model plain_model(int layers, double parameters = 1e6, double activation_bytes = 1e6) {
  LayerKind kind;
  kind.name = "layer";
  kind.parameters = parameters;
  kind.activation_bytes = activation_bytes;
  kind.checkpoint_bytes = activation_bytes / 10;
  kind.forward_flops = kind.input_flops = kind.weight_flops = 2e9;
  kind.boundary_bytes = 1e5;
  Model model;
  model.name = "plain";
  model.kinds = {kind};
  model.layers.assign(static_cast<size_t>(layers), 0);
  model.precision = Precision::f32;
  model.heads = model.kv_heads = 8;
  return model;
}
inline DeviceType plain_type(std::string name, double tflops, double gib) {
  DeviceType type;
  type.name = std::move(name);
  type.f32_flops = tflops * 1e12;
  type.memory_bytes = gib * 1024 * 1024 * 1024;
  type.memory_bytes_per_second = 1e15;
  type.inside = {0, 1e15};
  type.efficiency = 1;
  return type;
}
inline Machine plain_machine(const std::string& name, std::string type, int devices, int count = 1) {
  Machine node;
  for (int i = 0; i < count; ++i) node.hosts.push_back(count == 1 ? name : name + std::to_string(i + 1));
  node.type = std::move(type);
  node.devices = devices;
  return node;
}

}  // namespace het::testing
