// A Program is what one rank does in one step: buffers with fixed places and a straight list of instructions
// over them. It is made by lowering (planner/lower/lower.h) and run by the executor, which knows nothing of
// parallelism. Plain data.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/bits.h"
#include "core/comm/communicator.h"
#include "core/graph/graph.h"

namespace het {

enum class Home : uint8_t {
  arena,       // scratch: place shared with others whose lives do not overlap
  persistent,  // scratch kept between runs: what is computed from state alone
  state,       // a tensor of the StateStore, by name
  input,       // written from outside before a run
  output,      // read from outside after a run
};
std::string_view name_of(Home home);

using BufferId = int32_t;

// Buffers begin at multiples of this many bytes, and take up multiples of it.
inline constexpr int64_t kBufferAlignment = 64;
inline int64_t aligned(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

struct BufferSpec {
  std::string name;  // of state, inputs and outputs; a hint otherwise
  TensorType type;   // as allocated, contiguous
  Home home = Home::arena;
  int microbatch = -1;               // of inputs: which micro-batch; -1: the whole step
  Initial initial;                   // of state
  bool trained = false;              // of state: a parameter
  std::optional<TensorSlice> slice;  // of state: what of a tensor this rank has; none: all of it
  // Of state: what of the tensor this rank updates; none: all that it has. Other ranks send the rest of it.
  std::optional<TensorSlice> updates;
  int64_t offset = -1;  // of arena buffers: bytes from the start of the arena, set by place_buffers
};

// A view of a buffer. buffer == kAbsent: an optional operand that is not there.
struct Operand {
  BufferId buffer = kAbsent;
  Layout layout;
};

// Run one operator. Bit i of `accumulate`: add into output i.
struct Compute {
  const OpDef* op = nullptr;
  Attributes attributes;
  std::vector<Operand> inputs, outputs;
  uint32_t accumulate = 0;
  Phase phase = Phase::forward;
  int32_t layer = -1;
  int32_t scope = 0;                 // index into Program::scopes
  std::vector<int32_t> step_scopes;  // as Node::step_scopes
  int microbatch = -1;               // -1: once a step
};

// Queue a collective among the ranks of a group, or one end of a message between two of them. Operands are
// packed; until it is awaited nothing else touches `out`, or writes to `in`.
struct Start {
  int group = 0;  // index into Program::groups
  CollectiveRequest request;
  Operand in, out;  // absent where the kind has none
  Phase phase = Phase::forward;
  int32_t layer = -1;
  int microbatch = -1;
};

// Wait for what instruction `start` queued.
struct Await {
  int start = -1;
};

// The kinds of instruction. Everything that walks a Program visits all kinds.
using Instruction = std::variant<Compute, Start, Await>;

// Ranks of the run that communicate, this one among them.
struct Group {
  std::vector<int> ranks;
  bool operator==(const Group&) const = default;
};

struct Program {
  std::vector<BufferSpec> buffers;
  std::vector<Instruction> instructions;
  // Instructions [0, prologue) depend on state alone; a run may skip them while the state has not changed.
  int prologue = 0;
  // Before instruction `decided` no state is written: a step that is broken off there can be run again. Of
  // several ranks the instruction before it awaits a gathering of all of them, which each joins when it has
  // all its gradients; from there on all ranks make the step's update, and need no other one for it but to
  // gather parameters that were updated in parts. The number of instructions: the program writes no state.
  // The last number that each rank gives there is a word of its executor to the others.
  int decided = 0;
  bool trains = false;       // a step makes the next version of the state, on every rank
  int microbatches = 1;      // that this rank runs in a step
  int first_microbatch = 0;  // of the step's, the first that this rank runs
  int64_t arena_bytes = 0;
  std::vector<std::string> scopes;
  std::vector<Layer> layers;
  std::vector<Group> groups;  // every member lists the groups that it shares with another in the same order
};

// What an instruction does with an operand. `borrow`: a collective reads it from here on, and others may only
// read it too; `release`: until here. `acquire`: it belongs to a collective from here on; `yield`: the
// collective has written it and gives it back.
enum class Use : uint8_t { read, write, add, borrow, release, acquire, yield };

// Call visit(const Operand&, Use) for every operand that is there.
template <typename Visit>
void visit_operands(const Program& program, const Instruction& instruction, const Visit& visit) {
  const auto each = [&](const Operand& operand, Use use) {
    if (operand.buffer != kAbsent) visit(operand, use);
  };
  if (const auto* compute = std::get_if<Compute>(&instruction)) {
    for (const Operand& operand : compute->inputs) each(operand, Use::read);
    for (size_t o = 0; o < compute->outputs.size(); ++o)
      each(compute->outputs[o], has_bit(compute->accumulate, o) ? Use::add : Use::write);
  } else if (const auto* start = std::get_if<Start>(&instruction)) {
    each(start->in, Use::borrow);
    each(start->out, Use::acquire);
  } else {
    const auto& queued = std::get<Start>(program.instructions[std::get<Await>(instruction).start]);
    each(queued.in, Use::release);
    each(queued.out, Use::yield);
  }
}

// What a buffer of state has of its tensor.
TensorSlice slice_of(const BufferSpec& buffer);
// Where the rank's own update ends and the gathering of parameters begins that ranks update in parts; the
// number of instructions where there are none.
int first_gather(const Program& program);

struct MemoryUse {
  int64_t state = 0, arena = 0, persistent = 0, inputs = 0, outputs = 0, workspace = 0;
  int64_t total() const { return state + arena + persistent + inputs + outputs + workspace; }
};
MemoryUse memory_of(const Program& program);  // without workspace, which only a device knows

// Give arena buffers places so that no two whose lives overlap share bytes; sets offsets and arena_bytes.
void place_buffers(Program& program);

// All that is wrong: reads before writes, operands outside their buffers, live buffers that overlap,
// collectives that are never awaited, whose results are used before, or whose operands are written to; writes
// to state before the step is decided, or after that by what another rank still has to send.
std::vector<std::string> verify(const Program& program);
// Of the programs of all ranks: what keeps them from running together. The members of a group start the same
// collectives in the same order, each message has both ends, no rank waits for what others start later, and
// one gathering decides the step for all.
std::vector<std::string> verify_together(std::span<const Program> programs);

std::string title_of(const Instruction& instruction);  // "linear", "all_reduce", "await"
std::string to_string(const Program& program);

}  // namespace het
