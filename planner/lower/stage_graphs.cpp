#include "planner/lower/stage_graphs.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "planner/megatron/sharding.h"

namespace het {
namespace {

// Translates a program for one table's graph to another table's graph, which differs in sizes alone.
class Translation {
 public:
  Translation(const PlacementTable& from, const PlacementTable& to, const Shares& shares)
      : from_(from), to_(to), shares_(shares) {
    HET_REQUIRE(from.graph().values.size() == to.graph().values.size());
    HET_REQUIRE(from.graph().nodes.size() == to.graph().nodes.size());
  }

  // nullopt: a value is too small there to be cut so.
  std::optional<ShardingProgram> run(ShardingProgram program) {
    for (size_t i = 0; i < program.values.size(); ++i)
      program.values[i] = placement(static_cast<ValueId>(i), program.values[i]);
    for (size_t n = 0; n < program.nodes.size(); ++n) {
      const Node& node = from_.graph().nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        program.nodes[n].inputs[i] = placement(node.inputs[i], program.nodes[n].inputs[i]);
      for (size_t o = 0; o < node.outputs.size(); ++o)
        program.nodes[n].outputs[o] = placement(node.outputs[o], program.nodes[n].outputs[o]);
    }
    for (Conversion& conversion : program.conversions)
      conversion.to = placement(conversion.value, conversion.to);
    return fits_ ? std::optional(std::move(program)) : std::nullopt;
  }

 private:
  PlacementId placement(ValueId id, PlacementId lies) {
    if (id == kAbsent || lies <= kPartial) return lies;
    const Placement& wanted = from_.placements(id)[lies];
    const auto& known = to_.placements(id);
    for (size_t p = kPartial + 1; p < known.size(); ++p) {
      if (known[p].dim != wanted.dim || known[p].segments.size() != wanted.segments.size()) continue;
      if (fills(to_.axes()[static_cast<size_t>(known[p].axis)], shares_)) return static_cast<PlacementId>(p);
    }
    fits_ = false;
    return kReplicated;
  }

  const PlacementTable &from_, &to_;
  const Shares& shares_;
  bool fits_ = true;
};

}  // namespace

bool StageValue::is_partial() const {
  return std::find(lies.begin(), lies.end(), Placement::Kind::partial) != lies.end();
}

bool StageValue::is_replicated() const {
  return std::all_of(lies.begin(), lies.end(),
                     [](Placement::Kind kind) { return kind == Placement::Kind::replicated; });
}

StageGraphs::StageGraphs(const Graph& graph, const Plan& plan, bool fused, const PlacementTable* table)
    : sequence_(plan.sequence), fused_(fused) {
  HET_REQUIRE(table == nullptr || &table->graph() == &graph);
  root_.graph = &graph;
  root_.table = table;
}

StageGraphs::Place StageGraphs::place_of(const StageCut& cut, int device) {
  Place place{cut.axes, {}};
  for (size_t axis = 0; axis < cut.axes.size(); ++axis) place.second.push_back(cut.coordinate(device, axis));
  return place;
}

StageGraphs::Place StageGraphs::whole_of(Place place) {
  place.first.pop_back();
  place.second.pop_back();
  return place;
}

StageGraphs::Place StageGraphs::first_of(Place place) {
  std::fill(place.second.begin(), place.second.end(), 0);
  return place;
}

const PlacementTable& StageGraphs::table_of(const Place& place) {
  Part& own = part(place);
  if (own.table != nullptr) return *own.table;
  const Place first = first_of(place);
  const auto keep = [&](const Graph& graph) -> const PlacementTable& {
    return *(own.table = &own.made.emplace(graph));
  };
  if (place == first) return keep(*own.graph);
  own.completed = *own.graph;
  const Graph& other = *part(first).graph;
  for (size_t n = 0; n < other.nodes.size(); ++n)
    for (size_t i = 0; i < other.nodes[n].inputs.size(); ++i)
      if (own.completed.nodes[n].inputs[i] == kAbsent)
        own.completed.nodes[n].inputs[i] = other.nodes[n].inputs[i];
  return keep(own.completed);
}

StageGraphs::Part& StageGraphs::part(const Place& place) {
  if (place.first.empty() || StageCut{place.first}.parts() == 1) return root_;
  if (const auto known = parts_.find(place); known != parts_.end()) return *known->second;
  const Place whole = whole_of(place);
  const ShardingProgram& program = program_of(whole, place.first.back());
  Part& cut = part(whole);
  RankGraph graph = partition(table_of(whole), program, place.second.back(),
                              static_cast<int>(place.first.size()) - 1, cut.graph);
  if (whole != first_of(whole)) {
    Place alike = first_of(place);
    alike.second.back() = place.second.back();
    const Graph& other = *part(alike).graph;
    if (graph.graph.values.size() != other.values.size() || graph.graph.nodes.size() != other.nodes.size())
      fail_usage(
          "a stage's mesh cannot be cut along '{}' and then along '{}': an operator takes an operand on one "
          "device alone, and would run otherwise there; the other order of the axes may work",
          whole.first.back().name, place.first.back().name);
  }
  auto made = std::make_unique<Part>();
  made->own = std::move(graph.graph);
  made->graph = &made->own;
  made->of = &cut;
  made->origins = std::move(graph.origins);
  const auto entry = parts_.emplace(place, std::move(made)).first;
  entry->second->axis = &entry->first.first.back();
  entry->second->coordinate = entry->first.second.back();
  entry->second->cuts = std::make_unique<AxisCuts>(entry->second->axis->shares);
  return *entry->second;
}

// That of the first part along the axes before, so that all parts run the same nodes.
const ShardingProgram& StageGraphs::program_of(const Place& whole, const StageAxis& axis) {
  if (const auto known = programs_.find({whole, axis}); known != programs_.end()) return known->second;
  const auto keep = [&](ShardingProgram program) -> const ShardingProgram& {
    return programs_.emplace(std::pair{whole, axis}, std::move(program)).first->second;
  };
  const Place first = first_of(whole);
  if (whole == first) return keep(sharding_program_of(table_of(whole), axis, sequence_));
  const ShardingProgram& program = program_of(first, axis);
  auto translated = Translation(table_of(first), table_of(whole), axis.shares).run(program);
  if (!translated)
    fail_usage(
        "axis '{}' of a stage's mesh leaves some devices too little to be cut along '{}'; more even "
        "shares would do",
        whole.first.back().name, axis.name);
  return keep(*std::move(translated));
}

const StageGraph& StageGraphs::of(const StageCut& cut, int device) {
  if (const auto known = graphs_.find({cut, device}); known != graphs_.end()) return known->second;
  const Part& own = part(place_of(cut, device));
  StageGraph made;
  // An operand that counts once is absent but on the first part along an axis: where it is there, more is
  // needed.
  Place first = place_of(cut, device);
  first.second.back() = 0;
  const Graph kept = prune(*own.graph, *part(first).graph);
  made.graph = fused_ ? join(kept) : kept;  // which leave values as they are numbered
  for (size_t i = 0; i < own.graph->values.size(); ++i) {
    StageValue value{static_cast<ValueId>(i)};
    for (const Part* at = &own; at->of != nullptr && value.value != kAbsent; at = at->of) {
      const auto [outer, lies] = at->origins[static_cast<size_t>(value.value)];
      value.value = outer;
      if (outer != kAbsent) value.lies.push_back(at->of->table->placements(outer)[lies].kind);
    }
    if (value.value == kAbsent) value.lies.clear();
    std::reverse(value.lies.begin(), value.lies.end());
    value.lies.resize(cut.axes.size());
    made.values.push_back(std::move(value));
  }
  made.values.resize(made.graph.values.size());
  return graphs_.emplace(std::pair{cut, device}, std::move(made)).first->second;
}

void StageGraphs::require(const StageCut& cut) {
  if (cut.parts() > 1) program_of(whole_of(place_of(cut, 0)), cut.axes.back());
  for (int device = 0; device < cut.parts() && cut.axes.size() > 1; ++device) part(place_of(cut, device));
}

TensorSlice StageGraphs::slice(const StageCut& cut, ValueId id, int device) {
  const Part& own = part(place_of(cut, device));
  std::optional<TensorSlice> slice;
  for (const Part* at = &own; at->of != nullptr; at = at->of) {
    const auto [outer, lies] = at->origins[static_cast<size_t>(id)];
    HET_REQUIRE(outer != kAbsent, id);
    const TensorSlice here = at->of->table->slice(outer, lies, *at->cuts, at->coordinate);
    slice = slice ? nested(here, *slice) : here;
    id = outer;
  }
  return slice.value_or(TensorSlice::whole(root_.graph->type(id).shape));
}

}  // namespace het
