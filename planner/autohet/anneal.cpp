#include "planner/autohet/anneal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/parallel.h"
#include "core/base/random.h"
#include "planner/autohet/balance.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/search.h"
#include "planner/autohet/stages.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::anneal;

class Annealer {
 public:
  Annealer(const Request& request, const CostTable& costs, const Extensions& extensions, uint64_t seed)
      : request_(request),
        costs_(costs),
        extensions_(extensions),
        simulator_(costs, request.cluster),
        key_(philox_key(seed, hash_of("anneal"))) {
    options_.contention = false;
  }

  PlanLayout run(PlanLayout start, int64_t steps) {
    best_ = now_ = std::move(start);
    free_groups();
    double now = score(now_), best = now;
    if (now == kInfinity) return best_;
    for (int64_t step = 0; step < steps && goes_on(request_); ++step) {
      const double heat =
          kHot * std::pow(kCold / kHot, static_cast<double>(step) / static_cast<double>(steps));
      PlanLayout next = now_;
      if (!move(next)) continue;
      if (next.sharded_optimizer && extensions_.placed_optimizer) place_optimizer(next, costs_);
      const double then = score(next);
      if (then > now && (then == kInfinity || uniform() >= std::exp((now - then) / (heat * now)))) continue;
      const bool changed = next.pipelines.size() != now_.pipelines.size() || stages(next) != stages(now_);
      now_ = std::move(next);
      now = then;
      if (changed) free_groups();
      if (now < best * (1 - 1e-9)) {
        best = now;
        best_ = now_;
      }
    }
    return best_;
  }

 private:
  using Stages = std::vector<StageLayout>;

  static size_t stages(const PlanLayout& layout) {
    size_t count = 0;
    for (const PipelineLayout& pipeline : layout.pipelines) count += pipeline.stages.size();
    return count;
  }

  double uniform() { return static_cast<double>(uniform_of(philox(key_, draws_++)[0])); }
  size_t below(size_t count) {
    return std::min(static_cast<size_t>(uniform() * static_cast<double>(count)), count - 1);
  }

  double score(const PlanLayout& layout) {
    const Simulation simulation = simulator_.run(layout, options_);
    return simulation.fits ? score_of(request_, layout, simulation.seconds) : kInfinity;
  }

  // Finds the groups that no stage uses.
  void free_groups() {
    std::map<std::pair<int, int>, int> used;
    for (const PipelineLayout& pipeline : now_.pipelines)
      for (size_t s = 0; s < pipeline.stages.size() / static_cast<size_t>(now_.chunks); ++s)
        ++used[{pipeline.stages[s].node, pipeline.stages[s].host}];
    free_.clear();
    for (int n = 0; n < static_cast<int>(costs_.nodes.size()); ++n)
      for (int h = 0; h < static_cast<int>(request_.cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
        for (int i = used[{n, h}]; i < costs_.nodes[static_cast<size_t>(n)].groups; ++i)
          free_.emplace_back(n, h);
  }

  bool move(PlanLayout& layout) {
    const double kind = uniform();
    if (layout.chunks > 1)
      return kind < 0.4 ? move_layer(layout) : kind < 0.7 ? exchange_groups(layout) : move_rounds(layout);
    if (kind < 0.25) return move_layer(layout);
    if (kind < 0.40) return move_microbatch(layout);
    if (kind < 0.60) return exchange_groups(layout);
    if (kind < 0.70) return move_group(layout);
    if (kind < 0.78) return move_stage(layout);
    if (kind < 0.83) return split_pipeline(layout);
    if (kind < 0.88) return merge_pipelines(layout);
    if (kind < 0.93) return add_group(layout);
    if (kind < 0.96) return drop_group(layout);
    if (kind < 0.98) return change_schedule(layout);
    return solve_all(layout);
  }

  PipelineLayout& any(PlanLayout& layout) { return layout.pipelines[below(layout.pipelines.size())]; }

  bool move_layer(PlanLayout& layout) {
    Stages& stages = any(layout).stages;
    if (stages.size() < 2) return false;
    const size_t a = below(stages.size()), b = below(stages.size());
    if (a == b || stages[a].layers < 2) return false;
    --stages[a].layers;
    ++stages[b].layers;
    number_layers(stages);
    return true;
  }

  bool move_microbatch(PlanLayout& layout) {
    if (!extensions_.uneven_microbatches) return false;
    PipelineLayout &a = any(layout), &b = any(layout);
    const int count = 1 + static_cast<int>(below(2));
    if (&a == &b || a.microbatches <= count) return false;
    a.microbatches -= count;
    b.microbatches += count;
    return true;
  }

  // Interleaved stages need as many micro-batches as a multiple of the pipeline's groups.
  bool move_rounds(PlanLayout& layout) {
    if (!extensions_.uneven_microbatches) return false;
    PipelineLayout &a = any(layout), &b = any(layout);
    const int chunks = layout.chunks;
    const int count =
        std::lcm(static_cast<int>(a.stages.size()) / chunks, static_cast<int>(b.stages.size()) / chunks);
    if (&a == &b || a.microbatches <= count) return false;
    a.microbatches -= count;
    b.microbatches += count;
    return true;
  }

  bool exchange_groups(PlanLayout& layout) {
    PipelineLayout &p = any(layout), &q = any(layout);
    const auto chunks = static_cast<size_t>(layout.chunks);
    const size_t in_p = p.stages.size() / chunks, in_q = q.stages.size() / chunks;
    const size_t a = below(in_p), b = below(in_q);
    if (p.stages[a].node == q.stages[b].node && p.stages[a].host == q.stages[b].host) return false;
    const bool other = p.stages[a].node != q.stages[b].node;
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      StageLayout &from = p.stages[a + chunk * in_p], &to = q.stages[b + chunk * in_q];
      std::swap(from.node, to.node);
      std::swap(from.host, to.host);
    }
    if (!other) return true;  // other hosts, the same work
    if (!solve(layout, p)) return false;
    return &p == &q || (solve(layout, q) && (chunks > 1 || rebalance(layout)));
  }

  bool move_group(PlanLayout& layout) {
    PipelineLayout &p = any(layout), &q = any(layout);
    if (&p == &q || p.stages.size() < 2) return false;
    insert(q.stages, take(p.stages));
    return solve(layout, p) && solve(layout, q) && rebalance(layout);
  }

  bool move_stage(PlanLayout& layout) {
    PipelineLayout& p = any(layout);
    if (p.stages.size() < 2) return false;
    insert(p.stages, take(p.stages));
    return solve(layout, p);
  }

  bool split_pipeline(PlanLayout& layout) {
    PipelineLayout& p = any(layout);
    if (p.stages.size() < 2 || p.microbatches < 2) return false;
    PipelineLayout other;
    other.microbatches = p.microbatches / 2;
    p.microbatches -= other.microbatches;
    Stages mine;
    for (const StageLayout& stage : p.stages) (uniform() < 0.5 ? mine : other.stages).push_back(stage);
    if (mine.empty() || other.stages.empty()) return false;
    p.stages = std::move(mine);
    layout.pipelines.push_back(std::move(other));
    return solve_all(layout);
  }

  bool merge_pipelines(PlanLayout& layout) {
    const size_t p = below(layout.pipelines.size()), q = below(layout.pipelines.size());
    if (p == q) return false;
    PipelineLayout& into = layout.pipelines[p];
    for (const StageLayout& stage : layout.pipelines[q].stages) insert(into.stages, stage);
    into.microbatches += layout.pipelines[q].microbatches;
    layout.pipelines.erase(layout.pipelines.begin() + static_cast<std::ptrdiff_t>(q));
    return solve_all(layout);
  }

  // An idle group joins a pipeline, or becomes one.
  bool add_group(PlanLayout& layout) {
    if (free_.empty()) return false;
    const auto [node, host] = free_[below(free_.size())];
    StageLayout stage;
    stage.node = node;
    stage.host = host;
    const size_t p = below(layout.pipelines.size() + 1);
    if (p < layout.pipelines.size()) {
      insert(layout.pipelines[p].stages, stage);
      return solve(layout, layout.pipelines[p]) && rebalance(layout);
    }
    layout.pipelines.push_back({1, {stage}});
    return solve_all(layout);
  }

  bool drop_group(PlanLayout& layout) {
    const size_t p = below(layout.pipelines.size());
    if (layout.pipelines[p].stages.size() > 1) {
      take(layout.pipelines[p].stages);
      return solve(layout, layout.pipelines[p]) && rebalance(layout);
    }
    if (layout.pipelines.size() < 2) return false;
    layout.pipelines.erase(layout.pipelines.begin() + static_cast<std::ptrdiff_t>(p));
    return solve_all(layout);
  }

  bool change_schedule(PlanLayout& layout) {
    if (layout.pipelines.size() > 1 && uniform() < 0.5) {
      layout.sharded_optimizer = !layout.sharded_optimizer;
      for (PipelineLayout& pipeline : layout.pipelines)
        for (StageLayout& stage : pipeline.stages) stage.share = 1;
      return true;
    }
    if (!extensions_.schedules) return false;
    layout.schedule = uniform() < 0.5 ? Schedule::split_backward : Schedule::one_f_one_b;
    layout.warmup = static_cast<int>(below(3));
    return true;
  }

  StageLayout take(Stages& stages) {
    const auto at = stages.begin() + static_cast<std::ptrdiff_t>(below(stages.size()));
    const StageLayout taken = *at;
    stages.erase(at);
    return taken;
  }

  void insert(Stages& stages, const StageLayout& stage) {
    stages.insert(stages.begin() + static_cast<std::ptrdiff_t>(below(stages.size() + 1)), stage);
  }

  // Cuts the layers of one pipeline again.
  bool solve(const PlanLayout& layout, PipelineLayout& pipeline) {
    StageRules rules;
    rules.schedule = layout.schedule;
    rules.warmup = layout.warmup;
    if (layout.chunks > 1) {  // the simulator counts what the stages of a group hold together
      rules.schedule = Schedule::one_f_one_b;
      rules.optimizer_share = 0;
    } else if (layout.sharded_optimizer) {
      rules.optimizer_share = 1.0 / static_cast<double>(layout.pipelines.size());
      for (const PipelineLayout& other : layout.pipelines)
        for (const StageLayout& stage : other.stages)
          if (stage.share != 1) rules.optimizer_share = 0;
    }
    if (!extensions_.recompute_per_stage)
      rules.recompute = now_.pipelines[0].stages[0].recompute ? Recompute::always : Recompute::never;
    const std::tuple key(static_cast<int>(rules.schedule), rules.warmup, rules.optimizer_share);
    auto known = solvers_.find(key);
    if (known == solvers_.end()) known = solvers_.emplace(key, std::make_unique<Known>(costs_, rules)).first;
    std::pair<std::vector<int>, int> question{{}, pipeline.microbatches};
    for (const StageLayout& stage : pipeline.stages) question.first.push_back(stage.node);
    const auto [answer, fresh] = known->second->answers.try_emplace(std::move(question));
    StageSolution& solution = answer->second;
    if (fresh) solution = known->second->solver.solve(answer->first.first, pipeline.microbatches, false);
    if (!solution.feasible) return false;
    adopt(solution, pipeline.stages);
    return true;
  }

  bool solve_all(PlanLayout& layout) {
    for (PipelineLayout& pipeline : layout.pipelines)
      if (!solve(layout, pipeline)) return false;
    return rebalance(layout);
  }

  bool rebalance(PlanLayout& layout) {
    return balance(layout, costs_, request_.batch / layout.microbatch, extensions_.uneven_microbatches);
  }

  struct Known {
    Known(const CostTable& costs, const StageRules& rules) : solver(costs, rules) {}
    StageSolver solver;
    std::map<std::pair<std::vector<int>, int>, StageSolution> answers;
  };

  const Request& request_;
  const CostTable& costs_;
  const Extensions& extensions_;
  Simulator simulator_;
  SimulateOptions options_;
  PhiloxKey key_;
  uint64_t draws_ = 0;
  PlanLayout now_, best_;
  std::vector<std::pair<int, int>> free_;  // (node, host) of each idle group
  std::map<std::tuple<int, int, double>, std::unique_ptr<Known>> solvers_;
};

// What a step costs, in units of about a nanosecond: the gradients of every layer of every pipeline, one or
// two pipelines run again, and the rest.
double cost_of_step(const PlanLayout& layout, int layers) {
  double operations = 0;
  for (const PipelineLayout& pipeline : layout.pipelines)
    operations += 2.0 * pipeline.microbatches * static_cast<double>(pipeline.stages.size());
  const auto pipelines = static_cast<double>(layout.pipelines.size());
  return 8000 + 12 * layers * pipelines + 5 * operations / pipelines;
}

}  // namespace

void anneal_plans(Evaluator& evaluator, const Extensions& extensions, std::string_view policy) {
  const Request& request = evaluator.request();
  if (!extensions.local_search || is_small(request)) return;
  std::vector<Candidate> starts = evaluator.bests();
  std::erase_if(starts, [&](const Candidate& start) {
    return start.score > limits::anneal::kNear * evaluator.best_score();
  });
  for (const size_t most : limits::anneal::kRounds) {
    if (starts.size() > most) starts.resize(most);
    const size_t count = starts.size();
    std::vector<const CostTable*> tables;
    tables.reserve(count);
    for (const Candidate& start : starts)
      tables.push_back(&evaluator.costs(start.layout.tensor, start.layout.microbatch));
    std::vector<PlanLayout> found(count);
    parallel_parts(static_cast<int64_t>(count), [&](int64_t part) {
      const auto i = static_cast<size_t>(part);
      const PlanLayout& start = starts[i].layout;
      const double steps = kWork / static_cast<double>(count) / cost_of_step(start, tables[i]->layers);
      found[i] = start;
      if (steps >= kFewest)
        found[i] =
            Annealer(request, *tables[i], extensions, most + i).run(start, static_cast<int64_t>(steps));
    });
    for (size_t i = 0; i < count; ++i) {
      Candidate candidate = evaluator.simulate(std::move(found[i]), policy);
      evaluator.submit(candidate);
      if (candidate.score < starts[i].score) starts[i] = std::move(candidate);
    }
    std::stable_sort(starts.begin(), starts.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  }
}

}  // namespace het::planner
