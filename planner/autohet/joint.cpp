#include "planner/autohet/joint.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "planner/autohet/balance.h"
#include "planner/autohet/drafts.h"
#include "planner/autohet/limits.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::joint;

// One pipeline with everything decided but its hosts and its share of optimizer state.
struct Cut {
  PipelineDraft draft;
  double seconds = 0;           // by the bound, then of the pipeline alone
  std::vector<double> carries;  // [layers] the part of the layer's state that its stage has room for
  double room = 0;              // bytes, at most what its layers' state takes
};

// Pipelines and their micro-batches; no plan of them takes less than `least` seconds.
struct BatchSplit {
  std::vector<Composition> pipelines;
  std::vector<int> counts;
  double least = 0;
};

// At one degree and micro-batch size, under one schedule.
class Joint {
 public:
  Joint(Evaluator& evaluator, const Extensions& extensions, std::string_view policy, StageRules rules,
        int tensor, int microbatch, int64_t& budget)
      : evaluator_(evaluator),
        request_(evaluator.request()),
        extensions_(extensions),
        policy_(policy),
        rules_(rules),
        costs_(evaluator.costs(tensor, microbatch)),
        alone_(costs_, request_.cluster),
        microbatches_(request_.batch / microbatch),
        budget_(budget) {
    apart_.contention = false;
    // The least seconds of the layers from each on, on any node.
    rest_.assign(static_cast<size_t>(costs_.layers) + 1, 0);
    for (int l = costs_.layers; l-- > 0;) {
      double least = kInfinity;
      for (int n = 0; n < static_cast<int>(costs_.nodes.size()); ++n)
        least = std::min(least, seconds(n, l, l + 1, false));
      rest_[static_cast<size_t>(l)] = rest_[static_cast<size_t>(l) + 1] + least;
    }
  }

  // Plans that take less than `limit`, or than the best so far.
  void run(double limit) {
    limit_ = limit;
    const Pool pool = pool_of(request_, costs_);
    const int groups = std::accumulate(pool.groups.begin(), pool.groups.end(), 0);
    std::vector<Recompute> modes = {Recompute::where_needed};
    if (!extensions_.recompute_per_stage) modes = {Recompute::never, Recompute::always};
    std::vector<BatchSplit> splits;
    for (int pipelines = 1; pipelines <= std::min(groups, microbatches_); ++pipelines)
      for (const Grouping& grouping : all_groupings(pool, pipelines, limits::kAll)) {
        BatchSplit split;
        for (const auto& [composition, copies] : grouping.parts)
          split.pipelines.insert(split.pipelines.end(), static_cast<size_t>(copies), composition);
        divide(split, microbatches_, splits);
      }
    std::stable_sort(splits.begin(), splits.end(),
                     [](const BatchSplit& a, const BatchSplit& b) { return a.least < b.least; });
    for (const BatchSplit& split : splits)
      for (const Recompute mode : modes)
        for (const bool sharded : {false, true}) {
          if (sharded && split.pipelines.size() == 1) continue;
          recompute_ = mode;
          sharded_ = sharded;
          share_ = !sharded                       ? 1
                   : extensions_.placed_optimizer ? 0
                                                  : 1.0 / static_cast<double>(split.pipelines.size());
          combine(split);
        }
  }

 private:
  double to_beat() const { return std::min(limit_, evaluator_.best_score()); }

  double seconds(int node, int first, int last, bool recompute) const {
    return costs_.forward_seconds(node, first, last) + costs_.backward_seconds(node, first, last, recompute);
  }

  // Every way to give the pipelines that have none yet `left` micro-batches; alike pipelines in falling
  // order.
  void divide(BatchSplit& split, int left, std::vector<BatchSplit>& found) {
    const size_t p = split.counts.size(), pipelines = split.pipelines.size();
    if (p == pipelines) {
      found.push_back(split);
      return;
    }
    const int others = static_cast<int>(pipelines - p) - 1;
    for (int m = others == 0 ? left : 1; m + others <= left; ++m) {
      if (!extensions_.uneven_microbatches && m * static_cast<int>(pipelines) != microbatches_) continue;
      if (p > 0 && split.pipelines[p] == split.pipelines[p - 1] && m > split.counts[p - 1]) break;
      // All its groups busy all the time.
      double power = 0;
      for (size_t n = 0; n < costs_.nodes.size(); ++n)
        power += split.pipelines[p][n] / seconds(static_cast<int>(n), 0, costs_.layers, false);
      const double least = split.least;
      split.least = std::max(least, m / power);
      // Nodes may differ in which layers they are good at, so that this is a little more than the least.
      if (split.least < kBoundSlack * to_beat()) {
        split.counts.push_back(m);
        divide(split, left - m, found);
        split.counts.pop_back();
      }
      split.least = least;
    }
  }

  // Combinations of cuts in the order of the slowest of each.
  void combine(const BatchSplit& split) {
    if (budget_ <= 0 || split.least >= kBoundSlack * to_beat()) return;
    options_.clear();
    order_.clear();
    for (size_t p = 0; p < split.pipelines.size(); ++p) {
      const std::vector<Cut>& found = cuts(split.pipelines[p], split.counts[p]);
      if (found.empty() || found.front().seconds >= to_beat()) return;
      options_.push_back(&found);
      for (size_t i = 0; i < found.size(); ++i) order_.emplace_back(found[i].seconds, p, i);
    }
    std::sort(order_.begin(), order_.end());
    leaves_ = kLeaves;
    picked_.assign(options_.size(), 0);
    for (slowest_ = 0; slowest_ < order_.size() && leaves_ > 0 && budget_ > 0; ++slowest_) {
      if (std::get<0>(order_[slowest_]) >= to_beat()) break;
      pick(split, 0, 0);
    }
  }

  void pick(const BatchSplit& split, size_t p, double room) {
    const auto& [longest, slowest, index] = order_[slowest_];
    if (p == options_.size()) {
      --leaves_;
      const double state = costs_.parameters_in(0, costs_.layers) * costs_.optimizer_bytes;
      if (!sharded_ || !extensions_.placed_optimizer || room >= state * (1 - 1e-12)) submit();
      return;
    }
    const bool twin =
        p > 0 && split.pipelines[p] == split.pipelines[p - 1] && split.counts[p] == split.counts[p - 1];
    const std::vector<Cut>& options = *options_[p];
    for (size_t i = twin ? picked_[p - 1] : 0; i < options.size() && leaves_ > 0 && budget_ > 0; ++i) {
      if (p == slowest && i != index) continue;
      if (std::tuple(options[i].seconds, p, i) > order_[slowest_] || longest >= to_beat()) break;
      picked_[p] = i;
      pick(split, p + 1, room + options[i].room);
    }
  }

  PlanLayout make_scheduled(const std::vector<PipelineDraft>& drafts) const {
    PlanLayout layout = make_layout(request_, costs_, drafts, true);
    layout.schedule = rules_.schedule;
    layout.warmup = rules_.warmup;
    return layout;
  }

  void submit() {
    std::vector<PipelineDraft> drafts;
    for (size_t p = 0; p < options_.size(); ++p) drafts.push_back((*options_[p])[picked_[p]].draft);
    PlanLayout layout = make_scheduled(drafts);
    layout.sharded_optimizer = sharded_;
    if (sharded_ && extensions_.placed_optimizer && !place_optimizer(layout, costs_)) return;
    --budget_;
    if (evaluator_.best().feasible() && evaluator_.estimate(layout, {}).score >= evaluator_.best_score())
      return;
    budget_ -= kContended;
    evaluator_.submit(evaluator_.simulate(std::move(layout), policy_));
  }

  // The Pareto front of all orders and cuts in time and room, the fastest first.
  const std::vector<Cut>& cuts(const Composition& composition, int microbatches) {
    const auto [entry, fresh] =
        cuts_.try_emplace({composition, microbatches, sharded_, static_cast<int>(recompute_), share_});
    std::vector<Cut>& kept = entry->second;
    if (!fresh) return kept;
    std::vector<Cut> found;
    for (const std::vector<int>& order : stage_orders(composition, costs_, limits::kAll)) {
      if (static_cast<int>(order.size()) > costs_.layers) break;
      Cut cut;
      cut.draft.nodes = order;
      cut.draft.microbatches = microbatches;
      extend(cut, 0, 0, 0, found);
    }
    std::stable_sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.seconds < b.seconds; });
    if (found.size() > limits::joint::kSimulated) found.resize(limits::joint::kSimulated);
    for (Cut& cut : found) {
      cut.draft.solution.feasible = true;
      const Simulation alone = alone_.run(make_scheduled({cut.draft}), apart_);
      --budget_;
      // Beside other pipelines a whole update takes as long as alone, a sharded one does not; nor does the
      // sum of a shared parameter, which more interfaces carry.
      cut.seconds = sharded_ ? alone.pipeline_seconds : alone.seconds - alone.exposed_seconds;
      measure(cut);
    }
    std::stable_sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.seconds < b.seconds; });
    for (Cut& cut : found) {
      if (cut.seconds >= to_beat() || (!sharded_ && kept.size() == kWhole)) break;
      int better = 0;
      for (const Cut& other : kept)
        better += std::equal(other.carries.begin(), other.carries.end(), cut.carries.begin(),
                             [](double a, double b) { return a >= b; });
      if (!sharded_ || better < kAlike) kept.push_back(std::move(cut));
    }
    return kept;
  }

  bool is_split() const { return rules_.schedule == Schedule::split_backward; }
  bool is_plain() const { return !is_split() && rules_.warmup == 0; }

  // Every way to cut the layers from `first` on. `before`: seconds of one micro-batch in the stages before,
  // which the first and the last must pass (under a split backward: the first, forward), so that no stage
  // ends before `before` + m times its own. `longest`: the longest stage; where forwards run ahead, or
  // gradients of weights come later, the end of the last stage to end, because the bound of 1F1B does not
  // hold.
  void extend(Cut& cut, int first, double before, double longest, std::vector<Cut>& found) {
    StageSolution& solution = cut.draft.solution;
    const int stages = static_cast<int>(cut.draft.nodes.size()), s = static_cast<int>(solution.layers.size());
    const int left = stages - s - 1, m = cut.draft.microbatches,
              node = cut.draft.nodes[static_cast<size_t>(s)];
    const int held = in_flight(rules_, stages, s, m);
    const double memory = costs_.nodes[static_cast<size_t>(node)].memory_bytes, best = to_beat();
    for (int end = left == 0 ? costs_.layers : first + 1; end + left <= costs_.layers; ++end) {
      if (before + m * seconds(node, first, end, false) >= best) return;  // it only grows with the end
      for (const bool recompute : {false, true}) {
        if (recompute_ == (recompute ? Recompute::never : Recompute::always)) continue;
        if (costs_.stage_bytes(first, end, held, recompute, share_) > memory) continue;
        // With all of its state it fits without: recomputing is then only slower.
        if (recompute && recompute_ == Recompute::where_needed &&
            costs_.stage_bytes(first, end, held, false, 1) <= memory)
          continue;
        const double tau = seconds(node, first, end, recompute);
        const double passed = before + (is_split() ? costs_.forward_seconds(node, first, end) : tau);
        const double most = std::max(longest, is_plain() ? tau : before + m * tau);
        const double bound = is_plain() ? passed + rest_[static_cast<size_t>(end)] + (m - 1) * most : most;
        if (before + m * tau >= best || bound >= kBoundSlack * best || found.size() >= kEnumerated) continue;
        solution.layers.push_back(end - first);
        solution.recompute.push_back(recompute);
        if (left > 0) {
          extend(cut, end, passed, most, found);
        } else {
          found.push_back(cut);
          found.back().seconds = bound;
        }
        solution.layers.pop_back();
        solution.recompute.pop_back();
      }
    }
  }

  // Room for optimizer state.
  void measure(Cut& cut) const {
    const int stages = static_cast<int>(cut.draft.nodes.size());
    int first = 0;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<size_t>(s);
      const int end = first + cut.draft.solution.layers[i],
                held = in_flight(rules_, stages, s, cut.draft.microbatches);
      const double state = costs_.parameters_in(first, end) * costs_.optimizer_bytes;
      const double free = costs_.nodes[static_cast<size_t>(cut.draft.nodes[i])].memory_bytes -
                          costs_.stage_bytes(first, end, held, cut.draft.solution.recompute[i] != 0, 0);
      const double room = std::clamp(free, 0.0, state);
      cut.room += room;
      cut.carries.insert(cut.carries.end(), static_cast<size_t>(end - first), state > 0 ? room / state : 1);
      first = end;
    }
  }

  Evaluator& evaluator_;
  const Request& request_;
  const Extensions& extensions_;
  std::string policy_;
  StageRules rules_;  // the schedule
  const CostTable& costs_;
  Simulator alone_;
  SimulateOptions apart_;
  int microbatches_;
  int64_t& budget_;
  double limit_ = kInfinity;
  Recompute recompute_ = Recompute::where_needed;
  bool sharded_ = false;
  double share_ = 1;          // of its layers' state that a stage must have room for
  std::vector<double> rest_;  // [layers + 1]
  std::map<std::tuple<Composition, int, bool, int, double>, std::vector<Cut>> cuts_;
  // Of the combination at work: cuts of each pipeline; all of them by (seconds, pipeline, index); the one
  // that is the slowest; the choice.
  std::vector<const std::vector<Cut>*> options_;
  std::vector<std::tuple<double, size_t, size_t>> order_;
  size_t slowest_ = 0;
  std::vector<size_t> picked_;
  int leaves_ = 0;
};

}  // namespace

void search_jointly(Evaluator& evaluator, const Extensions& extensions, std::string_view policy,
                    int64_t budget, const StageRules& rules) {
  if (evaluator.request().objective != Objective::time) return;
  std::vector<std::pair<int, int>> sizes;  // degrees, each with a micro-batch size
  for (const int tensor : tensor_degrees(evaluator.request()))
    for (const int microbatch : microbatch_sizes(evaluator.request()))
      // As many micro-batches ahead as there are: no others than with fewer.
      if (rules.warmup < std::max(1, evaluator.request().batch / microbatch) &&
          !evaluator.can_prune(tensor, microbatch))
        sizes.emplace_back(tensor, microbatch);
  // Without a plan to beat, cuts would be without number: the limit grows until there is one.
  double limit = evaluator.best().feasible()
                     ? kInfinity
                     : kFirstLimit * lower_bound_seconds(evaluator.request(), evaluator);
  for (int round = 0; round < kLimitRounds && budget > 0; ++round, limit *= kLimitGrowth) {
    auto others = static_cast<int64_t>(sizes.size());
    for (const auto& [tensor, microbatch] : sizes) {
      // None takes what the others need.
      int64_t part = budget / others--;
      budget -= part;
      Joint(evaluator, extensions, policy, rules, tensor, microbatch, part).run(limit);
      budget += part;
    }
    if (evaluator.best().feasible()) return;
  }
}

}  // namespace het::planner
