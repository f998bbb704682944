#include "planner/autohet/replan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "planner/autohet/balance.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/local_search.h"
#include "planner/autohet/stages.h"

namespace het::planner {
namespace {

using namespace limits::replan;

// Where every pipeline has one stage, other schedules run as 1F1B does: the plan says 1F1B.
void reset_schedule(PlanLayout& layout) {
  size_t longest = 0;
  for (const PipelineLayout& pipeline : layout.pipelines)
    longest = std::max(longest, pipeline.stages.size() / static_cast<size_t>(layout.chunks));
  if (longest > 1) return;
  layout.schedule = Schedule::one_f_one_b;
  layout.warmup = 0;
}

class Repairer {
 public:
  Repairer(Evaluator& evaluator, int microbatch)
      : evaluator_(evaluator), request_(evaluator.request()), old_(*request_.old), microbatch_(microbatch) {}

  std::vector<PlanLayout> run() {
    const std::vector<int> degrees = tensor_degrees(request_);
    if (std::find(degrees.begin(), degrees.end(), old_.tensor) == degrees.end() || old_.chunks != 1)
      return {};
    // Layouts have one degree for all stages. A plan with `sharding` is repaired with Megatron's cuts.
    if (!has_uniform_cut(old_) ||
        tensor_shares(old_, old_.pipelines.at(0).stages.at(0)) != Shares(static_cast<size_t>(old_.tensor), 1))
      return {};
    read_old();
    std::vector<size_t> broken;
    for (size_t p = 0; p < pipelines_.size(); ++p)
      if (lost(p) > 0) broken.push_back(p);
    std::stable_sort(broken.begin(), broken.end(), [&](size_t a, size_t b) { return lost(a) < lost(b); });
    drop(broken);
    for (const bool split : {false, true}) shorten(broken, split);
    for (size_t repaired = 1; repaired <= broken.size(); ++repaired) repair(broken, repaired);
    const size_t plain = layouts_.size();
    for (size_t i = 0; i < plain; ++i) use_free(PlanLayout(layouts_[i]));
    return std::move(layouts_);
  }

 private:
  struct OldPipeline {
    PipelineLayout layout;
    std::vector<bool> alive;  // of each stage
  };
  using Free = std::map<std::pair<int, int>, int>;  // (node, host) -> groups

  int lost(size_t p) const {
    return static_cast<int>(std::count(pipelines_[p].alive.begin(), pipelines_[p].alive.end(), false));
  }

  void read_old() {
    std::map<std::string, std::pair<int, int>> places;
    for (int n = 0; n < static_cast<int>(request_.cluster.nodes.size()); ++n) {
      const Machine& node = request_.cluster.nodes[static_cast<size_t>(n)];
      for (int h = 0; h < static_cast<int>(node.hosts.size()); ++h)
        for (int d = 0; d < node.devices; ++d) places[device_name(request_.cluster, n, h, d)] = {n, h};
    }
    for (const Pipeline& pipeline : old_.pipelines) {
      OldPipeline& own = pipelines_.emplace_back();
      own.layout.microbatches = pipeline.microbatches;
      for (const Stage& stage : pipeline.stages) {
        StageLayout to{0, 0, stage.first_layer, stage.layers, stage.recompute, stage.optimizer_share};
        bool alive = true;
        for (size_t t = 0; t < stage.devices.size(); ++t) {
          const auto place = places.find(stage.devices[t]);
          alive = alive && place != places.end() && (t == 0 || place->second == std::pair(to.node, to.host));
          if (alive) std::tie(to.node, to.host) = place->second;
        }
        own.layout.stages.push_back(to);
        own.alive.push_back(alive);
      }
    }
  }

  Free free_beside(const PlanLayout& layout) const {
    Free free;
    for (int n = 0; n < static_cast<int>(request_.cluster.nodes.size()); ++n)
      for (int h = 0; h < static_cast<int>(request_.cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
        free[{n, h}] = request_.cluster.nodes[static_cast<size_t>(n)].devices / old_.tensor;
    for (const PipelineLayout& pipeline : layout.pipelines)
      for (const StageLayout& stage : pipeline.stages) --free[{stage.node, stage.host}];
    std::erase_if(free, [](const auto& entry) { return entry.second <= 0; });
    return free;
  }

  PlanLayout empty() const {
    PlanLayout layout;
    layout.tensor = old_.tensor;
    layout.microbatch = microbatch_;
    layout.schedule = old_.schedule == Schedule::interleaved ? Schedule::one_f_one_b : old_.schedule;
    layout.warmup = old_.warmup;
    layout.sharded_optimizer = old_.sharded_optimizer;
    return layout;
  }

  // Adds the layout as it is, and with its micro-batches balanced again.
  void add(PlanLayout layout) {
    const int total = request_.batch / microbatch_;
    if (layout.pipelines.empty() || static_cast<int>(layout.pipelines.size()) > total) return;
    if (layout.pipelines.size() == 1) layout.sharded_optimizer = false;
    reset_schedule(layout);
    int given = 0;
    for (const PipelineLayout& pipeline : layout.pipelines) given += pipeline.microbatches;
    if (given == total) layouts_.push_back(layout);
    if (balance(evaluator_, layout)) layouts_.push_back(std::move(layout));
  }

 public:
  // Micro-batches for the pipelines as they are; false when it cannot be.
  static bool balance(Evaluator& evaluator, PlanLayout& layout) {
    return planner::balance(layout, evaluator.costs(layout.tensor, layout.microbatch),
                            evaluator.request().batch / layout.microbatch,
                            evaluator.request().extensions.uneven_microbatches);
  }

 private:
  void drop(const std::vector<size_t>& broken) {
    PlanLayout layout = empty();
    for (size_t p = 0; p < pipelines_.size(); ++p)
      if (std::find(broken.begin(), broken.end(), p) == broken.end())
        layout.pipelines.push_back(pipelines_[p].layout);
    add(std::move(layout));
  }

  // Broken pipelines go on with the stages that are left: neighbours take the lost one's layers, the one
  // before it all or half of them; or all layers are cut again.
  void shorten(const std::vector<size_t>& broken, bool split) {
    if (broken.empty()) return;
    PlanLayout taken = empty(), cut = empty();
    StageRules rules;
    rules.optimizer_share = old_.sharded_optimizer ? 1.0 / static_cast<double>(pipelines_.size()) : 1;
    StageSolver solver(evaluator_.costs(old_.tensor, microbatch_), rules);
    for (size_t p = 0; p < pipelines_.size(); ++p) {
      const OldPipeline& from = pipelines_[p];
      PipelineLayout pipeline{from.layout.microbatches, {}};
      int owed = 0;  // layers before the next stage that is left
      for (size_t s = 0; s < from.alive.size(); ++s) {
        StageLayout stage = from.layout.stages[s];
        if (from.alive[s]) {
          stage.layers += owed;
          owed = 0;
          pipeline.stages.push_back(stage);
        } else if (pipeline.stages.empty()) {
          owed += stage.layers;
        } else {
          const bool last = std::none_of(from.alive.begin() + static_cast<std::ptrdiff_t>(s),
                                         from.alive.end(), [](bool alive) { return alive; });
          const int before = split && !last ? stage.layers / 2 : stage.layers;
          pipeline.stages.back().layers += before;
          owed += stage.layers - before;
        }
      }
      if (pipeline.stages.empty()) continue;
      number_layers(pipeline.stages);
      taken.pipelines.push_back(pipeline);
      if (lost(p) > 0 && !solver.cut(pipeline.stages, pipeline.microbatches)) continue;
      cut.pipelines.push_back(std::move(pipeline));
    }
    add(std::move(taken));
    if (!split) add(std::move(cut));
  }

  // The first `repaired` of the broken pipelines get free groups for their lost stages, of the lost one's
  // neighbours' node where there is one; the others are dropped, and their groups are free.
  void repair(const std::vector<size_t>& broken, size_t repaired) {
    PlanLayout layout = empty();
    std::vector<std::vector<size_t>> missing;  // of each pipeline of the layout, stages
    for (size_t p = 0; p < pipelines_.size(); ++p) {
      const auto at = std::find(broken.begin(), broken.end(), p);
      if (at != broken.end() && static_cast<size_t>(at - broken.begin()) >= repaired) continue;
      layout.pipelines.push_back(pipelines_[p].layout);
      missing.emplace_back();
      for (size_t s = 0; s < pipelines_[p].alive.size(); ++s)
        if (!pipelines_[p].alive[s]) missing.back().push_back(s);
    }
    PlanLayout placed = layout;
    for (size_t p = 0; p < missing.size(); ++p)
      for (size_t i = missing[p].size(); i-- > 0;)
        placed.pipelines[p].stages.erase(placed.pipelines[p].stages.begin() +
                                         static_cast<std::ptrdiff_t>(missing[p][i]));
    Free free = free_beside(placed);
    for (size_t p = 0; p < missing.size(); ++p)
      for (const size_t s : missing[p]) {
        if (free.empty()) return;
        auto& stages = layout.pipelines[p].stages;
        auto chosen = free.begin();
        for (auto entry = free.begin(); entry != free.end(); ++entry)
          for (const size_t beside : {s == 0 ? s + 1 : s - 1, s + 1})
            if (beside < stages.size() && stages[beside].node == entry->first.first) chosen = entry;
        std::tie(stages[s].node, stages[s].host) = chosen->first;
        if (--chosen->second == 0) free.erase(chosen);
      }
    add(std::move(layout));
  }

  // Free groups as a pipeline of their own, or one after the other into the pipelines that are there.
  void use_free(const PlanLayout& from) {
    const Free free = free_beside(from);
    size_t count = 0;
    for (const auto& [place, groups] : free) count += static_cast<size_t>(groups);
    if (count == 0 || count > kFree) return;
    const CostTable& costs = evaluator_.costs(from.tensor, from.microbatch);
    StageRules rules;
    if (from.sharded_optimizer) rules.optimizer_share = 1.0 / static_cast<double>(from.pipelines.size() + 1);
    rules.schedule = from.schedule;
    rules.warmup = from.warmup;
    StageSolver solver(costs, rules);
    const auto solved = [&](PipelineLayout& pipeline) {
      if (static_cast<int>(pipeline.stages.size()) > costs.layers) return false;
      return solver.cut(pipeline.stages, pipeline.microbatches);
    };
    PipelineLayout all{std::max(1, request_.batch / microbatch_ / 2), {}};
    for (const auto& [place, groups] : free)
      for (int g = 0; g < groups; ++g) all.stages.push_back({place.first, place.second, 0, 0, false, 1});
    for (size_t stages = 1; stages <= all.stages.size();
         ++stages) {  // as many pipelines as can be of so many
      PlanLayout layout = from;
      for (size_t first = 0; first + stages <= all.stages.size(); first += stages) {
        PipelineLayout own{all.microbatches, {}};
        own.stages.assign(all.stages.begin() + static_cast<std::ptrdiff_t>(first),
                          all.stages.begin() + static_cast<std::ptrdiff_t>(first + stages));
        if (solved(own)) layout.pipelines.push_back(std::move(own));
      }
      if (layout.pipelines.size() > from.pipelines.size()) add(std::move(layout));
    }
    for (const StageLayout& group : {all.stages.front(), all.stages.back()})
      for (size_t p = 0; p < from.pipelines.size(); ++p)
        for (size_t s = 0; s <= from.pipelines[p].stages.size(); ++s) {
          PlanLayout layout = from;
          auto& stages = layout.pipelines[p].stages;
          stages.insert(stages.begin() + static_cast<std::ptrdiff_t>(s), group);
          if (solved(layout.pipelines[p])) add(std::move(layout));
        }
  }

  Evaluator& evaluator_;
  const Request& request_;
  const Plan& old_;
  int microbatch_;
  std::vector<OldPipeline> pipelines_;
  std::vector<PlanLayout> layouts_;
};

// From plans that are near the best towards those that move less.
class Descent {
 public:
  explicit Descent(Evaluator& evaluator) : evaluator_(evaluator), old_(*evaluator.request().old) {}

  void run() {
    std::vector<PlanLayout> seen;
    while (budget_ > 0) {
      // The least moved that was not visited yet.
      const Evaluator::Near* next = nullptr;
      for (const Evaluator::Near& near : evaluator_.near())
        if (std::find(seen.begin(), seen.end(), near.candidate.layout) == seen.end()) next = &near;
      if (next == nullptr) return;
      seen.push_back(next->candidate.layout);
      expand(PlanLayout(next->candidate.layout));
    }
  }

 private:
  void attempt(PlanLayout layout) {
    if (budget_ <= 0) return;
    reset_schedule(layout);
    simulate(layout);
    PlanLayout balanced = std::move(layout);
    if (balanced.pipelines.size() > 1 && evaluator_.request().extensions.uneven_microbatches &&
        Repairer::balance(evaluator_, balanced))
      simulate(balanced);
  }

  void simulate(const PlanLayout& layout) {
    for (const PipelineLayout& pipeline : layout.pipelines)
      budget_ -= pipeline.microbatches * static_cast<int64_t>(pipeline.stages.size()) +
                 static_cast<int64_t>(evaluator_.request().model.count());
    evaluator_.simulate(layout, "near the old plan");
  }

  void expand(const PlanLayout& from) {
    if (from.chunks != 1) return;
    cut_as_before(from);
    swap_stages(from);
    move_layers(from);
    move_microbatches(from);
    keep_shares(from);
  }

  // A pipeline's layers as one of the old plan has them.
  void cut_as_before(const PlanLayout& from) {
    for (size_t p = 0; p < from.pipelines.size(); ++p)
      for (const Pipeline& pipeline : old_.pipelines) {
        if (pipeline.stages.size() != from.pipelines[p].stages.size()) continue;
        PlanLayout layout = from;
        for (size_t s = 0; s < pipeline.stages.size(); ++s)
          layout.pipelines[p].stages[s].layers = pipeline.stages[s].layers;
        number_layers(layout.pipelines[p].stages);
        if (layout != from) attempt(std::move(layout));
      }
  }

  void swap_stages(const PlanLayout& from) {
    struct At {
      size_t pipeline, stage;
    };
    std::vector<At> all;
    for (size_t p = 0; p < from.pipelines.size(); ++p)
      for (size_t s = 0; s < from.pipelines[p].stages.size(); ++s) all.push_back({p, s});
    if (all.size() > kSwapped) return;
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = i + 1; j < all.size(); ++j) {
        PlanLayout layout = from;
        StageLayout& a = layout.pipelines[all[i].pipeline].stages[all[i].stage];
        StageLayout& b = layout.pipelines[all[j].pipeline].stages[all[j].stage];
        if (a.node == b.node && a.host == b.host) continue;
        std::swap(a.node, b.node);
        std::swap(a.host, b.host);
        attempt(std::move(layout));
      }
  }

  void move_layers(const PlanLayout& from) {
    size_t moves = 0;
    for (const PipelineLayout& pipeline : from.pipelines)
      moves += pipeline.stages.size() * pipeline.stages.size();
    for (size_t p = 0; p < from.pipelines.size(); ++p) {
      const size_t stages = from.pipelines[p].stages.size();
      for (size_t a = 0; a < stages; ++a)
        for (size_t b = 0; b < stages; ++b) {
          if (a == b || from.pipelines[p].stages[a].layers < 2) continue;
          if (moves > kManyMoves && a != b + 1 && b != a + 1) continue;
          PlanLayout layout = from;
          --layout.pipelines[p].stages[a].layers;
          ++layout.pipelines[p].stages[b].layers;
          number_layers(layout.pipelines[p].stages);
          attempt(std::move(layout));
        }
    }
  }

  void move_microbatches(const PlanLayout& from) {
    const size_t pipelines = from.pipelines.size();
    if (!evaluator_.request().extensions.uneven_microbatches || pipelines > limits::kPairedPipelines) return;
    for (size_t a = 0; a < pipelines; ++a)
      for (size_t b = 0; b < pipelines; ++b) {
        if (a == b || from.pipelines[a].microbatches < 2) continue;
        PlanLayout layout = from;
        --layout.pipelines[a].microbatches;
        ++layout.pipelines[b].microbatches;
        simulate(layout);
      }
  }

  // Optimizer state whole where it was, or sharded as it was.
  void keep_shares(const PlanLayout& from) {
    PlanLayout layout = from;
    layout.sharded_optimizer = old_.sharded_optimizer && from.pipelines.size() > 1;
    for (size_t p = 0; p < layout.pipelines.size(); ++p)
      for (size_t s = 0; s < layout.pipelines[p].stages.size(); ++s)
        layout.pipelines[p].stages[s].share = p < old_.pipelines.size() && s < old_.pipelines[p].stages.size()
                                                  ? old_.pipelines[p].stages[s].optimizer_share
                                                  : 1;
    std::vector<bool> kept(static_cast<size_t>(evaluator_.request().model.count()), false);
    for (const PipelineLayout& pipeline : layout.pipelines)
      for (const StageLayout& stage : pipeline.stages)
        for (int l = stage.first; l < stage.first + stage.layers && stage.share > 0; ++l)
          kept[static_cast<size_t>(l)] = true;
    if (layout == from || std::find(kept.begin(), kept.end(), false) != kept.end()) return;
    attempt(std::move(layout));
  }

  Evaluator& evaluator_;
  const Plan& old_;
  int64_t budget_ = kBudget;
};

}  // namespace

std::vector<PlanLayout> repaired_layouts(Evaluator& evaluator) {
  const Request& request = evaluator.request();
  std::vector<PlanLayout> layouts;
  std::vector<int> sizes;
  for (const int size : {request.old->microbatch, evaluator.best().layout.microbatch})
    if (request.batch % size == 0 && std::find(sizes.begin(), sizes.end(), size) == sizes.end())
      sizes.push_back(size);
  for (const int size : sizes)
    for (PlanLayout& layout : Repairer(evaluator, size).run())
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
        layouts.push_back(std::move(layout));
  return layouts;
}

void search_near(Evaluator& evaluator) {
  const Request& request = evaluator.request();
  if (!request.old) return;
  std::vector<Candidate> repaired;
  for (PlanLayout& layout : repaired_layouts(evaluator)) {
    if (layout.sharded_optimizer) {
      PlanLayout even = layout;
      if (request.extensions.placed_optimizer)
        place_optimizer(even, evaluator.costs(layout.tensor, layout.microbatch));
      Candidate candidate = evaluator.simulate(std::move(even), "the old plan, repaired");
      evaluator.submit(candidate);
      repaired.push_back(std::move(candidate));
    }
    Candidate candidate = evaluator.simulate(std::move(layout), "the old plan, repaired");
    evaluator.submit(candidate);
    repaired.push_back(std::move(candidate));
  }
  std::stable_sort(repaired.begin(), repaired.end(), [](const Candidate& a, const Candidate& b) {
    if (a.simulation.fits != b.simulation.fits) return a.simulation.fits;
    return a.simulation.fits ? a.score < b.score : a.simulation.over_bytes < b.simulation.over_bytes;
  });
  if (request.extensions.local_search)
    for (size_t i = 0; i < std::min(limits::replan::kStarts, repaired.size()); ++i)
      evaluator.submit(improve(evaluator, std::move(repaired[i]), request.extensions, kBudget / 4));
  if (evaluator.near().empty()) return;
  Descent(evaluator).run();
  // What was found on the way may be the best as well.
  evaluator.submit(evaluator.near().front().candidate);
}

}  // namespace het::planner
