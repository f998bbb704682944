#include "planner/autohet/local_search.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "planner/autohet/balance.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/stages.h"

namespace het::planner {
namespace {

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
    many_ = stages > limits::kSmallGroups;
    estimates_first_ = many_ || costs_.layers > limits::kSmallLayers;
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

  // Moves one layer from stage a to stage b of a pipeline; the stages between shift.
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
    if (pipelines > limits::kPairedPipelines) return false;
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

  // Moves a group to another pipeline, or exchanges two; then cuts both pipelines and balances all
  // micro-batches again.
  bool move_groups() {
    if (best_.layout.pipelines.size() < 2 || best_.layout.pipelines.size() > limits::local::kExchanged)
      return false;
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

bool is_better(const Candidate& a, const Candidate& b) {
  if (b.layout.pipelines.empty()) return !a.layout.pipelines.empty();
  if (!a.simulation.fits || !b.simulation.fits)
    return a.simulation.fits != b.simulation.fits
               ? a.simulation.fits
               : a.simulation.over_bytes < b.simulation.over_bytes * (1 - 1e-9);
  return a.score < b.score * (1 - 1e-9);
}

Candidate improve(Evaluator& evaluator, Candidate candidate, const Extensions& extensions, int64_t budget) {
  LocalSearch(evaluator, extensions, candidate, budget).run();
  return candidate;
}

}  // namespace het::planner
