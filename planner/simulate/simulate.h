// What a plan does in one step, by discrete events: each stage's compute stream runs its micro-batches in the
// order of the schedule; transfers between stages queue at the network ports of their hosts; gradients
// synchronise layer by layer on a communication stream of each stage while earlier layers still run backward;
// then the update. It decides between candidate plans. Pure: the same layout gives the same figures.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/plan/runtime.h"
#include "planner/simulate/group_costs.h"

namespace het::planner {

struct SimulateOptions {
  bool events = false;   // fill Simulation::events (pipelines are then never merged)
  bool details = false;  // fill Simulation::stages
  // How ranks wait for each other. Blocking: a transfer begins when both ends have come to it, and holds up
  // the compute of both until it has arrived; blocking ranks need contention, and no groups. Late reductions:
  // a stage's gradients are exchanged in one piece when all that hold them have run their last backward.
  Runtime runtime;
  // Transfers between stages wait for each other at the ports of their hosts. Without, pipelines do not meet
  // before their gradients do, and all is known from the order of operations, many times sooner: a search's
  // first estimate.
  bool contention = true;
  // What would be: transfers between stages that take no time; and the seconds that stages compute, each a
  // multiple, by pipeline and device group (empty: as they are). Both need contention.
  bool transfers = true;
  std::vector<std::vector<double>> pace = {};
  // Pipelines that are alike are simulated once when they do not share a port, or when there are more
  // stage-micro-batch pairs than this; shared ports then divide their bandwidth evenly.
  int64_t merge_above = 20000;
};

// One device of a stage whose layers are shared otherwise than by PlanLayout::tensor.
struct DeviceUse {
  double busy_seconds = 0;  // that it computes, or exchanges with its group
  double memory_bytes = 0, limit_bytes = 0;
};

struct StageUse {
  int pipeline = 0, stage = 0;
  double busy_seconds = 0;  // forward, backward, recompute
  double update_seconds = 0;
  // When its last backward ends, and that of its pipeline's last stage to finish; then the parts of the step
  // that its exchange of gradients, and of sharded weights, take beside nothing else, from when all that take
  // part are ready.
  double end_seconds = 0, pipeline_end_seconds = 0;
  double exchange_seconds = 0, gather_seconds = 0;
  double memory_bytes = 0, limit_bytes = 0;  // of one device; of several kinds the one with least to spare
  int in_flight = 0;                         // most micro-batches held at once
  double idle_start = 0,
         idle_end = 0;             // before its first forward; from its last backward to the pipelines' end
  std::vector<DeviceUse> devices;  // of a group of PlanLayout::groups, in its order; else none
};

struct SimEvent {
  enum class Kind { forward, backward, weight, send, reduce, update, gather };
  Kind kind = Kind::forward;
  int pipeline = 0, stage = 0;
  int item = 0;  // micro-batch; for reduce and gather the layer
  double start = 0, end = 0;
};
std::string_view name_of(SimEvent::Kind kind);

struct Simulation {
  double seconds = 0;           // of one step
  double pipeline_seconds = 0;  // until the last backward ends
  double exposed_seconds = 0;   // gradient synchronisation and gathering after that
  double update_seconds = 0;    // the longest update
  // Where stages divide layers differently, their gradients are exchanged in pieces, which are packed: the
  // most that a stage packs, and the most exchanges that a device takes part in for one layer.
  double packing_seconds = 0;
  int pieces = 0;
  double bubble = 0;  // idle share of the used devices until pipeline_seconds
  bool fits = true;
  double over_bytes = 0;         // most that a device lacks
  std::vector<StageUse> stages;  // in the order of pipelines, stages
  std::vector<SimEvent> events;
};

struct SimulatorState;  // planner/simulate/state.h

// Holds buffers that are used again from run to run; one thread. `costs` must outlive it and be of the
// layout's tensor-parallel degree and micro-batch size. `tables` gives those of other degrees, of the same
// micro-batch size; only layouts with groups need it.
class Simulator {
 public:
  explicit Simulator(const CostTable& costs, const Cluster& cluster, CostProvider tables = {});
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  Simulation run(const PlanLayout& layout, const SimulateOptions& options = {});

 private:
  std::unique_ptr<SimulatorState> state_;
};

// One plan, from names. Throws Error(usage) when it does not fit the cluster.
Simulation simulate(const Plan& plan, const Cluster& cluster, const Model& model, const Profile& profile,
                    const SimulateOptions& options = {});

}  // namespace het::planner
