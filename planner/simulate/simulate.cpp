#include "planner/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "planner/simulate/state.h"

namespace het::planner {

std::string_view name_of(SimEvent::Kind kind) {
  switch (kind) {
    case SimEvent::Kind::forward: return "forward";
    case SimEvent::Kind::backward: return "backward";
    case SimEvent::Kind::weight: return "weight gradient";
    case SimEvent::Kind::send: return "send";
    case SimEvent::Kind::reduce: return "reduce";
    case SimEvent::Kind::update: return "update";
    case SimEvent::Kind::gather: return "gather";
  }
  return "unknown";
}

void SimulatorState::prepare(const PlanLayout& given, const SimulateOptions& with) {
  layout = &given;
  options = with;
  HET_REQUIRE(costs.tensor == given.tensor && costs.microbatch == given.microbatch, costs.tensor,
              costs.microbatch, given.tensor, given.microbatch);
  heap.clear();
  events.clear();
  sequence = 0;
  stage_base.clear();
  int stages = 0;
  for (const PipelineLayout& pipeline : given.pipelines) {
    stage_base.push_back(stages);
    stages += static_cast<int>(pipeline.stages.size());
  }
  for (auto* values : {&synced, &optimizer_bytes, &update_seconds, &packing_seconds, &exposed_exchange,
                       &exposed_gather, &counted_until})
    values->assign(static_cast<size_t>(stages), 0);
  stream_free.assign(2 * synced.size(), 0);
  find_groups();
  find_interfaces();
  classify();
}

// Devices of a host go to stages in the order of the plan, as to_plan names them.
void SimulatorState::find_interfaces() {
  stage_interfaces.clear();
  place_interfaces.clear();
  if (!one_each) next_device.assign(static_cast<size_t>(hosts), 0);
  const auto take = [&](const DevicePlace& place, int count) {
    if (one_each) return Interfaces{host(place), 1};
    int& next = next_device[static_cast<size_t>(host(place))];
    next += count;
    return interfaces_at(place, next - count, count);
  };
  for (size_t p = 0; p < layout->pipelines.size(); ++p) {
    const auto& stages = layout->pipelines[p].stages;
    const size_t workers = stages.size() / static_cast<size_t>(layout->chunks);
    for (size_t s = 0; s < stages.size(); ++s) {
      const StageLayout& stage = stages[s];
      if (s >= workers) {  // its devices are those of an earlier chunk
        stage_interfaces.push_back(stage_interfaces[at(p, s - workers)]);
        if (const auto known = place_interfaces.find(at(p, s - workers)); known != place_interfaces.end())
          place_interfaces[at(p, s)] = known->second;
      } else if (stage.group < 0) {
        stage_interfaces.push_back(take({stage.node, stage.host}, layout->tensor));
      } else {
        std::vector<Interfaces>& own = place_interfaces[at(p, s)];
        for (const DevicePlace& place : layout->groups[static_cast<size_t>(stage.group)].places)
          own.push_back(take(place, 1));
        stage_interfaces.push_back(own[0]);
      }
    }
  }
}

void SimulatorState::find_groups() {
  groups.clear();
  for (const TensorGroup& group : layout->groups) {
    std::vector<int64_t> key;
    std::map<DevicePlace, int> hosts;
    for (size_t r = 0; r < group.places.size(); ++r) {
      const int host = hosts.emplace(group.places[r], static_cast<int>(hosts.size())).first->second;
      key.insert(key.end(), {group.shares[r], group.places[r].node, host});
    }
    std::unique_ptr<GroupCosts>& known = known_groups[key];
    if (!known) known = std::make_unique<GroupCosts>(make_group_costs(group, tables));
    groups.push_back(known.get());
  }
}

// Whether what one stage sends to the other leaves a host.
bool SimulatorState::crosses(const StageLayout& a, const StageLayout& b) const {
  if (host(a) != host(b)) return true;
  for (const StageLayout* stage : {&a, &b})
    if (stage->group >= 0)
      for (const DevicePlace& place : layout->groups[static_cast<size_t>(stage->group)].places)
        if (host(place) != host(a)) return true;
  return false;
}

double SimulatorState::gather_seconds(int node, double bytes, int ranks) const {
  return ranks > 1 ? costs.nodes[static_cast<size_t>(node)].inside.seconds(bytes * (ranks - 1) / ranks) : 0;
}

Hop SimulatorState::hop_between(size_t pipeline, size_t sends, size_t receives, double bytes) const {
  const auto& stages = layout->pipelines[pipeline].stages;
  const StageLayout &from = stages[sends], &to = stages[receives];
  const std::vector<DevicePlace> senders = places_of(*layout, from), receivers = places_of(*layout, to);
  const auto interfaces_of = [&](size_t stage, size_t rank) {
    const auto found = place_interfaces.find(at(pipeline, stage));
    return found == place_interfaces.end() ? stage_interfaces[at(pipeline, stage)] : found->second[rank];
  };
  const bool alike = shares_of(*layout, from) == shares_of(*layout, to);
  const auto elsewhere = [&](const DevicePlace& place) { return host(place) != host(receivers[0]); };
  const bool divided = alike && std::none_of(receivers.begin(), receivers.end(), elsewhere) &&
                       std::any_of(senders.begin(), senders.end(), elsewhere);
  const double each = divided ? bytes / static_cast<double>(receivers.size()) : bytes;
  Hop hop;
  if (divided) hop.gather_seconds = gather_seconds(to.node, bytes, static_cast<int>(receivers.size()));
  std::vector<double> inside(senders.size(), 0);
  for (size_t r = 0; r < receivers.size(); ++r) {
    const size_t s =
        r * senders.size() / receivers.size();  // the nearest, as in planner/lower/rank_messages.cpp
    const DevicePlace &a = senders[s], &b = receivers[r];
    if (a == b) {
      inside[s] += each;
      hop.inside_seconds =
          std::max(hop.inside_seconds, costs.nodes[static_cast<size_t>(a.node)].inside.seconds(inside[s]));
      continue;
    }
    const Link& link = costs.link(a.node, b.node);
    if (!hop.crosses || link.bytes_per_second < hop.link.bytes_per_second) hop.link = link;
    hop.crosses = true;
    hop.out = interfaces_of(sends, s);
    hop.in = interfaces_of(receives, r);
    hop.bytes += each;
  }
  return hop;
}

// Which pipelines are alike, and whether one may stand for all of them.
void SimulatorState::classify() {
  int64_t tasks = 0;
  bool shared = false;
  out_users.assign(static_cast<size_t>(interfaces), -1);
  const auto& pipelines = layout->pipelines;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    const auto& stages = pipelines[p].stages;
    tasks += static_cast<int64_t>(pipelines[p].microbatches) * static_cast<int64_t>(stages.size());
    for (size_t s = 0; s < stages.size(); ++s) {
      const bool leaves = (s + 1 < stages.size() && crosses(stages[s], stages[s + 1])) ||
                          (s > 0 && crosses(stages[s], stages[s - 1]));
      if (!leaves) continue;
      each_interface(p, s, [&](int at) {
        int& user = out_users[static_cast<size_t>(at)];
        if (user >= 0 && user != static_cast<int>(p)) shared = true;
        user = static_cast<int>(p);
      });
    }
  }
  shared = shared && options.contention && options.transfers;
  const bool merge = !options.events && (!shared || tasks > options.merge_above);
  class_of.clear();
  size_t used = 0;
  std::map<std::vector<int>, int> known;
  std::map<std::tuple<int, size_t, size_t, int>, int> crowds;  // (class, stage, end, port) -> pipelines
  std::vector<int> key;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    int index = static_cast<int>(used);
    if (merge) {
      key.assign(
          {pipelines[p].microbatches, static_cast<int>(layout->schedule), layout->warmup, layout->chunks});
      const auto& stages = pipelines[p].stages;
      for (size_t s = 0; s < stages.size(); ++s) {
        key.insert(key.end(), {stages[s].node, stages[s].first, stages[s].layers, stages[s].recompute,
                               s > 0 && host(stages[s]) == host(stages[s - 1])});
        if (!one_each) key.push_back(stage_interfaces[at(p, s)].count);
        if (!options.pace.empty()) key.push_back(static_cast<int>(std::lround(1e6 * pace_factor(p, s))));
        if (stages[s].group < 0) continue;
        const TensorGroup& group = layout->groups[static_cast<size_t>(stages[s].group)];
        key.push_back(-static_cast<int>(group.places.size()));
        for (size_t r = 0; r < group.places.size(); ++r)
          key.insert(key.end(),
                     {static_cast<int>(group.shares[r]), group.places[r].node, group.places[r].host});
      }
      index = known.emplace(key, index).first->second;
    }
    if (index == static_cast<int>(used)) {
      if (classes.size() <= used) classes.emplace_back();
      if (options.contention)
        fill(classes[used], p);
      else
        classes[used] = run_apart(key, p);
      ++used;
    }
    class_of.push_back(index);
    if (merge && shared)
      for (size_t s = 0; s + 1 < pipelines[p].stages.size(); ++s) {
        if (!crosses(pipelines[p].stages[s], pipelines[p].stages[s + 1])) continue;
        for (const size_t end : {s, s + 1}) {
          const int crowd = ++crowds[{index, s, end, stage_interfaces[at(p, end)].first}];
          double& most = classes[static_cast<size_t>(index)].crowd[s];
          most = std::max(most, static_cast<double>(crowd));
        }
      }
  }
  classes.resize(used);
  lanes.clear();
  lane_base.clear();
  int edges = 0;
  for (const PipelineState& each : classes) {
    lane_base.push_back(edges);
    edges += static_cast<int>(each.stages.size());
  }
  lane_of.assign(static_cast<size_t>(2 * edges), -1);
  ports.reset(static_cast<size_t>(2 * interfaces) + link_resources.size());
}

void SimulatorState::fill(PipelineState& state, size_t source) {
  const PipelineLayout& from = layout->pipelines[source];
  const size_t stages = from.stages.size(), workers = stages / static_cast<size_t>(layout->chunks);
  state.source = static_cast<int>(source);
  state.microbatches = from.microbatches;
  state.stages.assign(stages, {});
  state.workers.assign(workers, {});
  state.crowd.assign(stages, 1);
  state.hosts.clear();
  state.interfaces.clear();
  state.hops.clear();
  bool has_groups = false;
  for (size_t s = 0; s < stages; ++s) {
    const StageLayout& stage = from.stages[s];
    const NodeCosts& node = pace_of(stage);
    const auto first = static_cast<size_t>(stage.first), last = first + static_cast<size_t>(stage.layers);
    StageState& to = state.stages[s];
    const double pace = pace_factor(source, s);
    to.forward = pace * (node.forward[last] - node.forward[first]);
    to.input = pace * (node.input[last] - node.input[first]);
    to.weight = pace * (node.weight[last] - node.weight[first]);
    to.backward = to.input + (stage.recompute ? pace * (node.recompute[last] - node.recompute[first]) : 0) +
                  (layout->schedule == Schedule::split_backward ? 0 : to.weight);
    to.held_bytes = costs.held_bytes(stage.first, stage.first + stage.layers, stage.recompute);
    state.hosts.push_back(host(stage));
    state.interfaces.push_back(stage_interfaces[at(source, s)]);
    has_groups = has_groups || stage.group >= 0;
  }
  for (size_t s = 0; has_groups && s + 1 < stages; ++s) {
    const double bytes = costs.boundary_before(from.stages[s + 1].first);
    state.hops.push_back(hop_between(source, s, s + 1, bytes));
    state.hops.push_back(hop_between(source, s + 1, s, bytes));
  }
  state.stages[0].forwards_arrived = from.microbatches;
  if (layout->schedule == Schedule::interleaved) order_interleaved(state, layout->chunks);
}

Simulator::Simulator(const CostTable& costs, const Cluster& cluster, CostProvider tables)
    : state_(std::make_unique<SimulatorState>(costs, cluster, std::move(tables))) {}
Simulator::~Simulator() = default;

namespace {

double seconds_between(const NodeCosts& node, int first, int last, bool recompute) {
  const auto range = [&](const std::vector<double>& prefix) {
    return prefix[static_cast<size_t>(last)] - prefix[static_cast<size_t>(first)];
  };
  return range(node.forward) + range(node.input) + range(node.weight) +
         (recompute ? range(node.recompute) : 0);
}

// The most that a device of a stage's group holds at once. `device`: what it costs; `optimizer`: bytes of the
// optimizer state that it has of each chunk; `in_flight`: most bytes of micro-batches in flight.
template <typename Optimizer>
double device_bytes(const SimulatorState& state, size_t p, size_t e, const CostTable& device,
                    double in_flight, const Optimizer& optimizer) {
  const auto& stages = state.layout->pipelines[p].stages;
  const PipelineState& pipeline = state.class_at(p);
  // With a split backward, those whose weight gradients wait, and the one that runs.
  const int waiting = state.layout->schedule == Schedule::split_backward ? static_cast<int>(e) + 1 : 0;
  double bytes = 0, running = 0;
  for (size_t s = e; s < stages.size(); s += pipeline.workers.size()) {
    const int peak = pipeline.stages[s].peak, end = stages[s].first + stages[s].layers;
    const bool recompute = stages[s].recompute;
    const double own = device.running_bytes(stages[s].first, end, recompute);
    bytes += device.stage_bytes(stages[s].first, end, peak, recompute, 0, waiting) -
             peak * device.held_bytes(stages[s].first, end, recompute) - own + optimizer(s);
    running = std::max(running, own);
  }
  return bytes + (running + in_flight);
}

// Bytes of micro-batches in flight of a device whose share differs from what the run counted: in proportion.
double in_flight_bytes(const SimulatorState& state, size_t p, size_t e, const CostTable& device) {
  const auto& stages = state.layout->pipelines[p].stages;
  const PipelineState& pipeline = state.class_at(p);
  double counted = 0, own = 0;
  for (size_t s = e; s < stages.size(); s += pipeline.workers.size()) {
    const int peak = pipeline.stages[s].peak, end = stages[s].first + stages[s].layers;
    counted += peak * pipeline.stages[s].held_bytes;
    own += peak * device.held_bytes(stages[s].first, end, stages[s].recompute);
  }
  return counted > 0 ? pipeline.workers[e].peak_bytes * own / counted : own;
}

// The devices of a group one by one; the stage's own figures are those of the device with the least to spare.
void add_devices(const SimulatorState& state, const GroupCosts& group, StageUse& use) {
  const auto p = static_cast<size_t>(use.pipeline), e = static_cast<size_t>(use.stage);
  const auto& stages = state.layout->pipelines[p].stages;
  const PipelineState& pipeline = state.class_at(p);
  for (size_t rank = 0; rank < group.kind_of.size(); ++rank) {
    const CostTable& device = group.of(rank);
    const NodeCosts& own = device.nodes[0];
    DeviceUse entry;
    entry.limit_bytes = own.memory_bytes;
    const auto optimizer = [&](size_t s) {
      return state.optimizer_elements(stages[s], device) * device.optimizer_bytes;
    };
    entry.memory_bytes = device_bytes(state, p, e, device, in_flight_bytes(state, p, e, device), optimizer);
    double seconds = 0, paced = 0;
    for (size_t s = e; s < stages.size(); s += pipeline.workers.size()) {
      const int first = stages[s].first, last = first + stages[s].layers;
      seconds += device.forward_seconds(0, first, last) +
                 device.backward_seconds(0, first, last, stages[s].recompute);
      paced += seconds_between(group.pace, first, last, stages[s].recompute);
    }
    entry.busy_seconds = paced > 0 ? use.busy_seconds * seconds / paced : 0;
    use.devices.push_back(entry);
  }
  const auto tightest =
      std::max_element(use.devices.begin(), use.devices.end(), [](const DeviceUse& a, const DeviceUse& b) {
        return a.memory_bytes - a.limit_bytes < b.memory_bytes - b.limit_bytes;
      });
  use.memory_bytes = tightest->memory_bytes;
  use.limit_bytes = tightest->limit_bytes;
}

}  // namespace

StageUse SimulatorState::use_of(size_t p, size_t e, double pipelines_end) const {
  const auto& stages = layout->pipelines[p].stages;
  const PipelineState& pipeline = class_at(p);
  StageUse use;
  use.pipeline = static_cast<int>(p);
  use.stage = static_cast<int>(e);
  use.busy_seconds = pipeline.workers[e].busy_seconds;
  use.idle_start = pipeline.stages[e].first_start;
  use.idle_end = pipelines_end - pipeline.workers[e].end;
  use.end_seconds = pipeline.workers[e].end;
  for (const SimWorker& worker : pipeline.workers)
    use.pipeline_end_seconds = std::max(use.pipeline_end_seconds, worker.end);
  use.exchange_seconds = exposed_exchange[at(p, e)];
  use.gather_seconds = exposed_gather[at(p, e)];
  for (size_t s = e; s < stages.size(); s += pipeline.workers.size()) {
    use.update_seconds += update_seconds[at(p, s)];
    use.in_flight += pipeline.stages[s].peak;
  }
  if (const GroupCosts* group = group_of(stages[e])) {
    add_devices(*this, *group, use);
    return use;
  }
  use.limit_bytes = costs.nodes[static_cast<size_t>(stages[e].node)].memory_bytes;
  use.memory_bytes = device_bytes(*this, p, e, costs, pipeline.workers[e].peak_bytes,
                                  [&](size_t s) { return optimizer_bytes[at(p, s)]; });
  return use;
}

Simulation Simulator::run(const PlanLayout& layout, const SimulateOptions& options) {
  SimulatorState& state = *state_;
  HET_REQUIRE(options.contention ||
              (!options.events && !options.runtime.blocking && options.transfers && options.pace.empty()));
  if (const auto problems = problems_of(options.runtime, layout.schedule, layout.warmup); !problems.empty())
    fail_usage("{}", problems[0]);
  if (options.runtime.blocking && !layout.groups.empty())
    fail_usage("runtime 'blocking' is simulated for stages of equal degrees alone");
  state.prepare(layout, options);
  if (options.runtime.blocking)
    state.run_blocking();
  else if (options.contention)
    state.run_pipelines();
  state.check_done();
  Simulation result;
  for (const PipelineState& pipeline : state.classes)
    for (const SimWorker& worker : pipeline.workers)
      result.pipeline_seconds = std::max(result.pipeline_seconds, worker.end);
  result.seconds = finish_step(state, result.pipeline_seconds, result);

  double busy = 0;
  int64_t workers = 0;
  for (size_t p = 0; p < layout.pipelines.size(); ++p)
    for (size_t e = 0; e < state.class_at(p).workers.size(); ++e) {
      StageUse use = state.use_of(p, e, result.pipeline_seconds);
      busy += use.busy_seconds;
      ++workers;
      result.over_bytes = std::max(result.over_bytes, use.memory_bytes - use.limit_bytes);
      if (options.details) result.stages.push_back(std::move(use));
    }
  result.fits = result.over_bytes <= 0;
  result.bubble = std::max(0.0, 1 - busy / (static_cast<double>(workers) * result.pipeline_seconds));
  if (options.events) result.events = std::move(state.events);
  return result;
}

Simulation simulate(const Plan& plan, const Cluster& cluster, const Model& model, const Profile& profile,
                    const SimulateOptions& options) {
  const PlanLayout layout = to_layout(plan, cluster);
  CostTables tables(cluster, model, profile, layout.microbatch);
  Simulator simulator(tables.with_links(layout.tensor), cluster, tables.provider());
  return simulator.run(layout, options);
}

}  // namespace het::planner
