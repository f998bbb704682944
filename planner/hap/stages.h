// Pipelines whose stages run sharding programs: devices that share a stage, of one type or of several, divide
// its layers by a program that is synthesised for them (hap.h). Candidates are judged beside a plan of the 3D
// planner by simulating the programs of all ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/hap/hap.h"
#include "planner/simulate/programs.h"

namespace het::planner::hap {

// The training graph for micro-batches of one size.
struct SizedGraph {
  int microbatch = 1;
  const Graph* graph = nullptr;  // pruned (core/graph/fuse.h)
};

struct StagesRequest {
  const DeviceGroup* group = nullptr;
  std::vector<SizedGraph> graphs;  // the batch's own among them
  int batch = 1;
  const Plan* rival = nullptr;  // of the 3D planner; of a micro-batch size that `graphs` has
  bool pipelines = false;       // those alone; else one stage of all devices, and the rival
  double rival_seconds = 0;     // of these alone: what the rival was found to take; 0: not known
};

struct StagesCandidate {
  std::string name;  // "{ fast:0-1 } { slow:0-1 }, 4 micro-batches"
  Plan plan;
  ProgramsTime time;
};

struct StagesAnswer {
  double rival_seconds = 0;  // simulated likewise; 0: it was not
  bool cuts_state = false;   // some program over all devices cuts parameters or optimizer state
  std::vector<StagesCandidate> candidates;  // those that were simulated
  const StagesCandidate* best() const;      // of those that fit; null: there is none
};

// Where no program over all devices cuts state, pipelines of whole replicas do as well. Of clusters and plans
// that are large nothing is tried, and what costs more than twice the rival's time is not simulated: were all
// communication behind the arithmetic, it would still be slower; nor are pipelines whose arithmetic alone
// takes as long as the rival, each stage waiting for those before it. One stage is also cut along two axes
// (grids.h).
StagesAnswer plan_stages(const StagesRequest& request);

// What one device computes of a layer relative to others, by layer: FLOPs of its nodes of both passes, or of
// one.
std::vector<double> layer_flops(const Graph& graph, std::optional<Phase> only = {});
// Seconds that a step takes at least, however stages share their layers and whatever the links. Each stage
// computes its micro-batches with all of its devices (`rates`: FLOPs per second), and the norm of all
// gradients is known before the next step begins. So each stage also waits for those before it: for the first
// forward pass of each, and after its own last backward pass for half of theirs, the gradients they pass on.
double arithmetic_seconds(const Graph& graph, const std::vector<int>& layers,
                          const std::vector<double>& rates, int microbatches);
// Layers [0, n) in one range a stage, so that the stage that takes longest takes least: a range's FLOPs over
// the stage's rate. Every stage has at least one layer, so there are at most as many as layers.
std::vector<int> balanced_layers(const std::vector<double>& flops, const std::vector<double>& rates);

}  // namespace het::planner::hap
