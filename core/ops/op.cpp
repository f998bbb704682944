#include "core/ops/op.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/base/nearest.h"
#include "core/ops/families.h"
#include "core/ops/part.h"
#include "core/ops/rules.h"
#include "core/tensor/slice.h"

namespace het {
namespace {

void require_known_attributes(const OpCall& call) {
  const auto& known = call.op.attributes;
  for (const auto& [name, value] : call.attributes.entries()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    if (names.empty()) refuse(call, fmt::format("it has no attributes, '{}' was given", name));
    const std::string nearest = nearest_name(name, names);
    refuse(call, fmt::format("it has no attribute '{}'{}; its attributes are {}", name,
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
                             fmt::join(names, ", ")));
  }
}

std::vector<OpDef> make_table() {
  std::vector<OpDef> table;
  for (std::vector<OpDef>& family : ops::families())
    for (OpDef& op : family) {
      op.infer = [infer = std::move(op.infer)](const OpCall& call) {
        require_known_attributes(call);
        std::vector<TensorType> results = infer(call);
        with_context([&] { return fmt::format("operator {}", call.op.name); },
                     [&] {
                       for (const TensorType& type : results) elements_of(type.shape);
                     });
        return results;
      };
      table.push_back(std::move(op));
    }
  return table;
}

}  // namespace

const std::vector<OpDef>& op_table() {
  static const std::vector<OpDef> table = make_table();
  return table;
}

const OpDef* find_op(std::string_view name) {
  static const std::unordered_map<std::string_view, const OpDef*> index = [] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef& op : op_table()) HET_REQUIRE(map.emplace(op.name, &op).second, op.name);
    return map;
  }();
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

const OpDef& op_named(std::string_view name) {
  if (const OpDef* found = find_op(name)) return *found;
  std::vector<std::string> names;
  for (const OpDef& op : op_table()) names.emplace_back(op.name);
  const std::string nearest = nearest_name(name, names);
  if (!nearest.empty()) fail_usage("unknown operator '{}'; did you mean '{}'?", name, nearest);
  fail_usage("unknown operator '{}'; the operators are {}", name, fmt::join(names, ", "));
}

int written_over(const OpDef& op, int output) {
  const auto [outputs, inputs] = op.in_place_group;
  const int group = outputs > 0 ? output / outputs : 0;
  for (const auto& [out, in] : op.in_place)
    if (out + group * outputs == output) return in + group * inputs;
  return -1;
}

Cost cost_of(const OpCall& call, std::span<const TensorType> outputs) {
  Cost cost;
  if (call.op.view) return cost;
  if (call.op.flops) cost.flops = call.op.flops(call, outputs);
  if (call.op.bytes) {
    cost.bytes = call.op.bytes(call, outputs);
    return cost;
  }
  for (const TensorType& type : call.inputs)
    cost.bytes += static_cast<double>(type.present() ? type.bytes() : 0);
  for (const TensorType& type : outputs) cost.bytes += static_cast<double>(type.present() ? type.bytes() : 0);
  return cost;
}

Cost cost_of(const Graph& graph, const Node& node) {
  const auto inputs = types_of(graph, node.inputs), outputs = types_of(graph, node.outputs);
  return cost_of(OpCall{*node.op, inputs, node.attributes}, outputs);
}

void refuse(const OpCall& call, std::string_view why) {
  std::string operands;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    operands += fmt::format("{}{} is {}", i == 0 ? "; " : ", ", ops::operand_name(call.op, i),
                            to_string(call.inputs[i]));
  fail_usage("{}: {}{}", call.op.name, why, operands);
}

void require_inputs(const OpCall& call, size_t least, size_t most) {
  const size_t count = call.inputs.size();
  if (count < least || count > most) {
    const std::string wanted = least == most                     ? fmt::format("{}", least)
                               : most == static_cast<size_t>(-1) ? fmt::format("{} or more", least)
                                                                 : fmt::format("{} to {}", least, most);
    refuse(call, fmt::format("it takes {} operand{}, {} were given ({})", wanted, wanted == "1" ? "" : "s",
                             count, call.op.signature));
  }
  for (size_t i = 0; i < count; ++i)
    if (!call.inputs[i].present() && !ops::is_optional(call.op, i))
      refuse(call,
             fmt::format("operand {} is missing ({})", ops::operand_name(call.op, i), call.op.signature));
}

void require_float(const OpCall& call, size_t input) {
  if (!is_float(call[input].dtype))
    refuse(call, fmt::format("{} has to be a float (f32, bf16, f16 or f64); cast it",
                             ops::operand_name(call.op, input)));
}

int64_t normal_dim(const OpCall& call, int64_t dim, size_t rank) {
  const int64_t size = static_cast<int64_t>(rank);
  if (rank == 0) refuse(call, fmt::format("a scalar has no dimension {}", dim));
  if (dim < -size || dim >= size)
    refuse(call, fmt::format("dimension {} does not exist; there are {} to {} ({} to -1 from the end)", dim,
                             0, size - 1, -size));
  return from_start(dim, rank);
}

}  // namespace het

namespace het::ops {

namespace {

// Operand i as the signature has it, without its shape: " bias?:A"; empty where the signature has none.
std::string operand_text(const OpDef& op, size_t i) {
  std::string text;
  int depth = 0;
  size_t index = 0;
  for (const char c : op.signature.substr(0, op.signature.find("→"))) {
    if (c == '[') ++depth;
    if (c == ',' && depth == 0)
      ++index;
    else if (index == i && depth == 0)
      text += c;
    if (c == ']') --depth;
  }
  return text;
}

}  // namespace

std::string operand_name(const OpDef& op, size_t i) {
  const std::string text = operand_text(op, i);
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos || text.compare(begin, 3, "…") == 0) return fmt::format("operand {}", i + 1);
  return text.substr(begin, text.find_first_of(" :?", begin) - begin);
}

bool is_optional(const OpDef& op, size_t i) { return operand_text(op, i).find('?') != std::string::npos; }

DType dtype_setting(const OpCall& call, std::string_view name, DType fallback) {
  if (!call.attributes.has(name)) return fallback;
  const std::string text = setting<std::string>(call, name);
  if (const auto dtype = dtype_named(text)) return *dtype;
  const std::string nearest = nearest_name(text, dtype_names());
  refuse(call, fmt::format("there is no dtype '{}'{}; there are {}", text,
                           nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
                           fmt::join(dtype_names(), ", ")));
}

void require_rank(const OpCall& call, size_t input, size_t rank) {
  if (call[input].shape.size() != rank)
    refuse(call,
           fmt::format("{} needs {} dimension{}", operand_name(call.op, input), rank, rank == 1 ? "" : "s"));
}

void require_rank_from(const OpCall& call, size_t input, size_t least) {
  if (call[input].shape.size() < least)
    refuse(call, fmt::format("{} needs {} dimension{} or more", operand_name(call.op, input), least,
                             least == 1 ? "" : "s"));
}

void require_dtype(const OpCall& call, size_t input, DType dtype) {
  if (call[input].dtype != dtype)
    refuse(call, fmt::format("{} has to be {}", operand_name(call.op, input), dtype));
}

void require_type(const OpCall& call, size_t input, const TensorType& wanted) {
  if (!call.has(input)) return;
  if (call[input] != wanted)
    refuse(call, fmt::format("{} has to be {}", operand_name(call.op, input), to_string(wanted)));
}

void require_part(const OpCall& call, int64_t count, std::string_view what) {
  const int64_t first = setting<int64_t>(call, "first", 0), of = setting<int64_t>(call, "of", count);
  if (first < 0 || count > of - first)
    refuse(call, fmt::format("{} {} from {} on are no part of {}", count, what, first, of));
}

Attributes first_of(const OpCall& call, const TensorSlice& slice) {
  Attributes attributes = call.attributes;
  const Ranges rows = slice.ranges(0);
  if (size_of(rows) == slice.whole_shape()[0]) return attributes;
  HET_REQUIRE(rows.size() == 1, to_string(slice));
  attributes.set("first", call.attributes.get<int64_t>("first", 0) + rows[0].begin);
  attributes.set("of", call.attributes.get<int64_t>("of", slice.whole_shape()[0]));
  return attributes;
}

void require_slice(const OpCall& call) {
  with_context([&] { return fmt::format("operator {}", call.op.name); },
               [&] {
                 const TensorSlice slice = part_of(call.attributes, call[0].shape);
                 if (slice.shape() != call[0].shape)
                   refuse(call, fmt::format("slice = {} has the shape {}, and operand 0 {}", to_string(slice),
                                            to_string(slice.shape()), to_string(call[0].shape)));
                 SliceMap map(slice);  // refuses one that kernels cannot follow
               });
}

Attributes part_of_operand(const OpCall& call, std::span<const TensorSlice> inputs,
                           std::span<const TensorSlice>) {
  Attributes attributes = call.attributes;
  set_part(attributes, nested(part_of(attributes, call[0].shape), inputs[0]));
  return attributes;
}

int64_t sum_of(const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes)
    if (__builtin_add_overflow(sum, size, &sum)) return std::numeric_limits<int64_t>::max();
  return sum;
}

Shape leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

Shape with_last(Shape shape, int64_t size) {
  shape.back() = size;
  return shape;
}

ValueId constant(GraphBuilder& graph, const TensorType& type, double value) {
  return graph.call("fill", {}, {{"value", value}, {"shape", type.shape}, {"dtype", dtype_name(type.dtype)}});
}

ValueId to_dtype(GraphBuilder& graph, ValueId id, DType dtype) {
  if (id == kAbsent || graph.type(id).dtype == dtype) return id;
  return graph.call("cast", {id}, {{"dtype", dtype_name(dtype)}});
}

DType gradient_dtype(const GradientCall& call, size_t i) {
  const Graph& graph = call.graph.graph();
  const DType dtype = graph.type(call.input(i)).dtype;
  return is_weight(graph, call.input(i)) ? accumulator_of(dtype) : dtype;
}

ValueId as_gradient(GradientCall& call, size_t i, ValueId gradient) {
  return to_dtype(call.graph, gradient, gradient_dtype(call, i));
}

ValueId sum_to_input(GradientCall& call, size_t i, ValueId gradient) {
  if (gradient == kAbsent) return kAbsent;
  const Shape wanted = call.graph.type(call.input(i)).shape;
  const Shape given = call.graph.type(gradient).shape;
  if (given == wanted) return gradient;
  const size_t lead = given.size() - wanted.size();
  std::vector<int64_t> dims;
  for (size_t d = 0; d < given.size(); ++d)
    if (d < lead || (wanted[d - lead] == 1 && given[d] != 1)) dims.push_back(static_cast<int64_t>(d));
  if (!dims.empty())
    gradient =
        call.graph.call("sum", {gradient}, {{"dims", dims}, {"dtype", dtype_name(gradient_dtype(call, i))}});
  if (call.graph.type(gradient).shape != wanted)
    gradient = call.graph.call("reshape", {gradient}, {{"shape", wanted}});
  return gradient;
}

ValueId only_gradient(const GradientCall& call) {
  for (size_t o = 1; o < call.output_gradients.size(); ++o)
    if (call.output_gradients[o] != kAbsent)
      fail_usage(
          "the loss depends on result {} of '{}', through which no gradient flows; only its first result can "
          "be differentiated",
          o + 1, call.node.op->name);
  return call.output_gradients[0];
}

std::string dtype_name(DType dtype) { return std::string(name_of(dtype)); }

}  // namespace het::ops
