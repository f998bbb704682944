#include "planner/autohet/composition_cache.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "planner/autohet/limits.h"

namespace het::planner {
namespace {

using namespace limits::compositions;

// The number of micro-batches matters little beyond a few for each stage: nearby ones share a solution.
int bucket_of(const Composition& composition, int microbatches) {
  const int stages = std::accumulate(composition.begin(), composition.end(), 0);
  int bucket = std::min(microbatches, 2 * stages);
  while (bucket * 5 / 4 + 1 < microbatches) bucket = bucket * 5 / 4 + 1;
  return std::max(bucket, 1);
}

// Whether some of a composition's nodes reach each other much more slowly than others: then the order of its
// stages decides.
bool has_slow_links(const Composition& composition, const CostTable& costs) {
  double least = 0, most = 0;
  for (size_t a = 0; a < composition.size(); ++a)
    for (size_t b = a + 1; b < composition.size(); ++b) {
      if (composition[a] == 0 || composition[b] == 0) continue;
      const double rate = costs.link(static_cast<int>(a), static_cast<int>(b)).bytes_per_second;
      least = least == 0 ? rate : std::min(least, rate);
      most = std::max(most, rate);
    }
  return most > kUnevenLinks * least;
}

// The bound of 1F1B with the links between nodes: a boundary passes each twice a micro-batch, once in each
// direction, and the stages that share a parameter sum its gradient at the end.
double seconds_with_links(const PipelineDraft& draft, const CostTable& costs, int microbatches) {
  const std::vector<int>& nodes = draft.nodes;
  double sum = draft.solution.sum, longest = draft.solution.longest, shared_seconds = 0;
  std::vector<int> ends;  // of stages: layers before
  int layer = 0;
  for (size_t s = 0; s < nodes.size(); ++s) {
    ends.push_back(layer += draft.solution.layers[s]);
    if (s + 1 == nodes.size() || nodes[s] == nodes[s + 1]) continue;
    const double hop =
        costs.link(nodes[s], nodes[s + 1]).seconds(costs.boundary[static_cast<size_t>(layer - 1)]);
    sum += 2 * hop;
    longest = std::max(longest, hop);
  }
  for (const SharedParameter& shared : costs.shared) {
    if (!shared.trained) continue;
    double slowest = 0;  // seconds of a byte
    int first = -1;
    for (const int user : shared.layers) {
      const size_t s = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), user) - ends.begin());
      if (first >= 0 && nodes[s] != first)
        slowest = std::max(slowest, 1 / costs.link(first, nodes[s]).bytes_per_second);
      if (first < 0) first = nodes[s];
    }
    shared_seconds += slowest * shared.parameters * costs.tensor * costs.gradient_bytes;
  }
  return sum + (microbatches - 1) * longest + shared_seconds;
}

}  // namespace

const StageSolution& CompositionCache::estimate(const Composition& composition, int microbatches) {
  const int bucket = bucket_of(composition, microbatches);
  const auto [entry, fresh] = estimates_.try_emplace({composition, bucket});
  if (!fresh) return entry->second;
  for (const std::vector<int>& order : stage_orders(composition, solver_.costs(), 1))
    entry->second = solver_.solve(order, bucket, false);
  if (entry->second.feasible && !small_) return entry->second;
  for (const std::vector<int>& order :
       stage_orders(composition, solver_.costs(), small_ ? kFirstOrdersSmall : kFirstOrders)) {
    StageSolution found = solver_.solve(order, bucket, small_);
    if (found.feasible && (!entry->second.feasible || found.seconds(bucket) < entry->second.seconds(bucket)))
      entry->second = std::move(found);
    if (entry->second.feasible && !small_) break;
  }
  return entry->second;
}

const std::vector<PipelineDraft>& CompositionCache::solve(const Composition& composition, int microbatches,
                                                          size_t limit) {
  const int bucket = bucket_of(composition, microbatches);
  const auto [entry, fresh] = solutions_.try_emplace({composition, bucket});
  if (!fresh) return entry->second;
  std::vector<PipelineDraft> drafts;
  const CostTable& costs = solver_.costs();
  const bool slow_links = !small_ && has_slow_links(composition, costs);
  if (slow_links) limit = std::max(limit, kOrdersOfSlowLinks);
  for (const std::vector<int>& order : stage_orders(composition, costs, limit)) {
    if (small_) {
      for (StageSolution& found : solver_.compromises(order, bucket))
        drafts.push_back({order, std::move(found), bucket});
    } else {
      StageSolution found = solver_.solve(order, bucket);
      if (found.feasible) drafts.push_back({order, std::move(found), bucket});
    }
  }
  const auto seconds = [&](const PipelineDraft& draft) {
    return slow_links ? seconds_with_links(draft, costs, bucket) : draft.solution.seconds(bucket);
  };
  std::stable_sort(drafts.begin(), drafts.end(),
                   [&](const PipelineDraft& a, const PipelineDraft& b) { return seconds(a) < seconds(b); });
  if (drafts.empty()) return entry->second;
  if (small_ && drafts.size() > 1) {
    std::vector<std::pair<double, size_t>> ranking;
    for (size_t i = 0; i < std::min<size_t>(drafts.size(), kRanked); ++i) {
      if (drafts[i].solution.seconds(bucket) >
          limits::compositions::kNearBest * drafts[0].solution.seconds(bucket))
        break;
      ranking.emplace_back(seconds_alone(drafts[i]), i);
    }
    std::sort(ranking.begin(), ranking.end());
    std::set<std::vector<int>> climbed;  // the best of each order
    for (auto& [seconds, i] : ranking)
      if (climbed.size() < kClimbed && climbed.insert(drafts[i].nodes).second)
        seconds = climb(drafts[i], seconds);
    std::sort(ranking.begin(), ranking.end());
    for (size_t i = 0; i < std::min<size_t>(ranking.size(), limits::kKeptOrders); ++i)
      entry->second.push_back(drafts[ranking[i].second]);
  } else {
    entry->second.push_back(std::move(drafts[0]));
  }
  return entry->second;
}

double CompositionCache::seconds_alone(const PipelineDraft& draft) {
  PlanLayout layout = make_layout(request_, solver_.costs(), {draft}, true);
  layout.schedule = solver_.rules().schedule;
  layout.warmup = solver_.rules().warmup;
  const Simulation simulation = alone_.run(layout);
  return solver_.rules().optimizer_share == 1 ? simulation.seconds : simulation.pipeline_seconds;
}

double CompositionCache::climb(PipelineDraft& draft, double seconds) {
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

}  // namespace het::planner
