#include "core/ops/sharding.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

// Integers and truth values have no summands.
bool has_summands(const ShardingInstance& instance, const OpCall& call, std::span<const TensorType> outputs) {
  for (size_t i = 0; i < instance.inputs.size(); ++i)
    if (instance.inputs[i] == Lies::partial && !is_float(call.inputs[i].dtype)) return false;
  for (size_t o = 0; o < instance.outputs.size(); ++o)
    if (instance.outputs[o] == Lies::partial && !is_float(outputs[o].dtype)) return false;
  return true;
}

// Whether each dimension that the letters run along can be cut; a share of all the units shows it.
bool can_be_cut(const std::vector<OperandNotation>& operands, std::span<const TensorType> types,
                const Notation& notation, const ShardingInstance& instance) {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].present &&
        !cut(operands[i], types[i].shape, notation, instance.letters, instance.units, {0, instance.units}))
      return false;
  return true;
}

}  // namespace

ValueId ShardedCall::all_gather(ValueId x) const {
  const TensorType type = graph.type(x);  // a copy: nodes that are added move it
  const int64_t count = type.elements();
  const ValueId flat = graph.call("reshape", {x}, {{"shape", std::vector<int64_t>{count}}});
  Attributes attributes{{"counts", std::vector<int64_t>(static_cast<size_t>(parts), count)},
                        {"part", static_cast<int64_t>(part)}};
  if (axis > 0) attributes.set("axis", static_cast<int64_t>(axis));
  const ValueId all = graph.call("all_gather", {flat}, attributes);
  Shape shape{parts};
  shape.insert(shape.end(), type.shape.begin(), type.shape.end());
  return graph.call("reshape", {all}, {{"shape", shape}});
}

std::vector<ShardingInstance> sharding_of(const OpCall& call, std::span<const TensorType> outputs) {
  std::vector<ShardingInstance> instances;
  if (call.op.sharding.empty()) return instances;
  const Notation notation = notation_of(call, outputs);
  for (size_t r = 0; r < call.op.sharding.size(); ++r) {
    const ShardingRule& rule = call.op.sharding[r];
    if (rule.when != nullptr && !rule.when(call)) continue;
    auto sets =
        rule.cut.empty() ? std::vector<std::vector<std::string>>{{}} : letter_sets(notation, rule.cut);
    for (std::vector<std::string>& letters : sets) {
      ShardingInstance instance{r, std::move(letters), 1, {}, {}};
      if (!rule.cut.empty()) instance.units = units_of(notation, instance.letters);
      if (instance.units < 1) continue;  // of a tensor without elements
      const auto lies = [&](const OperandNotation& operand, bool is_result) {
        if (!operand.present) return Lies::replicated;
        if (names(rule.once, operand.name)) return Lies::once;
        if (names(is_result && !rule.cut.empty() ? rule.sums : rule.partial, operand.name))
          return Lies::partial;
        return runs_along(operand, instance.letters) ? Lies::sharded : Lies::replicated;
      };
      for (const OperandNotation& input : notation.inputs) instance.inputs.push_back(lies(input, false));
      for (const OperandNotation& output : notation.outputs) instance.outputs.push_back(lies(output, true));
      if (has_summands(instance, call, outputs) &&
          can_be_cut(notation.inputs, call.inputs, notation, instance) &&
          can_be_cut(notation.outputs, outputs, notation, instance))
        instances.push_back(std::move(instance));
    }
  }
  return instances;
}

Attributes localized(const OpCall& call, std::span<const TensorSlice> inputs,
                     std::span<const TensorSlice> outputs) {
  return call.op.localize != nullptr ? call.op.localize(call, inputs, outputs) : call.attributes;
}

}  // namespace het
