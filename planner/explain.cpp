#include "planner/explain.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/plan/device_name.h"

namespace het::planner {
namespace {

// Of the slowest stage of a pipeline: what fills its time.
std::string what_fills(const StepParts& parts, const PipelineLayout& pipeline) {
  const double step = parts.total(), computes = parts.compute + parts.again;
  if (computes + parts.tensor >= 0.93 * step) return "compute: busy almost all the time; it sets the pace";
  const double exposed = parts.transfers + parts.gradients + parts.norms + parts.gather;
  const auto share = [&](double seconds) { return fmt::format("{:.0f} %", 100 * seconds / step); };
  std::string most = "compute";
  double longest = computes;
  const auto consider = [&](const char* name, double seconds) {
    if (seconds <= longest) return;
    longest = seconds;
    most = name;
  };
  consider("tensor-parallel collectives", parts.tensor);
  consider("bubble", parts.bubble);
  consider("exposed communication", exposed);
  consider("waiting for other pipelines", parts.waiting);
  consider("update", parts.update);
  if (most == "compute")
    most = "compute: the slowest of its pipeline";
  else
    most += fmt::format(": {} of the step", share(longest));
  if (parts.bubble >= 0.01 * step)
    most +=
        fmt::format("; {} {} of the step to fill and drain",
                    pipeline.microbatches == 1 ? "1 micro-batch leaves"
                                               : fmt::format("{} micro-batches leave", pipeline.microbatches),
                    share(parts.bubble));
  if (exposed >= 0.01 * step) most += fmt::format("; {} exposed communication", share(exposed));
  return most;
}

// Why a device of a stage has what it has, the strongest reason first. `costs` and `free`: of the device.
std::string reason(const CostTable& costs, double free, const PlanLayout& layout, const StageUse& use,
                   const StepParts& parts, const std::vector<StageLayout>& chunks, double busiest) {
  const PipelineLayout& pipeline = layout.pipelines[static_cast<size_t>(use.pipeline)];
  const auto count = static_cast<int>(chunks.size());
  int layers = 0;
  double bytes = 0;
  bool recompute = true;
  for (const StageLayout& chunk : chunks) {
    layers += chunk.layers;
    bytes += costs.stage_bytes(chunk.first, chunk.first + chunk.layers, (use.in_flight + count - 1) / count,
                               chunk.recompute, 0);
    recompute = recompute && chunk.recompute;
  }
  const bool more = layers < costs.layers;
  const double layer = bytes / layers;
  if (free < 0)
    return fmt::format("memory: {} are lacking{}", show_bytes(-free),
                       recompute ? " though it recomputes" : "");
  if (use.busy_seconds >= 0.97 * busiest) return what_fills(parts, pipeline);
  if (more && free < layer)
    return fmt::format("memory: another layer takes {}, {} are free{}", show_bytes(layer), show_bytes(free),
                       recompute ? " though it recomputes" : "");
  if (more) {
    const double with = use.busy_seconds * (layers + 1) / layers;
    if (with > busiest) return "whole layers: with one more it would be the slowest of its pipeline";
  }
  const double filling = use.idle_start + use.idle_end;
  if (parts.bubble > 0 && filling > 0.2 * use.pipeline_end_seconds)
    return "bubble: waits for the pipeline to fill and drain";
  return "slack: its pipeline's pace is set elsewhere";
}

// Of the devices of a stage, or of the stages that they take turns with.
std::vector<DeviceReport> devices_of(const Request& request, const Planned& planned, CostTables& tables,
                                     const StageUse& use, const StepParts& parts,
                                     const std::vector<StageLayout>& chunks, double busiest) {
  const PlanLayout& layout = planned.best.layout;
  const Simulation& simulation = planned.best.simulation;
  const Stage& stage =
      planned.plan.pipelines[static_cast<size_t>(use.pipeline)].stages[static_cast<size_t>(use.stage)];
  const std::vector<DevicePlace> places = places_of(layout, chunks[0]);
  const Shares shares = shares_of(layout, chunks[0]);
  const int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::optional<GroupCosts> group;
  if (chunks[0].group >= 0)
    group = make_group_costs(layout.groups[static_cast<size_t>(chunks[0].group)], tables.provider());
  std::vector<DeviceReport> devices;
  for (size_t r = 0; r < places.size(); ++r) {
    const bool own = r < use.devices.size();
    const double memory = own ? use.devices[r].memory_bytes : use.memory_bytes;
    const double limit = own ? use.devices[r].limit_bytes : use.limit_bytes;
    DeviceReport entry;
    entry.device = stage.devices[r];
    entry.type = request.cluster.nodes[static_cast<size_t>(places[r].node)].type;
    entry.pipeline = use.pipeline;
    entry.stage = use.stage;
    entry.chunks = chunks;
    entry.memory_bytes = memory;
    entry.free_bytes = limit - memory;
    const double busy = own ? use.devices[r].busy_seconds : use.busy_seconds;
    entry.busy_share = (busy + use.update_seconds) / simulation.seconds;
    entry.parts = parts;
    // The others of its group set the pace.
    const double own_share = use.busy_seconds > 0 ? busy / use.busy_seconds : 1;
    for (double StepParts::*part : {&StepParts::compute, &StepParts::again, &StepParts::tensor})
      entry.parts.*part *= own_share;
    entry.parts.tensor += parts.total() - entry.parts.total();
    if (group) entry.share = fmt::format("{}/{}", shares[r], all);
    entry.why = reason(group ? group->of(r) : tables.with_links(layout.tensor), limit - memory, layout, use,
                       parts, chunks, busiest);
    devices.push_back(std::move(entry));
  }
  return devices;
}

// The link that two zones have of their own; nullptr: Cluster::between.
const ZoneLink* own_link(const Cluster& cluster, const std::string& a, const std::string& b) {
  for (const ZoneLink& link : cluster.zone_links)
    if ((link.a == a && link.b == b) || (link.a == b && link.b == a)) return &link;
  return nullptr;
}

std::string_view source_of(const Request& request, const ZoneLink* link, const std::string& a,
                           const std::string& b) {
  if (measured_between(request.profile, request.cluster, a, b)) return "measured";
  return link != nullptr && link->assumed ? "assumed" : "stated";
}

// Where the links between hosts come from; `used`: the hosts of the plan.
void add_links(const Request& request, const std::set<std::pair<int, int>>& used, PlanReport& report) {
  const Cluster& cluster = request.cluster;
  for (const ZoneLink& link : cluster.zone_links)
    report.links.push_back({link.a, link.b, link.link, source_of(request, &link, link.a, link.b)});
  std::map<std::string, int> zones;  // how many of the used hosts are in each
  for (const auto& [node, host] : used) ++zones[cluster.nodes[static_cast<size_t>(node)].zone];
  for (auto a = zones.begin(); a != zones.end(); ++a)
    for (auto b = a; b != zones.end(); ++b) {
      if (a == b && a->second < 2) continue;
      const std::string_view source =
          source_of(request, own_link(cluster, a->first, b->first), a->first, b->first);
      ++(source == "measured"  ? report.links_measured
         : source == "assumed" ? report.links_assumed
                               : report.links_stated);
    }
}

// "a:0-3": devices of one host together.
std::string show_devices(const std::vector<std::string>& devices) {
  std::string text;
  for (size_t i = 0; i < devices.size();) {
    const std::string_view host = host_of(devices[i]);
    size_t last = i;
    while (last + 1 < devices.size() && host_of(devices[last + 1]) == host) ++last;
    text += (text.empty() ? "" : ", ") + devices[i];
    if (last > i) text += fmt::format("-{}", number_of(devices[last]));
    i = last + 1;
  }
  return text;
}

// Stages compute while others' transfers pass an interface, so that a link can set the pace of stages that
// compute most of the step: it binds where its double gains as much as kBinds asks of a part divided by
// three, first where it gains more than faster stages do, and alone where these gain nothing.
void add_links(PlanReport& report) {
  double links = 0, stages = 0;
  for (const WhatIf& what : report.helps) {
    if (what.kind == WhatIf::Kind::link || what.kind == WhatIf::Kind::all_links)
      links = std::max(links, what.gain);
    if (what.kind == WhatIf::Kind::slowest_stages) stages = what.gain;
  }
  if (links < kBinds / 3) return;
  std::string_view largest;
  double most = 0;
  for (const StepPart& part : step_parts())
    for (const auto seconds : {&StepParts::transfers, &StepParts::gradients, &StepParts::gather})
      if (part.seconds == seconds && report.parts.*seconds > most) {
        most = report.parts.*seconds;
        largest = part.name;
      }
  if (largest.empty()) return;
  const bool is_first = !report.binds.empty() && report.binds.front() == largest;
  std::erase(report.binds, largest);
  if (stages < kGains) std::erase(report.binds, "compute");
  report.binds.insert(is_first || links > stages ? report.binds.begin() : report.binds.end(), largest);
}

// What the step goes to where it is slowest, what binds it, and what would help. Memory binds where a change
// that lacks memory gains as much as kBinds asks of a part divided by three.
void add_binding(const Request& request, const Planned& planned, const std::vector<StepParts>& parts,
                 bool with_helps, PlanReport& report) {
  const size_t slowest = slowest_stage(planned.best.simulation);
  const StageUse& use = planned.best.simulation.stages[slowest];
  report.slowest_pipeline = use.pipeline;
  report.slowest_stage = use.stage;
  report.slowest = show_devices(planned.plan.pipelines[static_cast<size_t>(use.pipeline)]
                                    .stages[static_cast<size_t>(use.stage)]
                                    .devices);
  report.parts = parts[slowest];
  report.binds = what_binds(report.parts);
  if (with_helps) report.helps = what_helps(request, planned);
  add_links(report);
  for (const WhatIf& what : report.helps)
    if (what.lacks_bytes > 0 && what.gain >= kBinds / 3 && planned.best.simulation.fits) {
      report.binds.emplace_back("memory");
      break;
    }
  report.over_bytes = std::max(0.0, planned.best.simulation.over_bytes);
  if (report.over_bytes > 0) report.binds.insert(report.binds.begin(), "memory");
}

}  // namespace

std::string show_bandwidth(double bytes_per_second) {
  return show_count(bytes_per_second * 8) + (bytes_per_second * 8 < 1000 ? " bit/s" : "bit/s");
}

PlanReport explain(const Request& request, const Planned& planned, bool with_helps) {
  HET_REQUIRE(planned.feasible);
  const PlanLayout& layout = planned.best.layout;
  const Simulation& simulation = planned.best.simulation;
  CostTables tables(request.cluster, request.model, request.profile, layout.microbatch);
  const CostTable& costs = tables.with_links(layout.tensor);
  PlanReport report;
  report.step_seconds = simulation.seconds;
  report.tokens_per_second = static_cast<double>(request.batch) * request.model.tokens / simulation.seconds;
  if (request.model.tokens == 1) report.unit = "samples";
  report.bubble = simulation.bubble;
  report.exposed_seconds = simulation.exposed_seconds;
  report.update_seconds = simulation.update_seconds;
  report.pieces = simulation.pieces;
  report.packing_seconds = simulation.packing_seconds;
  report.lower_bound_seconds = planned.lower_bound_seconds;
  report.gap = planned.lower_bound_seconds > 0 ? simulation.seconds / planned.lower_bound_seconds - 1 : 0;

  std::vector<double> busiest(layout.pipelines.size(), 0);
  for (const StageUse& use : simulation.stages)
    busiest[static_cast<size_t>(use.pipeline)] =
        std::max(busiest[static_cast<size_t>(use.pipeline)], use.busy_seconds);
  std::set<std::string> used;
  std::set<std::pair<int, int>> hosts;
  std::set<int> nodes;
  const std::vector<StepParts> parts = parts_of_stages(request, planned);
  add_binding(request, planned, parts, with_helps, report);
  for (size_t i = 0; i < simulation.stages.size(); ++i) {
    const StageUse& use = simulation.stages[i];
    const auto p = static_cast<size_t>(use.pipeline);
    const std::vector<StageLayout> chunks = chunks_of(layout, use.pipeline, use.stage);
    for (DeviceReport& entry : devices_of(request, planned, tables, use, parts[i], chunks, busiest[p])) {
      used.insert(entry.device);
      report.devices.push_back(std::move(entry));
    }
    for (const DevicePlace& place : places_of(layout, chunks[0])) {
      hosts.emplace(place.node, place.host);
      nodes.insert(place.node);
    }
  }
  for (int n = 0; n < static_cast<int>(request.cluster.nodes.size()); ++n) {
    const Machine& node = request.cluster.nodes[static_cast<size_t>(n)];
    for (int h = 0; h < static_cast<int>(node.hosts.size()); ++h)
      for (int d = 0; d < node.devices; ++d)
        if (const std::string name = device_name(request.cluster, n, h, d); used.count(name) == 0)
          report.idle.push_back(name);
  }
  const UsedHosts on = used_hosts(request.cluster, layout);
  report.price_per_hour = on.price_per_hour;
  report.preemptions_per_hour = on.preemptions_per_hour;
  report.goodput = report.tokens_per_second * useful_share(on.preemptions_per_hour);
  report.price_per_billion_tokens = report.price_per_hour / 3600 * 1e9 / report.tokens_per_second;
  for (const int node : nodes) {
    const NodeCosts& of = costs.nodes[static_cast<size_t>(node)];
    const Machine& place = request.cluster.nodes[static_cast<size_t>(node)];
    const auto known = std::find_if(report.sources.begin(), report.sources.end(),
                                    [&](const SourceReport& source) { return source.type == place.type; });
    if (known != report.sources.end()) continue;
    const bool own_link = place.inside.latency_seconds != 0 || place.inside.bytes_per_second != 0;
    const DeviceType* known_type = find_device_type(place.type);
    SourceReport source{place.type,
                        of.measured,
                        of.interpolated,
                        of.extrapolated,
                        of.calibrated,
                        of.estimated,
                        !own_link && measured_inside(request.profile, place.type).has_value(),
                        "",
                        ""};
    if (of.calibrated > 0)
      source.calibrated_by = fmt::format(
          "{}", fmt::join(calibrating_kinds(request.profile, request.model, place.type), " and "));
    if (source.link_measured)
      source.link = "measured";
    else if (place.devices > 1)
      source.link =
          !own_link && known_type != nullptr && known_type->inside == inside_link(request.cluster, node)
              ? "from the data sheet"
              : "as the cluster states it";
    report.sources.push_back(std::move(source));
    report.layers_measured += of.measured;
    report.layers_interpolated += of.interpolated;
    report.layers_extrapolated += of.extrapolated;
    report.layers_calibrated += of.calibrated;
    report.layers_estimated += of.estimated;
  }
  add_links(request, hosts, report);
  report.moved = planned.moved;
  report.objective = request.objective;
  return report;
}

namespace {

// What changing to the plan moves, and what the fastest would have moved.
std::string to_text(const Replanned& moved, const PlanReport& report) {
  const Move& move = moved.move;
  std::string text;
  if (move.bytes <= 0) {
    text = "no state moves: every device holds what it needs\n";
  } else {
    constexpr size_t kListed = 8;
    text = fmt::format("{} of state move{}:", show_bytes(move.bytes),
                       move.bytes > move.unavailable_bytes
                           ? fmt::format(", {} over the links", show_seconds(move.seconds))
                           : "");
    for (size_t i = 0; i < std::min(move.devices.size(), kListed); ++i)
      text += fmt::format("{} {} to {}", i == 0 ? "" : ",", show_bytes(move.devices[i].bytes()),
                          move.devices[i].device);
    if (move.devices.size() > kListed) text += fmt::format(", and to {} more", move.devices.size() - kListed);
    text += '\n';
    if (move.unavailable_bytes > 0)
      text += fmt::format("of it {} are held by no device that is left: a snapshot must have them\n",
                          show_bytes(move.unavailable_bytes));
  }
  const char* best = report.objective == Objective::time ? "fastest" : "best";
  if (moved.best_bytes > move.bytes)
    text += fmt::format("the {} plan takes {:.2f} % {} and would move {}\n", best,
                        100 * std::abs(1 - moved.best_seconds / report.step_seconds),
                        moved.best_seconds <= report.step_seconds ? "less" : "more",
                        show_bytes(moved.best_bytes));
  else
    text += fmt::format("this is the {} plan; none within {:g} % of it moves less\n", best, 100 * moved.near);
  return text;
}

// "recomputes; " of a device that computes all its layers again, "recomputes 4-6; " of one that does some.
std::string recomputed(const std::vector<StageLayout>& chunks) {
  std::vector<StageLayout> again;
  for (const StageLayout& chunk : chunks)
    if (chunk.recompute) again.push_back(chunk);
  if (again.empty()) return "";
  return again.size() == chunks.size() ? "recomputes; " : fmt::format("recomputes {}; ", show_layers(again));
}

// Devices of one stage and host with equal figures share a line.
bool on_one_line(const DeviceReport& a, const DeviceReport& b) {
  return a.pipeline == b.pipeline && a.stage == b.stage && a.type == b.type && a.share == b.share &&
         a.memory_bytes == b.memory_bytes && host_of(a.device) == host_of(b.device);
}

// ", 1 assumed: 10 Gbit/s, 50 us". All assumed links are equal.
std::string assumed(const PlanReport& report) {
  if (report.links_assumed == 0) return "";
  const auto first = std::find_if(report.links.begin(), report.links.end(),
                                  [](const LinkReport& link) { return link.source == "assumed"; });
  return fmt::format(", {} assumed: {}, {}", report.links_assumed,
                     show_bandwidth(first->link.bytes_per_second), show_seconds(first->link.latency_seconds));
}

// "what binds: ...", "what helps: ...", a line each.
std::string binding_text(const PlanReport& report) {
  constexpr size_t kShown = 4;
  std::string binds, helps;
  for (const std::string_view name : report.binds) {
    binds += binds.empty() ? "" : ", ";
    if (name == "memory" && report.over_bytes > 0) {
      binds += fmt::format("memory (a device lacks {})", show_bytes(report.over_bytes));
      continue;
    }
    if (name == "memory") {
      const auto what = std::find_if(report.helps.begin(), report.helps.end(),
                                     [](const WhatIf& each) { return each.lacks_bytes > 0; });
      binds += fmt::format("memory ({})", to_text(*what));
      continue;
    }
    binds += (name == "compute" ? "the slowest stage's " : "") + to_text(report.parts, name);
  }
  size_t shown = 0;
  for (const WhatIf& what : report.helps)
    if (what.lacks_bytes <= 0 && shown++ < kShown) helps += (helps.empty() ? "" : "; ") + to_text(what);
  return fmt::format(
      "what binds: {}\nwhat helps, each alone: {}\n", binds.empty() ? "no single part" : binds,
      helps.empty() ? fmt::format("no change that was simulated gains {:g} %", 100 * kGains) : helps);
}

}  // namespace

std::string to_text(const PlanReport& report) {
  size_t wide = 8;  // of the column of layers
  for (const DeviceReport& device : report.devices) wide = std::max(wide, show_layers(device.chunks).size());
  std::string text = fmt::format("{:<16} {:<10} {:>{}} {:>10} {:>10} {:>5}  {}\n", "device", "type", "layers",
                                 wide, "memory", "free", "busy", "why");
  for (size_t i = 0; i < report.devices.size();) {
    const DeviceReport& device = report.devices[i];
    size_t last = i;
    while (last + 1 < report.devices.size() && on_one_line(device, report.devices[last + 1])) ++last;
    const std::string name =
        last == i ? device.device
                  : fmt::format("{}-{}", device.device, number_of(report.devices[last].device));
    if (i == 0 || report.devices[i - 1].pipeline != device.pipeline)
      text += fmt::format("pipeline {}\n", device.pipeline + 1);
    text += fmt::format("{:<16} {:<10} {:>{}} {:>10} {:>10} {:>4.0f}%  {}{}{}\n", name, device.type,
                        show_layers(device.chunks), wide, show_bytes(device.memory_bytes),
                        show_bytes(device.free_bytes), 100 * device.busy_share,
                        device.share.empty() ? "" : device.share + " of each layer; ",
                        recomputed(device.chunks), device.why);
    i = last + 1;
  }
  if (!report.idle.empty()) text += fmt::format("not used: {}\n", fmt::join(report.idle, ", "));
  text += fmt::format("step {}, {} {}/s, devices idle {:.1f} %, exposed communication {}, update {}\n",
                      show_seconds(report.step_seconds), show_count(report.tokens_per_second), report.unit,
                      100 * report.bubble, show_seconds(report.exposed_seconds),
                      show_seconds(report.update_seconds));
  text += fmt::format("a step on {}, slowest in compute: {}\n", report.slowest, to_text(report.parts));
  text += binding_text(report);
  if (report.pieces > 0)
    text += fmt::format(
        "stages divide layers differently: gradients are exchanged in up to {} pieces a layer, packing them "
        "takes {}\n",
        report.pieces, show_seconds(report.packing_seconds));
  if (report.objective == Objective::time)
    text += fmt::format("no plan takes less than {}: this one is {:.1f} % above\n",
                        show_seconds(report.lower_bound_seconds), 100 * report.gap);
  else
    text += fmt::format("no plan takes less than {} a step; this one is chosen for its {}\n",
                        show_seconds(report.lower_bound_seconds), name_of(report.objective));
  if (report.price_per_hour > 0)
    text += fmt::format("{:.2f} an hour, {:.2f} for a billion {}\n", report.price_per_hour,
                        report.price_per_billion_tokens, report.unit);
  if (report.preemptions_per_hour > 0)
    text += fmt::format("{:.3g} preemptions an hour leave {} {}/s, {:.1f} % of the time\n",
                        report.preemptions_per_hour, show_count(report.goodput), report.unit,
                        100 * report.goodput / report.tokens_per_second);
  for (const SourceReport& source : report.sources)
    text += fmt::format(
        "layer times on {}: {} measured, {} interpolated, {}{}{} estimated from the data sheet{}\n",
        source.type, source.layers_measured, source.layers_interpolated,
        source.layers_extrapolated > 0
            ? fmt::format("{} extrapolated beyond the sizes measured, ", source.layers_extrapolated)
            : "",
        source.layers_calibrated > 0 ? fmt::format("{} from the data sheet calibrated by {}, ",
                                                   source.layers_calibrated, source.calibrated_by)
                                     : "",
        source.layers_estimated, source.link.empty() ? "" : "; link " + source.link);
  if (report.links_measured + report.links_stated + report.links_assumed > 0)
    text += fmt::format("links between hosts: {} measured, {} as the cluster states them{}\n",
                        report.links_measured, report.links_stated, assumed(report));
  if (report.moved) text += to_text(*report.moved, report);
  return text;
}

}  // namespace het::planner
