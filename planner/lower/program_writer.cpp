#include "planner/lower/program_writer.h"

#include <algorithm>

#include "core/ops/op.h"
#include "planner/lower/sharded_update.h"

namespace het {

ProgramWriter::ProgramWriter(const Graph& graph, const RankAssignment& assignment) {
  program_.microbatches = assignment.microbatches;
  program_.first_microbatch = assignment.first_microbatch;
  program_.scopes = graph.scopes;
  program_.layers = graph.layers;
  program_.groups = assignment.groups;
  program_.trains = std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.phase == Phase::update && !parameters_updated(graph, node).empty();
  });
}

BufferId ProgramWriter::add_buffer(BufferSpec spec) {
  program_.buffers.push_back(std::move(spec));
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

Operand ProgramWriter::whole(BufferId buffer) const {
  return {buffer, Layout::contiguous(program_.buffers[buffer].type)};
}

void ProgramWriter::compute(const Node& node, const OpDef& op, Attributes attributes,
                            std::vector<Operand> inputs, std::vector<Operand> outputs, uint32_t accumulate,
                            int microbatch) {
  Compute compute;
  compute.op = &op;
  compute.attributes = std::move(attributes);
  compute.inputs = std::move(inputs);
  compute.outputs = std::move(outputs);
  compute.accumulate = accumulate;
  compute.phase = node.phase;
  compute.layer = node.layer;
  compute.scope = node.scope;
  if (&op == node.op) compute.step_scopes = node.step_scopes;
  compute.microbatch = microbatch;
  program_.instructions.emplace_back(std::in_place_type<Compute>, std::move(compute));
}

void ProgramWriter::copy(const Node& node, const Operand& from, const Operand& to, int microbatch) {
  compute(node, op_named("copy"), {}, {from}, {to}, 0, microbatch);
}

void ProgramWriter::fill(const Node& node, const Operand& to, double value) {
  const TensorType& type = to.layout.type;
  compute(node, op_named("fill"),
          {{"value", value}, {"shape", type.shape}, {"dtype", std::string(name_of(type.dtype))}}, {}, {to}, 0,
          -1);
}

int ProgramWriter::start(Start instruction) {
  program_.instructions.emplace_back(std::in_place_type<Start>, std::move(instruction));
  return static_cast<int>(program_.instructions.size()) - 1;
}

void ProgramWriter::await(int start) {
  program_.instructions.emplace_back(std::in_place_type<Await>, Await{start});
}

void ProgramWriter::end_prologue() { program_.prologue = static_cast<int>(program_.instructions.size()); }

void ProgramWriter::decide() { program_.decided = static_cast<int>(program_.instructions.size()); }

// A rank alone decides with the first write to its state.
Program ProgramWriter::finish() {
  const auto changes_state = [&](const Instruction& instruction) {
    bool changes = false;
    visit_operands(program_, instruction, [&](const Operand& operand, Use use) {
      const bool writes = use == Use::write || use == Use::add || use == Use::acquire;
      changes = changes || (writes && program_.buffers[operand.buffer].home == Home::state);
    });
    return changes;
  };
  const auto& instructions = program_.instructions;
  if (program_.decided == 0)
    program_.decided = static_cast<int>(
        std::find_if(instructions.begin(), instructions.end(), changes_state) - instructions.begin());
  place_buffers(program_);
  return std::move(program_);
}

CollectiveRequest request_for(CollectiveKind kind, const Operand& operand, std::string label) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = operand.layout.type.dtype;
  request.counts = {operand.layout.type.elements()};
  request.label = std::move(label);
  return request;
}

}  // namespace het
