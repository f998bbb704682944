#include "planner/autohet/mix.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planner/autohet/balance.h"
#include "planner/autohet/limits.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::mix;

using DevicePlaces = std::vector<DevicePlace>;

// Seconds and bytes of any layers on one stage.
struct StageCosts {
  const NodeCosts* pace = nullptr;
  std::vector<const CostTable*> devices;  // of each kind of its devices, the table that counts its bytes
  std::vector<double> limits;             // and its memory

  double seconds(int first, int last, bool recompute) const {
    const auto range = [&](const std::vector<double>& prefix) {
      return prefix[static_cast<size_t>(last)] - prefix[static_cast<size_t>(first)];
    };
    return range(pace->forward) + range(pace->input) + range(pace->weight) +
           (recompute ? range(pace->recompute) : 0);
  }
  bool fits(int first, int last, int in_flight, bool recompute, double optimizer_share) const {
    for (size_t k = 0; k < devices.size(); ++k)
      if (devices[k]->stage_bytes(first, last, in_flight, recompute, optimizer_share) > limits[k])
        return false;
    return true;
  }
};

class Mixer {
 public:
  Mixer(Evaluator& evaluator, const Extensions& extensions, std::string_view policy)
      : evaluator_(evaluator), request_(evaluator.request()), extensions_(extensions), policy_(policy) {}

  void run() {
    std::vector<Candidate> starts = evaluator_.bests();
    std::erase_if(starts, [](const Candidate& c) { return c.layout.chunks > 1 || !c.layout.groups.empty(); });
    if (starts.size() > limits::mix::kStarts) starts.resize(limits::mix::kStarts);
    for (const Candidate& start : starts) climb(start);
  }

 private:
  struct Idea {
    PlanLayout layout;
    double bound = 0;
  };

  void climb(Candidate best) {
    groups_.clear();
    for (int round = 0; round < limits::mix::kRounds; ++round) {
      ideas_.clear();
      propose(best.layout);
      std::stable_sort(ideas_.begin(), ideas_.end(),
                       [](const Idea& a, const Idea& b) { return a.bound < b.bound; });
      bool better = false;
      const Candidate start = best;
      for (size_t i = 0; i < std::min<size_t>(ideas_.size(), limits::mix::kSimulated); ++i) {
        if (request_.objective == Objective::time && ideas_[i].bound >= best.score) break;
        Candidate candidate = evaluator_.simulate(std::move(ideas_[i].layout), policy_);
        if (!candidate.feasible() || candidate.score >= best.score * (1 - kBetter)) continue;
        best = std::move(candidate);
        better = true;
      }
      if (!better) return;
      evaluator_.submit(best);
    }
  }

  // All moves on a layout; of pipelines that are alike on one.
  void propose(const PlanLayout& from) {
    const std::map<DevicePlace, int> idle = idle_devices(from);
    std::set<std::vector<int>> seen;
    for (size_t p = 0; p < from.pipelines.size(); ++p) {
      const size_t stages = from.pipelines[p].stages.size();
      std::vector<int> kind{from.pipelines[p].microbatches};
      for (const StageLayout& stage : from.pipelines[p].stages)
        kind.insert(kind.end(), {stage.node, idle.count({stage.node, stage.host}) != 0 ? stage.host : -1,
                                 stage.layers, stage.recompute, stage.group});
      if (!seen.insert(std::move(kind)).second) continue;
      for (size_t s = 0; s < stages; ++s) {
        const DevicePlaces own = places_of(from, from.pipelines[p].stages[s]);
        for (const auto& [place, count] : idle) {
          for (const int taken : {1, count}) {
            DevicePlaces more = own;
            more.insert(more.end(), static_cast<size_t>(taken), place);
            replace(from, p, s, 1, {more});
            const DevicePlaces fresh(static_cast<size_t>(taken), place);
            replace(from, p, s, 1, {own, fresh});
            if (s == 0) replace(from, p, s, 1, {fresh, own});
            if (count == 1) break;
          }
        }
        if (s + 1 < stages) {
          DevicePlaces both = own;
          const DevicePlaces next = places_of(from, from.pipelines[p].stages[s + 1]);
          both.insert(both.end(), next.begin(), next.end());
          replace(from, p, s, 2, {both});
        }
        if (own.size() > 1) {
          const auto half = own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2);
          replace(from, p, s, 1, {{own.begin(), half}, {half, own.end()}});
        }
      }
    }
  }

  std::map<DevicePlace, int> idle_devices(const PlanLayout& layout) const {
    std::map<DevicePlace, int> idle;
    for (int n = 0; n < static_cast<int>(request_.cluster.nodes.size()); ++n)
      for (int h = 0; h < static_cast<int>(request_.cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
        idle[{n, h}] = request_.cluster.nodes[static_cast<size_t>(n)].devices;
    for (const PipelineLayout& pipeline : layout.pipelines)
      for (const StageLayout& stage : pipeline.stages)
        for (const DevicePlace& place : places_of(layout, stage)) --idle[place];
    std::erase_if(idle, [](const auto& entry) { return entry.second < 1; });
    return idle;
  }

  // `count` stages of a pipeline from `at` on become stages with these devices; their layers are cut again.
  void replace(const PlanLayout& from, size_t p, size_t at, size_t count,
               const std::vector<DevicePlaces>& devices) {
    PlanLayout layout = from;
    auto& stages = layout.pipelines[p].stages;
    if (static_cast<int>(stages.size() - count + devices.size()) > request_.model.count()) return;
    const auto begin = stages.begin() + static_cast<std::ptrdiff_t>(at);
    const StageLayout pattern = *begin;
    stages.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
    for (size_t i = 0; i < devices.size(); ++i) {
      StageLayout stage = pattern;
      if (!give(layout, stage, devices[i])) return;
      stages.insert(stages.begin() + static_cast<std::ptrdiff_t>(at + i), stage);
    }
    compact(layout);
    // The simulator says a split backward too short where ranks share layers (planner/README.md).
    if (layout.schedule == Schedule::split_backward && layout.tensor == 1 && degrees_of(layout).back() > 1)
      layout.schedule = Schedule::one_f_one_b;
    if (!cut(layout, p)) return;
    if (extensions_.uneven_microbatches && !rebalance(layout)) return;
    ideas_.push_back({std::move(layout), 0});
    ideas_.back().bound = bound_of(ideas_.back().layout);
  }

  // Shares in whole key-value heads, such that the slowest device is as fast as can be.
  bool give(PlanLayout& layout, StageLayout& stage, DevicePlaces places) {
    const size_t degree = places.size();
    const int units = request_.model.kv_heads;
    if (static_cast<int>(degree) > units) return false;
    std::stable_sort(places.begin(), places.end());
    Shares shares(degree, 1);
    for (int given = static_cast<int>(degree); given < units; ++given) {
      size_t next = 0;
      double least = kInfinity;
      for (size_t r = 0; r < degree; ++r)
        if (const double time = static_cast<double>(shares[r] + 1) * device_seconds(places[r].node);
            time < least) {
          least = time;
          next = r;
        }
      ++shares[next];
    }
    Stage reduced;
    reduced.shares = shares;
    shares = tensor_shares({}, reduced);
    if (!divides(shares)) return false;
    set_group(layout, stage, {shares, std::move(places)});
    return true;
  }

  // Of the whole model on one device.
  double device_seconds(int node) {
    const CostTable& costs = evaluator_.compute_costs(1, 1);
    return costs.forward_seconds(node, 0, costs.layers) +
           costs.backward_seconds(node, 0, costs.layers, false);
  }

  bool divides(const Shares& shares) {
    if (shares.size() == 1) return true;
    const auto [known, fresh] = divides_.emplace(shares, true);
    if (fresh && request_.can_divide) known->second = request_.can_divide(shares);
    return known->second;
  }

  // Groups that no stage names any more go.
  static void compact(PlanLayout& layout) {
    const std::vector<TensorGroup> before = std::exchange(layout.groups, {});
    for (PipelineLayout& pipeline : layout.pipelines)
      for (StageLayout& stage : pipeline.stages)
        if (stage.group >= 0) set_group(layout, stage, before[static_cast<size_t>(stage.group)]);
  }

  StageCosts costs_of(const PlanLayout& layout, const StageLayout& stage) {
    const int microbatch = layout.microbatch;
    const CostTable& table = evaluator_.costs(layout.tensor, microbatch);
    StageCosts costs;
    if (stage.group < 0) {
      costs.pace = &table.nodes[static_cast<size_t>(stage.node)];
      costs.devices = {&table};
      costs.limits = {costs.pace->memory_bytes};
      return costs;
    }
    const TensorGroup& group = layout.groups[static_cast<size_t>(stage.group)];
    const auto key = std::pair(group.shares, group.places);
    auto known = groups_.find(key);
    if (known == groups_.end()) {
      const CostProvider tables{
          [&](int degree) -> const CostTable& { return evaluator_.costs(degree, microbatch); },
          [&](int degree) -> const CostTable& { return evaluator_.compute_costs(degree, microbatch); }};
      known = groups_.emplace(key, make_group_costs(group, tables)).first;
    }
    costs.pace = &known->second.pace;
    for (const CostTable& kind : known->second.kinds) {
      costs.devices.push_back(&kind);
      costs.limits.push_back(kind.nodes[0].memory_bytes);
    }
    return costs;
  }

  // The cut of a pipeline's layers whose longest stage is shortest, and of those one whose sum is; recompute
  // where memory asks for it. False where nothing fits.
  bool cut(PlanLayout& layout, size_t p) {
    PipelineLayout& pipeline = layout.pipelines[p];
    const int layers = request_.model.count(), stages = static_cast<int>(pipeline.stages.size());
    const double share = layout.sharded_optimizer ? 1.0 / static_cast<double>(layout.pipelines.size()) : 1;
    struct Prefix {  // the best cut of the first layers into the first stages
      double longest = kInfinity, sum = kInfinity;
      int first = 0;
      bool recompute = false;
    };
    std::vector<Prefix> prefixes(static_cast<size_t>((stages + 1) * (layers + 1)));
    const auto prefix = [&](int s, int last) -> Prefix& {
      return prefixes[static_cast<size_t>(s * (layers + 1) + last)];
    };
    prefix(0, 0) = {0, 0, 0, false};
    for (int s = 0; s < stages; ++s) {
      const StageCosts costs = costs_of(layout, pipeline.stages[static_cast<size_t>(s)]);
      const int in_flight = std::min(pipeline.microbatches, (stages - 1 - s) * (1 + layout.warmup) + 1);
      for (int first = s; first < layers; ++first) {
        const Prefix before = prefix(s, first);
        if (before.longest == kInfinity) continue;
        for (int last = first + 1; last <= layers - (stages - 1 - s); ++last) {
          bool recompute = extensions_.recompute_per_stage ? false : pipeline.stages[0].recompute;
          if (!costs.fits(first, last, in_flight, recompute, share)) {
            if (recompute || !extensions_.recompute_per_stage) break;
            recompute = true;
            if (!costs.fits(first, last, in_flight, recompute, share)) break;
          }
          const double seconds = costs.seconds(first, last, recompute);
          const Prefix now{std::max(before.longest, seconds), before.sum + seconds, first, recompute};
          Prefix& known = prefix(s + 1, last);
          if (now.longest < known.longest || (now.longest == known.longest && now.sum < known.sum))
            known = now;
        }
      }
    }
    if (prefix(stages, layers).longest == kInfinity) return false;
    for (int s = stages, last = layers; s > 0; --s) {
      const Prefix& taken = prefix(s, last);
      StageLayout& stage = pipeline.stages[static_cast<size_t>(s) - 1];
      stage.layers = last - taken.first;
      stage.recompute = taken.recompute;
      last = taken.first;
    }
    number_layers(pipeline.stages);
    return true;
  }

  PipelineRate rate(const PlanLayout& layout, const PipelineLayout& pipeline) {
    PipelineRate rate;
    for (const StageLayout& stage : pipeline.stages) {
      const double seconds =
          costs_of(layout, stage).seconds(stage.first, stage.first + stage.layers, stage.recompute);
      rate.sum += seconds;
      rate.longest = std::max(rate.longest, seconds);
    }
    return rate;
  }

  bool rebalance(PlanLayout& layout) {
    std::vector<PipelineRate> rates;
    for (const PipelineLayout& pipeline : layout.pipelines) rates.push_back(rate(layout, pipeline));
    const std::vector<int> counts = balance_microbatches(rates, request_.batch / layout.microbatch);
    if (counts.empty()) return false;
    for (size_t p = 0; p < counts.size(); ++p) layout.pipelines[p].microbatches = counts[p];
    return true;
  }

  double bound_of(const PlanLayout& layout) {
    double longest = 0;
    for (const PipelineLayout& pipeline : layout.pipelines) {
      const PipelineRate of = rate(layout, pipeline);
      // A split backward sends before it has the gradients of its weights: at least the longest stage's work.
      const double whole = pipeline.microbatches * of.longest;
      longest = std::max(longest, layout.schedule == Schedule::split_backward
                                      ? whole
                                      : of.sum + (pipeline.microbatches - 1) * of.longest);
    }
    return longest;
  }

  Evaluator& evaluator_;
  const Request& request_;
  const Extensions& extensions_;
  std::string_view policy_;
  std::vector<Idea> ideas_;
  std::map<std::pair<Shares, DevicePlaces>, GroupCosts> groups_;  // of one micro-batch size
  std::map<Shares, bool> divides_;
};

}  // namespace

void mix_stages(Evaluator& evaluator, const Extensions& extensions, std::string_view policy) {
  const Request& request = evaluator.request();
  const bool divided = std::any_of(request.model.kinds.begin(), request.model.kinds.end(),
                                   [](const LayerKind& kind) { return kind.tensor_reductions > 0; });
  if (!extensions.mixed_stages || !divided || total_devices(request.cluster) > kMostDevices) return;
  Mixer(evaluator, extensions, policy).run();
}

}  // namespace het::planner
