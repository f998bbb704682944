#include "planner/megatron/sharding.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/plan/plan.h"
#include "core/plan/sharding_spec.h"

namespace het {
namespace {

bool are_equal(const Shares& shares) {
  return std::all_of(shares.begin(), shares.end(), [&](int64_t share) { return share == shares[0]; });
}

// "4 devices", "shares { 3, 1 }"
std::string describe(const Shares& shares) {
  const bool equal = are_equal(shares);
  return fmt::format("{}{}{}", equal ? "" : "shares ", show_shares(shares), equal ? " devices" : "");
}

// What each part gets of so many units, and the least of it.
std::vector<int64_t> parts_of(int64_t units, const Shares& shares) {
  const std::vector<int64_t> points = cut_points(units, shares);
  std::vector<int64_t> parts;
  for (size_t p = 0; p + 1 < points.size(); ++p) parts.push_back(points[p + 1] - points[p]);
  return parts;
}
int64_t smallest_part(int64_t units, const Shares& shares) {
  const std::vector<int64_t> parts = parts_of(units, shares);
  return *std::min_element(parts.begin(), parts.end());
}

// The divisors of n that are nearest to the degree, one below and, where there is one, one above: "2 or 8".
std::string divisors(int64_t n, int64_t degree) {
  int64_t below = 1, above = 0;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d != 0) continue;
    if (d < degree) below = d;
    if (d > degree && above == 0) above = d;
  }
  return above == 0 ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// Which axes of a graph are cut.
class Choice {
 public:
  Choice(const PlacementTable& table, const Shares& shares)
      : table_(table), graph_(table.graph()), shares_(shares), nodes_(table.axes().size()) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const NodeSharding& way : table.shardings(static_cast<NodeId>(n)))
        if (way.axis >= 0) nodes_[static_cast<size_t>(way.axis)].push_back({static_cast<NodeId>(n), &way});
  }

  std::set<int> run() {
    std::set<int> axes;
    std::set<ValueId> taken;  // parameters
    for (size_t a = 0; a < table_.axes().size(); ++a) {
      const LogicalAxis& axis = table_.axes()[a];
      if (!axis.has_parameters || axis.has_inputs || !axis.obstacle.empty() || needs_asking(a)) continue;
      std::set<ValueId> own;
      for (const AxisPlace& place : axis.places)
        if (graph_.values[static_cast<size_t>(place.value)].role == Role::parameter) own.insert(place.value);
      const bool shared =
          std::any_of(own.begin(), own.end(), [&](ValueId id) { return taken.count(id) != 0; });
      if (shared || !is_worth_it(a)) continue;
      taken.merge(own);
      axes.insert(static_cast<int>(a));
    }
    if (!problems_.empty())
      fail_usage("the layers of the model cannot be cut among {}:\n  {}", describe(shares_),
                 fmt::join(problems_, "\n  "));
    return axes;
  }

 private:
  struct Use {
    NodeId node;
    const NodeSharding* way;
  };

  const OpDef& op_of(const Use& use) const { return *graph_.nodes[static_cast<size_t>(use.node)].op; }

  // Whether a node exchanges numbers for each row where the axis is cut.
  bool needs_asking(size_t axis) const {
    return std::any_of(nodes_[axis].begin(), nodes_[axis].end(), [&](const Use& use) {
      return op_of(use).sharding[static_cast<size_t>(use.way->rule)].on_demand;
    });
  }

  // Whether the axis is that of rows which are looked up, or of a classifier's classes. How an optimizer uses
  // it makes no difference: a graph that evaluates is cut alike.
  bool is_of_rows(size_t axis) const {
    return std::any_of(nodes_[axis].begin(), nodes_[axis].end(), [&](const Use& use) {
      if (graph_.nodes[static_cast<size_t>(use.node)].phase == Phase::update) return false;
      const auto sharded = [](PlacementId lies) { return lies > kPartial; };
      const auto& way = *use.way;
      if (op_of(use).sharding[static_cast<size_t>(way.rule)].decompose != nullptr) return true;
      return graph_.nodes[static_cast<size_t>(use.node)].phase == Phase::forward &&
             std::count_if(way.inputs.begin(), way.inputs.end(), sharded) == 1 &&
             std::none_of(way.outputs.begin(), way.outputs.end(), sharded);
    });
  }

  bool is_worth_it(size_t axis) {
    const int64_t units = table_.axes()[axis].units;
    const int64_t least = smallest_part(units, shares_);
    constexpr int64_t kLeastRows = 4;  // on each rank: of a smaller table all have all rows
    if (is_of_rows(axis)) return least >= kLeastRows;
    const auto parts = static_cast<int64_t>(shares_.size());
    const bool even = !are_equal(shares_) || units % parts == 0;
    if (even && least > 0) return true;
    std::string problem = fmt::format("{} among {}", describe_units(axis), describe(shares_));
    problem += are_equal(shares_) ? fmt::format("; {} would do", divisors(units, parts))
                                  : fmt::format("; each device needs at least one, they get {}",
                                                fmt::join(parts_of(units, shares_), ", "));
    if (std::find(problems_.begin(), problems_.end(), problem) == problems_.end())
      problems_.push_back(std::move(problem));
    return false;
  }

  // "blocks.0.attention: 2 key heads": the letter that has no more entries than the axis has units. Heads are
  // what people choose degrees by, so they come first.
  std::string describe_units(size_t axis) const {
    const int64_t units = table_.axes()[axis].units;
    std::string other;
    for (const Use& use : nodes_[axis]) {
      const Node& node = graph_.nodes[static_cast<size_t>(use.node)];
      const auto inputs = types_of(graph_, node.inputs), outputs = types_of(graph_, node.outputs);
      const OpCall call{*node.op, inputs, node.attributes};
      const Notation notation = notation_of(call, outputs);
      const std::string_view cut = node.op->sharding[static_cast<size_t>(use.way->rule)].cut;
      for (const std::string& letter : notation.letters) {
        if (!names(cut, letter) || notation.sizes.at(letter) != units) continue;
        const std::string_view meaning = meaning_of(letter);
        const std::string text =
            fmt::format("{}: {} {}", graph_.scopes[static_cast<size_t>(node.scope)], units, meaning);
        if (meaning == meaning_of("")) continue;  // "entries": what has them says more
        if (meaning != kFeatures) return text;
        if (other.empty()) other = text;
      }
    }
    return other.empty() ? fmt::format("{} units of {}", units, describe_place(axis)) : other;
  }

  std::string describe_place(size_t axis) const {
    const AxisPlace& place = table_.axes()[axis].places[0];
    return fmt::format("dimension {} of '{}'", place.dim,
                       graph_.values[static_cast<size_t>(place.value)].name);
  }

  const PlacementTable& table_;
  const Graph& graph_;
  const Shares& shares_;
  std::vector<std::vector<Use>> nodes_;  // by axis
  std::vector<std::string> problems_;
};

// The axes of tokens: of dimension 1 of activations [samples, tokens, features] that are sums over the ranks.
std::set<int> token_axes(const PlacementTable& table, const Shares& shares, const std::set<int>& cut) {
  const Graph& graph = table.graph();
  std::set<int> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const NodeSharding& way : table.shardings(static_cast<NodeId>(n)))
      for (size_t o = 0; cut.count(way.axis) != 0 && o < way.outputs.size(); ++o) {
        const ValueId id = graph.nodes[n].outputs[o];
        if (way.outputs[o] != kPartial || graph.type(id).shape.size() != 3) continue;
        const auto lies = table.find(id, 1, {graph.type(id).shape[1]});
        if (!lies || graph.nodes[n].phase != Phase::forward) continue;
        const int axis = table.placements(id)[*lies].axis;
        if (smallest_part(table.axes()[static_cast<size_t>(axis)].units, shares) > 0) found.insert(axis);
      }
  return found;
}

// How people want parameters to lie, and with them the state of the optimizer that is of their shape.
class LayerHints {
 public:
  LayerHints(const PlacementTable& table, std::string_view mesh_axis, const Shares& shares)
      : table_(table), graph_(table.graph()), mesh_axis_(mesh_axis), shares_(shares) {
    for (size_t i = 0; i < graph_.values.size(); ++i)
      for (const ShardingHint& hint : graph_.values[i].hints)
        if (hint.axis == mesh_axis_) take(static_cast<ValueId>(i), hint.dim);
    if (!problems_.empty()) fail_usage("{}", fmt::join(problems_, "\n  "));
  }

  // `named`: the program is a plan's, which cannot say otherwise.
  void write(ShardingHints& hints, bool named = false) const {
    for (const auto& [id, lies] : lies_) {
      const auto given = hints.given.find(id);
      if (named && given != hints.given.end() && given->second != lies)
        fail_usage("sharding: the plan has {} {}, its layer asks for {}",
                   graph_.values[static_cast<size_t>(id)].name,
                   to_string(table_.placements(id)[given->second]), to_string(table_.placements(id)[lies]));
      hints.given[id] = lies;
      const Placement& placement = table_.placements(id)[lies];
      if (placement.is_sharded()) hints.axes.insert(placement.axis);
    }
  }

 private:
  void take(ValueId id, int64_t dim) {
    std::string problem;
    const auto lies =
        dim < 0 ? std::optional(kReplicated) : placement_of(table_, shares_, id, dim, {}, problem);
    if (lies)
      give(table_, id, *lies, lies_);
    else
      problems_.push_back(fmt::format("{}: {} = {} cannot hold: {}",
                                      graph_.values[static_cast<size_t>(id)].name, mesh_axis_, dim, problem));
  }

  const PlacementTable& table_;
  const Graph& graph_;
  std::string_view mesh_axis_;
  const Shares& shares_;
  std::map<ValueId, PlacementId> lies_;
  std::vector<std::string> problems_;
};

// `hinted_axis`: whose hints of layers count; empty: none.
ShardingHints megatron_hints(const PlacementTable& table, const Shares& shares,
                             std::string_view hinted_axis) {
  const Graph& graph = table.graph();
  ShardingHints hints;
  hints.axes = Choice(table, shares).run();
  for (const int axis : hints.axes)
    for (const AxisPlace& place : table.axes()[static_cast<size_t>(axis)].places)
      if (is_state(graph.values[static_cast<size_t>(place.value)]))
        hints.given[place.value] = *table.find(place.value, place.dim, place.segments);
  if (!hinted_axis.empty()) LayerHints(table, hinted_axis, shares).write(hints);
  return hints;
}

// Throws Error(usage) where a pattern matches nothing of a graph that trains.
void require_matches(const Graph& graph, const AxisSharding& sharding) {
  const bool trains = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                  [](const Node& node) { return node.phase == Phase::update; });
  const auto problems = trains ? unmatched(graph, sharding) : std::vector<std::string>{};
  if (!problems.empty())
    fail_usage("the plan's sharding does not fit the model:\n  {}", fmt::join(problems, "\n  "));
}

}  // namespace

ShardingProgram megatron_sharding(const PlacementTable& table, const Shares& shares, bool sequence,
                                  std::string_view hinted_axis) {
  ShardingHints hints = megatron_hints(table, shares, hinted_axis);
  if (sequence) hints.axes.merge(token_axes(table, shares, hints.axes));
  return propagate(table, shares, hints);
}

ShardingProgram sharding_program_of(const PlacementTable& table, const StageAxis& axis, bool sequence) {
  if (!axis.sharding) return megatron_sharding(table, axis.shares, sequence, axis.name);
  require_matches(table.graph(), *axis.sharding);
  ShardingHints hints = hints_of(table, axis.shares, *axis.sharding);
  LayerHints(table, axis.name, axis.shares).write(hints, true);
  return propagate(table, axis.shares, hints);
}

std::map<ValueId, PlacementId> state_placements(const PlacementTable& table, const StageAxis& axis) {
  if (!axis.sharding) return megatron_hints(table, axis.shares, axis.name).given;
  require_matches(table.graph(), *axis.sharding);
  ShardingHints hints = hints_of(table, axis.shares, {axis.sharding->state, {}, {}});
  LayerHints(table, axis.name, axis.shares).write(hints, true);
  return hints.given;
}

std::optional<int64_t> bytes_beyond_megatron(const Graph& graph, const Plan& plan) {
  const bool hinted = std::any_of(graph.values.begin(), graph.values.end(),
                                  [](const Value& value) { return !value.hints.empty(); });
  std::optional<PlacementTable> table;
  std::optional<int64_t> beyond;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const StageCut cut = cut_of(plan, stage);
      if ((!hinted && cut.is_megatron()) || cut.parts() < 2) continue;
      if (cut.axes.size() > 1) return std::nullopt;
      const StageAxis& axis = cut.axes[0];
      if (!table) table.emplace(graph);
      const Range layers{stage.first_layer, stage.first_layer + stage.layers};
      const auto in_step = [&](const ShardingProgram& program) {
        const MovedBytes bytes = moved_bytes(*table, program, layers);
        return pipeline.microbatches * bytes.microbatch + bytes.update;
      };
      const int64_t own = in_step(sharding_program_of(*table, axis, plan.sequence));
      try {
        beyond =
            beyond.value_or(0) + own - in_step(megatron_sharding(*table, axis.shares, plan.sequence, ""));
      } catch (const Error&) {  // the model cannot be cut so
        return std::nullopt;
      }
    }
  return beyond;
}

Graph tensor_parallel(const Graph& graph, const Shares& shares, int part, bool sequence) {
  HET_REQUIRE(part >= 0 && part < static_cast<int>(shares.size()), part, shares.size());
  if (shares.size() == 1) return graph;
  const PlacementTable table(graph);
  return partition(table, megatron_sharding(table, shares, sequence), part).graph;
}

}  // namespace het
