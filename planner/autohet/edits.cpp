#include "planner/autohet/edits.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "planner/autohet/balance.h"
#include "planner/autohet/limits.h"
#include "planner/autohet/reshape.h"
#include "planner/autohet/stages.h"

namespace het::planner {
namespace {

using namespace limits::edits;

using Stages = std::vector<StageLayout>;

class Editor {
 public:
  Editor(const PlanLayout& from, Evaluator& evaluator)
      : from_(from), evaluator_(evaluator), request_(evaluator.request()), extensions_(request_.extensions) {
    find_classes();
  }

  std::vector<Edit> run() {
    change_schedule(from_, "");
    change_size();
    change_all_recompute();
    change_optimizer();
    change_degree();
    leave_out();
    move_microbatches();
    move_layers();
    change_recompute();
    return std::move(edits_);
  }

 private:
  // Pipelines that are alike.
  struct Class {
    std::vector<size_t> members;  // ascending
    size_t first() const { return members[0]; }
  };

  void find_classes() {
    std::map<std::vector<int>, size_t> known;
    for (size_t p = 0; p < from_.pipelines.size(); ++p) {
      const Stages& stages = from_.pipelines[p].stages;
      std::vector<int> key{from_.pipelines[p].microbatches};
      for (size_t s = 0; s < stages.size(); ++s)
        key.insert(key.end(), {stages[s].node, stages[s].layers, stages[s].recompute, stages[s].share,
                               stages[s].group, s > 0 && stages[s].host == stages[s - 1].host});
      const auto [entry, fresh] = known.emplace(std::move(key), classes_.size());
      if (fresh) classes_.emplace_back();
      classes_[entry->second].members.push_back(p);
    }
  }

  bool has_groups() const { return !from_.groups.empty(); }
  static size_t groups_of(const PlanLayout& layout, size_t p) {
    return layout.pipelines[p].stages.size() / static_cast<size_t>(layout.chunks);
  }

  // Whether each pipeline has micro-batches, and as many as its schedule asks for.
  static bool is_runnable(const PlanLayout& layout) {
    for (size_t p = 0; p < layout.pipelines.size(); ++p) {
      const int count = layout.pipelines[p].microbatches;
      if (count < 1 || (layout.chunks > 1 && count % static_cast<int>(groups_of(layout, p)) != 0))
        return false;
    }
    return !layout.pipelines.empty();
  }

  void add(std::string name, PlanLayout layout) {
    if (!is_runnable(layout)) return;
    if (layout.sharded_optimizer && extensions_.placed_optimizer && layout.groups.empty()) {
      PlanLayout placed = layout;
      if (place_optimizer(placed, costs_of(layout))) layout = std::move(placed);
    }
    if (layout == from_) return;
    edits_.push_back({std::move(name), std::move(layout)});
  }

  // As it is, and with the layers cut again.
  void add_both(const std::string& name, PlanLayout layout) {
    PlanLayout again = layout;
    const bool cut = cut_all(again) && (!extensions_.uneven_microbatches || rebalance(again));
    const bool differs = cut && again != layout;
    add(name, std::move(layout));
    if (differs) add(name + ", layers cut again", std::move(again));
  }

  const CostTable& costs_of(const PlanLayout& layout) {
    return evaluator_.costs(layout.tensor, layout.microbatch);
  }

  bool rebalance(PlanLayout& layout) {
    return layout.groups.empty() && layout.chunks == 1 &&
           balance(layout, costs_of(layout), request_.batch / layout.microbatch,
                   extensions_.uneven_microbatches);
  }

  StageRules rules_of(const PlanLayout& layout) const {
    StageRules rules;
    if (layout.chunks > 1) {  // the simulator counts what the stages of a group hold together
      rules.optimizer_share = 0;
    } else {
      rules.schedule = layout.schedule;
      rules.warmup = layout.warmup;
      rules.optimizer_share =
          layout.sharded_optimizer ? 1.0 / static_cast<double>(layout.pipelines.size()) : 1;
    }
    if (layout.sharded_optimizer)
      for (const PipelineLayout& pipeline : layout.pipelines)
        for (const StageLayout& stage : pipeline.stages)
          if (stage.share != 1) rules.optimizer_share = 0;
    if (!extensions_.recompute_per_stage)
      rules.recompute = layout.pipelines[0].stages[0].recompute ? Recompute::always : Recompute::never;
    return rules;
  }

  bool cut(PlanLayout& layout, size_t p) {
    if (!layout.groups.empty()) return false;
    const StageRules rules = rules_of(layout);
    const std::tuple key(layout.tensor, layout.microbatch, static_cast<int>(rules.schedule), rules.warmup,
                         rules.optimizer_share, static_cast<int>(rules.recompute));
    std::unique_ptr<Known>& known = solvers_[key];
    if (!known) known = std::make_unique<Known>(costs_of(layout), rules);
    PipelineLayout& pipeline = layout.pipelines[p];
    std::pair<std::vector<int>, int> question{{}, pipeline.microbatches};
    for (const StageLayout& stage : pipeline.stages) question.first.push_back(stage.node);
    const auto [answer, fresh] = known->answers.try_emplace(std::move(question));
    if (fresh) answer->second = known->solver.solve(answer->first.first, pipeline.microbatches);
    if (!answer->second.feasible) return false;
    adopt(answer->second, pipeline.stages);
    return true;
  }

  bool cut_all(PlanLayout& layout) {
    for (size_t p = 0; p < layout.pipelines.size(); ++p)
      if (!cut(layout, p)) return false;
    return true;
  }

  // The same pipelines under every other schedule, and with more and fewer forwards ahead.
  void change_schedule(const PlanLayout& base, const std::string& prefix) {
    if (!extensions_.schedules ||
        std::all_of(base.pipelines.begin(), base.pipelines.end(), [&](const PipelineLayout& pipeline) {
          return static_cast<int>(pipeline.stages.size()) == base.chunks;
        }))
      return;
    PlanLayout plain = base;
    for (PipelineLayout& pipeline : plain.pipelines)
      pipeline.stages = joined_chunks(pipeline.stages, base.chunks);
    plain.chunks = 1;
    std::set<int> depths{0};
    if (base.chunks == 1) depths.insert({std::max(0, base.warmup - 1), base.warmup, base.warmup + 1});
    if (prefix.empty()) depths.insert(2 * base.warmup + 2);  // one more may gain too little to be taken
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::split_backward, Schedule::gpipe})
      for (const int warmup : depths) {
        if (schedule == Schedule::gpipe && warmup > 0) continue;
        // The simulator says a split backward too short where ranks share layers (planner/README.md).
        if (schedule == Schedule::split_backward && has_groups()) continue;
        plain.schedule = schedule;
        plain.warmup = warmup;
        if (plain.schedule == base.schedule && plain.warmup == base.warmup) continue;
        const std::string name =
            warmup > 0 ? fmt::format("{}schedule {}, warm-up {}", prefix, name_of(schedule), warmup)
                       : fmt::format("{}schedule {}", prefix, name_of(schedule));
        if (prefix.empty())
          add_both(name, plain);
        else
          add(name, plain);
      }
    if (has_groups()) return;
    plain.schedule = Schedule::interleaved;
    plain.warmup = 0;
    for (const int chunks : {base.chunks / 2, 2 * base.chunks}) {
      if (chunks < 2) continue;
      PlanLayout layout = plain;
      layout.chunks = chunks;
      bool possible = true;
      for (PipelineLayout& pipeline : layout.pipelines) {
        pipeline.stages = cut_into_chunks(pipeline.stages, chunks);
        possible = possible && !pipeline.stages.empty();
      }
      if (possible)
        add_both(fmt::format("{}schedule interleaved, {} chunks", prefix, chunks), std::move(layout));
    }
  }

  void change_size() {
    const int now = from_.microbatch;
    std::vector<int> sizes{2 * now, 4 * now};
    for (const int part : {2, 4})
      if (now % part == 0) sizes.insert(sizes.begin(), now / part);
    for (const int size : sizes) {
      if (request_.batch % size != 0) continue;
      if (!request_.microbatches.empty() &&
          std::find(request_.microbatches.begin(), request_.microbatches.end(), size) ==
              request_.microbatches.end())
        continue;
      PlanLayout layout = from_;
      layout.microbatch = size;
      bool exact = true;
      for (PipelineLayout& pipeline : layout.pipelines) {
        exact = exact && pipeline.microbatches * now % size == 0;
        pipeline.microbatches = pipeline.microbatches * now / size;
      }
      if (!exact && !rebalance(layout)) continue;
      const std::string name = fmt::format("micro-batches of {} instead of {}", size, now);
      add_both(name, layout);
      change_schedule(layout, name + ", ");
    }
  }

  void change_all_recompute() {
    for (const bool recompute : {false, true}) {
      PlanLayout layout = from_;
      for (PipelineLayout& pipeline : layout.pipelines)
        for (StageLayout& stage : pipeline.stages) stage.recompute = recompute;
      add(recompute ? "all stages recompute" : "no stage recomputes", std::move(layout));
    }
    PlanLayout layout = from_;
    if (cut_all(layout)) {
      add("layers cut again", layout);
      if (rebalance(layout)) add("layers cut again, micro-batches balanced", std::move(layout));
    }
  }

  void change_optimizer() {
    if (from_.pipelines.size() < 2) return;
    PlanLayout layout = from_;
    layout.sharded_optimizer = !from_.sharded_optimizer;
    for (PipelineLayout& pipeline : layout.pipelines)
      for (StageLayout& stage : pipeline.stages) stage.share = 1;
    add_both(layout.sharded_optimizer ? "sharded optimizer state" : "whole optimizer state", layout);
  }

  void add_degree(const std::string& name, PlanLayout layout) {
    for (PipelineLayout& pipeline : layout.pipelines)
      for (StageLayout& stage : pipeline.stages) stage.share = 1;
    for (const bool packed : {true, false})
      if (PlanLayout placed = layout; place_again(placed, request_.cluster, costs_of(placed), packed))
        add_both(name + (packed ? ", pipelines within hosts" : ", replicas within hosts"), std::move(placed));
  }

  void change_degree() {
    if (has_groups() || from_.chunks > 1) return;
    for (const int degree : tensor_degrees(request_)) {
      if (degree != 2 * from_.tensor && 2 * degree != from_.tensor) continue;
      const std::string name = fmt::format("tensor {} instead of {}", degree, from_.tensor);
      const bool more = degree > from_.tensor;
      if (const auto layout = more ? with_joined_pipelines(from_) : with_twice_the_pipelines(from_))
        add_degree(fmt::format("{}, {} as many pipelines", name, more ? "half" : "twice"), *layout);
      if (const auto layout = more ? with_joined_stages(from_) : with_twice_the_stages(from_))
        add_degree(fmt::format("{}, {} as many stages", name, more ? "half" : "twice"), *layout);
    }
  }

  // Without the stages that `drop(pipeline, device group)` names: their pipelines are cut again, and
  // micro-batches balanced.
  template <typename Drop>
  void add_without(const std::string& name, const Drop& drop) {
    PlanLayout layout = from_;
    layout.pipelines.clear();
    std::vector<bool> changed;
    for (size_t p = 0; p < from_.pipelines.size(); ++p) {
      const size_t groups = groups_of(from_, p);
      PipelineLayout left{from_.pipelines[p].microbatches, {}};
      for (size_t s = 0; s < from_.pipelines[p].stages.size(); ++s)
        if (!drop(p, s % groups)) left.stages.push_back(from_.pipelines[p].stages[s]);
      if (left.stages.empty()) continue;
      changed.push_back(left.stages.size() < from_.pipelines[p].stages.size());
      layout.pipelines.push_back(std::move(left));
    }
    if (layout.pipelines.empty()) return;
    for (size_t p = 0; p < layout.pipelines.size(); ++p)
      if (changed[p] && !cut(layout, p)) return;
    if (layout.chunks == 1 || layout.pipelines.size() < from_.pipelines.size())
      if (!rebalance(layout)) return;
    add(name, std::move(layout));
  }

  std::string host_name(const StageLayout& stage) const {
    return request_.cluster.nodes[static_cast<size_t>(stage.node)].hosts[static_cast<size_t>(stage.host)];
  }

  void leave_out() {
    if (has_groups()) return;
    // Hosts that hold the same stages of pipelines that are alike are left out alike.
    std::vector<size_t> class_of(from_.pipelines.size());
    for (size_t c = 0; c < classes_.size(); ++c)
      for (const size_t p : classes_[c].members) class_of[p] = c;
    std::map<DevicePlace, std::vector<size_t>> stages_at;
    std::map<int, size_t> stages_of;  // of each node
    for (size_t p = 0; p < from_.pipelines.size(); ++p)
      for (size_t s = 0; s < groups_of(from_, p); ++s) {
        const StageLayout& stage = from_.pipelines[p].stages[s];
        auto& held = stages_at[{stage.node, stage.host}];
        held.insert(held.end(), {class_of[p], s});
        ++stages_of[stage.node];
      }
    for (const auto& [node, count] : stages_of)
      add_without(fmt::format("without every {}", request_.cluster.nodes[static_cast<size_t>(node)].type),
                  [&, node = node](size_t p, size_t s) { return from_.pipelines[p].stages[s].node == node; });
    std::set<std::pair<int, std::vector<size_t>>> seen;
    for (const auto& [place, held] : stages_at) {
      if (!seen.emplace(place.node, held).second) continue;
      const StageLayout at{place.node, place.host};
      add_without(fmt::format("without {}", host_name(at)), [&, place = place](size_t p, size_t s) {
        const StageLayout& stage = from_.pipelines[p].stages[s];
        return DevicePlace{stage.node, stage.host} == place;
      });
    }
    for (const Class& alike : classes_) {
      const size_t own = alike.first(), groups = groups_of(from_, own);
      if (groups > 1)
        add_without(fmt::format("without pipeline {}", own + 1), [&](size_t p, size_t) { return p == own; });
      for (size_t stage = 0; stage < groups; ++stage)
        add_without(fmt::format("without stage {} of pipeline {}, on {}", stage + 1, own + 1,
                                host_name(from_.pipelines[own].stages[stage])),
                    [&](size_t p, size_t s) { return p == own && s == stage; });
    }
  }

  void move_microbatches() {
    if (!extensions_.uneven_microbatches) return;
    for (const Class& a : classes_)
      for (const Class& b : classes_) {
        if (&a == &b) continue;
        const int count = from_.chunks == 1 ? 1
                                            : std::lcm(static_cast<int>(groups_of(from_, a.first())),
                                                       static_cast<int>(groups_of(from_, b.first())));
        PlanLayout layout = from_;
        layout.pipelines[a.first()].microbatches -= count;
        layout.pipelines[b.first()].microbatches += count;
        add(fmt::format("{} of pipeline {} to {}", count == 1 ? "a micro-batch" : "micro-batches",
                        a.first() + 1, b.first() + 1),
            std::move(layout));
      }
  }

  // change(stages), once for the first of pipelines that are alike and once for all of them.
  template <typename Change>
  void add_for_class(const Class& alike, const std::string& what, const Change& change) {
    for (const bool all : {false, true}) {
      if (all && alike.members.size() == 1) return;
      PlanLayout layout = from_;
      for (const size_t p : alike.members) {
        change(layout.pipelines[p].stages);
        if (!all) break;
      }
      add(fmt::format("{} of pipeline {}{}", what, alike.first() + 1, all ? " and all like it" : ""),
          std::move(layout));
    }
  }

  void move_layers() {
    for (const Class& alike : classes_) {
      const Stages& stages = from_.pipelines[alike.first()].stages;
      for (size_t a = 0; a < stages.size(); ++a)
        for (size_t b = 0; b < stages.size(); ++b) {
          const size_t apart = a < b ? b - a : a - b;
          if (a == b || stages[a].layers < 2 || (apart > 1 && stages.size() > kPairedStages)) continue;
          add_for_class(alike, fmt::format("a layer from stage {} to {}", a + 1, b + 1),
                        [&](Stages& changed) {
                          --changed[a].layers;
                          ++changed[b].layers;
                          number_layers(changed);
                        });
        }
    }
  }

  void change_recompute() {
    if (!extensions_.recompute_per_stage) return;
    for (const Class& alike : classes_) {
      const Stages& stages = from_.pipelines[alike.first()].stages;
      for (size_t s = 0; s < stages.size(); ++s)
        add_for_class(alike, fmt::format("{}recompute in stage {}", stages[s].recompute ? "no " : "", s + 1),
                      [&](Stages& changed) { changed[s].recompute = !changed[s].recompute; });
    }
  }

  struct Known {
    Known(const CostTable& costs, const StageRules& rules) : solver(costs, rules) {}
    StageSolver solver;
    std::map<std::pair<std::vector<int>, int>, StageSolution> answers;  // by nodes and micro-batches
  };

  const PlanLayout& from_;
  Evaluator& evaluator_;
  const Request& request_;
  const Extensions& extensions_;
  std::vector<Class> classes_;
  std::vector<Edit> edits_;
  std::map<std::tuple<int, int, int, int, double, int>, std::unique_ptr<Known>> solvers_;
};

}  // namespace

std::vector<Edit> edits_of(const PlanLayout& layout, Evaluator& evaluator) {
  return Editor(layout, evaluator).run();
}

}  // namespace het::planner
