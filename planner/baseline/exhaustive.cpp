#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "planner/autohet/balance.h"
#include "planner/autohet/drafts.h"
#include "planner/autohet/group.h"
#include "planner/autohet/search.h"
#include "planner/autohet/stages.h"
#include "planner/baseline/baseline.h"

namespace het::planner {
namespace {

// One pipeline with everything decided but its hosts.
struct Choice {
  std::vector<StageLayout> stages;
  double seconds = 0;  // of the pipeline alone
};

class Exhaustive {
 public:
  Exhaustive(Evaluator& evaluator, int tensor, int microbatch, int64_t& left)
      : evaluator_(evaluator),
        request_(evaluator.request()),
        costs_(evaluator.costs(tensor, microbatch)),
        alone_(costs_, request_.cluster),
        microbatches_(request_.batch / microbatch),
        left_(left) {}

  void run() {
    const Pool pool = pool_of(request_, costs_);
    const int groups = std::accumulate(pool.groups.begin(), pool.groups.end(), 0);
    if (groups > 10 || costs_.layers > 16)
      fail_usage(
          "exhaustive planning is for up to 10 tensor-parallel groups and 16 layers; here are {} and {}",
          groups, costs_.layers);
    for (const bool sharded : {false, true}) {
      sharded_ = sharded;
      choices_.clear();
      for (int pipelines = sharded ? 2 : 1; pipelines <= std::min(groups, microbatches_); ++pipelines)
        for (const Grouping& grouping : all_groupings(pool, pipelines, std::numeric_limits<size_t>::max()))
          try_grouping(grouping);
    }
  }

 private:
  void try_grouping(const Grouping& grouping) {
    if (left_ < 0) return;
    std::vector<Composition> pipelines;
    for (const auto& [composition, copies] : grouping.parts)
      pipelines.insert(pipelines.end(), static_cast<size_t>(copies), composition);
    Composition all(costs_.nodes.size(), 0);
    for (const Composition& pipeline : pipelines)
      for (size_t n = 0; n < all.size(); ++n) all[n] += pipeline[n];
    price_ = price_of(all);
    counts_.assign(pipelines.size(), 0);
    divide(pipelines, 0, microbatches_);
  }

  // Of the hosts that so many groups fill in order, for an hour.
  double price_of(const Composition& groups) const {
    double price = 0;
    for (size_t n = 0; n < groups.size(); ++n)
      if (groups[n] > 0) {
        const int hosts = (groups[n] + costs_.nodes[n].groups - 1) / costs_.nodes[n].groups;
        price += hosts * request_.cluster.nodes[n].price_per_hour;
      }
    return price;
  }

  // No plan on hosts of this price that takes as many seconds is better than the best: scores are at least
  // seconds, but where they are money.
  double seconds_to_beat(double price) const {
    const double best = evaluator_.best_score();
    if (request_.objective != Objective::cost) return best;
    return price > 0 ? best * 3600 / price : std::numeric_limits<double>::infinity();
  }

  // Every way to give the pipelines from `p` on `left` micro-batches; alike pipelines in falling order.
  void divide(const std::vector<Composition>& pipelines, size_t p, int left) {
    if (p == pipelines.size()) {
      if (left == 0) combine(pipelines);
      return;
    }
    const int others = static_cast<int>(pipelines.size() - p) - 1;
    int most = left - others;
    if (p > 0 && pipelines[p] == pipelines[p - 1]) most = std::min(most, counts_[p - 1]);
    for (int m = most; m >= 1; --m) {
      if (others == 0 && m != left) continue;
      if (bound(pipelines[p], m) >= seconds_to_beat(price_)) continue;
      counts_[p] = m;
      divide(pipelines, p + 1, left - m);
    }
  }

  // A pipeline of these groups runs m micro-batches in no less: all its groups busy all the time.
  double bound(const Composition& composition, int m) const {
    double power = 0;
    for (size_t n = 0; n < composition.size(); ++n) {
      const int node = static_cast<int>(n);
      power += composition[n] / (costs_.forward_seconds(node, 0, costs_.layers) +
                                 costs_.backward_seconds(node, 0, costs_.layers, false));
    }
    return uniform_ * m / power;
  }

  void combine(const std::vector<Composition>& pipelines) {
    std::vector<const std::vector<Choice>*> options;
    for (size_t p = 0; p < pipelines.size(); ++p) {
      options.push_back(&choices(pipelines[p], counts_[p]));
      if (options.back()->empty() || options.back()->front().seconds >= seconds_to_beat(price_)) return;
    }
    std::vector<size_t> picked(pipelines.size(), 0);
    pick(pipelines, options, picked, 0);
  }

  void pick(const std::vector<Composition>& pipelines, const std::vector<const std::vector<Choice>*>& options,
            std::vector<size_t>& picked, size_t p) {
    if (p == pipelines.size()) {
      simulate_combination(pipelines, options, picked);
      return;
    }
    const bool twin = p > 0 && pipelines[p] == pipelines[p - 1] && counts_[p] == counts_[p - 1];
    for (size_t i = twin ? picked[p - 1] : 0; i < options[p]->size() && left_ >= 0; ++i) {
      if ((*options[p])[i].seconds >= seconds_to_beat(price_)) break;  // sorted
      picked[p] = i;
      pick(pipelines, options, picked, p + 1);
    }
  }

  void simulate_combination(const std::vector<Composition>& pipelines,
                            const std::vector<const std::vector<Choice>*>& options,
                            const std::vector<size_t>& picked) {
    PlanLayout layout;
    layout.tensor = costs_.tensor;
    layout.microbatch = costs_.microbatch;
    layout.sharded_optimizer = sharded_;
    for (size_t p = 0; p < pipelines.size(); ++p)
      layout.pipelines.push_back({counts_[p], (*options[p])[picked[p]].stages});
    assign_hosts(layout);
    if (sharded_ && !place_optimizer(layout, costs_)) return;
    evaluator_.submit(evaluator_.simulate(std::move(layout), "exhaustive"));
  }

  // Hosts in order; one host of a node after another.
  void assign_hosts(PlanLayout& layout) const {
    std::vector<int> used(costs_.nodes.size(), 0);
    for (PipelineLayout& pipeline : layout.pipelines)
      for (StageLayout& stage : pipeline.stages) {
        const auto n = static_cast<size_t>(stage.node);
        stage.host = used[n]++ / costs_.nodes[n].groups;
      }
  }

  const std::vector<Choice>& choices(const Composition& composition, int m) {
    const auto [entry, fresh] = choices_.try_emplace({composition, m});
    std::vector<Choice>& found = entry->second;
    if (!fresh) return found;
    std::vector<int> order;
    for (size_t n = 0; n < composition.size(); ++n)
      order.insert(order.end(), static_cast<size_t>(composition[n]), static_cast<int>(n));
    if (static_cast<int>(order.size()) > costs_.layers) return found;
    std::sort(order.begin(), order.end());
    alone_price_ = price_of(composition);  // beside other pipelines it is no less
    do {
      std::vector<StageLayout> stages(order.size());
      for (size_t s = 0; s < order.size(); ++s) stages[s].node = order[s];
      split(stages, 0, 0, 0, m, found);
    } while (std::next_permutation(order.begin(), order.end()));
    std::stable_sort(found.begin(), found.end(),
                     [](const Choice& a, const Choice& b) { return a.seconds < b.seconds; });
    return found;
  }

  // Every way to cut the layers from `first` on; `before`: seconds of one micro-batch in the stages before,
  // which every micro-batch's first and last must pass, so that no stage ends before `before` + m times its
  // own.
  void split(std::vector<StageLayout>& stages, size_t s, int first, double before, int m,
             std::vector<Choice>& found) {
    if (left_ < 0) return;
    const int left = static_cast<int>(stages.size() - s) - 1;
    const StageRules rules;
    const int held = in_flight(rules, static_cast<int>(stages.size()), static_cast<int>(s), m);
    for (int count = left == 0 ? costs_.layers - first : 1; first + count + left <= costs_.layers; ++count) {
      const int end = first + count;
      StageLayout& stage = stages[s];
      stage.first = first;
      stage.layers = count;
      const double limit = costs_.nodes[static_cast<size_t>(stage.node)].memory_bytes;
      for (const bool recompute : {false, true}) {
        if (costs_.stage_bytes(first, end, held, recompute, sharded_ ? 0 : 1) > limit) continue;
        // With all of its optimizer state it fits without: recomputing is then only slower.
        if (recompute && costs_.stage_bytes(first, end, held, false, 1) <= limit) continue;
        stage.recompute = recompute;
        const double tau = costs_.forward_seconds(stage.node, first, end) +
                           costs_.backward_seconds(stage.node, first, end, recompute);
        if (before + m * tau >= seconds_to_beat(alone_price_)) continue;
        if (left > 0) {
          split(stages, s + 1, end, before + tau, m, found);
        } else if (--left_ >= 0) {
          PlanLayout layout;
          layout.tensor = costs_.tensor;
          layout.microbatch = costs_.microbatch;
          layout.pipelines = {{m, stages}};
          assign_hosts(layout);
          const Simulation alone = alone_.run(layout);
          // Beside other pipelines a whole update takes as long as alone; a sharded one does not, nor does
          // the sum of a shared parameter, which more interfaces carry.
          const double seconds = sharded_ ? alone.pipeline_seconds : alone.seconds - alone.exposed_seconds;
          if (seconds < seconds_to_beat(alone_price_)) found.push_back({stages, seconds});
        }
      }
    }
  }

  Evaluator& evaluator_;
  const Request& request_;
  const CostTable& costs_;
  Simulator alone_;
  int microbatches_;
  int64_t& left_;  // simulations; below 0: given up
  bool sharded_ = false;
  double price_ = 0, alone_price_ = 0;  // of the grouping, of the pipeline at work
  std::vector<int> counts_;
  std::map<std::pair<Composition, int>, std::vector<Choice>> choices_;
  // A micro-batch is at least this part of what any node takes for the whole model: the sum over layers of
  // the layer's least share of a node's time (nodes differ in which layers they are good at).
  double uniform_ = least_work();

  double least_work() const {
    double work = 0;
    for (int layer = 0; layer < costs_.layers; ++layer) {
      double least = 1;
      for (int n = 0; n < static_cast<int>(costs_.nodes.size()); ++n) {
        const auto seconds = [&](int first, int last) {
          return costs_.forward_seconds(n, first, last) + costs_.backward_seconds(n, first, last, false);
        };
        least = std::min(least, seconds(layer, layer + 1) / seconds(0, costs_.layers));
      }
      work += least;
    }
    return work;
  }
};

}  // namespace

void plan_exhaustive(Evaluator& evaluator) {
  plan_exhaustive(evaluator, std::numeric_limits<int64_t>::max());
}

bool plan_exhaustive(Evaluator& evaluator, int64_t most) {
  // Good plans to prune against from the start. They may only hide plans that are no better.
  plan_megatron(evaluator);
  plan_whale(evaluator);
  Extensions extensions = evaluator.request().extensions;
  extensions.schedules = false;
  search_plans(evaluator, extensions, "exhaustive, first guess");
  for (const int tensor : tensor_degrees(evaluator.request()))
    for (const int microbatch : microbatch_sizes(evaluator.request()))
      Exhaustive(evaluator, tensor, microbatch, most).run();
  return most >= 0;
}

}  // namespace het::planner
