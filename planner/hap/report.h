// A synthesised program for people: what runs how, what is exchanged, what it costs, and against what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/hap/check.h"
#include "planner/hap/hap.h"
#include "planner/simulate/parts.h"

namespace het::planner::hap {

// Nodes or exchanges that are alike but for the number of their layer.
struct Instruction {
  std::string name;  // "blocks.*.mlp.up linear", of all layers, or "blocks.0-3,7.mlp.up linear"; or the value
                     // that is exchanged
  std::string rule;  // "x dim 0 -> y dim 0"; of an exchange "all_gather padded: dim 0 -> whole"
  Phase phase = Phase::forward;
  int count = 0;       // in a step, times micro-batches left out
  double bytes = 0;    // of these, on all devices together; 0: no exchange
  double seconds = 0;  // of all in a step
  bool is_exchange = false;
  int axis = 0;  // of the mesh: 1 among the devices of a row
};

struct DeviceShare {
  std::string device, type;
  int64_t share = 0;
  double part = 0;          // of what is cut; 1 where nothing is: it runs all
  double memory_bytes = 0;  // of its program
  double limit_bytes = 0;
};

// A way to lay out the graph: what is synthesised, or a baseline.
struct Compared {
  std::string name;
  bool found = false;
  double summed_seconds = 0;     // of computing and communication one after the other, as the search counts
  double simulated_seconds = 0;  // as it is run, communication beside computing
  bool fits = true;              // in the memory of its devices
  Plan plan;
  std::string problem;  // why there is none
};

// What the devices that compute least slow down.
struct Smaller {
  std::vector<std::string> without;  // these devices
  double simulated_seconds = 0;      // a step takes
};

struct Report {
  std::vector<DeviceShare> devices;
  std::vector<Instruction> instructions;
  std::vector<Compared> baselines;
  std::vector<Compared> meshes;  // of two axes: the best one that was simulated
  bool has_mesh = false;         // the plan is that one's
  bool is_cut = true;            // false: every device runs everything
  double mesh_seconds = 0;       // that the search for it took
  Plan plan;                     // what is best when it is run
  std::string chosen;            // the baseline whose plan that is; empty: none, it is synthesised
  std::string too_large;         // why the fastest program was not taken, a sentence; empty: it fits
  double simulated_seconds = 0;  // of it
  double exposed_seconds = 0;    // of these, that the rank which computes longest waits for others
  std::string slowest;           // that rank's device
  StepParts parts;               // what the step goes to there
  // One after the other.
  double seconds = 0, compute_seconds = 0, communication_seconds = 0, bound_seconds = 0;
  // Of the cheapest program along one axis; with overlap another may be faster.
  double cheapest_seconds = 0;
  double table_seconds = 0, search_seconds = 0;
  int searches = 0;
  std::optional<Gains> gains;  // where they are asked for
  std::optional<Check> check;
  std::vector<std::string> whole;  // operators without sharding rules, that every device runs whole
  std::optional<Smaller> smaller;  // some devices are better left out
  double gap = 0;                  // of the cheapest program without overlap to the bound
};

// With the plan of the least simulated step among the answer's and the baselines', of those that fit if any
// does; where the answer's best does not, also one that holds less (fitting.h), and where even a frugal one
// lacks memory, that one; with nothing beside it where it lacks more than a little. `with_meshes`: also
// programs along two axes (grids.h). Throws Error(usage) where no program can be run. `with_published`: HAP's
// published rules too, whose search takes as long as the answer's.
Report report_of(const Request& request, const Answer& answer, bool with_published, bool with_meshes = true);
std::string to_text(const Report& report);

}  // namespace het::planner::hap
