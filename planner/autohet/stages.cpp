#include "planner/autohet/stages.h"

#include <algorithm>
#include <limits>

namespace het::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

int in_flight(const StageRules& rules, int stages, int stage, int microbatches) {
  if (rules.schedule == Schedule::gpipe) return microbatches;
  if (rules.schedule == Schedule::split_backward) return std::min(microbatches, stages);
  return std::min(microbatches, 1 + (stages - 1 - stage) * (1 + rules.warmup));
}

double StageSolver::seconds(int node, int first, int last, bool recompute) const {
  return costs_.forward_seconds(node, first, last) + costs_.backward_seconds(node, first, last, recompute);
}

const StageSolver::Reach& StageSolver::reach(int node, int held) {
  const auto [entry, fresh] = reaches_.try_emplace({node, held});
  Reach& reach = entry->second;
  if (!fresh) return reach;
  const double limit = costs_.nodes[static_cast<size_t>(node)].memory_bytes;
  const double state =
      costs_.weight_bytes + costs_.gradient_bytes + costs_.optimizer_bytes * rules_.optimizer_share;
  for (const bool recompute : {false, true}) {
    std::vector<int>& ends = recompute ? reach.recomputed : reach.kept;
    const std::vector<double>& kept = recompute ? costs_.checkpoint : costs_.activation;
    for (int first = 0; first < costs_.layers; ++first) {
      const auto f = static_cast<size_t>(first);
      double running = 0;
      int end = first;
      while (end < costs_.layers) {
        const auto l = static_cast<size_t>(end);
        running = std::max(running, costs_.workspace[l] + (recompute ? costs_.layer_activation[l] : 0));
        const double bytes = (costs_.parameters[l + 1] - costs_.parameters[f]) * state +
                             held * (kept[l + 1] - kept[f]) + running;
        if (bytes > limit) break;
        ++end;
      }
      ends.push_back(end);
    }
  }
  if (rules_.recompute == Recompute::always) reach.kept.assign(reach.kept.size(), 0);
  if (rules_.recompute == Recompute::never) reach.recomputed.assign(reach.recomputed.size(), 0);
  return reach;
}

// Two programs over (stage, layers before its end): first the smallest longest stage, then, allowing a little
// more than that, the smallest sum. Recomputing only costs time, so a stage keeps its activations wherever
// they fit.
StageSolution StageSolver::solve(const std::vector<int>& nodes, int microbatches, bool thorough) {
  const int stages = static_cast<int>(nodes.size()), layers = costs_.layers;
  StageSolution best;
  if (stages > layers || stages == 0) return best;
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<const Reach*> reaches;
  for (int s = 0; s < stages; ++s)
    reaches.push_back(&reach(nodes[static_cast<size_t>(s)], in_flight(rules_, stages, s, microbatches)));

  from_.assign(static_cast<size_t>(stages) * width, -1);
  const auto run = [&](double allowed, bool minimise_sum) {
    table_.assign(width, kInfinity);
    table_[0] = 0;
    for (int s = 0; s < stages; ++s) {
      next_.assign(width, kInfinity);
      const int node = nodes[static_cast<size_t>(s)];
      const NodeCosts& node_costs = costs_.nodes[static_cast<size_t>(node)];
      const Reach& limits = *reaches[static_cast<size_t>(s)];
      const int last_first = layers - (stages - s);
      for (int first = s == 0 ? 0 : s; first <= (s == 0 ? 0 : last_first); ++first) {
        const auto f = static_cast<size_t>(first);
        const double before = table_[f];
        if (before == kInfinity) continue;
        const int kept = limits.kept[f], furthest = std::max(kept, limits.recomputed[f]);
        const int final_end = layers - (stages - 1 - s);
        for (int end = s == stages - 1 ? layers : first + 1; end <= std::min(furthest, final_end); ++end) {
          const auto e = static_cast<size_t>(end);
          const double forward = node_costs.forward[e] - node_costs.forward[f];
          const double tau = forward * (end <= kept ? 1 : 2) + node_costs.input[e] - node_costs.input[f] +
                             node_costs.weight[e] - node_costs.weight[f];
          if (tau > allowed) break;  // it only grows with the end
          const double value = minimise_sum ? before + tau : std::max(before, tau);
          if (value < next_[e]) {
            next_[e] = value;
            from_[static_cast<size_t>(s) * width + e] = first;
          }
        }
      }
      std::swap(table_, next_);
    }
    return table_[static_cast<size_t>(layers)];
  };
  const auto take = [&] {
    StageSolution found;
    found.feasible = true;
    found.layers.assign(static_cast<size_t>(stages), 0);
    found.recompute.assign(static_cast<size_t>(stages), 0);
    int end = layers;
    for (int s = stages - 1; s >= 0; --s) {
      const auto i = static_cast<size_t>(s);
      const int first = from_[i * width + static_cast<size_t>(end)];
      found.layers[i] = end - first;
      found.recompute[i] = end > reaches[i]->kept[static_cast<size_t>(first)];
      const double tau = seconds(nodes[i], first, end, found.recompute[i] != 0);
      found.sum += tau;
      found.longest = std::max(found.longest, tau);
      end = first;
    }
    const double longest = found.longest;
    if (!best.feasible || found.seconds(microbatches) < best.seconds(microbatches)) best = std::move(found);
    return longest;
  };

  const double shortest = run(kInfinity, false);
  if (shortest == kInfinity) return best;
  take();
  if (!thorough) return best;
  // Small problems exactly: the smallest sum for every longest that can be, from the largest down.
  if (stages * layers <= 160) {
    double allowed = kInfinity;
    while (run(allowed, true) != kInfinity) {
      allowed = take() * (1 - 1e-12);
      if (allowed <= shortest * (1 - 1e-9)) break;
    }
    return best;
  }
  static constexpr double kAllowances[] = {1.0, 1.02, 1.06, 1.15, 1.4, 2.5, kInfinity};
  for (const double allowance : kAllowances) {
    // Beyond this the longest alone costs more than the best so far.
    if (allowance != kInfinity && (microbatches - 1) * shortest * allowance > best.seconds(microbatches))
      break;
    if (run(shortest * allowance * (1 + 1e-12), true) == kInfinity) continue;
    take();
  }
  return best;
}

}  // namespace het::planner
