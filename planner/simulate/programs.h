// The seconds of a step, from the programs of all ranks, instruction by instruction: each rank computes at
// its device's rates, a collective begins when its last member has started it and its queue and ways are
// free, and runs beside what is computed until it is awaited. These are the rules by which paced devices and
// shaped links (core/device/paced.h, core/comm/shaped.h) hold back real runs; each pass of a layer takes a
// launch beside, as simulations of layers count it (planner/profile/profile.h). Unlike simulate.h, which
// knows layers of a plan and decides among thousands of candidates, it takes programs as they are run,
// whatever their sharding. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/comm/steps.h"
#include "core/graph/placements.h"
#include "core/plan/plan.h"
#include "core/program/program.h"
#include "planner/hap/devices.h"
#include "planner/simulate/parts.h"

namespace het::planner {

// Seconds of a collective among these ranks when nothing delays it; of a message from the first to the
// second.
using WireTimeOf = std::function<WireTime(const CollectiveRequest&, const std::vector<int>& ranks)>;

struct ProgramUse {
  double compute_seconds = 0;
  double exposed_seconds = 0;  // that it waits for collectives, others' lateness included
  // The same apart, which adds up to the step: what it waits for is a message's or a collective's bytes, or
  // ranks that came to it later (bubble, where they are of its pipeline; else waiting).
  StepParts parts;
  // Of simulate_plan: what its program takes, but for kernels' workspace, and what its device has for plans.
  double memory_bytes = 0, limit_bytes = 0;
};

// A stretch of the step on one rank: it computes, or bytes of a collective or a message are on its ways.
struct ProgramEvent {
  int rank = 0;
  std::string what;  // "linear", "all_reduce"
  Phase phase = Phase::forward;
  int layer = -1, microbatch = -1;
  bool is_exchange = false;
  double StepParts::*part = nullptr;  // of exchanges: what of the step they are
  double start = 0, end = 0;          // seconds; what reaches into the step from the one before begins at 0
};

struct ProgramsTime {
  double seconds = 0;  // from the end of one step to the end of the next
  std::vector<ProgramUse> ranks;
  std::vector<ProgramEvent> events;  // of that step, where they are asked for
  bool fits() const;                 // every rank's program on its device
  size_t longest() const;            // the rank that computes longest
  double exposed_seconds() const;    // that it waits
};
// Fits where the other does not, or else is faster.
bool is_better(const ProgramsTime& time, const ProgramsTime& other);

// Programs and devices by rank; ranks whose parts are alike may have one program. `shared_ports`: what goes
// between machines passes their network interfaces, which the devices of a machine share; else every device
// has one. Throws Error(bug) for programs that wait for each other for ever.
ProgramsTime simulate_programs(const std::vector<const Program*>& programs,
                               const std::vector<hap::Device>& devices, const WireTimeOf& wire_time,
                               bool with_events = false, bool shared_ports = false);

// The programs of a plan's ranks for a graph of one micro-batch, as they are run (fused). Throws Error(usage)
// for a plan that cannot be run, or that names a device which the group has not.
ProgramsTime simulate_plan(const Graph& graph, const Plan& plan, const hap::DeviceGroup& group,
                           bool with_events = false);
// The same of a table's graph, whose table is not made once more. `only_fitting`: of a plan that does not fit
// only the memory is found, and `seconds` is infinite.
ProgramsTime simulate_plan(const PlacementTable& table, const Plan& plan, const hap::DeviceGroup& group,
                           bool only_fitting = false);

}  // namespace het::planner
