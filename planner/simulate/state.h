// What a simulation holds while it runs; for the files of the simulator alone: simulate.cpp (what is asked
// and reported), pipelines.cpp (forwards, backwards and transfers), blocking.cpp (the same of ranks that wait
// for their messages), gradients.cpp (what follows).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "planner/simulate/ports.h"
#include "planner/simulate/sharing.h"
#include "planner/simulate/simulate.h"

namespace het::planner {

enum class OpKind : uint8_t { forward, backward, weight };
struct Op {
  OpKind kind = OpKind::forward;
  int stage = 0;
};

struct Pending {
  double time = 0;
  uint32_t sequence = 0;
  enum class What : uint8_t { done, forward_arrives, backward_arrives, sent } what = What::done;
  int pipeline = 0, stage = 0;  // sent: the lane and its version
};

struct Later {
  bool operator()(const Pending& a, const Pending& b) const {
    return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
  }
};

// One stage of a pipeline while it runs.
struct StageState {
  double forward = 0, input = 0, weight = 0,
         backward = 0;                           // seconds; backward with recompute, without split weights
  int forwards = 0, backwards = 0, weights = 0;  // done or begun
  int forwards_arrived = 0, backwards_arrived = 0;
  int held = 0, peak = 0;
  double held_bytes = 0;  // of one micro-batch in flight
  double last_start = 0;  // of the last operation that completes gradients
  double first_start = -1;
  double hop = 0, hop_back = 0;  // seconds to the next stage and to the one before; without contention
};

struct HashOfKey {
  size_t operator()(const std::vector<int>& key) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time
    for (const int word : key) hash = (hash ^ static_cast<uint32_t>(word)) * 1099511628211u;
    return static_cast<size_t>(hash ^ hash >> 32);
  }
};

// One device group; with interleaving it runs several stages.
struct SimWorker {
  bool busy = false;
  Op running;
  double busy_seconds = 0, end = 0;
  double held_bytes = 0, peak_bytes = 0;  // of micro-batches in flight, all its stages' together
  OpKind last = OpKind::forward;
  std::vector<Op> order;  // interleaved only
  size_t next = 0;
};

// A micro-batch begins, or ends, to keep activations.
inline void keep(SimWorker& worker, StageState& stage) {
  stage.peak = std::max(stage.peak, ++stage.held);
  worker.held_bytes += stage.held_bytes;
  worker.peak_bytes = std::max(worker.peak_bytes, worker.held_bytes);
}
inline void let_go(SimWorker& worker, StageState& stage) {
  --stage.held;
  worker.held_bytes -= stage.held_bytes;
}

// Network interfaces of a host by number, over all hosts: [first, first + count).
struct Interfaces {
  int first = 0, count = 1;
  bool operator==(const Interfaces&) const = default;
};

// How a boundary goes from a stage to its neighbour where the layers of one of them are shared otherwise than
// by PlanLayout::tensor. Ranks with the same shares send to each other: to another host each its part of the
// whole, which the receivers gather, as all others do; else each receiver takes the whole from one sender
// (planner/lower/rank_messages.cpp).
struct Hop {
  bool crosses = false;  // else it stays inside a host
  Interfaces out, in;
  Link link;                  // between two interfaces
  double bytes = 0;           // over the link
  double inside_seconds = 0;  // of what stays inside hosts
  double gather_seconds = 0;  // of the receivers' gathering
  int lanes() const { return std::min(out.count, in.count); }
  double seconds() const {
    return std::max(crosses ? link.seconds(bytes / lanes()) : 0, inside_seconds) + gather_seconds;
  }
};

struct PipelineState {
  int source = 0;  // index of the layout's pipeline that stands for the class
  int microbatches = 0;
  std::vector<StageState> stages;
  std::vector<SimWorker> workers;
  std::vector<int> hosts;              // of each stage
  std::vector<Interfaces> interfaces;  // of each stage
  std::vector<double>
      crowd;              // pipelines of the class that share the interfaces of transfer stage -> stage + 1
  std::vector<Hop> hops;  // [2 * edge + backward]; empty: no stage has a separate group
};

// Boundaries that go from one stage to its neighbour over interfaces, in order.
struct TransferLane {
  size_t pipeline = 0, from = 0, to = 0;  // a class and its stages
  double bytes = 0, latency = 0;          // of each
  struct Message {
    int item = 0;
    double came = 0;
  };
  std::vector<Message> messages;
  size_t next = 0;
};
// One of them, when its bytes and its latency have passed.
struct Delivered {
  size_t pipeline = 0, from = 0, to = 0;
  int item = 0;
  double came = 0, start = 0, end = 0;
};

void order_interleaved(PipelineState& pipeline, int chunks);

struct SimulatorState {
  const CostTable& costs;
  std::vector<int> host_base;  // first host of each node
  int hosts = 0;
  struct NodeInterfaces {
    int first = 0, of_host = 1, devices = 1;
  };
  std::vector<NodeInterfaces> node_interfaces;
  int interfaces = 0;
  bool one_each = true;  // every host has one

  // Of the layout's groups; and all that were ever used, by shares, nodes, and which places are one host.
  CostProvider tables;
  std::vector<const GroupCosts*> groups;
  std::map<std::vector<int64_t>, std::unique_ptr<GroupCosts>> known_groups;

  const PlanLayout* layout = nullptr;
  SimulateOptions options;
  std::vector<PipelineState> classes;
  std::vector<int> class_of;  // of each pipeline of the layout
  std::vector<Pending> heap;
  uint32_t sequence = 0;
  // By interface: the most that one of its links carries; a byte for all where interfaces go by the clock (in
  // a mesh, as shaped links do): a link then takes an interface as long as its bytes take.
  std::vector<double> capacity;
  Ports ports;
  std::map<std::pair<int, double>, int> link_resources;  // of a port's direction and a link that fills less
  std::vector<TransferLane> lanes;
  std::vector<int> lane_of;  // [2 * (lane_base of a class + edge) + backward]; -1: not used yet
  std::vector<int> lane_base;
  std::vector<int> out_users;
  // Of stages by at(): the interfaces of their devices; of stages with a TensorGroup those of each place.
  std::vector<Interfaces> stage_interfaces;
  std::map<size_t, std::vector<Interfaces>> place_interfaces;
  std::vector<int> next_device;  // by host
  // Without contention: [stage, forward or backward, micro-batch]; and pipelines that were run before, by
  // schedule, micro-batches, stages. Searches come back to the same ones again and again.
  std::vector<double> arrivals;
  std::unordered_map<std::vector<int>, PipelineState, HashOfKey> known_apart;
  std::vector<SimEvent> events;

  // Of the synchronisation, by pipeline and stage: [stage_base[p] + s]
  std::vector<int> stage_base;
  // stream_free: two streams of each, the second [+ all stages] for what it shares with other stages.
  std::vector<double> stream_free, synced, optimizer_bytes, update_seconds;
  std::vector<double> packing_seconds;
  // With details, of device groups: StageUse::exchange_seconds and gather_seconds; and the end of what was
  // counted of them. [stage_base[p] + group]
  std::vector<double> exposed_exchange, exposed_gather, counted_until;
  std::vector<int> holder;  // of FinishStep
  Sharing sharing;
  // Of each layer, and each shared parameter: all its holders' optimizer shares together.
  std::vector<double> layer_shares, shared_shares;
  std::vector<int> host_stamp, host_count, host_lanes;  // by host
  std::vector<int> interface_stamp;                     // by interface
  std::vector<double> interface_load;
  int stamp = 0;

  SimulatorState(const CostTable& costs_, const Cluster& cluster, CostProvider tables_)
      : costs(costs_), tables(std::move(tables_)) {
    for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n) {
      const Machine& node = cluster.nodes[static_cast<size_t>(n)];
      const int count = static_cast<int>(node.hosts.size());
      host_base.push_back(hosts);
      hosts += count;
      node_interfaces.push_back({interfaces, interfaces_of(cluster, n), node.devices});
      one_each = one_each && node_interfaces.back().of_host == 1;
      interfaces += count * node_interfaces.back().of_host;
    }
    for (auto* by_host : {&host_stamp, &host_count, &host_lanes})
      by_host->assign(static_cast<size_t>(hosts), 0);
    for (size_t n = 0; n < node_interfaces.size(); ++n) {
      double most = 0;
      for (size_t m = 0; m < node_interfaces.size(); ++m)
        most = std::max(most, costs.link(static_cast<int>(n), static_cast<int>(m)).bytes_per_second);
      capacity.insert(capacity.end(),
                      cluster.nodes[n].hosts.size() * static_cast<size_t>(node_interfaces[n].of_host),
                      costs.mesh ? 1 : most);
    }
    interface_stamp.assign(static_cast<size_t>(interfaces), 0);
    interface_load.assign(static_cast<size_t>(interfaces), 0);
  }

  int host(const StageLayout& stage) const { return host_base[static_cast<size_t>(stage.node)] + stage.host; }
  int host(const DevicePlace& place) const { return host_base[static_cast<size_t>(place.node)] + place.host; }
  // Those that the devices [device, device + count) of a host have: each has the nearest, evenly.
  Interfaces interfaces_at(const DevicePlace& place, int device, int count) const {
    const NodeInterfaces& node = node_interfaces[static_cast<size_t>(place.node)];
    const auto first_of = [&](int d) {
      return static_cast<int>(std::min<int64_t>(int64_t{d} * node.of_host / node.devices, node.of_host - 1));
    };
    const int last = device + count - 1, first = first_of(device);
    const int end = std::max(first_of(last) + 1, first_of(last + 1) + (last + 1 >= node.devices));
    return {node.first + place.host * node.of_host + first, end - first};
  }
  const GroupCosts* group_of(const StageLayout& stage) const {
    return stage.group < 0 ? nullptr : groups[static_cast<size_t>(stage.group)];
  }
  // The seconds of a stage's layers, all its devices together.
  const NodeCosts& pace_of(const StageLayout& stage) const {
    return stage.group < 0 ? costs.nodes[static_cast<size_t>(stage.node)] : group_of(stage)->pace;
  }
  // visit(interface) for each of a stage's devices; perhaps one several times.
  template <typename Visit>
  void each_interface(size_t pipeline, size_t stage, const Visit& visit) const {
    const auto visit_all = [&](const Interfaces& own) {
      for (int i = 0; i < own.count; ++i) visit(own.first + i);
    };
    const auto found = place_interfaces.find(at(pipeline, stage));
    if (found == place_interfaces.end())
      visit_all(stage_interfaces[at(pipeline, stage)]);
    else
      for (const Interfaces& own : found->second) visit_all(own);
  }
  // What a stage's devices keep of their optimizer state, where its holders have `shares` together.
  double optimizer_part(const StageLayout& stage, double shares) const {
    return layout->sharded_optimizer ? stage.share / std::max(shares, 1.0) : 1;
  }
  // Of how many parameters a device of a stage keeps the optimizer state; `device`: what it has of layers.
  double optimizer_elements(const StageLayout& stage, const CostTable& device) const {
    const int end = stage.first + stage.layers;
    if (!layout->sharded_optimizer) return device.parameters_in(stage.first, end);
    double elements = 0;
    for (auto l = static_cast<size_t>(stage.first); l < static_cast<size_t>(end); ++l)
      elements += optimizer_part(stage, layer_shares[l]) * (device.parameters[l + 1] - device.parameters[l]);
    for (size_t i = 0; i < device.shared.size(); ++i)
      if (device.shared[i].is_used_in(stage.first, end))
        elements += optimizer_part(stage, shared_shares[i]) * device.shared[i].parameters;
    return elements;
  }
  // SimulateOptions::pace of a stage.
  double pace_factor(size_t pipeline, size_t stage) const {
    if (options.pace.empty()) return 1;
    const std::vector<double>& groups = options.pace[pipeline];
    return groups[stage % groups.size()];
  }
  size_t at(size_t pipeline, size_t stage) const { return static_cast<size_t>(stage_base[pipeline]) + stage; }
  const PipelineState& class_at(size_t pipeline) const {
    return classes[static_cast<size_t>(class_of[pipeline])];
  }

  void push(double time, Pending::What what, int pipeline, int stage) {
    heap.push_back({time, sequence++, what, pipeline, stage});
    std::push_heap(heap.begin(), heap.end(), Later{});
  }

  void prepare(const PlanLayout& given, const SimulateOptions& with);
  void find_groups();
  void find_interfaces();
  void classify();
  bool crosses(const StageLayout& a, const StageLayout& b) const;
  Hop hop_between(size_t pipeline, size_t sends, size_t receives, double bytes) const;
  // Of a boundary that came from another host divided over the devices of a stage.
  double gather_seconds(int node, double bytes, int ranks) const;
  void fill(PipelineState& state, size_t source);
  bool next_op(const PipelineState& pipeline, size_t worker, Op& op) const;
  void try_start(size_t c, size_t worker, double now);
  void finish(size_t c, const Pending& pending);
  std::vector<Ports::Use> uses_of(const Interfaces& out, const Interfaces& in, double bytes_per_second);
  // A boundary that crosses hosts comes to the interfaces. An event `sent` follows: deliver() returns what
  // has arrived by it, or nothing where the event is stale.
  void carry(size_t c, size_t from, size_t to, int item, double now);
  std::optional<Delivered> deliver(const Pending& pending);
  void push_changes();
  void arrive(const Delivered& delivered);
  Delivered gathered(Delivered delivered) const;
  void send(size_t c, size_t from, size_t to, double now);
  void run_pipelines();
  void run_blocking();
  double hop_seconds(const PipelineState& pipeline, size_t from, size_t to) const;
  bool run_ahead(PipelineState& pipeline, size_t worker);
  const PipelineState& run_apart(const std::vector<int>& key, size_t source);
  void check_done() const;
  StageUse use_of(size_t pipeline, size_t worker, double pipelines_end) const;
};

// Exchanges gradients from when they are ready, updates, gathers sharded weights; fills the figures of this
// in `result` and returns the end of the step. `compute_end`: of the last backward.
double finish_step(SimulatorState& state, double compute_end, Simulation& result);

}  // namespace het::planner
