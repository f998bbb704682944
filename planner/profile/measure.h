// What one layer of each kind takes on a device: the layers are cut out of the training graph
// (layer_extractor.h), lowered as any program, and run with a clock around every instruction: the host's, or
// on a GPU events around recordings of as many launches as take a while. Identical layers are measured once.
// Of a tensor-parallel group one rank's part is measured, without the group's collectives.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/program/program.h"
#include "core/tensor/tensor.h"
#include "planner/model/model.h"
#include "planner/profile/profile.h"

namespace het::planner {

// What an instruction of a step is to a plan. `apart`: it is there only because the layers were cut out.
enum class Part : uint8_t { forward, input, weight, update, apart };

// Of each instruction of a program of one micro-batch: its part, the layer that it counts for, and whether a
// stage that recomputes runs it again.
struct Share {
  Part part = Part::apart;
  int layer = -1;
  bool again = false;
};
std::vector<Share> shares_of(const Program& program);

// Of each layer, bytes on one device with one micro-batch in flight, from the program's buffers. What several
// layers use is counted in each.
struct LayerMemory {
  double weights = 0, gradients = 0, optimizer = 0, activations = 0;
  bool operator==(const LayerMemory&) const = default;
};
std::vector<LayerMemory> memory_by_layer(const Program& program);

struct MeasureOptions {
  std::string type = "cpu";  // what clusters call the device
  int tensor = 1, microbatch = 1;
  std::vector<std::string> kinds{};  // of the model's; empty: all
  int least_runs = 5, most_runs = 50;
  double seconds = 0.5;        // runs go on for so long
  double sharing = 1;          // threads that compute at once over cores; above 1 they take turns
  std::function<bool()> stop;  // asked before each run
};

struct Measured {
  std::vector<ProfilePoint>
      points;          // one for each kind that is asked for, in the model's order; none when stopped
  double seconds = 0;  // of the measured layers' instructions together, each a median
  int runs = 0;
};

// What turns add to instructions that are measured beside more threads than cores: a short one's median shows
// none of them, the mean of whole runs shows all. `mean`: seconds of a run, `medians`: of its instructions
// together. From 1 to `sharing`, for other work on the machine is no part of it.
double turns(double mean, double medians, double sharing);

// `graph` trains on micro-batches of options.microbatch samples; `model` counts the same graph. `inputs` are
// those of the graph by name; others get noise. Throws Error(usage) for a kind that the model lacks,
// Error(environment) when a layer does not fit.
Measured measure_layers(const Graph& graph, const Model& model, const std::shared_ptr<Device>& device,
                        const std::map<std::string, Tensor>& inputs, const MeasureOptions& options);

}  // namespace het::planner
