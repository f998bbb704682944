// A plan in numbers, as searches hold it: tensor-parallel groups by node and host instead of device names.
// Most stages share their layers evenly over PlanLayout::tensor devices of one host. Those that do otherwise
// name an entry of PlanLayout::groups.
#pragma once

#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "planner/cluster/cluster.h"

namespace het::planner {

// The host of a device.
struct DevicePlace {
  int node = 0, host = 0;
  auto operator<=>(const DevicePlace&) const = default;
};

// The tensor-parallel ranks of a stage: other shares, another degree, or several hosts.
struct TensorGroup {
  Shares shares;                    // without a common divisor
  std::vector<DevicePlace> places;  // as many
  bool operator==(const TensorGroup&) const = default;
};

struct StageLayout {
  int node = 0, host = 0;  // of its first device; which tensor-parallel group of the host does not matter
  int first = 0, layers = 0;
  bool recompute = false;
  int share = 1;   // Stage::optimizer_share
  int group = -1;  // of PlanLayout::groups; -1: PlanLayout::tensor devices of the host with equal shares
  bool operator==(const StageLayout&) const = default;
};

struct PipelineLayout {
  int microbatches = 1;
  std::vector<StageLayout> stages;
  bool operator==(const PipelineLayout&) const = default;
};

struct PlanLayout {
  int tensor = 1, microbatch = 1;
  std::vector<PipelineLayout> pipelines;
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1, warmup = 0;
  bool sharded_optimizer = false;
  std::vector<TensorGroup> groups;
  bool operator==(const PlanLayout&) const = default;
};

// The shares of a stage's devices, and their hosts.
Shares shares_of(const PlanLayout& layout, const StageLayout& stage);
std::vector<DevicePlace> places_of(const PlanLayout& layout, const StageLayout& stage);
// Gives a stage these shares and places: by an entry of PlanLayout::groups where it needs one.
void set_group(PlanLayout& layout, StageLayout& stage, TensorGroup group);
// All degrees of tensor parallelism that its stages have, ascending.
std::vector<int> degrees_of(const PlanLayout& layout);

// The stages that device group `group` of a pipeline takes turns with, in order: one, or with interleaving
// PlanLayout::chunks. Groups count as StageUse::stage does.
std::vector<StageLayout> chunks_of(const PlanLayout& layout, int pipeline, int group);
// Their layers: "0-3", "0-1, 4-6".
std::string show_layers(const std::vector<StageLayout>& chunks);

// Each stage's first layer, from how many the stages before it have.
void number_layers(std::vector<StageLayout>& stages);

// Names devices host by host, in the order of the stages. A host without enough devices is a bug of the
// caller.
Plan to_plan(const PlanLayout& layout, const Cluster& cluster);
// Throws Error(usage) naming every device that the cluster has not.
PlanLayout to_layout(const Plan& plan, const Cluster& cluster);

}  // namespace het::planner
