#include "planner/hap/stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "planner/hap/fitting.h"
#include "planner/hap/grids.h"
#include "planner/hap/ratios.h"

namespace het::planner::hap {
namespace {

using Devices = std::vector<int>;  // of the group, by number

constexpr int kMostStages = 4;
constexpr int kMostDevices = 64;
constexpr size_t kMostMeshes = 2;  // that are simulated
// Meshes and single stages are tried, which takes seconds, where what was found takes at most so much longer
// than the rival.
constexpr double kNearRival = 1.3;
// Programs of all ranks are written and simulated: no more instructions than about this many for a candidate.
constexpr double kMostInstructions = 2e6;

// Devices by kind, each kind after the other: the first stages get the first kinds.
std::vector<Devices> kinds_apart(const DeviceGroup& group, int stages) {
  Devices order(static_cast<size_t>(group.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return group.kind_of(a) < group.kind_of(b); });
  std::vector<Devices> result;
  for (int s = 0; s < stages; ++s)
    result.emplace_back(order.begin() + group.size() * s / stages,
                        order.begin() + group.size() * (s + 1) / stages);
  return result;
}

// Every stage some of each kind, in turn.
std::vector<Devices> kinds_together(const DeviceGroup& group, int stages) {
  std::vector<Devices> result(static_cast<size_t>(stages));
  const std::vector<Devices> apart = kinds_apart(group, 1);
  for (size_t i = 0; i < apart[0].size(); ++i) result[i % static_cast<size_t>(stages)].push_back(apart[0][i]);
  for (Devices& each : result) std::sort(each.begin(), each.end());
  return result;
}

// Neighbours in the cluster's order, whole machines as far as they go: where machines have devices of several
// kinds, or kinds take turns, so do stages. `zones`: machines of one zone stand together.
std::vector<Devices> machines_together(const DeviceGroup& group, int stages, bool zones) {
  Devices order(static_cast<size_t>(group.size()));
  std::iota(order.begin(), order.end(), 0);
  const auto device = [&](int d) -> const Device& { return group.devices()[static_cast<size_t>(d)]; };
  if (zones)
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return device(a).zone < device(b).zone; });
  std::vector<Devices> result(static_cast<size_t>(stages));
  size_t next = 0;
  for (int s = 0; s < stages; ++s) {
    Devices& own = result[static_cast<size_t>(s)];
    const size_t until = order.size() * static_cast<size_t>(s + 1) / static_cast<size_t>(stages);
    const auto goes_on = [&] {  // of the machine that the stage has begun
      return next > 0 && next < order.size() && device(order[next]).node == device(order[next - 1]).node &&
             device(order[next]).host == device(order[next - 1]).host &&
             order.size() - next > static_cast<size_t>(stages - 1 - s);
    };
    while (next < until || (!own.empty() && s + 1 < stages && goes_on())) own.push_back(order[next++]);
  }
  return result;
}

bool mixes_kinds(const DeviceGroup& group, const std::vector<Devices>& grouping) {
  return std::any_of(grouping.begin(), grouping.end(), [&](const Devices& devices) {
    return std::any_of(devices.begin(), devices.end(),
                       [&](int d) { return group.kind_of(d) != group.kind_of(devices[0]); });
  });
}

// "a:0", "a:1", "b:0" as "a:0-1", "b:0".
std::vector<std::string> ranges_of(const std::vector<std::string>& devices) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < devices.size();) {
    const size_t colon = devices[i].rfind(':') + 1;
    const std::string node = devices[i].substr(0, colon);
    const int first = std::stoi(devices[i].substr(colon));
    int count = 1;
    while (i + static_cast<size_t>(count) < devices.size() &&
           devices[i + static_cast<size_t>(count)] == node + std::to_string(first + count))
      ++count;
    ranges.push_back(count == 1 ? devices[i] : fmt::format("{}-{}", devices[i], first + count - 1));
    i += static_cast<size_t>(count);
  }
  return ranges;
}

double rate_of(const DeviceGroup& group, const Devices& devices) {
  double rate = 0;
  for (const int d : devices) rate += group.rate(d);
  return rate;
}

class Stages {
 public:
  explicit Stages(const StagesRequest& request)
      : request_(request), group_(*request.group), grids_(grids_of(*request.group)) {}

  StagesAnswer run() {
    if (group_.size() < 2 || group_.size() > kMostDevices) return std::move(answer_);
    answer_.rival_seconds = request_.rival_seconds;
    if (request_.pipelines)
      add_pipelines();
    else if (simulate_rival())
      add_whole_groups();
    return std::move(answer_);
  }

 private:
  const SizedGraph* graph_of(int microbatch) const {
    for (const SizedGraph& each : request_.graphs)
      if (each.microbatch == microbatch) return &each;
    return nullptr;
  }

  // False: it is too large, or cannot be run.
  bool simulate_rival() {
    const Plan& rival = *request_.rival;
    const SizedGraph* sized = graph_of(rival.microbatch);
    HET_REQUIRE(sized != nullptr, rival.microbatch);
    int microbatches = 0;
    for (const Pipeline& pipeline : rival.pipelines)
      microbatches = std::max(microbatches, pipeline.microbatches);
    if (instructions(*sized->graph, microbatches) > kMostInstructions) return false;
    const auto time = simulate(*sized, rival);
    answer_.rival_seconds = time ? time->seconds : 0;
    return time.has_value();
  }

  // nullopt: it cannot be run, as where stages cannot exchange what passes between them.
  std::optional<ProgramsTime> simulate(const SizedGraph& sized, const Plan& plan) {
    try {
      return simulate_plan(table_of(sized), plan, group_);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bug) throw;
      return std::nullopt;
    }
  }

  void add_whole_groups() {
    for (const SizedGraph& each : request_.graphs) {
      if (request_.batch % each.microbatch != 0) continue;
      const int microbatches = request_.batch / each.microbatch;
      if (instructions(*each.graph, microbatches) <= kMostInstructions && add_whole(each, microbatches))
        break;
    }
  }

  void add_pipelines() {
    const int layers = static_cast<int>(request_.graphs[0].graph->layers.size());
    for (int stages = 2; stages <= std::min({kMostStages, layers, group_.size()}); ++stages) {
      std::set<std::vector<Devices>> groupings{kinds_apart(group_, stages)};
      if (group_.kinds() > 1) groupings.insert(kinds_together(group_, stages));
      for (const bool zones : {false, true}) {
        std::vector<Devices> grouping = machines_together(group_, stages, zones);
        const bool is_empty = std::any_of(grouping.begin(), grouping.end(),
                                          [](const Devices& devices) { return devices.empty(); });
        if (!is_empty && mixes_kinds(group_, grouping)) groupings.insert(std::move(grouping));
      }
      for (const std::vector<Devices>& grouping : groupings)
        for (const int least : {2, 4}) add_pipeline(grouping, least * stages);
    }
  }

  // Of a program or a stage that takes so long when nothing overlaps: half of it at least.
  bool is_hopeless(double seconds) const {
    return answer_.rival_seconds > 0 && seconds / 2 > answer_.rival_seconds;
  }

  double instructions(const Graph& graph, int microbatches) const {
    return static_cast<double>(graph.nodes.size()) * microbatches * group_.size();
  }

  // All devices in one stage; whether it fits so.
  bool add_whole(const SizedGraph& sized, int microbatches) {
    Request request{&table_of(sized), &group_, microbatches, {}, sized.microbatch};
    bool fits = false, hopeless = false;
    const auto add = [&](const Plan& plan, std::string_view mesh = "") {
      const StagesCandidate* const judged = judge(plan, sized, microbatches, mesh);
      if (judged == nullptr) return;
      fits |= judged->time.fits();
      for (const StageAxis& axis : plan.sharding->axes) answer_.cuts_state |= !axis.sharding->state.empty();
    };
    bool is_wide = false;
    const std::vector<Synthesised> programs = programs_to_try(request, true, &is_wide);
    for (const Synthesised& each : programs) {
      if (is_hopeless(seconds_of(each.cost)))
        hopeless = true;
      else
        add(to_plan(request, each.program));
    }
    if (hopeless && answer_.candidates.empty()) answer_.cuts_state = true;  // smaller groups may do better
    const StagesCandidate* best = answer_.best();
    if (best != nullptr && best->time.seconds <= kNearRival * answer_.rival_seconds) {
      const std::vector<GridProgram> meshes = programs_for(request, grids_, false);
      for (size_t i = 0; i < std::min(meshes.size(), kMostMeshes); ++i)
        add(meshes[i].plan, meshes[i].grid->name + ": ");
    }
    if (fits || hopeless || programs.empty()) return fits || hopeless;
    request.is_wide = is_wide;
    const auto time = simulate(sized, to_plan(request, programs[0].program));
    if (const auto fitting =
            time ? fit(request, programs[0].program, *time, answer_.rival_seconds) : std::nullopt)
      add(fitting->plan);
    return fits;
  }

  // With the largest micro-batches that make at least so many.
  void add_pipeline(const std::vector<Devices>& grouping, int least) {
    const SizedGraph* found = nullptr;
    for (const SizedGraph& each : request_.graphs)
      if (request_.batch % each.microbatch == 0 && request_.batch / each.microbatch >= least &&
          (found == nullptr || each.microbatch > found->microbatch))
        found = &each;
    if (found == nullptr) return;
    const int microbatches = request_.batch / found->microbatch;
    if (instructions(*found->graph, microbatches) <= kMostInstructions)
      choose_programs(grouping, *found, microbatches);
  }

  // The cheapest program of each stage, or one that is faster when sums run beside the backward pass; where
  // that comes near the rival, stage by stage, data parallelism among them.
  void choose_programs(const std::vector<Devices>& grouping, const SizedGraph& sized, int microbatches) {
    // Without a stage of several devices it is a plain pipeline, which the planner's own search judges.
    if (std::all_of(grouping.begin(), grouping.end(), [](const Devices& each) { return each.size() == 1; }))
      return;
    std::vector<double> rates;
    for (const Devices& devices : grouping) rates.push_back(rate_of(group_, devices));
    const std::vector<int> layers = balanced_layers(layer_flops(*sized.graph), rates);
    if (answer_.rival_seconds > 0 &&
        arithmetic_seconds(*sized.graph, layers, rates, microbatches) >= answer_.rival_seconds)
      return;
    constexpr size_t kDataParallel = std::numeric_limits<size_t>::max();  // the last one
    std::vector<size_t> best;
    double seconds = kNearRival * answer_.rival_seconds;
    const auto add_if_better = [&](const std::vector<size_t>& choices) {
      const auto its = add(grouping, layers, sized, microbatches, choices);
      if (!its || *its >= seconds) return;
      best = choices;
      seconds = *its;
    };
    for (const size_t choice : {0, 1}) add_if_better(std::vector<size_t>(grouping.size(), choice));
    for (size_t s = 0; !best.empty() && s < grouping.size(); ++s)
      for (const size_t choice : {size_t{0}, size_t{1}, size_t{2}, kDataParallel}) {
        if (grouping[s].size() == 1 || choice == best[s]) continue;
        std::vector<size_t> choices = best;
        choices[s] = choice;
        add_if_better(choices);
      }
  }

  // The seconds of a step; nullopt: it cannot be run. `layers`, `choices`: of each stage, the latter among
  // its programs.
  std::optional<double> add(const std::vector<Devices>& grouping, const std::vector<int>& layers,
                            const SizedGraph& sized, int microbatches, const std::vector<size_t>& choices) {
    Plan plan;
    plan.microbatch = sized.microbatch;
    plan.pipelines = {{microbatches, {}}};
    int first = 0;
    for (size_t s = 0; s < grouping.size(); ++s) {
      double seconds = 0;
      auto stage = stage_of(grouping[s], {first, layers[s], receives(grouping, s)}, sized, microbatches,
                            choices[s], seconds);
      if (!stage || is_hopeless(seconds)) return std::nullopt;
      first += layers[s];
      plan.pipelines[0].stages.push_back(*std::move(stage));
    }
    plan.unlike_devices = std::any_of(grouping.begin(), grouping.end(), [&](const Devices& devices) {
      return group_.subgroup(devices).has_unlike_types();
    });
    const StagesCandidate* const judged = judge(plan, sized, microbatches);
    return judged != nullptr ? std::optional(judged->time.seconds) : std::nullopt;
  }

  // The link to a stage from those beside it: with as many seconds for a byte as their links have on average.
  Link receives(const std::vector<Devices>& grouping, size_t stage) const {
    Link all{0, 0};
    double seconds = 0;  // for a byte
    int links = 0;
    for (size_t other = stage == 0 ? 1 : stage - 1; other < std::min(grouping.size(), stage + 2); other += 2)
      for (const int from : grouping[other])
        for (const int to : grouping[stage]) {
          all.latency_seconds = std::max(all.latency_seconds, group_.link(from, to).latency_seconds);
          seconds += 1 / group_.link(from, to).bytes_per_second;
          ++links;
        }
    all.bytes_per_second = links / seconds;
    return all;
  }

  // The candidate of this plan, simulated unless it was; null where it cannot be run.
  const StagesCandidate* judge(const Plan& plan, const SizedGraph& sized, int microbatches,
                               std::string_view mesh = "") {
    for (const StagesCandidate& other : answer_.candidates)
      if (other.plan == plan) return &other;
    auto time = simulate(sized, plan);
    if (!time) return nullptr;
    std::vector<std::string> names;
    for (const Stage& stage : plan.pipelines[0].stages)
      names.push_back(fmt::format("{{ {} }}", fmt::join(ranges_of(stage.devices), ", ")));
    answer_.candidates.push_back({fmt::format("{}{}, {} micro-batch{}", mesh, fmt::join(names, " "),
                                              microbatches, microbatches == 1 ? "" : "es"),
                                  plan, *std::move(time)});
    return &answer_.candidates.back();
  }

  // Devices that share layers, by the program that suits these devices and layers.
  std::optional<Stage> stage_of(const Devices& devices, const StageLayers& layers, const SizedGraph& sized,
                                int microbatches, size_t choice, double& seconds) {
    Stage stage;
    stage.first_layer = layers.first;
    stage.layers = layers.count;
    for (const int d : devices) stage.devices.push_back(group_.devices()[static_cast<size_t>(d)].name);
    if (devices.size() == 1) return stage;
    // Equal devices with equal links have equal programs. Types and machines count by the first device of
    // them.
    std::vector<double> key{static_cast<double>(sized.microbatch), static_cast<double>(layers.first),
                            static_cast<double>(layers.count), layers.receives.bytes_per_second,
                            layers.receives.latency_seconds};
    const DeviceGroup group = group_.subgroup(devices);
    for (int a = 0; a < group.size(); ++a) {
      key.push_back(group_.kind_of(devices[static_cast<size_t>(a)]));
      const auto first_like = [&](const auto& is_alike) {
        int first = 0;
        while (!is_alike(group.devices()[static_cast<size_t>(first)])) ++first;
        key.push_back(first);
      };
      const Device& own = group.devices()[static_cast<size_t>(a)];
      first_like([&](const Device& other) { return other.type == own.type; });
      first_like([&](const Device& other) { return other.node == own.node && other.host == own.host; });
      for (int b = 0; b < group.size(); ++b) {
        key.push_back(group.link(a, b).bytes_per_second);
        key.push_back(group.link(a, b).latency_seconds);
      }
    }
    const auto [entry, fresh] = known_.emplace(std::move(key), std::vector<Cut>());
    if (fresh) entry->second = programs_of(group, layers, sized, microbatches);
    if (entry->second.empty()) return std::nullopt;
    const Cut& cut = entry->second[std::min(choice, entry->second.size() - 1)];
    seconds = cut.seconds;
    stage.shares = cut.shares;
    stage.sharding = cut.sharding;
    return stage;
  }

  const PlacementTable& table_of(const SizedGraph& sized) {
    auto& table = tables_[sized.microbatch];
    if (!table) table = std::make_unique<PlacementTable>(*sized.graph);
    return *table;
  }

  struct Cut {
    Shares shares;
    StageSharding sharding;
    double seconds = 0;  // of a step, without what it receives
  };
  // The cheapest one, then those that may be faster beside the backward pass.
  std::vector<Cut> programs_of(const DeviceGroup& group, const StageLayers& layers, const SizedGraph& sized,
                               int microbatches) {
    const PlacementTable& table = table_of(sized);
    Request request{&table, &group, microbatches, {}, sized.microbatch};
    request.layers = layers;
    bool& is_wide = wide_[sized.microbatch];
    request.is_wide = is_wide;
    std::vector<Cut> cuts;
    for (const Synthesised& each : programs_to_try(request, true, &is_wide))
      cuts.push_back({each.program.shares, along_one_axis(sharding_of(table, each.program)),
                      seconds_of(each.compute + each.communication)});
    return cuts;
  }

  const StagesRequest& request_;
  const DeviceGroup& group_;
  const std::vector<Grid> grids_;
  StagesAnswer answer_;
  std::map<int, std::unique_ptr<PlacementTable>> tables_;  // by micro-batch size
  std::map<int, bool> wide_;                               // the same: a search has found that it is
  std::map<std::vector<double>, std::vector<Cut>> known_;
};

}  // namespace

const StagesCandidate* StagesAnswer::best() const {
  const StagesCandidate* best = nullptr;
  for (const StagesCandidate& each : candidates)
    if (each.time.fits() && (best == nullptr || each.time.seconds < best->time.seconds)) best = &each;
  return best;
}

StagesAnswer plan_stages(const StagesRequest& request) { return Stages(request).run(); }

std::vector<double> layer_flops(const Graph& graph, std::optional<Phase> only) {
  std::vector<double> flops(graph.layers.size(), 0);
  for (const Node& node : graph.nodes)
    if (node.layer >= 0 && node.phase != Phase::update && (!only || node.phase == *only))
      flops[static_cast<size_t>(node.layer)] += cost_of(graph, node).flops;
  return flops;
}

double arithmetic_seconds(const Graph& graph, const std::vector<int>& layers,
                          const std::vector<double>& rates, int microbatches) {
  const std::vector<double> all = layer_flops(graph), forward = layer_flops(graph, Phase::forward);
  double least = 0, passed = 0;
  int first = 0;
  for (size_t s = 0; s < layers.size(); ++s) {
    const auto of_stage = [&](const std::vector<double>& flops) {
      return std::accumulate(flops.begin() + first, flops.begin() + first + layers[s], 0.0) / rates[s];
    };
    least = std::max(least, passed + microbatches * of_stage(all));
    passed += of_stage(forward) + (of_stage(all) - of_stage(forward)) / 2;
    first += layers[s];
  }
  return least;
}

// longest[s][l]: of the first s stages with the first l layers.
std::vector<int> balanced_layers(const std::vector<double>& flops, const std::vector<double>& rates) {
  const size_t n = flops.size(), stages = rates.size();
  HET_REQUIRE(stages >= 1 && stages <= n, stages, n);
  std::vector<double> before{0};
  for (const double each : flops) before.push_back(before.back() + each);
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> longest(stages + 1, std::vector<double>(n + 1, kNone));
  std::vector<std::vector<size_t>> begin(stages + 1, std::vector<size_t>(n + 1, 0));
  longest[0][0] = 0;
  for (size_t s = 1; s <= stages; ++s)
    for (size_t end = s; end <= n; ++end)
      for (size_t from = s - 1; from < end; ++from) {
        const double longer = std::max(longest[s - 1][from], (before[end] - before[from]) / rates[s - 1]);
        if (longer >= longest[s][end]) continue;
        longest[s][end] = longer;
        begin[s][end] = from;
      }
  std::vector<int> layers(stages, 0);
  size_t end = n;
  for (size_t s = stages; s > 0; --s) {
    layers[s - 1] = static_cast<int>(end - begin[s][end]);
    end = begin[s][end];
  }
  return layers;
}

}  // namespace het::planner::hap
