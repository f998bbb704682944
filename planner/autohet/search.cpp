#include "planner/autohet/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "planner/autohet/balance.h"
#include "planner/autohet/joint.h"
#include "planner/milp.h"

namespace het::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kSmall = 8;                  // groups: up to here every grouping is tried
constexpr int kShallow = 16;               // layers: up to here every order
constexpr size_t kKept = 6;                // orders of a composition that are simulated with other pipelines
constexpr int64_t kJointBudget = 200'000;  // simulations without contention
constexpr size_t kFewOrders = 24, kManyOrders = 900;

size_t permutations_of(const Composition& composition, size_t limit) {
  double count = 1;
  int placed = 0;
  for (const int n : composition)
    for (int i = 1; i <= n; ++i) count = count * ++placed / i;
  return count > static_cast<double>(limit) ? limit + 1 : static_cast<size_t>(std::lround(count));
}

// A plan that fits before one that does not; of these the one that lacks less.
bool is_better(const Candidate& a, const Candidate& b) {
  if (b.layout.pipelines.empty()) return !a.layout.pipelines.empty();
  if (!a.simulation.fits || !b.simulation.fits)
    return a.simulation.fits != b.simulation.fits
               ? a.simulation.fits
               : a.simulation.over_bytes < b.simulation.over_bytes * (1 - 1e-9);
  return a.score < b.score * (1 - 1e-9);
}

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

// Solutions for compositions at one degree, micro-batch size and set of rules, each found once.
class CompositionCache {
 public:
  // `small`: few enough groups to try every order, and to let the simulator choose among them.
  CompositionCache(const Request& request, const CostTable& costs, StageRules rules, bool small)
      : request_(request), solver_(costs, rules), alone_(costs, request.cluster), small_(small) {}

  // A solution for the first order worth trying, or for another where that does not fit in memory; cheap.
  const StageSolution& estimate(const Composition& composition, int microbatches) {
    const int bucket = bucket_of(composition, microbatches);
    const auto [entry, fresh] = estimates_.try_emplace({composition, bucket});
    if (!fresh) return entry->second;
    for (const std::vector<int>& order : stage_orders(composition, solver_.costs(), 1))
      entry->second = solver_.solve(order, bucket, false);
    if (entry->second.feasible && !small_) return entry->second;
    for (const std::vector<int>& order : stage_orders(composition, solver_.costs(), small_ ? 200 : 6)) {
      StageSolution found = solver_.solve(order, bucket, small_);
      if (found.feasible &&
          (!entry->second.feasible || found.seconds(bucket) < entry->second.seconds(bucket)))
        entry->second = std::move(found);
      if (entry->second.feasible && !small_) break;
    }
    return entry->second;
  }
  // Solutions for the best orders, the best first. Beyond memory the bound does not depend on the order, so
  // where there are few groups the simulator chooses among the best by the bound.
  const std::vector<PipelineDraft>& solve(const Composition& composition, int microbatches, size_t limit) {
    const int bucket = bucket_of(composition, microbatches);
    const auto [entry, fresh] = solutions_.try_emplace({composition, bucket});
    if (!fresh) return entry->second;
    std::vector<PipelineDraft> drafts;
    for (const std::vector<int>& order : stage_orders(composition, solver_.costs(), limit)) {
      if (small_) {
        for (StageSolution& found : solver_.compromises(order, bucket))
          drafts.push_back({order, std::move(found), bucket});
      } else {
        StageSolution found = solver_.solve(order, bucket);
        if (found.feasible) drafts.push_back({order, std::move(found), bucket});
      }
    }
    std::stable_sort(drafts.begin(), drafts.end(), [&](const PipelineDraft& a, const PipelineDraft& b) {
      return a.solution.seconds(bucket) < b.solution.seconds(bucket);
    });
    if (drafts.empty()) return entry->second;
    if (small_ && drafts.size() > 1) {
      std::vector<std::pair<double, size_t>> ranking;
      for (size_t i = 0; i < std::min<size_t>(drafts.size(), 400); ++i) {
        if (drafts[i].solution.seconds(bucket) > 1.25 * drafts[0].solution.seconds(bucket)) break;
        ranking.emplace_back(seconds_alone(drafts[i]), i);
      }
      std::sort(ranking.begin(), ranking.end());
      std::set<std::vector<int>> climbed;  // the best of each order
      for (auto& [seconds, i] : ranking)
        if (climbed.size() < 12 && climbed.insert(drafts[i].nodes).second)
          seconds = climb(drafts[i], seconds);
      std::sort(ranking.begin(), ranking.end());
      for (size_t i = 0; i < std::min<size_t>(ranking.size(), kKept); ++i)
        entry->second.push_back(drafts[ranking[i].second]);
    } else {
      entry->second.push_back(std::move(drafts[0]));
    }
    return entry->second;
  }
  StageSolver& solver() { return solver_; }
  const Request& request() const { return request_; }

 private:
  double seconds_alone(const PipelineDraft& draft) {
    PlanLayout layout = make_layout(request_, solver_.costs(), {draft}, true);
    layout.schedule = solver_.rules().schedule;
    layout.warmup = solver_.rules().warmup;
    const Simulation simulation = alone_.run(layout);
    return solver_.rules().optimizer_share == 1 ? simulation.seconds : simulation.pipeline_seconds;
  }

  // Moves single layers between stages while the pipeline alone gets faster; returns its seconds.
  double climb(PipelineDraft& draft, double seconds) {
    const size_t stages = draft.nodes.size();
    for (bool better = true; better;) {
      better = false;
      for (size_t a = 0; a < stages; ++a)
        for (size_t b = 0; b < stages; ++b) {
          if (a == b || draft.solution.layers[a] < 2) continue;
          PipelineDraft moved = draft;
          --moved.solution.layers[a];
          ++moved.solution.layers[b];
          moved.solution = solver_.with_layers(moved.nodes, moved.solution.layers, moved.microbatches);
          if (!moved.solution.feasible) continue;
          const double now = seconds_alone(moved);
          if (now >= seconds * (1 - 1e-9)) continue;
          seconds = now;
          draft = std::move(moved);
          better = true;
        }
    }
    return seconds;
  }

  // The number of micro-batches matters little beyond a few for each stage: nearby ones share a solution.
  static int bucket_of(const Composition& composition, int microbatches) {
    const int stages = std::accumulate(composition.begin(), composition.end(), 0);
    int bucket = std::min(microbatches, 2 * stages);
    while (bucket * 5 / 4 + 1 < microbatches) bucket = bucket * 5 / 4 + 1;
    return std::max(bucket, 1);
  }

  const Request& request_;
  StageSolver solver_;
  Simulator alone_;
  bool small_;
  std::map<std::pair<Composition, int>, StageSolution> estimates_;
  std::map<std::pair<Composition, int>, std::vector<PipelineDraft>> solutions_;
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

// All counts while they are few; then only those that change somebody's micro-batches, thinned to an eighth
// apart.
std::vector<int> Search::pipeline_counts(int groups, int microbatches) const {
  std::vector<int> counts;
  const int most = std::min(groups, microbatches);
  double next = 1;
  for (int d = 1; d <= most; ++d) {
    if (!extensions_.uneven_microbatches) {
      if (microbatches % d == 0) counts.push_back(d);
    } else if (d <= 16 || d == most || groups % d == 0 || d >= next) {
      counts.push_back(d);
      next = d * 1.125;
    }
  }
  if (counts.size() > 48) {
    std::vector<int> thin;
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] <= 8 || i * 40 / counts.size() != (i + 1) * 40 / counts.size()) thin.push_back(counts[i]);
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
  const double bytes = costs.parameters.back() * costs.tensor * costs.gradient_bytes;
  const double stages = static_cast<double>(solution.layers.size());
  return std::max(0.0, 2 * bytes / stages / bandwidth - solution.sum / stages * 2 / 3);
}

double Search::estimate(CompositionCache& cache, const Grouping& grouping, int microbatches, bool sharded) {
  const int pipelines = grouping.pipelines();
  if (pipelines == 0 || pipelines > microbatches) return kInfinity;
  std::vector<PipelineRate> rates;
  double exposed = 0;
  // Replicas of every stage can stand side by side in one host. (Among few groups, who shares a host with
  // whom is left to the simulator.)
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
  if (sketch.estimate > (small_ ? 4 : 1.6) * best_estimate_) return;
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
  const int mixed = nodes <= 3 ? static_cast<int>(nodes) : 2;
  const int cap = nodes <= 3 ? 5 : 4;
  const std::function<void(size_t, int, int)> enumerate = [&](size_t node, int kinds, int stages) {
    if (candidates.size() > 400) return;
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
    for (int count = cap + 1; count <= std::min({pool.groups[n], costs.layers, 16}); ++count) {
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
  if (total <= kSmall) {
    const size_t limit = small_ ? 20000 : 200;
    for (Grouping& grouping : all_groupings(pool, fixed, limit))
      consider(cache, std::move(grouping), sharded);
    if (small_) return;
  }
  std::vector<int> least;
  for (size_t n = 0; n < pool.groups.size(); ++n) {
    Composition alone(pool.groups.size(), 0);
    int found = 0;
    for (int count = 1; count <= std::min({pool.groups[n], costs.layers, 64}) && found == 0; ++count) {
      alone[n] = count;
      if (cache.estimate(alone, 2 * count).feasible) found = count;
    }
    least.push_back(found);
  }
  consider(cache, spread_evenly(pool, fixed), sharded);
  consider(cache, level_power(pool, fixed), sharded);
  if (extensions_.uneven_microbatches) consider(cache, keep_apart(pool, fixed, least), sharded);
}

void Search::explore(int tensor, int microbatch) {
  const CostTable& costs = evaluator_.costs(tensor, microbatch);
  const Pool whole = pool_of(request_, costs);
  const int microbatches = request_.batch / microbatch;
  const int total = std::accumulate(whole.groups.begin(), whole.groups.end(), 0);
  if (total == 0) return;
  std::vector<Pool> pools = {whole};
  const size_t nodes = whole.groups.size();
  // Leaving a node out altogether; small clusters leave out single groups anyway.
  if (!small_ && nodes > 1)
    for (unsigned mask = 1; mask + 1 < (1u << std::min<size_t>(nodes, 5)); ++mask) {
      const int left_out = static_cast<int>(nodes) - __builtin_popcount(mask);
      if (request_.objective == Objective::time && left_out > 1) continue;
      Pool part = whole;
      for (size_t n = 0; n < nodes; ++n)
        if (n < 5 && !(mask >> n & 1)) part.groups[n] = 0;
      double power = 0, all = 0;
      for (size_t n = 0; n < nodes; ++n) {
        power += part.groups[n] * part.power[n];
        all += whole.groups[n] * whole.power[n];
      }
      if (request_.objective == Objective::time && power < 0.7 * all) continue;
      pools.push_back(std::move(part));
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
          while (sharded && divisor * 2 <= pipelines && divisor < 32) divisor *= 2;
          rules.optimizer_share = 1.0 / divisor;
          explore(cache_of(tensor, microbatch, rules), pool, sharded, pipelines);
          // Placed state may leave a stage none at all; place_optimizer and the simulator say whether it
          // works out.
          if (!sharded || !extensions_.placed_optimizer || (!small_ && best_estimate_ < kInfinity)) continue;
          for (const double part : {0.6, 0.3, 0.0}) {
            rules.optimizer_share = part / divisor;
            explore(cache_of(tensor, microbatch, rules), pool, sharded, pipelines);
          }
        }
        if (!small_ && extensions_.uneven_microbatches) {
          rules.optimizer_share = sharded ? 0.25 : 1;
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
  for (int round = 0; round < 3; ++round) {
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
  for (size_t variant = 0; variant < 2 * kKept; ++variant) {
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
  // A pipeline of one stage waits for nobody: any schedule runs it as 1F1B does.
  if (std::all_of(from.layout.pipelines.begin(), from.layout.pipelines.end(),
                  [](const PipelineLayout& pipeline) { return pipeline.stages.size() == 1; }))
    return;
  std::vector<PlanLayout> layouts;
  PlanLayout layout = from.layout;
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::split_backward})
    for (int warmup = 0; warmup <= 2; ++warmup) {
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
    constexpr double kNear = 1.01;  // what contention may change
    if (!small_ && evaluator_.estimate(other, {}).score > kNear * evaluator_.best_score()) continue;
    evaluator_.submit(evaluator_.simulate(std::move(other), policy_ + ", schedule"));
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
  const size_t most = small_ ? 2000 : groups <= 128 ? 400 : 24, each = small_ ? 1000 : groups <= 128 ? 40 : 6;
  std::map<std::pair<int, int>, size_t> taken;
  std::map<std::tuple<int, int, int, double>, size_t> taken_pipelines;
  std::vector<Candidate> candidates, infeasible;
  size_t refined = 0;
  for (const Sketch& sketch : sketches_) {
    size_t& count = taken[{sketch.tensor, sketch.microbatch}];
    if (count >= each || refined >= most) continue;
    size_t& alike = taken_pipelines[{sketch.tensor, sketch.microbatch, sketch.grouping.pipelines(),
                                     small_ ? sketch.rules.optimizer_share * (sketch.sharded ? 1 : 2) : 0}];
    if (alike >= (small_ ? 24 : groups <= 128 ? 10 : 2)) continue;
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
    const bool rare = small_ || ++kinds[{layout.tensor, layout.microbatch, layout.pipelines.size()}] <= 2;
    (rare ? first : later).push_back(std::move(candidate));
  }
  candidates = std::move(first);
  std::move(later.begin(), later.end(), std::back_inserter(candidates));
  if (!small_) {  // only estimated so far
    constexpr size_t kSimulated = 100;
    if (candidates.size() > kSimulated) candidates.resize(kSimulated);
    for (Candidate& candidate : candidates) {
      candidate = evaluator_.simulate(std::move(candidate.layout), policy_);
      evaluator_.submit(candidate);
    }
    for (Candidate& candidate : infeasible) evaluator_.submit(candidate);
  }
  const size_t starts = small_ ? 40 : groups <= 128 ? 5 : 2;
  if (extensions_.local_search) {
    const int64_t budget = small_ ? 400'000 : 700'000;
    for (size_t i = 0; i < std::min(starts, candidates.size()); ++i) {
      if (candidates[i].score > 1.2 * evaluator_.best_score()) continue;
      Candidate better = improve(evaluator_, candidates[i], extensions_, budget);
      evaluator_.submit(better);
      // What it came from may be the better one under another schedule.
      if (!small_) candidates.push_back(candidates[i]);
      candidates[i] = std::move(better);
    }
    // Moves may also make a plan fit; worth it while no other does, or where it costs little.
    for (size_t i = 0; i < std::min(starts, infeasible.size()); ++i) {
      if (!small_ && evaluator_.best().feasible()) break;
      Candidate repaired = improve(evaluator_, std::move(infeasible[i]), extensions_, budget);
      evaluator_.submit(repaired);
      if (repaired.feasible()) candidates.push_back(std::move(repaired));
    }
    if (small_) {
      search_jointly(evaluator_, extensions_, policy_, kJointBudget);
      if (evaluator_.best().feasible()) candidates.push_back(evaluator_.best());
    }
  }
  if (extensions_.schedules) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    const size_t tried = small_ ? std::min(starts, candidates.size()) : candidates.size();
    for (size_t i = 0; i < tried; ++i) try_schedules(candidates[i], i < starts);
  }
}

// Moves on one layout. Each returns whether it was possible; the simulator decides whether it was good.
class LocalSearch {
 public:
  LocalSearch(Evaluator& evaluator, const Extensions& extensions, Candidate& best, int64_t budget)
      : evaluator_(evaluator),
        extensions_(extensions),
        best_(best),
        budget_(budget),
        costs_(evaluator.costs(best.layout.tensor, best.layout.microbatch)) {
    size_t stages = 0;
    for (const PipelineLayout& pipeline : best.layout.pipelines) stages += pipeline.stages.size();
    many_ = stages > kSmall;
    estimates_first_ = many_ || costs_.layers > kShallow;
  }

  void run() {
    climb();
    if (!many_) return;
    many_ = false;  // then what the bound does not see, with what is left
    climb();
  }

 private:
  void climb() {
    bool better = true;
    while (better && budget_ > 0) {
      better = move_layers();
      better = move_microbatches() || better;
      better = toggle_recompute() || better;
      better = swap_stages() || better;
      better = move_stages() || better;
      better = move_groups() || better;
    }
  }

  bool attempt(PlanLayout layout) {
    if (budget_ <= 0) return false;
    if (many_ && can_prune(layout)) return false;
    if (estimates_first_) budget_ -= costs_.layers * static_cast<int64_t>(layout.pipelines.size());
    if (layout.sharded_optimizer && extensions_.placed_optimizer) place_optimizer(layout, costs_);
    if (estimates_first_ && best_.simulation.fits && evaluator_.estimate(layout, {}).score >= best_.score)
      return false;
    for (const PipelineLayout& pipeline : layout.pipelines)
      budget_ -= pipeline.microbatches * static_cast<int64_t>(pipeline.stages.size()) + costs_.layers;
    Candidate candidate = evaluator_.simulate(std::move(layout), best_.origin);
    if (!is_better(candidate, best_)) return false;
    best_ = std::move(candidate);
    return true;
  }

  // What no simulation is spent on where there are many stages: the slowest pipeline by the bound is left as
  // it is, or some pipeline would take longer by the bound than all do now by the simulator.
  bool can_prune(const PlanLayout& layout) {
    budget_ -= costs_.layers;
    if (!best_.simulation.fits || evaluator_.request().objective != Objective::time ||
        layout.schedule != Schedule::one_f_one_b || layout.pipelines.size() != best_.layout.pipelines.size())
      return false;
    size_t slowest = 0;
    double longest = 0;
    for (size_t p = 0; p < layout.pipelines.size(); ++p) {
      if (bound(layout.pipelines[p]) >= best_.simulation.seconds) return true;
      const double now = bound(best_.layout.pipelines[p]);
      if (now > longest) {
        longest = now;
        slowest = p;
      }
    }
    return layout.pipelines[slowest] == best_.layout.pipelines[slowest];
  }

  double bound(const PipelineLayout& pipeline) const {
    const PipelineRate rate = rate_of(pipeline, costs_);
    return rate.sum + (pipeline.microbatches - 1) * rate.longest;
  }

  // One layer from stage a to stage b of a pipeline; those between shift.
  bool move_layers() {
    bool better = false;
    for (size_t p = 0; p < best_.layout.pipelines.size() && budget_ > 0; ++p) {
      const size_t stages = best_.layout.pipelines[p].stages.size();
      for (size_t a = 0; a < stages; ++a)
        for (size_t b = 0; b < stages; ++b) {
          if (a == b || best_.layout.pipelines[p].stages[a].layers < 2) continue;
          PlanLayout layout = best_.layout;
          auto& changed = layout.pipelines[p].stages;
          --changed[a].layers;
          ++changed[b].layers;
          number_layers(changed);
          PlanLayout again = layout;
          if (attempt(std::move(layout))) {
            better = true;
          } else if (extensions_.recompute_per_stage && !again.pipelines[p].stages[b].recompute) {
            again.pipelines[p].stages[b].recompute = true;
            better = attempt(std::move(again)) || better;
          }
        }
    }
    return better;
  }

  bool move_microbatches() {
    if (!extensions_.uneven_microbatches) return false;
    bool better = false;
    const size_t pipelines = best_.layout.pipelines.size();
    if (pipelines > 32) return false;
    for (size_t a = 0; a < pipelines; ++a)
      for (size_t b = 0; b < pipelines; ++b) {
        if (a == b || best_.layout.pipelines[a].microbatches < 2) continue;
        PlanLayout layout = best_.layout;
        --layout.pipelines[a].microbatches;
        ++layout.pipelines[b].microbatches;
        better = attempt(std::move(layout)) || better;
      }
    return better;
  }

  bool toggle_recompute() {
    if (!extensions_.recompute_per_stage) return false;
    bool better = false;
    for (size_t p = 0; p < best_.layout.pipelines.size() && budget_ > 0; ++p)
      for (size_t s = 0; s < best_.layout.pipelines[p].stages.size(); ++s) {
        PlanLayout layout = best_.layout;
        bool& recompute = layout.pipelines[p].stages[s].recompute;
        // Switching it on only helps a plan to fit.
        if (!recompute && best_.simulation.fits) continue;
        recompute = !recompute;
        better = attempt(std::move(layout)) || better;
      }
    return better;
  }

  bool swap_stages() {
    bool better = false;
    for (size_t p = 0; p < best_.layout.pipelines.size() && budget_ > 0; ++p)
      for (size_t a = 0; a < best_.layout.pipelines[p].stages.size(); ++a)
        for (size_t b = a + 1; b < best_.layout.pipelines[p].stages.size(); ++b) {
          PlanLayout layout = best_.layout;
          auto& stages = layout.pipelines[p].stages;
          if (stages[a].node == stages[b].node && stages[a].host == stages[b].host) continue;
          std::swap(stages[a].node, stages[b].node);
          std::swap(stages[a].host, stages[b].host);
          if (solve_again(layout, p)) better = attempt(std::move(layout)) || better;
        }
    return better;
  }

  // A stage to another place in its pipeline, its layers with it.
  bool move_stages() {
    bool better = false;
    for (size_t p = 0; p < best_.layout.pipelines.size() && budget_ > 0; ++p) {
      const size_t stages = best_.layout.pipelines[p].stages.size();
      for (size_t a = 0; a < stages; ++a)
        for (size_t b = 0; b < stages; ++b) {
          if (a == b) continue;
          PlanLayout layout = best_.layout;
          auto& changed = layout.pipelines[p].stages;
          const StageLayout moved = changed[a];
          changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(a));
          changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(b), moved);
          number_layers(changed);
          better = attempt(std::move(layout)) || better;
        }
    }
    return better;
  }

  // A group to another pipeline, or two exchanged; the layers of both pipelines and all micro-batches anew.
  bool move_groups() {
    if (best_.layout.pipelines.size() < 2 || best_.layout.pipelines.size() > 24) return false;
    bool better = false;
    for (size_t p = 0; p < best_.layout.pipelines.size() && budget_ > 0; ++p)
      for (size_t q = 0; q < best_.layout.pipelines.size() && budget_ > 0; ++q) {
        if (p == q) continue;
        for (size_t s = 0; s < best_.layout.pipelines[p].stages.size(); ++s) {
          if (best_.layout.pipelines[p].stages.size() > 1) {
            PlanLayout layout = best_.layout;
            const StageLayout moved = layout.pipelines[p].stages[s];
            auto& from = layout.pipelines[p].stages;
            auto& to = layout.pipelines[q].stages;
            from.erase(from.begin() + static_cast<std::ptrdiff_t>(s));
            to.insert(to.begin() + static_cast<std::ptrdiff_t>(std::min(s, to.size())), moved);
            if (solve_again(layout, p) && solve_again(layout, q) && rebalance(layout) &&
                attempt(std::move(layout))) {
              better = true;
              break;
            }
          }
          bool exchanged = false;
          for (size_t t = 0; t < best_.layout.pipelines[q].stages.size() && p < q; ++t) {
            PlanLayout layout = best_.layout;
            StageLayout& a = layout.pipelines[p].stages[s];
            StageLayout& b = layout.pipelines[q].stages[t];
            if (a.node == b.node) continue;
            std::swap(a.node, b.node);
            std::swap(a.host, b.host);
            if (solve_again(layout, p) && solve_again(layout, q) && rebalance(layout) &&
                attempt(std::move(layout))) {
              better = exchanged = true;
              break;
            }
          }
          if (exchanged) break;
        }
      }
    return better;
  }

  StageSolver& solver() {
    if (!solver_) {
      StageRules rules;
      rules.optimizer_share =
          best_.layout.sharded_optimizer ? 1.0 / static_cast<double>(best_.layout.pipelines.size()) : 1;
      for (const PipelineLayout& pipeline : best_.layout.pipelines)
        for (const StageLayout& stage : pipeline.stages)
          if (stage.share != 1) rules.optimizer_share = 0;
      if (!extensions_.recompute_per_stage)
        rules.recompute =
            best_.layout.pipelines[0].stages[0].recompute ? Recompute::always : Recompute::never;
      rules.schedule = best_.layout.schedule;
      rules.warmup = best_.layout.warmup;
      solver_ = std::make_unique<StageSolver>(costs_, rules);
    }
    return *solver_;
  }

  bool solve_again(PlanLayout& layout, size_t p) {
    PipelineLayout& pipeline = layout.pipelines[p];
    return solver().cut(pipeline.stages, pipeline.microbatches);
  }

  bool rebalance(PlanLayout& layout) {
    return balance(layout, costs_, evaluator_.request().batch / layout.microbatch,
                   extensions_.uneven_microbatches);
  }

  Evaluator& evaluator_;
  const Extensions& extensions_;
  Candidate& best_;
  int64_t budget_;
  bool many_ = false;             // stages: moves are sieved by the bound before they are simulated
  bool estimates_first_ = false;  // without contention, before moves are simulated
  const CostTable& costs_;
  std::unique_ptr<StageSolver> solver_;
};

}  // namespace

bool is_small(const Request& request) {
  return total_devices(request.cluster) <= kSmall && request.model.count() <= kShallow;
}

Pool pool_of(const Request& request, const CostTable& costs) {
  Pool pool;
  for (size_t n = 0; n < costs.nodes.size(); ++n) {
    const int node = static_cast<int>(n);
    pool.groups.push_back(costs.nodes[n].groups * static_cast<int>(request.cluster.nodes[n].hosts.size()));
    pool.power.push_back(1 / (costs.forward_seconds(node, 0, costs.layers) +
                              costs.backward_seconds(node, 0, costs.layers, false)));
    pool.memory.push_back(costs.nodes[n].memory_bytes * costs.tensor);
  }
  return pool;
}

std::vector<std::vector<int>> stage_orders(const Composition& composition, const CostTable& costs,
                                           size_t limit) {
  std::vector<int> nodes;
  for (size_t n = 0; n < composition.size(); ++n)
    if (composition[n] > 0) nodes.push_back(static_cast<int>(n));
  const auto blocks = [&](const std::vector<int>& order) {
    std::vector<int> stages;
    for (const int node : order)
      stages.insert(stages.end(), static_cast<size_t>(composition[static_cast<size_t>(node)]), node);
    return stages;
  };
  std::vector<std::vector<int>> orders;
  // Early stages hold most activations: the largest memory first.
  const auto memory = [&](int node) { return costs.nodes[static_cast<size_t>(node)].memory_bytes; };
  std::vector<int> by_memory = nodes;
  std::stable_sort(by_memory.begin(), by_memory.end(), [&](int a, int b) { return memory(a) > memory(b); });
  orders.push_back(blocks(by_memory));
  if (limit <= 1) return orders;
  std::vector<int> order = blocks(nodes);
  if (permutations_of(composition, limit) <= limit) {
    do {
      if (order != orders[0]) orders.push_back(order);
    } while (std::next_permutation(order.begin(), order.end()));
  } else if (nodes.size() <= 4) {
    std::vector<int> sequence = nodes;
    do {
      if (blocks(sequence) != orders[0]) orders.push_back(blocks(sequence));
    } while (std::next_permutation(sequence.begin(), sequence.end()));
  } else {
    std::reverse(by_memory.begin(), by_memory.end());
    orders.push_back(blocks(by_memory));
    const auto power = [&](int node) { return -costs.forward_seconds(node, 0, costs.layers); };
    std::stable_sort(by_memory.begin(), by_memory.end(), [&](int a, int b) { return power(a) > power(b); });
    orders.push_back(blocks(by_memory));
    std::reverse(by_memory.begin(), by_memory.end());
    orders.push_back(blocks(by_memory));
  }
  return orders;
}

PlanLayout make_layout(const Request& request, const CostTable& costs,
                       const std::vector<PipelineDraft>& drafts, bool packed) {
  const size_t nodes = costs.nodes.size();
  std::vector<Composition> compositions;
  for (const PipelineDraft& draft : drafts) {
    Composition composition(nodes, 0);
    for (const int node : draft.nodes) ++composition[static_cast<size_t>(node)];
    compositions.push_back(std::move(composition));
  }
  std::vector<int> hosts, per_host;
  for (size_t n = 0; n < nodes; ++n) {
    hosts.push_back(static_cast<int>(request.cluster.nodes[n].hosts.size()));
    per_host.push_back(costs.nodes[n].groups);
  }
  const Places places = place(compositions, hosts, per_host, packed);
  PlanLayout layout;
  layout.tensor = costs.tensor;
  layout.microbatch = costs.microbatch;
  for (size_t p = 0; p < drafts.size(); ++p) {
    PipelineLayout pipeline;
    pipeline.microbatches = drafts[p].microbatches;
    std::vector<size_t> next(nodes, 0);
    for (const int node : drafts[p].nodes) {
      StageLayout stage;
      stage.node = node;
      const auto n = static_cast<size_t>(node);
      stage.host = places[p][n][next[n]++];
      pipeline.stages.push_back(stage);
    }
    adopt(drafts[p].solution, pipeline.stages);
    layout.pipelines.push_back(std::move(pipeline));
  }
  return layout;
}

Candidate improve(Evaluator& evaluator, Candidate candidate, const Extensions& extensions, int64_t budget) {
  LocalSearch(evaluator, extensions, candidate, budget).run();
  return candidate;
}

void search_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy) {
  Search(evaluator, extensions, policy).run();
}

}  // namespace het::planner
