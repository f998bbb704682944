#include "core/program/program.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::testing;

namespace {

// Two linear layers with a residual around them, a tied weight, a sum of squares as loss and plain SGD:
// enough to cross every rule of lowering (sums over micro-batches, accumulation into one buffer, concat,
// views).
struct Model {
  Graph graph;
  Model(int64_t samples, bool with_update) {
    GraphBuilder builder(graph);
    const DType dtype = DType::f64;
    const ValueId x = builder.input("x", {dtype, {samples, 6}});
    const ValueId w = builder.parameter("w", {dtype, {6, 6}}, {Initial::Kind::normal, 0.5});
    const ValueId b = builder.parameter("b", {dtype, {6}}, {Initial::Kind::normal, 0.5});
    const ValueId h = builder.call("tanh", {builder.call("linear", {x, w, b})});
    const auto parts = builder.call_all(op_named("split"), {h},
                                        {{"dim", int64_t{1}}, {"sizes", std::vector<int64_t>{2, 4}}});
    const ValueId swapped = builder.call("concat", {parts[1], parts[0]}, {{"dim", int64_t{1}}});
    const ValueId y = builder.call("add", {builder.call("linear", {swapped, w}), x});
    const ValueId loss =
        builder.call("sum", {builder.call("square", {y})}, {{"dims", std::vector<int64_t>{0, 1}}});
    builder.output("loss", loss);
    const auto gradients = differentiate(graph, loss);
    builder.set_phase(Phase::update);
    for (const auto& [parameter, gradient] : gradients)
      builder.output("d" + graph.values[parameter].name, gradient);
    if (!with_update) return;
    const ValueId lr = builder.input("lr", {dtype, {}}, true);
    std::vector<ValueId> all;
    for (const auto& [parameter, gradient] : gradients) all.push_back(gradient);
    const auto norm = builder.call_all(op_named("global_norm"), all, {{"max_norm", 0.0}});
    for (const auto& [parameter, gradient] : gradients)
      builder.call_all(op_named("sgd"), {parameter, kAbsent, gradient, lr, norm[1]},
                       {{"momentum", 0.0}, {"weight_decay", 0.0}, {"nesterov", false}});
  }
};

Tensor rows(const Tensor& all, int64_t first, int64_t count) {
  return all.view(sliced(all.layout(), 0, first, count)).contiguous();
}

}  // namespace

TEST_CASE("accumulating over micro-batches gives the loss and gradients of the whole batch") {
  const Tensor x = wave({DType::f64, {12, 6}}, 0.3);
  Model whole(12, false);
  Executor once(lower_single(whole.graph), reference_state());
  once.write("x", x);
  once.run();
  for (const int64_t size : {1, 4, 6}) {
    Model part(size, false);
    const Program program = lower_single(part.graph, static_cast<int>(12 / size));
    CHECK(verify(program).empty());
    Executor several(program, reference_state());
    for (int64_t m = 0; m < 12 / size; ++m) several.write("x", rows(x, m * size, size), static_cast<int>(m));
    several.run();
    for (const std::string name : {"loss", "dw", "db"}) {
      const auto expected = values_of(once.read(name)), actual = values_of(several.read(name));
      for (size_t i = 0; i < expected.size(); ++i) CHECK(actual[i] == Approx(expected[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("fusing and pruning do not change results") {
  Model model(5, false);
  const Tensor x = wave({DType::f64, {5, 6}}, 1.1);
  Executor plain(lower_single(model.graph), reference_state());
  Executor fused(lower_single(fuse(model.graph)), reference_state());
  for (Executor* executor : {&plain, &fused}) {
    executor->write("x", x);
    executor->run();
  }
  for (const std::string name : {"loss", "dw", "db"}) {
    const auto expected = values_of(plain.read(name)), actual = values_of(fused.read(name));
    for (size_t i = 0; i < expected.size(); ++i) CHECK(actual[i] == Approx(expected[i]).epsilon(1e-12));
  }
}

TEST_CASE("live buffers never share memory, dead ones do") {
  Model model(8, true);
  const Program program = lower_single(model.graph, 3);
  CHECK(verify(program).empty());
  int64_t sum = 0;
  for (const BufferSpec& buffer : program.buffers)
    if (buffer.home == Home::arena) sum += buffer.type.bytes();
  CHECK(program.arena_bytes < sum);
}

TEST_CASE("verify finds overlapping buffers and reads before writes") {
  Model model(8, false);
  Program program = lower_single(model.graph);
  for (BufferSpec& buffer : program.buffers)
    if (buffer.home == Home::arena) buffer.offset = 0;
  CHECK_FALSE(verify(program).empty());
  program = lower_single(model.graph);
  std::swap(program.instructions.front(), program.instructions.back());
  CHECK_FALSE(verify(program).empty());
}

TEST_CASE("parts of a concat are written in place by producers that can") {
  // Backward of the split: gradients of both halves are joined again; no copy is needed for packed producers
  // along dimension 0.
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId a = builder.input("a", {DType::f32, {2, 4}}), b = builder.input("b", {DType::f32, {3, 4}});
  builder.output("y", builder.call("concat", {builder.call("exp", {a}), builder.call("square", {b})},
                                   {{"dim", int64_t{0}}}));
  const Program program = lower_single(graph);
  CHECK(verify(program).empty());
  for (const Instruction& instruction : program.instructions)
    CHECK(std::get<Compute>(instruction).op->name != "copy");
  Executor executor(program, reference_state());
  executor.write("a", wave({DType::f32, {2, 4}}, 0));
  executor.write("b", wave({DType::f32, {3, 4}}, 1));
  executor.run();
  const auto y = values_of(executor.read("y"));
  CHECK(y[0] == Approx(std::exp(std::sin(0.0))).epsilon(1e-6));
  CHECK(y[8] == Approx(std::sin(1.0) * std::sin(1.0)).epsilon(1e-6));
}

TEST_CASE("a step trains, and what depends on state alone is computed again when the state changes") {
  Model model(4, true);
  auto state = reference_state();
  Executor executor(lower_single(fuse(model.graph)), state);
  executor.write("x", wave({DType::f64, {4, 6}}, 0.5));
  executor.write("lr", Tensor::of<double>({0.01}, {}));
  double last = 1e300;
  for (int step = 0; step < 5; ++step) {
    REQUIRE(executor.run());
    const double loss = executor.read("loss").at(0);
    CHECK(loss < last);
    last = loss;
  }
}

TEST_CASE("a stopped step leaves the state as it was") {
  Model model(4, true);
  auto state = reference_state();
  Executor executor(lower_single(model.graph), state);
  executor.write("x", wave({DType::f64, {4, 6}}, 0.5));
  executor.write("lr", Tensor::of<double>({0.01}, {}));
  const auto before = values_of(state->read("w"));
  executor.request_stop();
  CHECK_FALSE(executor.run());
  CHECK(values_of(state->read("w")) == before);
  CHECK(executor.run());
  CHECK(values_of(state->read("w")) != before);
}

TEST_CASE("a value that is not finite is traced to the operator and layer that made it") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", {DType::f32, {3}});
  builder.push_scope("blocks.2");
  const ValueId y = builder.call("log", {x});
  builder.pop_scope();
  builder.output("y", builder.call("square", {y}));
  Executor executor(lower_single(graph), reference_state());
  executor.write("x", Tensor::of<float>({1, 2, 3}, {3}));
  executor.run();
  CHECK(executor.find_non_finite().empty());
  executor.write("x", Tensor::of<float>({1, 0, 3}, {3}));
  executor.run();
  const std::string found = executor.find_non_finite();
  CHECK(found.find("log") != std::string::npos);
  CHECK(found.find("blocks.2") != std::string::npos);
}

TEST_CASE("a value that is not finite inside a fused chain is traced to the step that made it") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", {DType::bf16, {3}});
  const auto in_scope = [&](const char* scope, const char* op, ValueId value, Attributes attributes = {}) {
    builder.push_scope(scope);
    const ValueId result = builder.call(op, {value}, std::move(attributes));
    builder.pop_scope();
    return result;
  };
  const ValueId shifted = in_scope("first", "shift", x, {{"amount", -1.0}});
  const ValueId logarithm = in_scope("second", "log", shifted);
  builder.output("y", in_scope("third", "sqrt", logarithm));
  const Graph fused = fuse(graph);
  REQUIRE(fused.nodes.size() == 1);
  CHECK(fused.nodes[0].step_scopes.size() == 3);
  Executor executor(lower_single(fused), reference_state());
  executor.write("x", Tensor::of<float>({3, 4, 5}, {3}));
  executor.run();
  CHECK(executor.find_non_finite().empty());
  executor.write("x", Tensor::of<float>({3, 1, 5}, {3}));
  executor.run();
  CHECK(executor.find_non_finite() ==
        "'log' in layer second (forward pass, micro-batch 1) gave -inf at element 1 of bf16[3]");
}

TEST_CASE("inputs are checked by name, shape and presence") {
  Model model(4, false);
  Executor executor(lower_single(model.graph), reference_state());
  CHECK_THROWS_WITH(executor.run(), Catch::Contains("'x'") && Catch::Contains("never written"));
  CHECK_THROWS_WITH(executor.write("y", Tensor::zeros({DType::f64, {4, 6}})),
                    Catch::Contains("its inputs are: x"));
  CHECK_THROWS_WITH(executor.write("x", Tensor::zeros({DType::f64, {4, 5}})), Catch::Contains("[4, 5]"));
}
