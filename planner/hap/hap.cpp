#include "planner/hap/hap.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "planner/hap/bound.h"
#include "planner/hap/ratios.h"
#include "planner/megatron/sharding.h"

namespace het::planner::hap {
namespace {

// Axes that samples run along: of dimension 0 of inputs that differ by micro-batch.
std::set<int> sample_axes(const PlacementTable& table) {
  std::set<int> axes;
  for (size_t a = 0; a < table.axes().size(); ++a)
    for (const AxisPlace& place : table.axes()[a].places) {
      const Value& value = table.graph().values[static_cast<size_t>(place.value)];
      if (value.role == Role::input && !value.per_step && place.dim == 0) axes.insert(static_cast<int>(a));
    }
  return axes;
}

// Why the samples cannot be cut; "": they can be.
std::string samples_problem(const PlacementTable& table, const std::set<int>& samples, const Shares& shares) {
  if (samples.empty()) return "no input has samples that can be cut";
  const LogicalAxis* most = nullptr;
  for (const int a : samples) {
    const LogicalAxis& axis = table.axes()[static_cast<size_t>(a)];
    if (fills(axis, shares)) return "";
    if (most == nullptr || axis.units > most->units) most = &axis;
  }
  const AxisPlace& place = most->places[0];
  const int64_t length = table.graph().type(place.value).shape[static_cast<size_t>(place.dim)];
  return fmt::format("{} {} cannot be cut among {} devices{}", most->units,
                     most->units == length ? "samples" : "groups of samples", shares.size(),
                     show_uneven(shares));
}

// What the published rules lack of a way to run a node; nullopt: they have it.
std::optional<Addition> addition_of(const Graph& graph, const std::set<int>& samples, NodeId n,
                                    const NodeSharding& way) {
  const Node& node = graph.nodes[static_cast<size_t>(n)];
  if (way.axis < 0) return std::nullopt;
  if (node.op->sharding[static_cast<size_t>(way.rule)].decompose != nullptr) return Addition::statistics;
  if (samples.count(way.axis) != 0) return std::nullopt;
  if (node.op->heads_dim >= 0) return Addition::heads;
  const bool sums =
      std::any_of(way.outputs.begin(), way.outputs.end(), [](PlacementId p) { return p == kPartial; });
  return node.phase == Phase::forward && sums ? std::optional(Addition::contracted) : std::nullopt;
}

class Synthesis {
 public:
  explicit Synthesis(const Request& request)
      : request_(request),
        costs_(*request.table, *request.group, request.microbatches, false, request.layers) {
    costs_.set_outer(request.outer);
    if (request.is_wide) costs_.set_wide();
  }

  ShardingCosts& costs() { return costs_; }
  int searches() const { return searches_; }

  // nullopt: no program, or none that can be run.
  std::optional<Synthesised> run(const Shares& shares, const SearchOptions& options = {}) {
    ++searches_;
    return known(search(costs_, shares, limited(options)), shares);
  }
  // The same by branch and bound; where it finds nothing, too, `bound` is proven.
  std::optional<Synthesised> prove(const Shares& shares, Ticks& bound) {
    ++searches_;
    const SearchResult found = search_assignment(costs_, shares, limited({}));
    bound = found.bound;
    return known(found, shares);
  }

  Synthesised of(ShardingProgram program) { return synthesised(costs_, std::move(program)); }

  // The cheapest when sums of gradients weigh so much against the backward pass (ShardingCosts::set_overlap).
  std::optional<Synthesised> run_overlapping(const Shares& shares, double weight) {
    ++searches_;
    costs_.set_overlap(weight);
    const SearchResult found = search(costs_, shares, limited({}));
    costs_.set_overlap(std::nullopt);
    return found.found ? std::optional(made_of(found, shares)) : std::nullopt;
  }

  // The program for these shares, the shares for this program, and so on.
  Synthesised alternate(const Shares& start, const SearchOptions& options = {}) {
    constexpr int kMostTurns = 4;
    Synthesised best;
    Shares shares = start;
    for (int turn = 0; turn < kMostTurns; ++turn) {
      const auto found = run(shares, options);
      if (!found || found->cost >= best.cost) break;
      best = *found;
      best_bound_ = bound_;
      ShardingProgram with_shares = best.program;
      with_shares.shares = best_shares(costs_, best.program);
      if (with_shares.shares == shares || of(with_shares).cost >= best.cost) break;
      shares = with_shares.shares;
    }
    return best;
  }
  Ticks bound_of_best() const { return best_bound_; }

  bool is_wide() const { return costs_.is_wide(); }

  Bound bound_for_all(Ticks known) {
    Bound bound = bound_of_all_shares(costs_, known);
    searches_ += bound.searches;
    return bound;
  }

 private:
  // What both the request and this search allow.
  SearchOptions limited(SearchOptions options) const {
    options.most_states = std::min(options.most_states, request_.options.most_states);
    options.most_looked_at = std::min(options.most_looked_at, request_.options.most_looked_at);
    if (request_.group->size() == 1) {  // nothing can be cut
      options.allows_node = [](NodeId, const NodeSharding& way) { return way.axis < 0; };
      options.allows_state = [](ValueId, PlacementId lies) { return lies == kReplicated; };
    }
    if (request_.options.allows_node)
      options.allows_node = [&all = request_.options.allows_node, own = options.allows_node](
                                NodeId n, const NodeSharding& way) {
        return all(n, way) && (!own || own(n, way));
      };
    return options;
  }

  std::optional<Synthesised> known(const SearchResult& found, const Shares& shares) {
    if (!found.found) return std::nullopt;
    bound_ = found.bound;
    return made_of(found, shares);
  }

  Synthesised made_of(const SearchResult& found, const Shares& shares) {
    return of(propagate(*request_.table, shares, hints_of(costs_, shares, found)));
  }

  const Request& request_;
  ShardingCosts costs_;
  Ticks bound_ = 0, best_bound_ = 0;
  int searches_ = 0;
};

}  // namespace

Synthesised synthesised(ShardingCosts& costs, ShardingProgram program) {
  Synthesised made;
  const ShardingCosts::Parts parts = costs.parts(program);
  made.program = std::move(program);
  made.compute = parts.compute;
  made.communication = parts.communication;
  made.cost = parts.compute >= kNever ? kNever : parts.compute + parts.communication + parts.receiving;
  return made;
}

std::string_view name_of(Baseline baseline) {
  switch (baseline) {
    case Baseline::even_data: return "even data parallelism";
    case Baseline::proportional_data: return "proportional data parallelism";
    case Baseline::partly_data: return "data parallelism in part";
    case Baseline::zero: return "ZeRO";
    case Baseline::megatron: return "Megatron tensor parallelism";
    case Baseline::published: return "HAP's published rules";
  }
  return "";
}

namespace {

class BaselineSearch {
 public:
  BaselineSearch(const Request& request, std::string& problem)
      : table_(*request.table),
        synthesis_(request),
        even_(even_shares(*request.group)),
        proportional_(proportional_shares(*request.group)),
        samples_(sample_axes(table_)),
        allows_(request.options.allows_node),
        problem_(problem) {}

  Synthesised run(Baseline which) {
    switch (which) {
      case Baseline::even_data: return data_parallel(even_, whole_state());
      case Baseline::proportional_data: return data_parallel(proportional_, whole_state());
      case Baseline::partly_data: return partly_data_parallel();
      case Baseline::zero: return zero();
      case Baseline::megatron: return megatron();
      case Baseline::published: return published();
    }
    return {};
  }

 private:
  static SearchOptions whole_state() {
    SearchOptions options;
    options.allows_state = [](ValueId, PlacementId lies) { return lies == kReplicated; };
    return options;
  }

  bool is_of_samples(const NodeSharding& way) const { return samples_.count(way.axis) != 0; }
  bool updates(NodeId n) const { return table_.graph().nodes[static_cast<size_t>(n)].phase == Phase::update; }
  bool can_cut_samples(NodeId n, const Shares& shares) const {
    const auto& ways = table_.shardings(n);
    return !updates(n) && std::any_of(ways.begin(), ways.end(), [&](const NodeSharding& way) {
      return is_of_samples(way) && fills(table_.axes()[static_cast<size_t>(way.axis)], shares) &&
             (!allows_ || allows_(n, way));
    });
  }

  // Whatever a device can compute from only its samples, it does; `cuts_updates`: updates are cut along any
  // axis.
  Synthesised data_parallel(const Shares& shares, SearchOptions options, bool cuts_updates = false) {
    options.allows_node = [&, cuts_updates](NodeId n, const NodeSharding& way) {
      if (way.axis < 0) return !can_cut_samples(n, shares);
      return is_of_samples(way) || (cuts_updates && updates(n));
    };
    problem_ = samples_problem(table_, samples_, shares);
    auto found = problem_.empty() ? synthesis_.run(shares, options) : std::nullopt;
    if (found && cuts_samples(found->program)) return *std::move(found);
    if (problem_.empty()) problem_ = "no program was found in which devices compute from only their samples";
    return {};
  }

  bool cuts_samples(const ShardingProgram& program) const {
    return std::any_of(program.nodes.begin(), program.nodes.end(),
                       [&](const NodeSharding& way) { return is_of_samples(way); });
  }

  // Where it costs less that every device computes some layers with all samples, as of large matrices.
  Synthesised partly_data_parallel() {
    SearchOptions options = whole_state();
    options.allows_node = [&](NodeId, const NodeSharding& way) { return way.axis < 0 || is_of_samples(way); };
    Synthesised best;
    problem_ = "no program was found that cuts samples at less cost than cutting nothing";
    for (const Shares& shares : {even_, proportional_}) {
      auto found = synthesis_.run(shares, options);
      if (!found || found->cost >= best.cost || !cuts_samples(found->program)) continue;
      problem_.clear();  // all of it is data parallel, unless a layer is not
      const auto& nodes = found->program.nodes;
      for (size_t n = 0; n < nodes.size(); ++n)
        if (nodes[n].axis < 0 && can_cut_samples(static_cast<NodeId>(n), shares)) {
          best = *std::move(found);
          break;
        }
    }
    return best;
  }

  Synthesised zero() {
    SearchOptions options;
    options.allows_state = [&](ValueId id, PlacementId lies) {
      const auto& placements = table_.placements(id);
      if (lies != kReplicated) return placements[lies].is_sharded() && placements[lies].dim == 0;
      for (size_t p = kPartial + 1; p < placements.size(); ++p)
        if (placements[p].dim == 0 && synthesis_.costs().fills(id, static_cast<PlacementId>(p), even_))
          return false;
      return true;
    };
    return data_parallel(even_, std::move(options), true);
  }

  Synthesised megatron() try {
    return synthesis_.of(megatron_sharding(table_, even_, false, ""));
  } catch (const Error& error) {
    problem_ = error.what();
    return {};
  }

  Synthesised published() {
    SearchOptions options;
    options.allows_node = [&](NodeId n, const NodeSharding& way) {
      return !addition_of(table_.graph(), samples_, n, way);
    };
    const Synthesised one = synthesis_.alternate(even_, options),
                      other = synthesis_.alternate(proportional_, options);
    if (!one.found() && !other.found()) problem_ = "no program was found";
    return one.cost <= other.cost ? one : other;
  }

  const PlacementTable& table_;
  Synthesis synthesis_;
  const Shares even_, proportional_;
  const std::set<int> samples_;
  const std::function<bool(NodeId, const NodeSharding&)>& allows_;  // of the request; null: everything
  std::string& problem_;
};

}  // namespace

Synthesised baseline(const Request& request, Baseline which, std::string& problem) {
  return BaselineSearch(request, problem).run(which);
}

namespace {

std::vector<Shares> starts_of(const Request& request) {
  std::vector<Shares> starts{even_shares(*request.group), proportional_shares(*request.group)};
  starts.insert(starts.end(), request.starts.begin(), request.starts.end());
  std::set<Shares> seen;
  starts.erase(std::remove_if(starts.begin(), starts.end(),
                              [&](const Shares& start) { return !seen.insert(start).second; }),
               starts.end());
  return starts;
}

std::vector<Synthesised> overlapping(Synthesis& synthesis, const Request& request, const Synthesised& best) {
  constexpr double kWeights[] = {0, 0.5, 1};
  std::vector<Synthesised> found;
  for (const Shares& shares : std::set{best.program.shares, proportional_shares(*request.group)})
    for (const double weight : kWeights) {
      auto made = synthesis.run_overlapping(shares, weight);
      const auto is_known = [&](const Synthesised& other) { return other.program == made->program; };
      if (made && !is_known(best) && std::none_of(found.begin(), found.end(), is_known))
        found.push_back(*std::move(made));
    }
  return found;
}

}  // namespace

Answer synthesise(const Request& request) {
  const double begin = steady_seconds();
  Answer answer;
  Synthesis synthesis(request);
  std::set<Shares> seen;
  const auto start_from = [&](const Shares& start) {
    if (!seen.insert(start).second) return false;
    Synthesised found = synthesis.alternate(start);
    if (found.cost >= answer.best.cost) return false;
    answer.best = std::move(found);
    answer.bound_for_shares = synthesis.bound_of_best();
    return true;
  };
  for (const Shares& start : starts_of(request)) start_from(start);
  // Exchanges of parts along one axis for parts along another are not linear in the shares, and programs
  // change with them: the two neighbours that cost the program at hand least are looked at.
  const auto move_shares = [&] {
    std::vector<std::pair<Ticks, Shares>> moved;
    for (Shares& shares : moved_shares(*request.group, answer.best.program.shares)) {
      ShardingProgram program = answer.best.program;
      program.shares = std::move(shares);
      Synthesised made = synthesis.of(std::move(program));
      if (made.found()) moved.emplace_back(made.cost, std::move(made.program.shares));
    }
    std::sort(moved.begin(), moved.end());
    bool is_better = false;
    for (size_t i = 0; i < std::min<size_t>(moved.size(), 2); ++i) is_better |= start_from(moved[i].second);
    return is_better;
  };
  // Where the bound is far, shares from where it is lowest may be better, or those near the best ones.
  constexpr int kMostTurns = 3, kMostMoves = 6;
  constexpr double kFar = 0.01;
  for (int turn = 0; turn < kMostTurns && (turn == 0 || !synthesis.is_wide()); ++turn) {
    const Bound bound = synthesis.bound_for_all(answer.best.cost);
    answer.bound = std::max(answer.bound, std::min(bound.cost, answer.best.cost));
    const auto gap = static_cast<double>(answer.best.cost - answer.bound);
    if (gap <= kFar * static_cast<double>(answer.best.cost)) break;
    bool is_better = start_from(middle_shares(*request.group, bound.where));
    for (int moves = 0; moves < kMostMoves && !synthesis.is_wide() && answer.best.found() && move_shares();
         ++moves)
      is_better = true;
    if (!is_better) break;
  }
  if (synthesis.is_wide() && answer.best.found()) {
    Ticks bound = 0;
    auto found = synthesis.prove(answer.best.program.shares, bound);
    answer.bound_for_shares = std::max(answer.bound_for_shares, bound);
    if (found && found->cost < answer.best.cost) answer.best = *std::move(found);
  }
  answer.bound = std::min(answer.bound, answer.best.cost);
  if (answer.best.found()) answer.overlapping = overlapping(synthesis, request, answer.best);
  answer.bound_for_shares = std::max(answer.bound_for_shares, answer.bound);
  answer.searches = synthesis.searches();
  answer.is_wide = synthesis.is_wide();
  answer.search_seconds = steady_seconds() - begin;
  return answer;
}

std::vector<Synthesised> programs_to_try(const Request& request, bool with_overlapping, bool* is_wide) {
  Synthesised best;
  Synthesis synthesis(request);
  for (const Shares& start : starts_of(request))
    if (Synthesised found = synthesis.alternate(start); found.cost < best.cost) best = std::move(found);
  if (is_wide != nullptr) *is_wide = synthesis.is_wide();
  if (!best.found()) return {};
  std::vector<Synthesised> all{std::move(best)};
  if (!with_overlapping) return all;
  for (Synthesised& each : overlapping(synthesis, request, all[0])) all.push_back(std::move(each));
  std::string problem;
  if (Synthesised data = baseline(request, Baseline::proportional_data, problem); data.found())
    all.push_back(std::move(data));
  return all;
}

Plan to_plan(const Request& request, const ShardingProgram& program) {
  Plan plan;
  Stage stage;
  for (const Device& device : request.group->devices()) stage.devices.push_back(device.name);
  stage.layers = static_cast<int>(request.table->graph().layers.size());
  plan.tensor = request.group->size();
  plan.shares = program.shares;
  if (std::all_of(plan.shares.begin(), plan.shares.end(), [&](int64_t s) { return s == plan.shares[0]; }))
    plan.shares.clear();
  plan.microbatch = request.microbatch;
  if (plan.tensor > 1) plan.sharding = along_one_axis(sharding_of(*request.table, program));
  plan.unlike_devices = request.group->has_unlike_types();
  plan.pipelines = {{request.microbatches, {std::move(stage)}}};
  return plan;
}

std::string_view name_of(Addition addition) {
  switch (addition) {
    case Addition::contracted: return "contracted dimensions";
    case Addition::heads: return "heads";
    case Addition::statistics: return "classes and columns";
    case Addition::gathers: return "gathers chosen one by one";
  }
  return "";
}

Gains gains_of(const Request& request) {
  const std::set<int> samples = sample_axes(*request.table);
  const auto best_with = [&](const std::set<Addition>& with) {
    Ticks best = kNever;
    SearchOptions options;
    options.allows_node = [&](NodeId n, const NodeSharding& way) {
      const auto addition = addition_of(request.table->graph(), samples, n, way);
      return !addition || with.count(*addition) != 0;
    };
    std::vector<DeviceGroup> groups;
    if (with.count(Addition::gathers) != 0)
      groups.push_back(*request.group);
    else
      for (const Gather gather : {Gather::padded, Gather::grouped_broadcast})
        groups.push_back(request.group->with_gather(gather));
    for (const DeviceGroup& group : groups) {
      Request own = request;
      own.group = &group;
      Synthesis synthesis(own);
      for (const Shares& start : starts_of(own))
        best = std::min(best, synthesis.alternate(start, options).cost);
    }
    return best;
  };
  const std::set<Addition> every(std::begin(kAdditions), std::end(kAdditions));
  Gains gains{best_with({}), best_with(every), {}};
  for (const Addition addition : kAdditions) {
    std::set<Addition> others = every;
    others.erase(addition);
    gains.of.push_back({addition, best_with({addition}), best_with(others)});
  }
  return gains;
}

}  // namespace het::planner::hap
