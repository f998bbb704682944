#include "core/mesh/run.h"

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/mesh/program.h"
#include "core/ops/op.h"

namespace het {
namespace {

using Values = std::map<ValueId, DistributedTensor>;
using MeshHandle = std::shared_ptr<const DeviceMesh>;

void require_same(const DeviceMesh& a, const DeviceMesh& b) {
  if (&a != &b)
    fail_usage(
        "operands lie on two meshes, {} and {}, each made by a call of het.mesh; x:redistribute(mesh, ...) "
        "brings one to the other's",
        to_string(a), to_string(b));
}

// All ranks are about to run this, on operands that lie so: "linear(f32[8, 16], f32[4, 16])".
void agree(const DeviceMesh& mesh, std::string_view what, const std::string& detail, const Values& values) {
  std::string operands, lying;
  for (const auto& [id, value] : values) {
    operands += fmt::format("{}{}", operands.empty() ? "" : ", ", to_string(value.type));
    lying += fmt::format("; {}", describe_placements(value));
  }
  mesh.agree_on(fmt::format("{}({})", what, operands), detail + lying);
}

// Runs a program on this rank.
class MeshRun {
 public:
  MeshRun(MeshHandle mesh, const MeshProgram& program, Values& values, std::vector<MeshStep>* steps)
      : mesh_(std::move(mesh)),
        eager_(mesh_->eager().local),
        program_(program),
        graph_(program.graph),
        values_(values),
        steps_(steps) {}

  void run(const std::vector<ValueId>& wanted) {
    std::map<ValueId, size_t> last;  // nodes that read a value
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const ValueId id : graph_.nodes[n].inputs) last[id] = n;
    for (const ValueId id : wanted) last[id] = graph_.nodes.size();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      run_node(graph_.nodes[n], program_.nodes[n]);
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent && last.at(id) == n) values_.erase(id);
    }
  }

 private:
  void run_node(const Node& node, const MeshNode& how) {
    MeshStep step{std::string(node.op->name), how.way, {}};
    std::vector<Tensor> operands;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      operands.push_back(node.inputs[i] == kAbsent ? Tensor() : operand(node, how, i, step));

    const auto here = static_cast<size_t>(mesh_->place());
    std::vector<Tensor> results;
    if (how.decomposition.axis >= 0)
      results = run_decomposed(how.decomposition, operands, step);
    else if (how.is_idle)
      results = nothing_of(node, how);
    else
      results = eager_.call(*node.op, operands, how.attributes);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      if (id == kAbsent) continue;
      const auto& [placements, slices] = how.outputs[o];
      HET_REQUIRE(results[o].shape() == slices[here].shape(), node.op->name, o, to_string(results[o].type()));
      values_.insert_or_assign(
          id, DistributedTensor{mesh_, graph_.type(id), placements, slices, std::move(results[o])});
    }
    if (steps_ != nullptr && !how.is_constant) steps_->push_back(std::move(step));
  }

  // What this rank computes with: absent where the operand counts on another.
  Tensor operand(const Node& node, const MeshNode& how, size_t i, MeshStep& step) {
    DistributedTensor& value = values_.at(node.inputs[i]);
    const auto& [placements, slices] = how.inputs[i];
    std::vector<Travel> moves;
    DistributedTensor moved =
        redistribute(value, placements, how.needed[i], std::string(node.op->name), &moves);
    for (Travel& travel : moves) step.moves.push_back({how.operands[i], std::move(travel)});
    Tensor local = has_bit(how.elsewhere, i) ? Tensor() : moved.local;
    // A gathered or summed value is kept for its next readers; a part is cut again from the whole.
    if (!has_bit(how.once, i) && needs_others(value, placements, slices) &&
        elements_on_all(moved) >= elements_on_all(value))
      value = std::move(moved);
    return local;
  }

  // Whether bringing a value to lie so needs other ranks, on any rank.
  static bool needs_others(const DistributedTensor& value, const Placements& placements,
                           const std::vector<TensorSlice>& slices) {
    for (size_t a = 0; a < placements.size(); ++a)
      if (value.placements[a].lies.is_partial() && !placements[a].lies.is_partial()) return true;
    for (size_t place = 0; place < slices.size(); ++place)
      if (!slices[place].is_empty() && intersection(value.slices[place], slices[place]) != slices[place])
        return true;
    return false;
  }

  static int64_t elements_on_all(const DistributedTensor& value) {
    int64_t elements = 0;
    for (const TensorSlice& slice : value.slices) elements += slice.elements();
    return elements;
  }

  // What a rank without a part makes: nothing, or a summand of zeros.
  std::vector<Tensor> nothing_of(const Node& node, const MeshNode& how) const {
    const auto here = static_cast<size_t>(mesh_->place());
    std::vector<Tensor> results;
    for (size_t o = 0; o < node.outputs.size(); ++o)
      results.push_back(node.outputs[o] == kAbsent ? Tensor()
                                                   : Tensor::zeros({graph_.type(node.outputs[o]).dtype,
                                                                    how.outputs[o].slices[here].shape()}));
    return results;
  }

  std::vector<Tensor> run_decomposed(const MeshDecomposition& small, const std::vector<Tensor>& operands,
                                     MeshStep& step) {
    std::map<ValueId, Tensor> values;
    for (size_t i = 0; i < operands.size(); ++i) values[small.inputs[i]] = operands[i];
    for (const Node& each : small.graph.nodes) {
      std::vector<Tensor> arguments;
      for (const ValueId id : each.inputs) arguments.push_back(id == kAbsent ? Tensor() : values.at(id));
      std::vector<Tensor> results = each.op->collective
                                        ? std::vector{communicate(each, arguments[0], small.axis, step)}
                                        : eager_.call(*each.op, arguments, each.attributes);
      for (size_t o = 0; o < each.outputs.size(); ++o)
        if (each.outputs[o] != kAbsent) values[each.outputs[o]] = std::move(results[o]);
    }
    std::vector<Tensor> results;
    for (const ValueId id : small.results) results.push_back(id == kAbsent ? Tensor() : values.at(id));
    return results;
  }

  // A collective of a decomposition: the only kind is an all-gather.
  Tensor communicate(const Node& node, const Tensor& own, int axis, MeshStep& step) {
    const auto counts = node.attributes.get<std::vector<int64_t>>("counts");
    Tensor all = all_gather(*mesh_, axis, own, counts, std::string(node.op->name));
    step.moves.push_back(
        {"a part", {"all_gather", axis, static_cast<int64_t>(counts.size() - 1) * all.type().bytes()}});
    return all;
  }

  const MeshHandle mesh_;
  Eager& eager_;
  const MeshProgram& program_;
  const Graph& graph_;
  Values& values_;
  std::vector<MeshStep>* steps_;
};

std::map<ValueId, Placements> placements_of(const Values& values) {
  std::map<ValueId, Placements> placements;
  for (const auto& [id, value] : values) placements.emplace(id, value.placements);
  return placements;
}

// What the program of an operator follows from.
std::string key_of(const OpDef& op, const std::vector<DistributedTensor>& inputs,
                   const Attributes& attributes) {
  std::string key = fmt::format("{}{}", op.name, to_string(attributes));
  for (const DistributedTensor& input : inputs) {
    key += "|";
    if (input.mesh == nullptr) continue;
    key += to_string(input.type);
    for (const auto& [lies, units, shares] : input.placements)
      key += fmt::format(";{} {} {}", to_string(lies), units, fmt::join(shares, ":"));
  }
  return key;
}

// Of one node, whose operands are the inputs.
std::shared_ptr<const MeshProgram> program_of(const DeviceMesh& mesh, const OpDef& op,
                                              const std::vector<DistributedTensor>& inputs,
                                              const Attributes& attributes) {
  Graph graph;
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  std::map<ValueId, Placements> placements;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ids.push_back(inputs[i].mesh == nullptr ? kAbsent : builder.input(fmt::format("x{}", i), inputs[i].type));
    if (ids[i] != kAbsent) placements.emplace(ids[i], inputs[i].placements);
  }
  builder.call_all(op, ids, attributes);
  return std::make_shared<const MeshProgram>(mesh_program(mesh, std::move(graph), placements));
}

}  // namespace

void run_on_mesh(const Graph& graph, Values& values, const std::vector<ValueId>& wanted,
                 std::vector<MeshStep>* steps) {
  HET_REQUIRE(!values.empty());
  const MeshHandle mesh = values.begin()->second.mesh;
  for (const auto& [id, value] : values) require_same(*mesh, *value.mesh);
  const MeshProgram program = mesh_program(*mesh, graph, placements_of(values));
  const bool single = graph.nodes.size() == 1;
  agree(*mesh, single ? graph.nodes[0].op->name : "a function's gradient",
        single ? to_string(graph.nodes[0].attributes) : to_string(graph), values);
  MeshRun(mesh, program, values, steps).run(wanted);
}

std::vector<DistributedTensor> call_on_mesh(const OpDef& op, const std::vector<DistributedTensor>& inputs,
                                            const Attributes& attributes, std::vector<MeshStep>* steps) {
  MeshHandle mesh;
  for (const DistributedTensor& input : inputs) {
    if (input.mesh == nullptr) continue;
    if (mesh != nullptr) require_same(*mesh, *input.mesh);
    mesh = input.mesh;
  }
  HET_REQUIRE(mesh != nullptr, op.name);
  auto& programs = mesh->eager().programs;
  std::string key = key_of(op, inputs, attributes);
  const auto* kept = programs.find(key);
  const auto program =
      kept != nullptr ? *kept : programs.add(std::move(key), program_of(*mesh, op, inputs, attributes));
  const Node& node = program->graph.nodes.at(0);
  Values values;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (node.inputs[i] != kAbsent) values.emplace(node.inputs[i], inputs[i]);
  agree(*mesh, op.name, to_string(attributes), values);
  MeshRun(mesh, *program, values, steps).run(node.outputs);
  std::vector<DistributedTensor> made;
  for (const ValueId id : node.outputs)
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
