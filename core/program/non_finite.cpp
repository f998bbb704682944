#include "core/program/non_finite.h"

#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/ops/elementwise.h"

namespace het {
namespace {

// The index of the first NaN or infinity among the elements, or -1.
int64_t first_non_finite(const Tensor& tensor) {
  if (!is_float(tensor.dtype())) return -1;
  for (int64_t i = 0; i < tensor.elements(); ++i)
    if (!std::isfinite(tensor.at(i))) return i;
  return -1;
}

// Where a chain went wrong: its step (-1: nowhere), the element and its value there.
struct NonFinite {
  int step = -1;
  int64_t at = -1;
  double value = 0;
};

// The step of a fused chain, whose operands are in place, that first gives a NaN or an infinity. The chain is
// run again, cut short after each step.
NonFinite first_non_finite_step(const Compute& compute, Device& device, std::span<std::byte* const> inputs) {
  PointwiseProgram part = decode(compute.attributes, compute.inputs.size());
  const std::vector<PointwiseStep> steps = std::move(part.steps);
  DType dtype = DType::f32;
  std::vector<Layout> layouts;
  for (const Operand& operand : compute.inputs) {
    layouts.push_back(operand.layout);
    layouts.back().offset = 0;
    if (operand.layout.type.dtype == DType::f64) dtype = DType::f64;
  }
  Tensor result(TensorType{dtype, compute.outputs[0].layout.type.shape});
  const auto memory = device.allocate(result.type().bytes());
  std::byte* output = memory->address();
  part.dtypes = {dtype};
  part.steps.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    part.steps.push_back(steps[i]);
    part.results = {part.inputs + static_cast<int>(i)};
    const Attributes attributes = encode(part);
    const auto kernel = device.prepare({*compute.op, attributes, layouts, std::span(&result.layout(), 1), 0});
    const auto workspace = device.allocate(kernel->workspace_bytes());
    kernel->run({inputs.data(), &output, workspace->address(), kernel->workspace_bytes()});
    device.synchronize();
    device.copy_out(result.bytes(), output, result.type().bytes());
    if (const int64_t at = first_non_finite(result); at >= 0) return {static_cast<int>(i), at, result.at(at)};
  }
  return {};
}

}  // namespace

std::string non_finite_operand(const Program& program, const CopyOfBuffer& copy_of) {
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const BufferSpec& buffer = program.buffers[b];
    if (buffer.home != Home::state && buffer.home != Home::input) continue;
    if (first_non_finite(copy_of(static_cast<BufferId>(b))) >= 0)
      return fmt::format("{} '{}' holds a value that is not finite before the step",
                         buffer.home == Home::input ? "input"
                         : buffer.trained           ? "parameter"
                                                    : "state",
                         buffer.name);
  }
  return {};
}

std::string non_finite_result(const Program& program, const Compute& compute, Device& device,
                              std::span<std::byte* const> inputs, const CopyOfBuffer& copy_of) {
  for (const Operand& operand : compute.outputs) {
    if (operand.buffer == kAbsent) continue;
    const Tensor result = copy_of(operand.buffer).view(operand.layout);
    NonFinite found{-1, first_non_finite(result), 0};
    if (found.at < 0) continue;
    found.value = result.at(found.at);
    std::string_view name = compute.op->name;
    int32_t at_scope = compute.scope;
    if (compute.op->elementwise && !compute.step_scopes.empty()) {
      const NonFinite inside = first_non_finite_step(compute, device, inputs);
      if (inside.step >= 0) {
        found = inside;
        name = name_of(decode(compute.attributes, compute.inputs.size()).steps[found.step].code);
        at_scope = compute.step_scopes[found.step];
      }
    } else if (!compute.step_scopes.empty()) {
      const Operand& sum = compute.outputs[static_cast<size_t>(compute.op->adds_before)];
      const Tensor added = copy_of(sum.buffer).view(sum.layout);
      if (const int64_t at = first_non_finite(added); at >= 0) {
        found = {-1, at, added.at(at)};
        name = "add";
        at_scope = compute.step_scopes[0];
      }
    }
    const std::string& scope = program.scopes[at_scope];
    return fmt::format(
        "'{}' in layer {} ({} pass{}) gave {} at element {} of {}", name,
        scope.empty() ? "(no layer)" : scope, name_of(compute.phase),
        compute.microbatch < 0 ? std::string() : fmt::format(", micro-batch {}", compute.microbatch + 1),
        found.value, found.at, to_string(operand.layout.type));
  }
  return {};
}

std::string non_finite_arrival(const Start& start, const CopyOfBuffer& copy_of) {
  if (start.out.buffer == kAbsent) return {};
  const Tensor result = copy_of(start.out.buffer).view(start.out.layout);
  const int64_t at = first_non_finite(result);
  if (at < 0) return {};
  return fmt::format("another rank's part in '{}' made it {} at element {} of {}", start.request.label,
                     result.at(at), at, to_string(start.out.layout.type));
}

}  // namespace het
