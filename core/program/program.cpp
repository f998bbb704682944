#include "core/program/program.h"

#include <algorithm>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/ops/op.h"

namespace het {

std::string_view name_of(Home home) {
  switch (home) {
    case Home::arena: return "arena";
    case Home::persistent: return "persistent";
    case Home::state: return "state";
    case Home::input: return "input";
    case Home::output: return "output";
  }
  return "unknown";
}

TensorSlice slice_of(const BufferSpec& buffer) {
  return buffer.slice.value_or(TensorSlice::whole(buffer.type.shape));
}

int first_gather(const Program& program) {
  const auto& all = program.instructions;
  const auto found = std::find_if(all.begin() + program.decided, all.end(), [](const Instruction& each) {
    return std::holds_alternative<Start>(each);
  });
  return static_cast<int>(found - all.begin());
}

MemoryUse memory_of(const Program& program) {
  MemoryUse use;
  use.arena = program.arena_bytes;
  for (const BufferSpec& buffer : program.buffers) {
    const int64_t bytes = buffer.type.bytes();
    switch (buffer.home) {
      case Home::arena: break;
      case Home::persistent: use.persistent += bytes; break;
      case Home::state: use.state += bytes; break;
      case Home::input: use.inputs += bytes; break;
      case Home::output: use.outputs += bytes; break;
    }
  }
  return use;
}

std::string title_of(const Instruction& instruction) {
  if (const auto* compute = std::get_if<Compute>(&instruction)) return std::string(compute->op->name);
  if (const auto* start = std::get_if<Start>(&instruction)) return std::string(name_of(start->request.kind));
  return "await";
}

namespace {

// Elements from the first of a layout to behind its last.
int64_t extent_of(const Layout& layout) {
  if (layout.type.elements() == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < layout.strides.size(); ++d) last += layout.strides[d] * (layout.type.shape[d] - 1);
  return last + 1;
}

// What a collective brings straight into a buffer, or a kernel computes into it.
bool writes_to(Use use) { return use == Use::write || use == Use::add || use == Use::acquire; }

// The step is decided before it changes state, and the change needs what no other rank still has to send.
void verify_decision(const Program& program, std::vector<std::string>& problems) {
  const auto& instructions = program.instructions;
  const int count = static_cast<int>(instructions.size());
  const auto complain = [&](int i, std::string_view about) {
    problems.push_back(fmt::format("instruction {} ({}) {}", i, title_of(instructions[i]), about));
  };
  if (program.decided < program.prologue || program.decided > count) {
    problems.push_back(fmt::format("the step is decided at instruction {}; its {} instructions begin at {}",
                                   program.decided, count, program.prologue));
    return;
  }
  std::vector<bool> arrived(program.buffers.size());  // of a collective that was started after the decision
  bool changes_state = false, others_needed = false;
  for (int i = 0; i < count; ++i) {
    const bool is_decided = i >= program.decided;
    const auto* start = std::get_if<Start>(&instructions[i]);
    const auto* compute = std::get_if<Compute>(&instructions[i]);
    if (start != nullptr && is_decided) others_needed = true;
    if (const auto* await = std::get_if<Await>(&instructions[i]);
        await != nullptr && is_decided && await->start < program.decided)
      complain(await->start, "is awaited after the step is decided");
    const bool moves = compute != nullptr &&
                       std::all_of(compute->inputs.begin(), compute->inputs.end(), [&](const Operand& input) {
                         return input.buffer != kAbsent && arrived[input.buffer];
                       });
    visit_operands(program, instructions[i], [&](const Operand& operand, Use use) {
      if (use == Use::yield && is_decided) arrived[operand.buffer] = true;
      if (!writes_to(use) || program.buffers[operand.buffer].home != Home::state) return;
      changes_state = true;
      const std::string& name = program.buffers[operand.buffer].name;
      if (!is_decided) complain(i, fmt::format("changes '{}' before the step is decided", name));
      if (others_needed && start == nullptr && !moves)
        complain(i, fmt::format("changes '{}' after a collective of the decided step", name));
    });
  }
  if (!changes_state || program.groups.empty()) return;
  const auto* await = program.decided == 0 ? nullptr : std::get_if<Await>(&instructions[program.decided - 1]);
  const auto* gather =
      await == nullptr ? nullptr : std::get_if<Start>(&instructions[static_cast<size_t>(await->start)]);
  if (gather == nullptr || gather->group != 0 || gather->request.kind != CollectiveKind::all_gather)
    problems.push_back(
        fmt::format("the step is decided at instruction {}, which does not follow a gathering of all ranks",
                    program.decided));
}

}  // namespace

std::vector<std::string> verify(const Program& program) {
  std::vector<std::string> problems;
  std::vector<bool> written(program.buffers.size());
  std::vector<int> first(program.buffers.size(), -1), last(program.buffers.size(), -1);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Home home = program.buffers[b].home;
    written[b] = home == Home::state || home == Home::input;
  }
  const auto inside = [&](const Operand& operand) {
    const Layout& layout = operand.layout;
    int64_t low = layout.offset, high = layout.offset;
    if (layout.type.elements() == 0) return true;
    for (size_t i = 0; i < layout.strides.size(); ++i)
      (layout.strides[i] < 0 ? low : high) += layout.strides[i] * (layout.type.shape[i] - 1);
    const TensorType& type = program.buffers[operand.buffer].type;
    return low >= 0 && high < type.elements() && type.dtype == layout.type.dtype;
  };
  std::vector<bool> acquired(program.buffers.size());  // by a collective under way
  struct Loan {                                        // elements that a collective under way reads
    int start;
    BufferId buffer;
    int64_t begin, end;
  };
  std::vector<Loan> borrowed;
  std::vector<bool> awaited(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const std::string what = title_of(instruction);
    if (const auto* start = std::get_if<Start>(&instruction)) {
      if (start->group < 0 || start->group >= static_cast<int>(program.groups.size()))
        problems.push_back(fmt::format("instruction {} ({}) names group {} of {}", i, what, start->group,
                                       program.groups.size()));
    } else if (const auto* await = std::get_if<Await>(&instruction)) {
      if (await->start < 0 || await->start >= static_cast<int>(i) || awaited[await->start] ||
          !std::holds_alternative<Start>(program.instructions[await->start])) {
        problems.push_back(
            fmt::format("instruction {} awaits instruction {}, which queued nothing", i, await->start));
        continue;
      }
      awaited[await->start] = true;
    }
    visit_operands(program, instruction, [&](const Operand& operand, Use use) {
      const BufferId buffer = operand.buffer;
      const std::string& name = program.buffers[buffer].name;
      if (acquired[buffer] && use != Use::yield && !std::holds_alternative<Await>(instruction))
        problems.push_back(
            fmt::format("instruction {} ({}) uses '{}' while a collective has it", i, what, name));
      const int64_t begin = operand.layout.offset, end = begin + extent_of(operand.layout);
      if (use == Use::write || use == Use::add || use == Use::acquire)
        for (const Loan& loan : borrowed)
          if (loan.buffer == buffer && loan.start != static_cast<int>(i) && begin < loan.end &&
              loan.begin < end)
            problems.push_back(
                fmt::format("instruction {} ({}) writes '{}' while instruction {} ({}) reads it", i, what,
                            name, loan.start, title_of(program.instructions[loan.start])));
      if ((use == Use::read || use == Use::add || use == Use::borrow) && !written[buffer])
        problems.push_back(fmt::format("instruction {} ({}) reads '{}' before it is written", i, what, name));
      if (!inside(operand))
        problems.push_back(fmt::format("instruction {} ({}): operand lies outside '{}'", i, what, name));
      if (use == Use::borrow) borrowed.push_back({static_cast<int>(i), buffer, begin, end});
      if (use == Use::release)
        std::erase_if(borrowed, [&](const Loan& loan) {
          return loan.start == std::get<Await>(instruction).start && loan.buffer == buffer;
        });
      if (use == Use::acquire) acquired[buffer] = true;
      if (use == Use::yield) acquired[buffer] = false;
      if (use == Use::write || use == Use::add || use == Use::yield) written[buffer] = true;
      if (first[buffer] < 0) first[buffer] = static_cast<int>(i);
      last[buffer] = static_cast<int>(i);
    });
  }
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (std::holds_alternative<Start>(program.instructions[i]) && !awaited[i])
      problems.push_back(
          fmt::format("instruction {} ({}) is never awaited", i, title_of(program.instructions[i])));
  if (problems.empty()) verify_decision(program, problems);
  std::vector<int> arena;
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].home == Home::arena && first[b] >= 0) arena.push_back(static_cast<int>(b));
  std::sort(arena.begin(), arena.end(),
            [&](int a, int b) { return program.buffers[a].offset < program.buffers[b].offset; });
  for (size_t i = 0; i < arena.size(); ++i)
    for (size_t j = i + 1; j < arena.size(); ++j) {
      const BufferSpec &a = program.buffers[arena[i]], &b = program.buffers[arena[j]];
      if (b.offset >= a.offset + a.type.bytes()) break;
      if (first[arena[i]] <= last[arena[j]] && first[arena[j]] <= last[arena[i]])
        problems.push_back(fmt::format("'{}' and '{}' are alive together and share memory", a.name, b.name));
    }
  return problems;
}

std::string to_string(const Program& program) {
  std::string text;
  const auto show = [&](const Operand& operand) {
    if (operand.buffer == kAbsent) return std::string("-");
    const BufferSpec& buffer = program.buffers[operand.buffer];
    std::string name = buffer.home == Home::arena || buffer.home == Home::persistent
                           ? fmt::format("b{}", operand.buffer)
                           : fmt::format("@{}", buffer.name);
    if (buffer.microbatch >= 0) name += fmt::format("/{}", buffer.microbatch + 1);
    if (operand.layout.type.elements() != buffer.type.elements() || !operand.layout.is_contiguous())
      name += fmt::format("+{}", operand.layout.offset);
    return name;
  };
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (static_cast<int>(i) == program.decided) text += "      the step is decided\n";
    if (const auto* start = std::get_if<Start>(&program.instructions[i])) {
      const CollectiveRequest& request = start->request;
      const bool message = request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive;
      const std::vector<int>& ranks = program.groups[start->group].ranks;
      text += fmt::format("{:>5} start {} {} -> {} '{}' {}  # {}{}\n", i, name_of(request.kind),
                          show(start->in), show(start->out), request.label,
                          message ? fmt::format("rank {}", ranks[request.peer])
                                  : fmt::format("ranks {}", fmt::join(ranks, ",")),
                          name_of(start->phase),
                          start->microbatch >= 0 ? fmt::format(" {}", start->microbatch + 1) : "");
      continue;
    }
    if (const auto* await = std::get_if<Await>(&program.instructions[i])) {
      text += fmt::format("{:>5} await {}\n", i, await->start);
      continue;
    }
    const auto& compute = std::get<Compute>(program.instructions[i]);
    std::string outputs, inputs;
    for (size_t o = 0; o < compute.outputs.size(); ++o)
      outputs +=
          fmt::format("{}{}{} {}", outputs.empty() ? "" : ", ", has_bit(compute.accumulate, o) ? "+=" : "",
                      show(compute.outputs[o]), to_string(compute.outputs[o].layout.type));
    for (const Operand& operand : compute.inputs) inputs += (inputs.empty() ? "" : ", ") + show(operand);
    const std::string& scope = program.scopes[compute.scope];
    text += fmt::format("{:>5} {} = {}({})  # {}{}{}{}\n", i, outputs, compute.op->name, inputs, scope,
                        scope.empty() ? "" : ", ", name_of(compute.phase),
                        compute.microbatch >= 0 ? fmt::format(" {}", compute.microbatch + 1) : "");
  }
  const MemoryUse use = memory_of(program);
  text += fmt::format("memory: state {}, arena {}, persistent {}, inputs {}, outputs {}\n",
                      show_bytes(use.state), show_bytes(use.arena), show_bytes(use.persistent),
                      show_bytes(use.inputs), show_bytes(use.outputs));
  return text;
}

}  // namespace het
