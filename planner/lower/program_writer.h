// A Program while it is written: buffers and instructions are appended to it by those that lower their part.
// It decides nothing.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/program/program.h"
#include "planner/lower/rank_assignment.h"

namespace het {

class ProgramWriter {
 public:
  // Of the rank that `assignment` is of.
  ProgramWriter(const Graph& graph, const RankAssignment& assignment);

  const Program& program() const { return program_; }
  const BufferSpec& buffer(const Operand& operand) const { return program_.buffers[operand.buffer]; }

  BufferId add_buffer(BufferSpec spec);
  Operand whole(BufferId buffer) const;  // all of it
  Operand add_whole(BufferSpec spec) { return whole(add_buffer(std::move(spec))); }

  // `node`: whose phase, layer and scope the instruction has.
  void compute(const Node& node, const OpDef& op, Attributes attributes, std::vector<Operand> inputs,
               std::vector<Operand> outputs, uint32_t accumulate, int microbatch);
  void copy(const Node& node, const Operand& from, const Operand& to, int microbatch);
  void fill(const Node& node, const Operand& to, double value);
  int start(Start instruction);  // what await() takes
  void await(int start);

  void end_prologue();
  void decide();     // what was written last decides the step of all ranks
  Program finish();  // with every buffer placed; the writer is done

 private:
  Program program_;
};

// The request for all elements of one operand.
CollectiveRequest request_for(CollectiveKind kind, const Operand& operand, std::string label);

}  // namespace het
