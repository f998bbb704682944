#include "core/program/program.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/ops/op.h"

namespace het {

std::string_view name_of(Home home) {
  switch (home) {
    case Home::arena: return "arena";
    case Home::pinned: return "pinned";
    case Home::state: return "state";
    case Home::input: return "input";
    case Home::output: return "output";
  }
  return "unknown";
}

MemoryUse memory_of(const Program& program) {
  MemoryUse use;
  use.arena = program.arena_bytes;
  for (const BufferSpec& buffer : program.buffers) {
    const int64_t bytes = buffer.type.bytes();
    switch (buffer.home) {
      case Home::arena: break;
      case Home::pinned: use.pinned += bytes; break;
      case Home::state: use.state += bytes; break;
      case Home::input: use.inputs += bytes; break;
      case Home::output: use.outputs += bytes; break;
    }
  }
  return use;
}

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
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const auto& compute = std::get<Compute>(program.instructions[i]);
    const auto visit = [&](const Operand& operand, bool reads) {
      if (operand.buffer == kAbsent) return;
      const std::string& name = program.buffers[operand.buffer].name;
      if (reads && !written[operand.buffer])
        problems.push_back(
            fmt::format("instruction {} ({}) reads '{}' before it is written", i, compute.op->name, name));
      if (!inside(operand))
        problems.push_back(
            fmt::format("instruction {} ({}): operand lies outside '{}'", i, compute.op->name, name));
      if (first[operand.buffer] < 0) first[operand.buffer] = static_cast<int>(i);
      last[operand.buffer] = static_cast<int>(i);
    };
    for (const Operand& operand : compute.inputs) visit(operand, true);
    for (size_t o = 0; o < compute.outputs.size(); ++o) {
      visit(compute.outputs[o], ((compute.accumulate >> o) & 1) != 0);
      if (compute.outputs[o].buffer != kAbsent) written[compute.outputs[o].buffer] = true;
    }
  }
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
    std::string name = buffer.home == Home::arena || buffer.home == Home::pinned
                           ? fmt::format("b{}", operand.buffer)
                           : fmt::format("@{}", buffer.name);
    if (buffer.microbatch >= 0) name += fmt::format("/{}", buffer.microbatch + 1);
    if (operand.layout.type.elements() != buffer.type.elements() || !operand.layout.is_contiguous())
      name += fmt::format("+{}", operand.layout.offset);
    return name;
  };
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const auto& compute = std::get<Compute>(program.instructions[i]);
    std::string outputs, inputs;
    for (size_t o = 0; o < compute.outputs.size(); ++o)
      outputs +=
          fmt::format("{}{}{} {}", outputs.empty() ? "" : ", ", (compute.accumulate >> o) & 1 ? "+=" : "",
                      show(compute.outputs[o]), to_string(compute.outputs[o].layout.type));
    for (const Operand& operand : compute.inputs) inputs += (inputs.empty() ? "" : ", ") + show(operand);
    const std::string& scope = program.scopes[compute.scope];
    text += fmt::format("{:>5} {} = {}({})  # {}{}{}{}\n", i, outputs, compute.op->name, inputs, scope,
                        scope.empty() ? "" : ", ", name_of(compute.phase),
                        compute.microbatch >= 0 ? fmt::format(" {}", compute.microbatch + 1) : "");
  }
  const MemoryUse use = memory_of(program);
  text += fmt::format("memory: state {}, arena {}, pinned {}, inputs {}, outputs {}\n", show_bytes(use.state),
                      show_bytes(use.arena), show_bytes(use.pinned), show_bytes(use.inputs),
                      show_bytes(use.outputs));
  return text;
}

}  // namespace het
