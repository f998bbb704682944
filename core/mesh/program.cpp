#include "core/mesh/program.h"

#include <algorithm>
#include <set>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/notation.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"

namespace het {
namespace {

// A way to run a node for each axis of the mesh.
using Ways = std::vector<NodeSharding>;

struct Choice {
  Ways ways;
  std::vector<MeshValue> inputs, outputs;
  int decomposed = -1;  // axis of the mesh
};

class Maker {
 public:
  Maker(const DeviceMesh& mesh, const Graph& graph, const std::map<ValueId, Placements>& inputs)
      : mesh_(mesh), graph_(graph), table_(graph) {
    for (int axis = 0; axis < axes(); ++axis) programs_.push_back(program_of(axis, inputs));
  }

  MeshNode node(NodeId n) const {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    Choice choice = choose(n);
    MeshNode made;
    made.way = way_of(n, choice);
    made.operands = operands_of(node);
    made.is_idle = has_nothing(node, choice, mesh_.place());
    std::vector<TensorSlice> in, out;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      in.push_back(own_slice(node.inputs[i], choice.inputs[i]));
      made.needed.push_back(needed(node, choice, i));
      if (!counts_once(choice, i)) continue;
      made.once |= uint32_t{1} << i;
      if (!counts_at(node, choice, i, mesh_.place())) made.elsewhere |= uint32_t{1} << i;
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      out.push_back(own_slice(node.outputs[o], choice.outputs[o]));
    if (choice.decomposed >= 0)
      made.decomposition = decompose(node, choice, made.elsewhere);
    else if (!made.is_idle)
      made.attributes = localized({*node.op, types_of(graph_, node.inputs), node.attributes}, in, out);
    made.inputs = std::move(choice.inputs);
    made.outputs = std::move(choice.outputs);
    return made;
  }

 private:
  int axes() const { return static_cast<int>(mesh_.axes().size()); }

  // The way of each node along one axis of the mesh, from how the inputs lie there.
  ShardingProgram program_of(int axis, const std::map<ValueId, Placements>& inputs) const {
    Shares shares(static_cast<size_t>(mesh_.axes()[static_cast<size_t>(axis)].size), 1);
    ShardingHints hints;
    hints.whole_inputs = false;
    bool chosen = false;
    for (const auto& [id, placements] : inputs) {
      const AxisPlacement& placement = placements[static_cast<size_t>(axis)];
      if (placement.lies.is_partial()) hints.given[id] = kPartial;
      if (!placement.lies.is_sharded()) continue;
      // Where no letter runs along the dimension, or it is of one unit, the operand is gathered.
      if (const auto lies = table_.find(id, placement.lies.dim, placement.lies.segments)) {
        hints.given[id] = *lies;
        if (!chosen) shares = placement.shares;
        chosen = true;
      }
    }
    for (size_t a = 0; a < table_.axes().size(); ++a) hints.axes.insert(static_cast<int>(a));
    return propagate(table_, shares, hints);
  }

  // --- how values lie

  // One entry for each axis of the mesh.
  Placements placements_of(ValueId id, const std::vector<PlacementId>& ids) const {
    Placements placements;
    for (size_t a = 0; a < ids.size(); ++a) {
      AxisPlacement placement;
      placement.lies = table_.placements(id)[ids[a]];
      if (placement.lies.is_sharded()) {
        placement.units = table_.axes()[static_cast<size_t>(placement.lies.axis)].units;
        placement.shares = programs_[a].shares;
      }
      placements.push_back(std::move(placement));
    }
    return placements;
  }
  std::vector<PlacementId> of_operand(const Ways& ways, size_t operand, bool is_result) const {
    std::vector<PlacementId> ids;
    for (const NodeSharding& way : ways) ids.push_back((is_result ? way.outputs : way.inputs)[operand]);
    return ids;
  }

  std::optional<MeshValue> lying(ValueId id, const std::vector<PlacementId>& ids) const {
    if (id == kAbsent) return MeshValue{};
    MeshValue result{placements_of(id, ids), {}};
    auto slices = slices_of(mesh_, graph_.type(id).shape, result.placements);
    if (!slices) return std::nullopt;
    result.slices = std::move(*slices);
    return result;
  }

  TensorSlice own_slice(ValueId id, const MeshValue& value) const {
    return id == kAbsent ? TensorSlice() : value.slices[static_cast<size_t>(mesh_.place())];
  }

  // --- which way

  // The ways of the programs, as far as they go together: an axis of the mesh whose way does not go with
  // those before it runs the node replicated.
  Choice choose(NodeId n) const {
    Ways ways;
    for (const ShardingProgram& program : programs_) ways.push_back(program.nodes[static_cast<size_t>(n)]);
    // Operators that take operands however they lie would see parts as wholes here.
    if (graph_.nodes[static_cast<size_t>(n)].op->any_placement)
      for (NodeSharding& way : ways) way = table_.replicated(n);
    for (int axis = axes();; --axis) {
      if (auto choice = fit(n, ways)) return *std::move(choice);
      HET_REQUIRE(axis > 0, graph_.nodes[static_cast<size_t>(n)].op->name);
      ways[static_cast<size_t>(axis) - 1] = table_.replicated(n);
    }
  }

  std::optional<Choice> fit(NodeId n, const Ways& ways) const {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    Choice choice{ways, {}, {}, -1};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      auto found = lying(node.inputs[i], of_operand(ways, i, false));
      if (!found) return std::nullopt;
      choice.inputs.push_back(std::move(*found));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      auto found = lying(node.outputs[o], of_operand(ways, o, true));
      if (!found) return std::nullopt;
      choice.outputs.push_back(std::move(*found));
    }
    for (int axis = 0; axis < axes(); ++axis) {
      const NodeSharding& way = ways[static_cast<size_t>(axis)];
      if (way.rule < 0 || node.op->sharding[static_cast<size_t>(way.rule)].decompose == nullptr) continue;
      if (choice.decomposed >= 0) return std::nullopt;
      choice.decomposed = axis;
    }
    bool all_filled = true;
    for (int place = 0; place < mesh_.size(); ++place)
      all_filled = all_filled && !has_nothing(node, choice, place);
    if (!all_filled && choice.decomposed >= 0) return std::nullopt;
    // A rank without a part makes nothing of a result that is cut, and zeros of a summand: a result that
    // every rank along the axis shall have, it would not have.
    for (size_t axis = 0; axis < ways.size() && !all_filled; ++axis)
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (ways[axis].axis >= 0 && node.outputs[o] != kAbsent && ways[axis].outputs[o] == kReplicated)
          return std::nullopt;
    if (choice.decomposed >= 0 && cuts_same(choice)) return std::nullopt;
    return choice;
  }

  // Whether a rank has no part of an axis that is cut, though the whole has elements.
  bool has_nothing(const Node& node, const Choice& choice, int place) const {
    const auto nothing = [&](const std::vector<ValueId>& ids, const std::vector<MeshValue>& lying) {
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] != kAbsent && graph_.type(ids[i]).elements() > 0 &&
            lying[i].slices[static_cast<size_t>(place)].is_empty())
          return true;
      return false;
    };
    return nothing(node.inputs, choice.inputs) || nothing(node.outputs, choice.outputs);
  }

  // Whether the axis that is decomposed cuts a dimension that another one cuts, too.
  bool cuts_same(const Choice& choice) const {
    const auto both = [&](const MeshValue& lying) {
      for (size_t a = 0; a < lying.placements.size(); ++a) {
        const Placement& other = lying.placements[a].lies;
        const Placement& own = lying.placements[static_cast<size_t>(choice.decomposed)].lies;
        if (static_cast<int>(a) != choice.decomposed && own.is_sharded() && other.is_sharded() &&
            own.dim == other.dim)
          return true;
      }
      return false;
    };
    return std::any_of(choice.inputs.begin(), choice.inputs.end(), both) ||
           std::any_of(choice.outputs.begin(), choice.outputs.end(), both);
  }

  // --- operands that count once

  static bool counts_once(const Choice& choice, size_t operand) {
    return std::any_of(choice.ways.begin(), choice.ways.end(),
                       [&](const NodeSharding& way) { return has_bit(way.once, operand); });
  }

  // Whether an operand counts at a place: along the axes whose ways count it once, at the first place that
  // has a part.
  bool counts_at(const Node& node, const Choice& choice, size_t operand, int place) const {
    const auto is_alike = [&](int other) {  // but along those axes
      for (int axis = 0; axis < axes(); ++axis)
        if (!has_bit(choice.ways[static_cast<size_t>(axis)].once, operand) &&
            mesh_.coordinate(other, axis) != mesh_.coordinate(place, axis))
          return false;
      return true;
    };
    if (has_nothing(node, choice, place)) return false;
    for (int other = 0; other < place; ++other)
      if (is_alike(other) && !has_nothing(node, choice, other)) return false;
    return true;
  }

  // What each place needs of an operand.
  std::vector<TensorSlice> needed(const Node& node, const Choice& choice, size_t operand) const {
    if (node.inputs[operand] == kAbsent) return {};
    std::vector<TensorSlice> slices = choice.inputs[operand].slices;
    if (!counts_once(choice, operand)) return slices;
    for (int place = 0; place < mesh_.size(); ++place) {
      TensorSlice& slice = slices[static_cast<size_t>(place)];
      if (!counts_at(node, choice, operand, place)) slice = nothing_of(slice);
    }
    return slices;
  }

  // No element; a scalar, which cannot be cut, stays.
  static TensorSlice nothing_of(const TensorSlice& slice) {
    return slice.whole_shape().empty() ? slice : slice.narrowed(0, Ranges{});
  }

  // --- decompositions

  // What `place` has of a value: of the whole, what the axes of the mesh other than `axis` leave it, and of
  // that its part along `axis`. The other axes cut other dimensions, so indices along this one are the same
  // in what they leave.
  struct Split {
    TensorSlice outer, inner;
  };
  Split split(ValueId id, const MeshValue& value, size_t axis) const {
    if (id == kAbsent) return {};
    const Shape& shape = graph_.type(id).shape;
    Placements others = value.placements, alone(value.placements.size());
    others[axis] = {};
    alone[axis] = value.placements[axis];
    const auto at = static_cast<size_t>(mesh_.place());
    const TensorSlice outer = (*slices_of(mesh_, shape, others))[at];
    const TensorSlice cut = (*slices_of(mesh_, shape, alone))[at];
    TensorSlice inner = TensorSlice::whole(outer.shape());
    const Placement& lies = alone[axis].lies;
    if (lies.is_sharded()) inner = inner.narrowed(lies.dim, cut.ranges(lies.dim));
    return {outer, inner};
  }

  // To the rule the whole is what the other axes leave.
  MeshDecomposition decompose(const Node& node, const Choice& choice, uint32_t elsewhere) const {
    const auto axis = static_cast<size_t>(choice.decomposed);
    MeshDecomposition small;
    small.axis = choice.decomposed;
    GraphBuilder builder(small.graph);
    std::vector<TensorSlice> whole_in, whole_out, in, out;
    std::vector<TensorType> types;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      const auto [outer, inner] = split(id, choice.inputs[i], axis);
      whole_in.push_back(outer);
      in.push_back(inner);
      const DType dtype = id == kAbsent ? DType() : graph_.type(id).dtype;
      types.push_back(id == kAbsent ? TensorType{} : TensorType{dtype, outer.shape()});
      const bool absent = id == kAbsent || has_bit(elsewhere, i);
      small.inputs.push_back(absent ? kAbsent : builder.input(fmt::format("x{}", i), {dtype, inner.shape()}));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const auto [outer, inner] = split(node.outputs[o], choice.outputs[o], axis);
      whole_out.push_back(outer);
      out.push_back(inner);
    }
    const auto given = types_of(graph_, node.inputs);
    const Attributes attributes = localized({*node.op, given, node.attributes}, whole_in, whole_out);
    const OpCall whole{*node.op, types, attributes};
    const ShardedCall call{builder,
                           whole,
                           small.inputs,
                           in,
                           out,
                           mesh_.axes()[axis].size,
                           mesh_.coordinate(mesh_.place(), choice.decomposed)};
    small.results = node.op->sharding[static_cast<size_t>(choice.ways[axis].rule)].decompose(call);
    return small;
  }

  // --- for people

  // The names of a node's operands in its operator's signature; numbers if it has no rules.
  std::vector<std::string> operands_of(const Node& node) const {
    std::vector<std::string> names;
    for (size_t i = 0; i < node.inputs.size(); ++i) names.push_back(fmt::format("operand {}", i + 1));
    if (node.op->sharding.empty()) return names;
    const auto types = types_of(graph_, node.inputs), made = types_of(graph_, node.outputs);
    const Notation notation = notation_of({*node.op, types, node.attributes}, made);
    for (size_t i = 0; i < node.inputs.size(); ++i) names[i] = notation.inputs[i].name;
    return names;
  }

  // "data: x dim 0 -> y dim 0; model: replicated"
  std::string way_of(NodeId n, const Choice& choice) const {
    std::string text;
    for (size_t a = 0; a < choice.ways.size(); ++a)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", mesh_.axes()[a].name,
                          describe(table_, n, choice.ways[a]));
    return text;
  }

  const DeviceMesh& mesh_;
  const Graph& graph_;
  PlacementTable table_;
  std::vector<ShardingProgram> programs_;  // by axis of the mesh
};

}  // namespace

MeshProgram mesh_program(const DeviceMesh& mesh, Graph graph, const std::map<ValueId, Placements>& inputs) {
  MeshProgram program{std::move(graph), {}};
  const Maker maker(mesh, program.graph, inputs);
  std::set<ValueId> constants{kAbsent};
  for (size_t n = 0; n < program.graph.nodes.size(); ++n) {
    const Node& node = program.graph.nodes[n];
    MeshNode made = maker.node(static_cast<NodeId>(n));
    made.is_constant = std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return constants.contains(id); });
    if (made.is_constant) constants.insert(node.outputs.begin(), node.outputs.end());
    program.nodes.push_back(std::move(made));
  }
  return program;
}

}  // namespace het
