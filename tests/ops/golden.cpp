// Values and gradients against PyTorch's numbers, which golden.py writes to golden/*.json.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/graph/gradient.h"
#include "core/io/json.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "planner/lower/lower.h"
#include "tests/ops/devices.h"

namespace het::ops_test {
namespace {

const Json& member(const Json& json, std::string_view name) {
  const Json* found = find_member(json, name);
  HET_REQUIRE(found != nullptr, name);
  return *found;
}

double number_of(const Json& json) {
  HET_REQUIRE(json.is_number(), dump(json));
  return json.get<double>();
}

std::vector<double> numbers_of(const Json& json) {
  std::vector<double> numbers;
  for (const Json& entry : *as_array(json)) numbers.push_back(number_of(entry));
  return numbers;
}

Shape shape_of(const Json& json) {
  Shape shape;
  for (const Json& entry : *as_array(json)) shape.push_back(*as_integer(entry));
  return shape;
}

// Of whole numbers, or of numbers where one is not.
void set_list(Attributes& attributes, const std::string& name, const Json& json) {
  std::vector<double> numbers;
  bool whole = true;
  for (const Json& number : *as_array(json)) {
    numbers.push_back(number_of(number));
    whole = whole && as_integer(number) != nullptr;
  }
  if (whole)
    attributes.set(name, shape_of(json));
  else
    attributes.set(name, numbers);
}

Attributes attributes_of(const Json& json) {
  Attributes attributes;
  for (const auto& [name, value] : *as_object(json)) {
    if (const auto* flag = as_bool(value))
      attributes.set(name, *flag);
    else if (const auto* whole = as_integer(value))
      attributes.set(name, *whole);
    else if (const auto* text = as_string(value))
      attributes.set(name, *text);
    else if (value.is_array())
      set_list(attributes, name, value);
    else
      attributes.set(name, number_of(value));
  }
  return attributes;
}

Tensor tensor_of(const TensorType& type, const std::vector<double>& values) {
  HET_REQUIRE(type.elements() == static_cast<int64_t>(values.size()), to_string(type), values.size());
  Tensor tensor(type);
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, values[static_cast<size_t>(i)]);
  return tensor;
}

// One case as a graph: loss = sum over its results of sum(result * weight), and the gradients of its
// operands.
struct Golden {
  Graph graph;
  std::vector<std::pair<std::string, Tensor>> writes;
  std::vector<std::pair<std::string, std::vector<double>>> wanted;  // by name of output
  std::vector<std::string> problems;

  Golden(const Json& json, DType activation) {
    GraphBuilder builder(graph);
    std::vector<ValueId> inputs, sought;
    std::vector<std::vector<double>> gradients;
    const Json::array_t& operands = *as_array(member(json, "inputs"));
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].is_null()) {
        inputs.push_back(kAbsent);
        continue;
      }
      const std::string& kind = *as_string(member(operands[i], "kind"));
      const DType dtype = kind == "i32" ? DType::i32 : kind == "i64" ? DType::i64 : activation;
      const TensorType type{dtype, shape_of(member(operands[i], "shape"))};
      const std::string name = fmt::format("x{}", i);
      inputs.push_back(builder.input(name, type));
      writes.emplace_back(name, tensor_of(type, numbers_of(member(operands[i], "values"))));
      const Json& gradient = (*as_array(member(json, "gradients")))[i];
      if (gradient.is_null()) continue;
      sought.push_back(inputs.back());
      gradients.push_back(numbers_of(gradient));
    }
    const auto outputs = builder.call_all(op_named(*as_string(member(json, "op"))), inputs,
                                          attributes_of(member(json, "attributes")));
    add_results(builder, outputs, *as_array(member(json, "results")));
    const ValueId loss = add_loss(builder, outputs, *as_array(member(json, "weights")));
    if (sought.empty()) return;
    const auto made = differentiate(graph, loss, sought);
    for (size_t i = 0; i < sought.size(); ++i) {
      const auto is_zero = [](double value) { return value == 0; };
      if (made.at(sought[i]) == kAbsent && std::all_of(gradients[i].begin(), gradients[i].end(), is_zero))
        continue;
      if (made.at(sought[i]) == kAbsent) {
        problems.push_back(fmt::format("there is no gradient of {}", graph.values[sought[i]].name));
        continue;
      }
      wanted.emplace_back("gradient of " + graph.values[sought[i]].name, gradients[i]);
      graph.outputs.push_back({wanted.back().first, made.at(sought[i])});
    }
  }

 private:
  void add_results(GraphBuilder& builder, const std::vector<ValueId>& outputs, const Json::array_t& results) {
    for (size_t o = 0; o < results.size(); ++o) {
      const Shape shape = shape_of(member(results[o], "shape"));
      if (graph.type(outputs[o]).shape != shape)
        problems.push_back(fmt::format("result {} has the shape {}, PyTorch's {}", o,
                                       to_string(graph.type(outputs[o]).shape), to_string(shape)));
      wanted.emplace_back(fmt::format("result {}", o), numbers_of(member(results[o], "values")));
      builder.output(wanted.back().first, outputs[o]);
    }
  }

  ValueId add_loss(GraphBuilder& builder, const std::vector<ValueId>& outputs, const Json::array_t& weights) {
    ValueId loss = kAbsent;
    for (size_t o = 0; o < weights.size(); ++o) {
      if (weights[o].is_null()) continue;
      const std::string name = fmt::format("w{}", o);
      const ValueId weight = builder.input(name, graph.type(outputs[o]));
      writes.emplace_back(name, tensor_of(graph.type(outputs[o]), numbers_of(weights[o])));
      const ValueId part = builder.call("sum", {builder.call("mul", {outputs[o], weight})});
      loss = loss == kAbsent ? part : builder.call("add", {loss, part});
    }
    return loss;
  }
};

std::vector<std::string> run(Golden golden, const std::shared_ptr<Device>& device, double tolerance,
                             std::set<std::string>& ran) {
  std::vector<std::string> problems = std::move(golden.problems);
  const Graph fused = fuse(golden.graph);
  for (const Graph* graph : {static_cast<const Graph*>(&golden.graph), &fused})
    for (const Node& node : graph->nodes) ran.emplace(node.op->name);
  Executor executor(lower_single(fused), std::make_shared<StateStore>(device, 1));
  for (const auto& [name, tensor] : golden.writes)
    if (std::any_of(executor.program().buffers.begin(), executor.program().buffers.end(),
                    [&, &wanted = name](const BufferSpec& buffer) {
                      return buffer.home == Home::input && buffer.name == wanted;
                    }))
      executor.write(name, tensor);
  executor.run();
  for (const auto& [name, values] : golden.wanted) {
    const Tensor result = executor.read(name);
    double scale = 0;
    for (const double value : values) scale = std::max(scale, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      const double given = result.at(static_cast<int64_t>(i));
      if (!(std::abs(given - values[i]) <= tolerance * (std::abs(values[i]) + scale)))
        problems.push_back(
            fmt::format("{}, element {}: {:.12g}, PyTorch gives {:.12g}", name, i, given, values[i]));
    }
  }
  return problems;
}

std::vector<Json> golden_files() {
  std::vector<std::string> paths;
  namespace fs = std::filesystem;
  fs::path folder = HET_OPS_FOLDER "/golden";  // or where the archive is unpacked
  if (!fs::exists(folder)) folder = fs::canonical("/proc/self/exe").parent_path() / "../tests/ops/golden";
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Json> files;
  for (const std::string& path : paths) files.push_back(read_json(path));
  return files;
}

}  // namespace

TEST_CASE("values and gradients are PyTorch's") {
  std::set<std::string> ran;
  for (const Json& file : golden_files()) {
    const Json::array_t& cases = *as_array(member(file, "cases"));
    REQUIRE(!cases.empty());
    for (const Json& test : cases)
      for (const Subject& subject : subjects()) {
        const bool reference = subject.is_reference();
        const std::string& op = *as_string(member(test, "op"));
        const std::string attributes = dump(member(test, "attributes"));
        INFO(subject.name << ", " << op << " " << attributes << " of " << dump(member(test, "inputs")));
        if (!reference && attributes.find("\"f64\"") != std::string::npos) continue;
        CHECK(run(Golden(test, reference ? DType::f64 : DType::f32), subject.device, reference ? 2e-11 : 2e-6,
                  ran) == std::vector<std::string>{});
      }
  }
  // No operator is left out but those whose random numbers are our own, those that only communicate, and
  // those that are several calls of another (unit/core/executor.cpp compares them with these).
  for (const OpDef& op : op_table()) {
    const bool several = op.in_place_group.first > 0;
    if (op.name == "dropout" || op.name == "uniform" || op.name == "stochastic_cast" || op.collective ||
        several)
      continue;
    INFO("add a case that runs '" << op.name << "' to tests/ops/golden.py");
    CHECK(ran.count(std::string(op.name)) == 1);
  }
}

}  // namespace het::ops_test
