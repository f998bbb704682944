#include "planner/autohet/stages.h"

#include <algorithm>

#include "planner/autohet/limits.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::stages;

}  // namespace

int in_flight(const StageRules& rules, int stages, int stage, int microbatches) {
  if (rules.schedule == Schedule::gpipe) return microbatches;
  if (rules.schedule == Schedule::split_backward)
    return std::min(microbatches, stages + (stages - 1 - stage) * rules.warmup);
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
    for (int first = 0; first < costs_.layers; ++first) {
      double running = 0;
      int end = first;
      while (end < costs_.layers) {
        const auto l = static_cast<size_t>(end);
        const double all = costs_.held_bytes(end, end + 1, false),
                     begin = costs_.held_bytes(end, end + 1, true);
        running = std::max(running, costs_.workspace[l] + (recompute ? all - begin : 0));
        const double kept = held * costs_.held_bytes(first, end + 1, recompute);
        const double sent = end + 1 < costs_.layers ? costs_.boundary[l] : 0;
        const double bytes = costs_.parameters_in(first, end + 1) * state + kept + std::max(running, sent);
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

void StageSolver::prepare(const std::vector<int>& nodes, int microbatches) {
  const int stages = static_cast<int>(nodes.size());
  limits_.clear();
  for (int s = 0; s < stages; ++s)
    limits_.push_back(&reach(nodes[static_cast<size_t>(s)], in_flight(rules_, stages, s, microbatches)));
  from_.assign(nodes.size() * (static_cast<size_t>(costs_.layers) + 1), -1);
}

// Over (stage, end of its layers): the smallest sum, or the smallest longest, of the stages so far, none
// longer than `allowed`. Recomputing only costs time, so a stage keeps its activations wherever they fit.
double StageSolver::run(const std::vector<int>& nodes, double allowed, bool minimise_sum) {
  const int stages = static_cast<int>(nodes.size()), layers = costs_.layers;
  const auto width = static_cast<size_t>(layers) + 1;
  table_.assign(width, kInfinity);
  table_[0] = 0;
  for (int s = 0; s < stages; ++s) {
    next_.assign(width, kInfinity);
    const NodeCosts& node = costs_.nodes[static_cast<size_t>(nodes[static_cast<size_t>(s)])];
    const Reach& limits = *limits_[static_cast<size_t>(s)];
    const int furthest = layers - (stages - 1 - s);  // each later stage needs a layer
    for (int first = s; first <= (s == 0 ? 0 : layers - (stages - s)); ++first) {
      const auto f = static_cast<size_t>(first);
      const double before = table_[f];
      if (before == kInfinity) continue;
      const int kept = limits.kept[f], most = std::min(furthest, std::max(kept, limits.recomputed[f]));
      for (int end = s == stages - 1 ? layers : first + 1; end <= most; ++end) {
        const auto e = static_cast<size_t>(end);
        const double tau = (node.forward[e] - node.forward[f]) * (end <= kept ? 1 : 2) + node.input[e] -
                           node.input[f] + node.weight[e] - node.weight[f];
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
}

StageSolution StageSolver::take(const std::vector<int>& nodes) const {
  const auto width = static_cast<size_t>(costs_.layers) + 1;
  StageSolution found;
  found.feasible = true;
  found.layers.assign(nodes.size(), 0);
  found.recompute.assign(nodes.size(), 0);
  int end = costs_.layers;
  for (size_t s = nodes.size(); s-- > 0;) {
    const int first = from_[s * width + static_cast<size_t>(end)];
    found.layers[s] = end - first;
    found.recompute[s] = end > limits_[s]->kept[static_cast<size_t>(first)];
    const double tau = seconds(nodes[s], first, end, found.recompute[s] != 0);
    found.sum += tau;
    found.longest = std::max(found.longest, tau);
    end = first;
  }
  return found;
}

StageSolution StageSolver::with_layers(const std::vector<int>& nodes, const std::vector<int>& layers,
                                       int microbatches) {
  prepare(nodes, microbatches);
  StageSolution found;
  found.layers = layers;
  int first = 0;
  for (size_t s = 0; s < nodes.size(); ++s) {
    const int end = first + layers[s];
    const auto f = static_cast<size_t>(first);
    if (layers[s] < 1 || end > std::max(limits_[s]->kept[f], limits_[s]->recomputed[f])) return {};
    found.recompute.push_back(end > limits_[s]->kept[f]);
    const double tau = seconds(nodes[s], first, end, found.recompute[s] != 0);
    found.sum += tau;
    found.longest = std::max(found.longest, tau);
    first = end;
  }
  found.feasible = true;
  return found;
}

std::vector<StageSolution> StageSolver::compromises(const std::vector<int>& nodes, int microbatches) {
  std::vector<StageSolution> found;
  if (nodes.empty() || static_cast<int>(nodes.size()) > costs_.layers) return found;
  prepare(nodes, microbatches);
  const double shortest = run(nodes, kInfinity, false);
  if (shortest == kInfinity) return found;
  const double good = take(nodes).seconds(microbatches), least = run(nodes, kInfinity, true);
  // Nothing much worse than the first by the bound; in steps of a hundredth where there are many layers.
  double allowed =
      microbatches > 1 ? (limits::stages::kNearBest * good - least) / (microbatches - 1) : kInfinity;
  const double step = nodes.size() * static_cast<size_t>(costs_.layers) <= kExact ? 1 - 1e-12 : kStep;
  while (allowed >= shortest && run(nodes, allowed, true) != kInfinity) {
    found.push_back(take(nodes));
    allowed = found.back().longest * step;
  }
  return found;
}

StageSolution StageSolver::solve(const std::vector<int>& nodes, int microbatches, bool thorough) {
  const int stages = static_cast<int>(nodes.size());
  StageSolution best;
  if (stages > costs_.layers || stages == 0) return best;
  const auto keep = [&](StageSolution found) {
    if (!best.feasible || found.seconds(microbatches) < best.seconds(microbatches)) best = std::move(found);
  };
  if (thorough && stages * costs_.layers <= kExact) {  // exactly
    for (StageSolution& found : compromises(nodes, microbatches)) keep(std::move(found));
    return best;
  }
  prepare(nodes, microbatches);
  const double shortest = run(nodes, kInfinity, false);
  if (shortest == kInfinity) return best;
  keep(take(nodes));
  if (!thorough) return best;
  for (const double allowance : kAllowances) {
    // Beyond this the longest alone costs more than the best so far.
    if (allowance != kInfinity && (microbatches - 1) * shortest * allowance > best.seconds(microbatches))
      break;
    if (run(nodes, shortest * allowance * (1 + 1e-12), true) != kInfinity) keep(take(nodes));
  }
  return best;
}

void adopt(const StageSolution& solution, std::vector<StageLayout>& stages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].layers = solution.layers[s];
    stages[s].recompute = solution.recompute[s] != 0;
  }
  number_layers(stages);
}

bool StageSolver::cut(std::vector<StageLayout>& stages, int microbatches) {
  std::vector<int> nodes;
  nodes.reserve(stages.size());
  for (const StageLayout& stage : stages) nodes.push_back(stage.node);
  const StageSolution solution = solve(nodes, microbatches);
  if (solution.feasible) adopt(solution, stages);
  return solution.feasible;
}

}  // namespace het::planner
