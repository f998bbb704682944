// A plan in words and figures: for each device its layers, memory, busy share and what binds it; for the step
// its time, bubble, communication, money, and how far it is from the proven bound. Plain data, and as text.
#pragma once

#include <string>
#include <vector>

#include "planner/policy.h"
#include "planner/step_parts.h"
#include "planner/what_if.h"

namespace het::planner {

struct DeviceReport {
  std::string device, type;         // "a:0", "A100-80"
  int pipeline = 0, stage = 0;      // of its device group, as StageUse counts
  std::vector<StageLayout> chunks;  // its layers: one stage, of an interleaved plan several that take turns
  double memory_bytes = 0, free_bytes = 0;
  double busy_share = 0;  // of the step
  StepParts parts;        // the step, on this device
  std::string
      share;        // "3/4": of each layer, where its stage shares layers otherwise than the plan's `tensor`
  std::string why;  // what binds it
};

// Where the figures of a device type come from: its layers' times, and the link between two of its devices
// where there are two in a host.
struct SourceReport {
  std::string type;
  int layers_measured = 0, layers_interpolated = 0, layers_extrapolated = 0, layers_calibrated = 0,
      layers_estimated = 0;
  bool link_measured = false;
  std::string link;  // "measured", "from the data sheet", "as the cluster states it"; empty: there is none
  std::string
      calibrated_by;  // kinds of layers that scale the data sheet's times of others: "blocks and head"
};

// Between hosts of two zones, or of one.
struct LinkReport {
  std::string a, b;
  Link link;
  std::string_view source;  // "measured", "stated", or "assumed": the cluster does not state it
};

struct PlanReport {
  std::vector<DeviceReport> devices;  // in the order of pipelines and stages
  std::vector<std::string> idle;      // devices that the plan does not use
  // What the step goes to on the devices that compute longest; of it what binds, the largest part first; and
  // what would make it shorter, what gains most first.
  std::string slowest;  // "a:0-3"
  int slowest_pipeline = 0, slowest_stage = 0;
  StepParts parts;
  std::vector<std::string_view>
      binds;  // StepPart::name, and "memory": recompute or bubble that memory forces
  std::vector<WhatIf> helps;
  double step_seconds = 0, tokens_per_second = 0;
  std::string unit = "tokens";  // "samples": a model whose samples are no texts
  double bubble = 0, exposed_seconds = 0, update_seconds = 0;
  double lower_bound_seconds = 0, gap = 0;  // gap: how much longer than the bound, as a share of it
  // Where stages divide layers differently (Simulation::pieces): most exchanges of a device for one layer,
  // and what packing takes. 0: none do.
  int pieces = 0;
  double packing_seconds = 0;
  double price_per_hour = 0;  // of the hosts that are used
  double price_per_billion_tokens = 0;
  // Of the hosts that are used; and tokens a second with what preemptions cost (useful_share).
  double preemptions_per_hour = 0, goodput = 0;
  // Over the types that are used.
  int layers_measured = 0, layers_interpolated = 0, layers_extrapolated = 0, layers_calibrated = 0,
      layers_estimated = 0;
  std::vector<SourceReport> sources;  // one for each of these
  // Between zones, or hosts of one, that the plan uses.
  int links_measured = 0, links_stated = 0, links_assumed = 0;
  std::vector<LinkReport> links;  // of pairs of zones that have their own; the others have Cluster::between
  std::optional<Replanned> moved;
  double over_bytes = 0;  // most that a device lacks
  Objective objective = Objective::time;
};

// In bits, as networks are named: "25 Gbit/s".
std::string show_bandwidth(double bytes_per_second);

// `planned` must be feasible and of this request. Without helps, PlanReport::helps stays empty and `binds`
// has no "memory": the plan is then not simulated with every change.
PlanReport explain(const Request& request, const Planned& planned, bool with_helps = true);
// A table, then the figures of the step; devices of one stage on one line.
std::string to_text(const PlanReport& report);

}  // namespace het::planner
