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
