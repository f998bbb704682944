#include "core/mesh/run.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/ops/notation.h"
#include "core/ops/op.h"
#include "core/plan/sharding_program.h"

namespace het {
namespace {

// A node with one way to run it for each axis of the mesh.
using Ways = std::vector<NodeSharding>;

class MeshRun {
 public:
  MeshRun(Eager& eager, const Graph& graph, std::map<ValueId, DistributedTensor>& values,
          std::vector<MeshStep>* steps)
      : eager_(eager), graph_(graph), table_(graph), values_(values), steps_(steps) {
    HET_REQUIRE(!values.empty());
    mesh_ = values.begin()->second.mesh;
    for (const auto& [id, value] : values)
      if (value.mesh != mesh_)
        fail_usage("operands lie on different meshes, {} and {}; redistribute one to the other's mesh",
                   to_string(*mesh_), to_string(*value.mesh));
    for (int axis = 0; axis < axes(); ++axis) programs_.push_back(program_of(axis));
    agree();
  }

  void run(const std::vector<ValueId>& wanted) {
    std::map<ValueId, size_t> last;  // nodes that read a value
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const ValueId id : graph_.nodes[n].inputs) last[id] = n;
    for (const ValueId id : wanted) last[id] = graph_.nodes.size();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      run_node(static_cast<NodeId>(n));
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent && last.at(id) == n) values_.erase(id);
    }
  }

 private:
  int axes() const { return static_cast<int>(mesh_->axes().size()); }

  // All ranks are about to run this graph, on operands that lie so: "linear(f32[8, 16], f32[4, 16])".
  void agree() const {
    std::vector<std::string> operands;
    std::string lying;
    for (const auto& [id, value] : values_) {
      operands.push_back(to_string(value.type));
      lying += fmt::format("; {}", describe_placements(value));
    }
    const bool single = graph_.nodes.size() == 1;
    mesh_->agree_on(fmt::format("{}({})", single ? graph_.nodes[0].op->name : "a function's gradient",
                                fmt::join(operands, ", ")),
                    (single ? to_string(graph_.nodes[0].attributes) : to_string(graph_)) + lying);
  }

  // The way of each node along one axis of the mesh, from how the inputs lie there.
  ShardingProgram program_of(int axis) {
    Shares shares(static_cast<size_t>(mesh_->axes()[static_cast<size_t>(axis)].size), 1);
    ShardingHints hints;
    bool chosen = false;
    for (const auto& [id, value] : values_) {
      const AxisPlacement& placement = value.placements[static_cast<size_t>(axis)];
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

  struct Lying {
    Placements placements;
    std::vector<TensorSlice> slices;
  };
  std::optional<Lying> lying(ValueId id, const std::vector<PlacementId>& ids) const {
    if (id == kAbsent) return Lying{};
    Lying result{placements_of(id, ids), {}};
    auto slices = slices_of(*mesh_, graph_.type(id).shape, result.placements);
    if (!slices) return std::nullopt;
    result.slices = std::move(*slices);
    return result;
  }

  // --- one node

  struct Choice {
    Ways ways;
    std::vector<Lying> inputs, outputs;
    int decomposed = -1;  // axis of the mesh
  };

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
    for (int place = 0; place < mesh_->size(); ++place)
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
    const auto nothing = [&](const std::vector<ValueId>& ids, const std::vector<Lying>& lying) {
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
    const auto both = [&](const Lying& lying) {
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

  void run_node(NodeId n) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    const Choice choice = choose(n);
    const int here = mesh_->place();
    MeshStep step{std::string(node.op->name), "", {}};
    Names names;
    if (steps_ != nullptr) {
      names = names_of(node);
      step.way = way_of(node, names, choice);
    }

    std::vector<Tensor> operands;
    std::vector<TensorSlice> in, out;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kAbsent) {
        operands.emplace_back();
        in.emplace_back();
        continue;
      }
      DistributedTensor& value = values_.at(node.inputs[i]);
      std::vector<Travel> moves;
      DistributedTensor moved =
          redistribute(value, choice.inputs[i].placements, std::string(node.op->name), &moves);
      for (Travel& travel : moves)
        if (steps_ != nullptr) step.moves.push_back({names.inputs[i], std::move(travel)});
      const bool elsewhere = counts_elsewhere(node, choice, i);
      operands.push_back(elsewhere ? Tensor() : moved.local);
      in.push_back(choice.inputs[i].slices[static_cast<size_t>(here)]);
      // A gathered or summed value is kept for its next readers; a part is cut again from the whole.
      if (needs_others(value, choice.inputs[i]) && elements_on_all(moved) >= elements_on_all(value))
        value = std::move(moved);
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      out.push_back(node.outputs[o] == kAbsent ? TensorSlice()
                                               : choice.outputs[o].slices[static_cast<size_t>(here)]);

    std::vector<Tensor> results;
    if (choice.decomposed >= 0)
      results = run_decomposed(node, choice, operands, step);
    else if (has_nothing(node, choice, here))
      results = nothing_of(node, out);
    else
      results = eager_.call(*node.op, operands,
                            localized({*node.op, types_of(graph_, node.inputs), node.attributes}, in, out));
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      if (id == kAbsent) continue;
      HET_REQUIRE(results[o].shape() == out[o].shape(), node.op->name, o, to_string(results[o].type()));
      values_.insert_or_assign(id, DistributedTensor{mesh_, graph_.type(id), choice.outputs[o].placements,
                                                     choice.outputs[o].slices, std::move(results[o])});
    }
    if (steps_ != nullptr) steps_->push_back(std::move(step));
  }

  // An operand that counts once: on the first rank that has a part, along the axes whose ways say so.
  bool counts_elsewhere(const Node& node, const Choice& choice, size_t operand) const {
    const auto once = [&](size_t axis) { return ((choice.ways[axis].once >> operand) & 1) != 0; };
    bool any = false;
    for (size_t axis = 0; axis < choice.ways.size(); ++axis) any = any || once(axis);
    if (!any) return false;
    for (int place = 0; place < mesh_->size(); ++place) {
      bool counts = !has_nothing(node, choice, place);
      for (size_t axis = 0; axis < choice.ways.size(); ++axis)
        counts = counts && (once(axis) || mesh_->coordinate(place, static_cast<int>(axis)) ==
                                              mesh_->coordinate(mesh_->place(), static_cast<int>(axis)));
      if (counts) return place != mesh_->place();
    }
    return false;
  }

  // Whether bringing a value to lie so needs other ranks, on any rank.
  static bool needs_others(const DistributedTensor& value, const Lying& wanted) {
    for (size_t a = 0; a < wanted.placements.size(); ++a)
      if (value.placements[a].lies.is_partial() && !wanted.placements[a].lies.is_partial()) return true;
    for (size_t place = 0; place < wanted.slices.size(); ++place)
      if (!wanted.slices[place].is_empty() &&
          intersection(value.slices[place], wanted.slices[place]) != wanted.slices[place])
        return true;
    return false;
  }

  static int64_t elements_on_all(const DistributedTensor& value) {
    int64_t elements = 0;
    for (const TensorSlice& slice : value.slices) elements += slice.elements();
    return elements;
  }

  // What a rank without a part makes: nothing, or a summand of zeros.
  std::vector<Tensor> nothing_of(const Node& node, const std::vector<TensorSlice>& out) const {
    std::vector<Tensor> results;
    for (size_t o = 0; o < node.outputs.size(); ++o)
      results.push_back(node.outputs[o] == kAbsent
                            ? Tensor()
                            : Tensor::zeros({graph_.type(node.outputs[o]).dtype, out[o].shape()}));
    return results;
  }

  // What a rule makes of the call along one axis: a small graph, with collectives along it. To the rule the
  // whole is what the other axes leave.
  std::vector<Tensor> run_decomposed(const Node& node, const Choice& choice,
                                     const std::vector<Tensor>& operands, MeshStep& step) {
    const auto axis = static_cast<size_t>(choice.decomposed);
    std::vector<TensorSlice> whole_in, whole_out, in, out;
    std::vector<TensorType> types;
    const auto split = [&](ValueId id, const Lying& lying, std::vector<TensorSlice>& whole,
                           std::vector<TensorSlice>& part) {
      if (id == kAbsent) {
        whole.emplace_back();
        part.emplace_back();
        return;
      }
      Placements others = lying.placements;
      others[axis] = {};
      const auto at = static_cast<size_t>(mesh_->place());
      const TensorSlice outer = (*slices_of(*mesh_, graph_.type(id).shape, others))[at];
      Placements alone(lying.placements.size());
      alone[axis] = lying.placements[axis];
      const TensorSlice cut = (*slices_of(*mesh_, graph_.type(id).shape, alone))[at];
      // The other axes cut other dimensions, so this one's indices are the same in what they leave.
      TensorSlice inner = TensorSlice::whole(outer.shape());
      if (alone[axis].lies.is_sharded())
        inner = inner.narrowed(alone[axis].lies.dim, cut.ranges(alone[axis].lies.dim));
      whole.push_back(outer);
      part.push_back(inner);
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      split(node.inputs[i], choice.inputs[i], whole_in, in);
      types.push_back(node.inputs[i] == kAbsent
                          ? TensorType{}
                          : TensorType{graph_.type(node.inputs[i]).dtype, whole_in.back().shape()});
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      split(node.outputs[o], choice.outputs[o], whole_out, out);

    const auto given = types_of(graph_, node.inputs);
    const Attributes attributes = localized({*node.op, given, node.attributes}, whole_in, whole_out);
    Graph graph;
    GraphBuilder builder(graph);
    std::map<ValueId, Tensor> values;
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < operands.size(); ++i) {
      inputs.push_back(operands[i].present() ? builder.input(fmt::format("x{}", i), operands[i].type())
                                             : kAbsent);
      values[inputs.back()] = operands[i];
    }
    const OpCall whole{*node.op, types, attributes};
    const int parts = mesh_->axes()[axis].size, part = mesh_->coordinate(mesh_->place(), choice.decomposed);
    const ShardedCall call{builder, whole, inputs, in, out, parts, part};
    const auto rule = static_cast<size_t>(choice.ways[axis].rule);
    const std::vector<ValueId> made = node.op->sharding[rule].decompose(call);
    for (const Node& each : graph.nodes) {
      std::vector<Tensor> arguments;
      for (const ValueId id : each.inputs) arguments.push_back(id == kAbsent ? Tensor() : values.at(id));
      std::vector<Tensor> results =
          each.op->collective ? std::vector{communicate(each, arguments[0], choice.decomposed, step)}
                              : eager_.call(*each.op, arguments, each.attributes);
      for (size_t o = 0; o < each.outputs.size(); ++o)
        if (each.outputs[o] != kAbsent) values[each.outputs[o]] = std::move(results[o]);
    }
    std::vector<Tensor> results;
    for (const ValueId id : made) results.push_back(id == kAbsent ? Tensor() : values.at(id));
    return results;
  }

  // A collective of a decomposition: the only kind is an all-gather.
  Tensor communicate(const Node& node, const Tensor& own, int axis, MeshStep& step) {
    const auto counts = node.attributes.get<std::vector<int64_t>>("counts");
    Tensor all = all_gather(*mesh_, axis, own, counts, std::string(node.op->name));
    if (steps_ != nullptr)
      step.moves.push_back(
          {"a part", {"all_gather", axis, static_cast<int64_t>(counts.size() - 1) * all.type().bytes()}});
    return all;
  }

  // --- for people

  struct Names {
    std::vector<std::string> inputs, outputs;
  };
  // The names of a node's operands and results in its operator's signature; numbers if it has no rules.
  Names names_of(const Node& node) const {
    Names names;
    for (size_t i = 0; i < node.inputs.size(); ++i) names.inputs.push_back(fmt::format("operand {}", i + 1));
    for (size_t o = 0; o < node.outputs.size(); ++o) names.outputs.push_back(fmt::format("result {}", o + 1));
    if (node.op->sharding.empty()) return names;
    const auto types = types_of(graph_, node.inputs), made = types_of(graph_, node.outputs);
    const Notation notation = notation_of({*node.op, types, node.attributes}, made);
    for (size_t i = 0; i < node.inputs.size(); ++i) names.inputs[i] = notation.inputs[i].name;
    for (size_t o = 0; o < node.outputs.size(); ++o) names.outputs[o] = notation.outputs[o].name;
    return names;
  }

  // "x dim 0, weight partial"
  std::string list(const std::vector<ValueId>& ids, const std::vector<std::string>& names,
                   const std::vector<PlacementId>& lies) const {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kAbsent || lies[i] == kReplicated) continue;
      const Placement& placement = table_.placements(ids[i])[lies[i]];
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", names[i],
                          placement.is_partial() ? "partial" : fmt::format("dim {}", placement.dim));
    }
    return text.empty() ? "replicated" : text;
  }

  // "data: x dim 0 -> y dim 0; model: replicated"
  std::string way_of(const Node& node, const Names& names, const Choice& choice) const {
    std::string text;
    for (size_t a = 0; a < choice.ways.size(); ++a) {
      const NodeSharding& way = choice.ways[a];
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", mesh_->axes()[a].name,
                          way.rule < 0 ? "replicated"
                                       : list(node.inputs, names.inputs, way.inputs) + " -> " +
                                             list(node.outputs, names.outputs, way.outputs));
    }
    return text;
  }

  Eager& eager_;
  const Graph& graph_;
  PlacementTable table_;
  std::map<ValueId, DistributedTensor>& values_;
  std::vector<MeshStep>* steps_;
  std::shared_ptr<const DeviceMesh> mesh_;
  std::vector<ShardingProgram> programs_;  // by axis of the mesh
};

}  // namespace

void run_on_mesh(Eager& eager, const Graph& graph, std::map<ValueId, DistributedTensor>& values,
                 const std::vector<ValueId>& wanted, std::vector<MeshStep>* steps) {
  MeshRun(eager, graph, values, steps).run(wanted);
}

std::vector<DistributedTensor> call_on_mesh(Eager& eager, const OpDef& op,
                                            const std::vector<DistributedTensor>& inputs,
                                            const Attributes& attributes, std::vector<MeshStep>* steps) {
  Graph graph;
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  std::map<ValueId, DistributedTensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].mesh == nullptr) {
      ids.push_back(kAbsent);
      continue;
    }
    ids.push_back(builder.input(fmt::format("x{}", i), inputs[i].type));
    values.emplace(ids.back(), inputs[i]);
  }
  const std::vector<ValueId> results = builder.call_all(op, ids, attributes);
  run_on_mesh(eager, graph, values, results, steps);
  std::vector<DistributedTensor> made;
  for (const ValueId id : results)
    made.push_back(id == kAbsent ? DistributedTensor{} : std::move(values.at(id)));
  return made;
}

std::string to_string(const std::vector<MeshStep>& steps, const DeviceMesh& mesh) {
  std::string text;
  for (const MeshStep& step : steps) {
    text += fmt::format("{}: {}\n", step.op, step.way);
    for (const MeshStep::Move& move : step.moves)
      text += fmt::format(
          "  {} of {} along {}: {}\n", move.travel.collective, move.operand,
          move.travel.axis < 0 ? "all ranks" : mesh.axes()[static_cast<size_t>(move.travel.axis)].name,
          show_bytes(static_cast<double>(move.travel.bytes)));
  }
  return text;
}

}  // namespace het
