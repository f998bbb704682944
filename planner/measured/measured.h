// Plans that were really run, predicted by the simulator from the profile of their own machines and set
// beside what was measured: seconds of a step, and memory. Says which runs their own profile contradicts, by
// a rule that knows nothing of the prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "planner/measured/memory.h"
#include "planner/simulate/ranking.h"
#include "planner/simulate/sensitivity.h"

namespace het::planner {

struct MeasuredRequest {
  // Folder of MODEL/TYPE.json or MODEL/TYPE/profile.json, or of these for one model; or one file
  // {MODEL: {TYPE: times}}. other_profiles: a second profile of the same machines, or empty.
  std::string profiles, other_profiles;
  std::string model_info;  // file
  std::string plans;       // folder, with its folders
  std::string model;       // of all plans; empty: what a plan names, else the one with its number of layers
  Link between;            // between machines, of an interface; all zero: as published for the pair of types
  int interfaces = 1;      // of a machine to the network
};

// One kind of tensor-parallel group in one stage.
struct MeasuredGroup {
  int pipeline = 0, stage = 0;  // from 0
  std::string group;            // "GH-96 x 4"
  int replicas = 0;             // groups of the kind in the stage
  int first = 0, layers = 0;
  int in_flight = 0;              // most micro-batches held at once
  double microbatch_seconds = 0;  // forward and backward of one
  GpuMemory memory;               // of one GPU
};

struct MeasuredPlan {
  std::string name, path, model;
  int gpus = 0, batch = 0, microbatch = 0, microbatches = 0;  // microbatches: of the pipeline with most
  double seconds = 0;                                         // predicted, of one step
  LinkSpread links;                                           // of that, over plausible values of the links
  double pipeline_seconds = 0;                                // of that until the last backward
  double gradient_seconds = 0, update_seconds = 0;            // after it
  double memory_bytes = 0;                                    // predicted, of the fullest GPU
  double bound_seconds = 0;  // of the profile's layers alone: no communication, no update
  std::optional<double> measured_seconds, measured_gradient_seconds, measured_memory_bytes;
  bool contradicts = false;   // the profile contradicts the run
  std::string reason;         // which figure does; empty otherwise
  bool interpolated = false;  // the profile lacks a micro-batch size that the plan uses
  std::vector<MeasuredGroup> groups;
  std::optional<double> other_seconds;  // predicted from the second profile
  bool other_contradicts = false;
  std::vector<std::string> notes;       // what was assumed
  std::vector<std::string> suspicious;  // why a measured value cannot be; no prediction counts here
  std::vector<std::string> problems;    // why there is no prediction; empty when there is one
  bool judged() const { return problems.empty() && measured_seconds && !contradicts; }
  double error() const { return seconds / *measured_seconds - 1; }
  double memory_error() const { return memory_bytes / *measured_memory_bytes - 1; }
};

struct MeasuredReport {
  std::vector<MeasuredPlan> plans;    // by name
  std::vector<std::string> problems;  // of what all plans need
  std::vector<std::string> skipped;   // files that are no plans
  std::vector<Ranking> rankings;
};

// Of each model and batch with two predicted plans or more.
std::vector<Ranking> rank(const std::vector<MeasuredPlan>& plans);

// Never throws for what stands in files: it is in the problems of the plans that it touches.
MeasuredReport simulate_measured(const MeasuredRequest& request);

// What is asked of a prediction; a bound this far above a run contradicts it.
inline constexpr double kSecondsAsked = 0.10, kMemoryAsked = 0.15;
Json to_json(const Ranking& ranking);
Json to_json(const MeasuredReport& report);  // with medians and worst of the plans that are not marked

}  // namespace het::planner
