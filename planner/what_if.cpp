#include "planner/what_if.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/explain.h"

namespace het::planner {
namespace {

// The tables of a request with links between hosts that are twice as fast: all, or those between two kinds of
// machines.
class FasterLinks {
 public:
  explicit FasterLinks(CostTables& tables) : tables_(tables) {}
  FasterLinks(CostTables& tables, int a, int b) : tables_(tables), all_(false), a_(a), b_(b) {}

  const CostTable& with_links(int tensor) {
    const auto [known, fresh] = faster_.try_emplace(tensor);
    if (fresh) {
      known->second = tables_.with_links(tensor);
      const size_t nodes = known->second.nodes.size();
      for (size_t i = 0; i < nodes * nodes; ++i) {
        const auto from = static_cast<int>(i / nodes), to = static_cast<int>(i % nodes);
        if (all_ || (from == a_ && to == b_) || (from == b_ && to == a_))
          known->second.between[i].bytes_per_second *= 2;
      }
    }
    return known->second;
  }
  CostProvider provider() {
    return {[this](int tensor) -> const CostTable& { return with_links(tensor); },
            [this](int tensor) -> const CostTable& { return tables_.compute(tensor); }};
  }

 private:
  CostTables& tables_;
  bool all_ = true;
  int a_ = -1, b_ = -1;
  std::map<int, CostTable> faster_;
};

class WhatHelps {
 public:
  WhatHelps(const Request& request, const Planned& planned)
      : request_(request),
        layout_(planned.best.layout),
        simulation_(planned.best.simulation),
        tables_(request.cluster, request.model, request.profile, layout_.microbatch) {
    for (const PipelineLayout& pipeline : layout_.pipelines)
      for (const StageLayout& stage : pipeline.stages)
        for (const DevicePlace& place : places_of(layout_, stage)) hosts_[place.node].insert(place.host);
  }

  std::vector<WhatIf> find() {
    links_between();
    links_inside();
    slowest_stages();
    microbatches();
    recompute();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

 private:
  // On the request's cluster; tables depend on the micro-batch size alone.
  Simulation run(const PlanLayout& layout, SimulateOptions options = {}) {
    if (layout.microbatch != layout_.microbatch) return run_on(request_.cluster, layout);
    options.runtime = request_.runtime;
    return Simulator(tables_.with_links(layout.tensor), request_.cluster, tables_.provider())
        .run(layout, options);
  }
  Simulation run_on(const Cluster& cluster, const PlanLayout& layout) {
    CostTables tables(cluster, request_.model, request_.profile, layout.microbatch);
    SimulateOptions options;
    options.runtime = request_.runtime;
    return Simulator(tables.with_links(layout.tensor), cluster, tables.provider()).run(layout, options);
  }

  // `batch`: samples of a step, as a multiple of the plan's.
  WhatIf judged(WhatIf::Kind kind, const Simulation& simulation, double batch = 1) const {
    WhatIf what;
    what.kind = kind;
    what.step_seconds = simulation.seconds;
    what.gain = 1 - simulation.seconds / batch / simulation_.seconds;
    what.lacks_bytes = std::max(0.0, simulation.over_bytes);
    return what;
  }
  void add(WhatIf what) {
    if (what.gain >= kGains) found_.push_back(std::move(what));
  }

  // "a", or of several alike "a1 ... a8".
  std::string machines(int node) const {
    const auto& names = request_.cluster.nodes[static_cast<size_t>(node)].hosts;
    const std::set<int>& used = hosts_.at(node);
    const std::string& first = names[static_cast<size_t>(*used.begin())];
    if (used.size() == 1) return first;
    return fmt::format("{}{}{}", first, used.size() == 2 ? ", " : " ... ",
                       names[static_cast<size_t>(*used.rbegin())]);
  }

  double with_faster(FasterLinks tables, WhatIf& what, WhatIf::Kind kind) {
    SimulateOptions options;
    options.runtime = request_.runtime;
    Simulator simulator(tables.with_links(layout_.tensor), request_.cluster, tables.provider());
    what = judged(kind, simulator.run(layout_, options));
    return what.gain;
  }

  void links_between() {
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [a, hosts] : hosts_)
      for (const auto& [b, others] : hosts_)
        if (a < b || (a == b && hosts.size() > 1)) pairs.emplace_back(a, b);
    WhatIf all;
    if (pairs.empty() || with_faster(FasterLinks(tables_), all, WhatIf::Kind::all_links) < kGains) return;
    const CostTable& costs = tables_.with_links(layout_.tensor);
    // The slowest first: of many it is one of these.
    std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
      return costs.link(a.first, a.second).bytes_per_second < costs.link(b.first, b.second).bytes_per_second;
    });
    if (pairs.size() > static_cast<size_t>(kMostPairs)) pairs.resize(static_cast<size_t>(kMostPairs));
    WhatIf best;
    for (const auto& [a, b] : pairs) {
      WhatIf what;
      if (pairs.size() == 1)
        what = all;
      else
        with_faster(FasterLinks(tables_, a, b), what, WhatIf::Kind::link);
      what.kind = WhatIf::Kind::link;
      describe(what, a, b);
      if (best.from.empty() || what.gain > best.gain) best = std::move(what);
    }
    if (pairs.size() > 1 && all.gain >= best.gain + kGains) {
      const auto& [a, b] = pairs[0];
      describe(all, a, b);
      all.words = fmt::format("all links between machines twice as fast (the slowest: {}, {})", ends_of(all),
                              show_bandwidth(all.bandwidth));
      add(std::move(all));
    }
    add(std::move(best));
  }

  void describe(WhatIf& what, int a, int b) {
    what.bandwidth = tables_.with_links(layout_.tensor).link(a, b).bytes_per_second;
    what.from = machines(a);
    what.to = a == b ? what.from : machines(b);
    bool one = a != b && hosts_.at(a).size() == 1 && hosts_.at(b).size() == 1;
    if (a == b && hosts_.at(a).size() == 2) {
      const auto& names = request_.cluster.nodes[static_cast<size_t>(a)].hosts;
      what.from = names[static_cast<size_t>(*hosts_.at(a).begin())];
      what.to = names[static_cast<size_t>(*hosts_.at(a).rbegin())];
      one = true;
    }
    what.words = fmt::format("the link{} {} ({}) twice as fast", one ? "" : "s", ends_of(what),
                             show_bandwidth(what.bandwidth));
  }

  // "between a and b", "among n1 ... n8", "between n1 ... n8 and b".
  static std::string ends_of(const WhatIf& what) {
    return what.from == what.to ? "among " + what.from : fmt::format("between {} and {}", what.from, what.to);
  }

  void links_inside() {
    for (const auto& [node, hosts] : hosts_) {
      if (request_.cluster.nodes[static_cast<size_t>(node)].devices < 2) continue;
      Cluster cluster = request_.cluster;
      Link inside = inside_link(cluster, node);
      inside.bytes_per_second *= 2;
      cluster.nodes[static_cast<size_t>(node)].inside = inside;
      WhatIf what = judged(WhatIf::Kind::inside, run_on(cluster, layout_));
      what.from = what.to = machines(node);
      what.bandwidth = inside.bytes_per_second / 2;
      what.words =
          fmt::format("the links inside {} ({}) twice as fast", what.from, show_bandwidth(what.bandwidth));
      add(std::move(what));
    }
  }

  void slowest_stages() {
    double busiest = 0;
    for (const StageUse& use : simulation_.stages) busiest = std::max(busiest, use.busy_seconds);
    SimulateOptions options;
    options.pace.resize(layout_.pipelines.size());
    std::vector<const StageUse*> slow;
    for (const StageUse& use : simulation_.stages) {
      auto& groups = options.pace[static_cast<size_t>(use.pipeline)];
      const bool slowest = use.busy_seconds > kFasterStages * busiest;
      groups.push_back(slowest ? kFasterStages : 1);
      if (slowest) slow.push_back(&use);
    }
    WhatIf what = judged(WhatIf::Kind::slowest_stages, run(layout_, options));
    const int faster = static_cast<int>(100 - 100 * kFasterStages + 0.5);
    what.words = slow.size() == simulation_.stages.size() ? fmt::format("all stages {} % faster", faster)
                 : slow.size() == 1 ? fmt::format("the slowest stage ({} of pipeline {}) {} % faster",
                                                  slow[0]->stage + 1, slow[0]->pipeline + 1, faster)
                                    : fmt::format("the {} slowest stages {} % faster", slow.size(), faster);
    add(std::move(what));
  }

  void microbatches() {
    const auto& pipelines = layout_.pipelines;
    PlanLayout other = layout_;
    if (layout_.microbatch % 2 == 0) {
      other.microbatch /= 2;
      for (PipelineLayout& pipeline : other.pipelines) pipeline.microbatches *= 2;
      sized(other);
    }
    if (std::all_of(pipelines.begin(), pipelines.end(),
                    [](const PipelineLayout& pipeline) { return pipeline.microbatches % 2 == 0; })) {
      other = layout_;
      other.microbatch *= 2;
      for (PipelineLayout& pipeline : other.pipelines) pipeline.microbatches /= 2;
      sized(other);
    }
    other = layout_;
    for (PipelineLayout& pipeline : other.pipelines) pipeline.microbatches *= 2;
    WhatIf what = judged(WhatIf::Kind::batch, run(other), 2);
    what.words = "twice the batch, by twice the micro-batches";
    add(std::move(what));
  }

  void sized(const PlanLayout& other) {
    if (layout_.schedule == Schedule::interleaved)
      for (const PipelineLayout& pipeline : other.pipelines)
        if (pipeline.microbatches %
                static_cast<int>(pipeline.stages.size() / static_cast<size_t>(layout_.chunks)) !=
            0)
          return;
    WhatIf what = judged(WhatIf::Kind::microbatch, run(other));
    what.words = fmt::format("micro-batches of {} instead of {}", other.microbatch, layout_.microbatch);
    add(std::move(what));
  }

  void recompute() {
    PlanLayout other = layout_;
    for (PipelineLayout& pipeline : other.pipelines)
      for (StageLayout& stage : pipeline.stages) stage.recompute = false;
    if (other == layout_) return;
    WhatIf what = judged(WhatIf::Kind::recompute, run(other));
    what.words = "without recompute";
    add(std::move(what));
  }

  const Request& request_;
  const PlanLayout& layout_;
  const Simulation& simulation_;
  CostTables tables_;
  std::map<int, std::set<int>> hosts_;  // that the plan uses, by node
  std::vector<WhatIf> found_;
};

}  // namespace

std::string_view name_of(WhatIf::Kind kind) {
  switch (kind) {
    case WhatIf::Kind::link: return "link";
    case WhatIf::Kind::all_links: return "all links";
    case WhatIf::Kind::inside: return "link inside";
    case WhatIf::Kind::slowest_stages: return "slowest stages";
    case WhatIf::Kind::microbatch: return "micro-batch";
    case WhatIf::Kind::batch: return "batch";
    case WhatIf::Kind::recompute: return "recompute";
  }
  return "unknown";
}

std::vector<WhatIf> what_helps(const Request& request, const Planned& planned) {
  HET_REQUIRE(!planned.best.simulation.stages.empty());
  return WhatHelps(request, planned).find();
}

std::string to_text(const WhatIf& what) {
  const std::string lacks =
      what.lacks_bytes > 0 ? fmt::format(", for which {} lack", show_bytes(what.lacks_bytes)) : "";
  if (what.kind == WhatIf::Kind::batch)
    return fmt::format("{}: {:.1f} % less time for a sample{}", what.words, 100 * what.gain, lacks);
  return fmt::format("{}: {} a step (-{:.1f} %){}", what.words, show_seconds(what.step_seconds),
                     100 * what.gain, lacks);
}

}  // namespace het::planner
