#include "planner/autohet/search.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/autohet/balance.h"
#include "planner/autohet/composition_cache.h"
#include "planner/autohet/drafts.h"
#include "planner/autohet/group.h"
#include "planner/autohet/joint.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/local_search.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::search;

// A promising grouping under one set of rules, by the bound of the integer programs.
struct Sketch {
  int tensor = 1, microbatch = 1;
  StageRules rules;
  bool sharded = false;
  Grouping grouping;
  double estimate = kInfinity;
  // Its stages were cut as if they held less optimizer state than an even share: place_optimizer may fail.
  bool assumes_placement() const { return sharded && rules.optimizer_share * grouping.pipelines() < 0.99; }
};

// Micro-batches for each part's copies; empty when it cannot be.
std::vector<int> divide(const std::vector<PipelineRate>& rates, int microbatches, bool uneven) {
  if (uneven) return balance_microbatches(rates, microbatches);
  int pipelines = 0;
  for (const PipelineRate& rate : rates) pipelines += rate.copies;
  if (pipelines == 0 || microbatches % pipelines != 0) return {};
  return std::vector<int>(static_cast<size_t>(pipelines), microbatches / pipelines);
}

class Search {
 public:
  Search(Evaluator& evaluator, const Extensions& extensions, std::string_view policy)
      : evaluator_(evaluator),
        request_(evaluator.request()),
        extensions_(extensions),
        policy_(policy),
        small_(is_small(request_)) {}

  void run();

 private:
  std::vector<Pool> without_nodes(const Pool& whole) const;
  void explore(int tensor, int microbatch);
  void explore(CompositionCache& cache, const Pool& pool, bool sharded, int fixed);
  std::vector<int> pipeline_counts(int groups, int microbatches) const;
  double estimate(CompositionCache& cache, const Grouping& grouping, int microbatches, bool sharded);
  double synchronisation(const CostTable& costs, const Composition& composition,
                         const StageSolution& solution) const;
  double weight(const Grouping& grouping, const CostTable& costs) const;
  void consider(CompositionCache& cache, Grouping grouping, bool sharded);
  void consider_programs(CompositionCache& cache, const Pool& pool, bool sharded, int fixed);
  Candidate refine(const Sketch& sketch);
  std::vector<PipelineDraft> draft(CompositionCache& cache, const Sketch& sketch, size_t limit, size_t rank);
  void try_schedules(const Candidate& from, bool interleave);
  void search_schedules();
  CompositionCache& cache_of(int tensor, int microbatch, const StageRules& rules);
  int groups_in_all(int tensor) const;

  Evaluator& evaluator_;
  const Request& request_;
  Extensions extensions_;
  std::string policy_;
  bool small_;
  std::vector<Sketch> sketches_;
  std::vector<std::pair<std::tuple<int, int, int, double, int, int>, std::unique_ptr<CompositionCache>>>
      caches_;
  double best_estimate_ = kInfinity;  // by the objective
  double usual_seconds_ = kInfinity;  // of a step, the least estimate
};

int Search::groups_in_all(int tensor) const {
  int total = 0;
  for (const Machine& node : request_.cluster.nodes)
    total += node.devices / tensor * static_cast<int>(node.hosts.size());
  return total;
}

CompositionCache& Search::cache_of(int tensor, int microbatch, const StageRules& rules) {
  const std::tuple key(tensor, microbatch, static_cast<int>(rules.recompute), rules.optimizer_share,
                       static_cast<int>(rules.schedule), rules.warmup);
  for (const auto& [known, cache] : caches_)
    if (known == key) return *cache;
  caches_.emplace_back(
      key, std::make_unique<CompositionCache>(request_, evaluator_.costs(tensor, microbatch), rules, small_));
  return *caches_.back().second;
}

// All counts while they are few; then only those that change the micro-batches of a pipeline, an eighth
// apart.
std::vector<int> Search::pipeline_counts(int groups, int microbatches) const {
  std::vector<int> counts;
  const int most = std::min(groups, microbatches);
  double next = 1;
  for (int d = 1; d <= most; ++d) {
    if (!extensions_.uneven_microbatches) {
      if (microbatches % d == 0) counts.push_back(d);
    } else if (d <= kAllCounts || d == most || groups % d == 0 || d >= next) {
      counts.push_back(d);
      next = d * kCountStep;
    }
  }
  if (counts.size() > kMostCounts) {
    std::vector<int> thin;
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] <= kUnthinnedCounts ||
          i * kThinnedCounts / counts.size() != (i + 1) * kThinnedCounts / counts.size())
        thin.push_back(counts[i]);
    counts = std::move(thin);
  }
  return counts;
}

// What of a stage's gradient synchronisation cannot hide behind its last backward, were its host's port its
// own.
double Search::synchronisation(const CostTable& costs, const Composition& composition,
                               const StageSolution& solution) const {
  double bandwidth = 0;
  bool several = false;
  for (size_t n = 0; n < composition.size(); ++n) {
    several = several || request_.cluster.nodes[n].hosts.size() > 1 || n > 0;
    const Link& link = costs.link(static_cast<int>(n), static_cast<int>(n));
    if (link.bytes_per_second > 0 && (bandwidth == 0 || link.bytes_per_second < bandwidth))
      bandwidth = link.bytes_per_second;
  }
  if (!several || bandwidth == 0) return 0;
  const double bytes = costs.parameters_in(0, costs.layers) * costs.tensor * costs.gradient_bytes;
  const double stages = static_cast<double>(solution.layers.size());
  return std::max(0.0, 2 * bytes / stages / bandwidth - solution.sum / stages * 2 / 3);
}

double Search::estimate(CompositionCache& cache, const Grouping& grouping, int microbatches, bool sharded) {
  const int pipelines = grouping.pipelines();
  if (pipelines == 0 || pipelines > microbatches) return kInfinity;
  std::vector<PipelineRate> rates;
  double exposed = 0;
  // Replicas of every stage can stand side by side in one host. (Among few groups, the simulator
  // decides which share a host.)
  bool inside_hosts = grouping.parts.size() == 1 || small_;
  for (const NodeCosts& node : cache.solver().costs().nodes)
    inside_hosts = inside_hosts && (small_ || node.groups % pipelines == 0);
  for (const auto& [composition, copies] : grouping.parts) {
    const StageSolution& solution = cache.estimate(composition, std::max(1, microbatches / pipelines));
    if (!solution.feasible) return kInfinity;
    rates.push_back({solution.sum, solution.longest, copies});
    if (pipelines > 1 && !inside_hosts)
      exposed = std::max(exposed, synchronisation(cache.solver().costs(), composition, solution));
  }
  const std::vector<int> counts = divide(rates, microbatches, extensions_.uneven_microbatches);
  if (counts.empty()) return kInfinity;
  double seconds = 0;
  size_t p = 0;
  for (const PipelineRate& rate : rates)
    for (int i = 0; i < rate.copies; ++i, ++p)
      seconds = std::max(seconds, rate.sum + (counts[p] - 1) * rate.longest);
  return seconds + exposed;
}

// What a second is worth under the objective when these groups fill as few hosts as they can.
double Search::weight(const Grouping& grouping, const CostTable& costs) const {
  if (request_.objective == Objective::time) return 1;
  PlanLayout used;
  used.pipelines.emplace_back();
  for (size_t n = 0; n < costs.nodes.size(); ++n) {
    int groups = 0;
    for (const auto& [composition, copies] : grouping.parts) groups += composition[n] * copies;
    for (int host = 0; groups > 0; ++host, groups -= costs.nodes[n].groups)
      used.pipelines[0].stages.push_back({static_cast<int>(n), host, 0, 0});
  }
  return score_of(request_, used, 1);
}

void Search::consider(CompositionCache& cache, Grouping grouping, bool sharded) {
  if (grouping.parts.empty()) return;
  const CostTable& costs = cache.solver().costs();
  Sketch sketch{costs.tensor, costs.microbatch, cache.solver().rules(), sharded, std::move(grouping), 0};
  sketch.estimate = estimate(cache, sketch.grouping, request_.batch / costs.microbatch, sharded);
  if (sketch.estimate == kInfinity) return;
  if (!sketch.assumes_placement()) usual_seconds_ = std::min(usual_seconds_, sketch.estimate);
  sketch.estimate *= weight(sketch.grouping, costs);
  if (!sketch.assumes_placement()) best_estimate_ = std::min(best_estimate_, sketch.estimate);
  if (sketch.estimate > (small_ ? kPromisingSmall : kPromising) * best_estimate_) return;
  sketches_.push_back(std::move(sketch));
}

// The grouping as one integer program over compositions, each worth the micro-batches that it runs in the
// time of the best estimate so far.
void Search::consider_programs(CompositionCache& cache, const Pool& pool, bool sharded, int fixed) {
  const CostTable& costs = cache.solver().costs();
  const size_t nodes = pool.groups.size();
  std::vector<Composition> candidates;
  Composition composition(nodes, 0);
  // Up to two nodes in a pipeline, or three when there are few.
  const int mixed = nodes <= kFewNodes ? static_cast<int>(nodes) : kMixedNodes;
  const int cap = nodes <= kFewNodes ? kMixedGroupsOfFew : kMixedGroups;
  const std::function<void(size_t, int, int)> enumerate = [&](size_t node, int kinds, int stages) {
    if (candidates.size() > kColumns) return;
    if (node == nodes) {
      if (stages > 0) candidates.push_back(composition);
      return;
    }
    enumerate(node + 1, kinds, stages);
    if (kinds == mixed) return;
    for (int n = 1; n <= std::min(pool.groups[node], cap) && stages + n <= costs.layers; ++n) {
      composition[node] = n;
      enumerate(node + 1, kinds + 1, stages + n);
    }
    composition[node] = 0;
  };
  enumerate(0, 0, 0);
  for (size_t n = 0; n < nodes; ++n)
    for (int count = cap + 1; count <= std::min({pool.groups[n], costs.layers, kGroupsAlone}); ++count) {
      Composition alone(nodes, 0);
      alone[n] = count;
      candidates.push_back(alone);
    }
  std::vector<Composition> kept;
  std::vector<double> worth;
  for (const Composition& column : candidates) {
    const int stages = std::accumulate(column.begin(), column.end(), 0);
    double power = 0;
    for (size_t n = 0; n < nodes; ++n) power += column[n] * pool.power[n];
    const double usual = std::max(1.0, usual_seconds_ == kInfinity ? 4.0 * stages : power * usual_seconds_);
    const StageSolution& solution = cache.estimate(column, static_cast<int>(std::min(usual, 1e6)));
    if (!solution.feasible) continue;
    const double time = usual_seconds_ == kInfinity ? solution.seconds(4 * stages) : usual_seconds_;
    const double runs = (time - solution.sum) / solution.longest + 1;
    if (runs < 1) continue;
    kept.push_back(column);
    worth.push_back(runs);
  }
  if (kept.empty()) return;
  consider(cache, choose_columns(pool, kept, worth, fixed), sharded);
}

void Search::explore(CompositionCache& cache, const Pool& pool, bool sharded, int fixed) {
  const int total = std::accumulate(pool.groups.begin(), pool.groups.end(), 0);
  const CostTable& costs = cache.solver().costs();
  if (total <= limits::kSmallGroups) {
    const size_t limit = small_ ? limits::kAll : kGroupings;
    for (Grouping& grouping : all_groupings(pool, fixed, limit))
      consider(cache, std::move(grouping), sharded);
    if (small_) return;
  }
  std::vector<int> least;
  for (size_t n = 0; n < pool.groups.size(); ++n) {
    Composition alone(pool.groups.size(), 0);
    int found = 0;
    for (int count = 1; count <= std::min({pool.groups[n], costs.layers, kDeepest}) && found == 0; ++count) {
      alone[n] = count;
      if (cache.estimate(alone, 2 * count).feasible) found = count;
    }
    least.push_back(found);
  }
  consider(cache, spread_evenly(pool, fixed), sharded);
  consider(cache, level_power(pool, fixed), sharded);
  if (extensions_.uneven_microbatches) consider(cache, keep_apart(pool, fixed, least), sharded);
}

// The pool without some of its weakest nodes: for speed without one of them.
std::vector<Pool> Search::without_nodes(const Pool& whole) const {
  const size_t nodes = whole.groups.size(), weak = std::min(nodes, kLeftOutNodes);
  const bool for_speed = request_.objective == Objective::time;
  std::vector<double> power(nodes);
  for (size_t n = 0; n < nodes; ++n) power[n] = whole.groups[n] * whole.power[n];
  const double all = std::accumulate(power.begin(), power.end(), 0.0);
  std::vector<size_t> weakest(nodes);
  std::iota(weakest.begin(), weakest.end(), size_t{0});
  std::stable_sort(weakest.begin(), weakest.end(), [&](size_t a, size_t b) { return power[a] < power[b]; });
  std::vector<Pool> parts;
  for (unsigned left_out = 1; left_out < 1u << weak; ++left_out) {
    if (for_speed && __builtin_popcount(left_out) > 1) continue;
    Pool part = whole;
    double gone = 0;
    for (size_t i = 0; i < weak; ++i)
      if (left_out >> i & 1) {
        part.groups[weakest[i]] = 0;
        gone += power[weakest[i]];
      }
    if (gone == 0 || gone >= all || (for_speed && all - gone < kLeastPower * all)) continue;
    parts.push_back(std::move(part));
  }
  return parts;
}

void Search::explore(int tensor, int microbatch) {
  const CostTable& costs = evaluator_.costs(tensor, microbatch);
  const Pool whole = pool_of(request_, costs);
  const int microbatches = request_.batch / microbatch;
  const int total = std::accumulate(whole.groups.begin(), whole.groups.end(), 0);
  if (total == 0) return;
  std::vector<Pool> pools = {whole};
  if (!small_) {  // small clusters leave out single groups
    std::vector<Pool> parts = without_nodes(whole);
    std::move(parts.begin(), parts.end(), std::back_inserter(pools));
  }
  std::vector<Recompute> modes = {Recompute::where_needed};
  if (!extensions_.recompute_per_stage) modes = {Recompute::never, Recompute::always};
  for (const Pool& pool : pools) {
    const int groups = std::accumulate(pool.groups.begin(), pool.groups.end(), 0);
    if (groups == 0) continue;
    for (const Recompute mode : modes)
      for (const bool sharded : {false, true}) {
        StageRules rules;
        rules.recompute = mode;
        for (const int pipelines : pipeline_counts(groups, microbatches)) {
          if (sharded && pipelines == 1) continue;
          // Shares in steps, so that solutions are shared between numbers of pipelines.
          int divisor = 1;
          while (sharded && divisor * 2 <= pipelines && divisor < kMostReplicas) divisor *= 2;
          rules.optimizer_share = 1.0 / divisor;
          explore(cache_of(tensor, microbatch, rules), pool, sharded, pipelines);
          // Placed state may leave a stage none at all; place_optimizer and the simulator say whether it
          // works out.
          if (!sharded || !extensions_.placed_optimizer || (!small_ && best_estimate_ < kInfinity)) continue;
          for (const double part : kPlacedShares) {
            rules.optimizer_share = part / divisor;
            explore(cache_of(tensor, microbatch, rules), pool, sharded, pipelines);
          }
        }
        if (!small_ && extensions_.uneven_microbatches) {
          rules.optimizer_share = sharded ? kProgramShare : 1;
          CompositionCache& cache = cache_of(tensor, microbatch, rules);
          consider_programs(cache, pool, sharded, 0);
        }
      }
  }
}

// With the order of each composition that comes `rank`-th; nothing when none has so many.
std::vector<PipelineDraft> Search::draft(CompositionCache& cache, const Sketch& sketch, size_t limit,
                                         size_t rank) {
  const int microbatches = request_.batch / sketch.microbatch, pipelines = sketch.grouping.pipelines();
  std::vector<int> guess(static_cast<size_t>(pipelines), std::max(1, microbatches / pipelines));
  std::vector<PipelineDraft> drafts;
  for (int round = 0; round < kDraftRounds; ++round) {
    drafts.clear();
    std::vector<PipelineRate> rates;
    size_t p = 0;
    bool enough = false;
    for (const auto& [composition, copies] : sketch.grouping.parts) {
      const std::vector<PipelineDraft>& orders = cache.solve(composition, guess[p], limit);
      if (orders.empty()) return {};
      enough = enough || rank < orders.size();
      const PipelineDraft& best = orders[std::min(rank, orders.size() - 1)];
      rates.push_back({best.solution.sum, best.solution.longest, copies});
      for (int i = 0; i < copies; ++i) drafts.push_back(best);
      p += static_cast<size_t>(copies);
    }
    if (!enough) return {};
    const std::vector<int> counts = divide(rates, microbatches, extensions_.uneven_microbatches);
    if (counts.empty()) return {};
    for (size_t i = 0; i < drafts.size(); ++i) drafts[i].microbatches = counts[i];
    if (counts == guess) break;
    guess = counts;
  }
  return drafts;
}

Candidate Search::refine(const Sketch& sketch) {
  Candidate best;
  best.score = kInfinity;
  CompositionCache& cache = cache_of(sketch.tensor, sketch.microbatch, sketch.rules);
  const CostTable& costs = cache.solver().costs();
  bool choice = false;  // whether hosts can be chosen in more than one way
  for (size_t n = 0; n < request_.cluster.nodes.size(); ++n)
    choice = choice || (request_.cluster.nodes[n].hosts.size() > 1 && costs.nodes[n].groups > 1);
  for (size_t variant = 0; variant < 2 * limits::kKeptOrders; ++variant) {
    const bool packed = variant % 2 == 0;
    if (!packed && !choice) continue;
    const std::vector<PipelineDraft> drafts =
        draft(cache, sketch, small_ ? kManyOrders : kFewOrders, variant / 2);
    if (drafts.empty()) break;
    PlanLayout layout = make_layout(request_, costs, drafts, packed);
    layout.schedule = sketch.rules.schedule;
    layout.warmup = sketch.rules.warmup;
    layout.sharded_optimizer = sketch.sharded;
    if (sketch.sharded && extensions_.placed_optimizer) place_optimizer(layout, costs);
    Candidate candidate = small_ ? evaluator_.simulate(std::move(layout), policy_)
                                 : evaluator_.estimate(std::move(layout), policy_);
    if (small_) evaluator_.submit(candidate);
    if (is_better(candidate, best)) best = std::move(candidate);
  }
  return best;
}

// The same pipelines under other schedules; layers are not moved, since the work of each stage is the same.
void Search::try_schedules(const Candidate& from, bool interleave) {
  // A pipeline of one stage has no transfers to wait for: every schedule runs it as 1F1B does.
  if (std::all_of(from.layout.pipelines.begin(), from.layout.pipelines.end(),
                  [](const PipelineLayout& pipeline) { return pipeline.stages.size() == 1; }))
    return;
  std::vector<PlanLayout> layouts;
  PlanLayout layout = from.layout;
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::split_backward})
    for (int warmup = 0; warmup <= kMostWarmup; ++warmup) {
      layout.schedule = schedule;
      layout.warmup = warmup;
      if (layout.schedule != from.layout.schedule || layout.warmup != from.layout.warmup)
        layouts.push_back(layout);
    }
  layout = from.layout;
  layout.schedule = Schedule::interleaved;
  layout.chunks = 2;
  bool possible = interleave;
  const CostTable& costs = evaluator_.costs(layout.tensor, layout.microbatch);
  for (PipelineLayout& pipeline : layout.pipelines) {
    const size_t stages = pipeline.stages.size();
    possible = possible && stages > 1 && pipeline.microbatches % static_cast<int>(stages) == 0;
    if (!possible) break;
    StageRules rules;
    rules.optimizer_share = 0;
    rules.recompute = pipeline.stages[0].recompute ? Recompute::always : Recompute::never;
    StageSolver solver(costs, rules);
    std::vector<StageLayout> twice = pipeline.stages;
    twice.insert(twice.end(), pipeline.stages.begin(), pipeline.stages.end());
    possible = solver.cut(twice, pipeline.microbatches);
    if (!possible) break;
    pipeline.stages = std::move(twice);
  }
  if (possible) layouts.push_back(std::move(layout));
  for (PlanLayout& other : layouts) {
    if (!small_ && evaluator_.estimate(other, {}).score > limits::search::kNear * evaluator_.best_score())
      continue;
    evaluator_.submit(evaluator_.simulate(std::move(other), policy_ + ", schedule"));
  }
}

// Plans that only another schedule makes good: two stages that overlap under a split backward alone, stages
// between which a slow link is hidden by forwards that run ahead.
void Search::search_schedules() {
  for (const Schedule schedule : {Schedule::split_backward, Schedule::one_f_one_b})
    for (const int warmup : kWarmups) {
      if (schedule == Schedule::one_f_one_b && warmup == 0) continue;  // searched already
      StageRules rules;
      rules.schedule = schedule;
      rules.warmup = warmup;
      search_jointly(evaluator_, extensions_, policy_ + ", schedule", kScheduleSimulations, rules);
    }
}

void Search::run() {
  for (const int tensor : tensor_degrees(request_))
    for (const int microbatch : microbatch_sizes(request_))
      if (!evaluator_.can_prune(tensor, microbatch)) explore(tensor, microbatch);
  std::stable_sort(sketches_.begin(), sketches_.end(),
                   [](const Sketch& a, const Sketch& b) { return a.estimate < b.estimate; });
  // A few of each degree and size, so that what the bound does not see still gets a chance with the
  // simulator.
  const int groups = groups_in_all(1);
  const Effort& effort = small_                             ? kSmallEffort
                         : groups <= limits::kMediumDevices ? kMediumEffort
                                                            : kLargeEffort;
  std::map<std::pair<int, int>, size_t> taken;
  std::map<std::tuple<int, int, int, double>, size_t> taken_pipelines;
  std::vector<Candidate> candidates, infeasible;
  size_t refined = 0;
  for (const Sketch& sketch : sketches_) {
    size_t& count = taken[{sketch.tensor, sketch.microbatch}];
    if (count >= effort.of_size || refined >= effort.sketches) continue;
    size_t& alike = taken_pipelines[{sketch.tensor, sketch.microbatch, sketch.grouping.pipelines(),
                                     small_ ? sketch.rules.optimizer_share * (sketch.sharded ? 1 : 2) : 0}];
    if (alike >= effort.alike) continue;
    ++alike;
    ++count;
    ++refined;
    Candidate candidate = refine(sketch);
    if (candidate.feasible())
      candidates.push_back(std::move(candidate));
    else if (!candidate.layout.pipelines.empty())
      infeasible.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  // Moves lead like candidates to like plans: two of each kind first.
  std::map<std::tuple<int, int, size_t>, int> kinds;
  std::vector<Candidate> first, later;
  for (Candidate& candidate : candidates) {
    const PlanLayout& layout = candidate.layout;
    const bool rare =
        small_ || ++kinds[{layout.tensor, layout.microbatch, layout.pipelines.size()}] <= kOfKind;
    (rare ? first : later).push_back(std::move(candidate));
  }
  candidates = std::move(first);
  std::move(later.begin(), later.end(), std::back_inserter(candidates));
  if (!small_) {  // only estimated so far
    if (candidates.size() > limits::search::kSimulated) candidates.resize(limits::search::kSimulated);
    for (Candidate& candidate : candidates) {
      candidate = evaluator_.simulate(std::move(candidate.layout), policy_);
      evaluator_.submit(candidate);
    }
    for (Candidate& candidate : infeasible) evaluator_.submit(candidate);
  }
  if (extensions_.local_search) {
    const int64_t budget = small_ ? kMovesSmall : kMoves;
    for (size_t i = 0; i < std::min(effort.starts, candidates.size()); ++i) {
      if (candidates[i].score > kWorthMoves * evaluator_.best_score()) continue;
      Candidate better = improve(evaluator_, candidates[i], extensions_, budget);
      evaluator_.submit(better);
      // What it came from may be the better one under another schedule.
      if (!small_) candidates.push_back(candidates[i]);
      candidates[i] = std::move(better);
    }
    // Moves may also make a plan fit; worth it while no other does, or where it costs little.
    for (size_t i = 0; i < std::min(effort.starts, infeasible.size()); ++i) {
      if (!small_ && evaluator_.best().feasible()) break;
      Candidate repaired = improve(evaluator_, std::move(infeasible[i]), extensions_, budget);
      evaluator_.submit(repaired);
      if (repaired.feasible()) candidates.push_back(std::move(repaired));
    }
    if (small_) {
      search_jointly(evaluator_, extensions_, policy_, kJointSimulations);
      if (evaluator_.best().feasible()) candidates.push_back(evaluator_.best());
    }
  }
  if (extensions_.schedules) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    const size_t tried = small_ ? std::min(effort.starts, candidates.size()) : candidates.size();
    for (size_t i = 0; i < tried; ++i) try_schedules(candidates[i], i < effort.starts);
    if (small_ && extensions_.local_search) search_schedules();
  }
}

}  // namespace

bool is_small(const Request& request) {
  return total_devices(request.cluster) <= limits::kSmallGroups &&
         request.model.count() <= limits::kSmallLayers;
}

void search_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy) {
  Search(evaluator, extensions, policy).run();
}

}  // namespace het::planner
