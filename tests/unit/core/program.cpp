#include "core/program/program.h"

#include <algorithm>
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
  const Graph joined = fuse(model.graph);
  CHECK(std::any_of(joined.nodes.begin(), joined.nodes.end(),
                    [](const Node& node) { return node.op->name == "fused"; }));
  CHECK(joined.nodes.size() < model.graph.nodes.size());
  Executor fused(lower_single(joined), reference_state());
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

// y = exp(x), gathered from two ranks into z; half of it goes to the output. Sound.
Program gathering() {
  Program program;
  program.scopes = {""};
  program.groups = {Group{{0, 1}}};
  const TensorType half{DType::f32, {4}}, whole{DType::f32, {8}};
  program.buffers = {
      {"x", half, Home::input}, {"y", half}, {"z", whole}, {"out", half, Home::output}, {"other", half}};
  const auto all_of = [&](BufferId b) { return Operand{b, Layout::contiguous(program.buffers[b].type)}; };
  const auto compute = [](const char* op, std::vector<Operand> inputs, std::vector<Operand> outputs) {
    Compute result;
    result.op = &op_named(op);
    result.inputs = std::move(inputs);
    result.outputs = std::move(outputs);
    return result;
  };
  Start gather;
  gather.request.kind = CollectiveKind::all_gather;
  gather.request.counts = {4, 4};
  gather.in = all_of(1);
  gather.out = all_of(2);
  Operand part{2, Layout::contiguous(half)};
  part.layout.offset = 4;
  program.instructions = {compute("exp", {all_of(0)}, {all_of(1)}), gather,
                          compute("exp", {all_of(0)}, {all_of(4)}), Await{1},
                          compute("copy", {part}, {all_of(3)})};
  place_buffers(program);
  return program;
}

TEST_CASE("verify finds each kind of mistake") {
  Program program = gathering();
  REQUIRE(verify(program).empty());
  const auto compute = [&](int i) -> Compute& { return std::get<Compute>(program.instructions[i]); };
  const auto finds = [&](const std::string& words) {
    const auto problems = verify(program);
    INFO(fmt::format("{}", fmt::join(problems, "\n")));
    CHECK(std::any_of(problems.begin(), problems.end(),
                      [&](const std::string& problem) { return problem.find(words) != std::string::npos; }));
  };
  SECTION("a read before the write") {
    compute(0).inputs[0] = compute(2).outputs[0];
    finds("instruction 0 (exp) reads 'other' before it is written");
  }
  SECTION("a sum into what was never written") {
    compute(0).accumulate = 1;
    finds("instruction 0 (exp) reads 'y' before it is written");
  }
  SECTION("an operand that ends outside its buffer") {
    compute(4).inputs[0].layout.offset = 5;
    finds("instruction 4 (copy): operand lies outside 'z'");
  }
  SECTION("an operand of another dtype than its buffer") {
    compute(4).inputs[0].layout.type.dtype = DType::i32;
    finds("instruction 4 (copy): operand lies outside 'z'");
  }
  SECTION("live buffers in one place") {
    for (BufferSpec& buffer : program.buffers) buffer.offset = 0;
    finds("are alive together and share memory");
  }
  SECTION("a group that is not there") {
    std::get<Start>(program.instructions[1]).group = 1;
    finds("instruction 1 (all_gather) names group 1 of 1");
  }
  SECTION("an await of what starts nothing") {
    std::get<Await>(program.instructions[3]).start = 0;
    finds("instruction 3 awaits instruction 0, which queued nothing");
  }
  SECTION("an await of what comes later") {
    std::swap(program.instructions[1], program.instructions[3]);
    std::get<Await>(program.instructions[1]).start = 3;
    finds("instruction 1 awaits instruction 3, which queued nothing");
  }
  SECTION("a second await") {
    program.instructions.emplace_back(Await{1});
    finds("instruction 5 awaits instruction 1, which queued nothing");
  }
  SECTION("a collective that is never awaited") {
    program.instructions.erase(program.instructions.begin() + 3);
    finds("instruction 1 (all_gather) is never awaited");
  }
  SECTION("a result that is read before it has come") {
    compute(2).inputs[0] = compute(4).inputs[0];
    finds("instruction 2 (exp) uses 'z' while a collective has it");
  }
  SECTION("a write to what is being sent") {
    compute(2).outputs[0] = compute(0).outputs[0];
    finds("instruction 2 (exp) writes 'y' while instruction 1 (all_gather) reads it");
  }
}

TEST_CASE("what is being sent may be read, and other parts of its buffer written") {
  Program program = gathering();
  auto& sent = std::get<Start>(program.instructions[1]).in;
  auto& beside = std::get<Compute>(program.instructions[2]);
  SECTION("read") { beside.inputs[0] = sent; }
  SECTION("written beside") {
    program.buffers[1].type.shape = {8};
    beside.outputs[0] = sent;
    beside.outputs[0].layout.offset = 4;
  }
  place_buffers(program);
  CHECK(verify(program).empty());
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

TEST_CASE("steps train") {
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

TEST_CASE("a sum that is not finite is traced to the addition that a norm made") {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.input("x", {DType::f16, {2, 4}});
  builder.push_scope("block");
  const ValueId sum = builder.call("add", {x, x});
  builder.push_scope("norm");
  builder.output("y", builder.call("rms_norm", {sum}));
  const Graph fused = fuse(graph);
  REQUIRE(fused.nodes.size() == 1);
  Executor executor(lower_single(fused), reference_state());
  executor.write("x", Tensor::of<float>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4}));
  executor.run();
  CHECK(executor.find_non_finite().empty());
  executor.write("x", Tensor::of<float>({1, 2, 3, 4, 5, 6, 60000, 8}, {2, 4}));
  executor.run();
  CHECK(executor.find_non_finite() ==
        "'add' in layer block (forward pass, micro-batch 1) gave inf at element 6 of f16[2, 4]");
}

TEST_CASE("inputs are checked by name, shape and presence") {
  Model model(4, false);
  Executor executor(lower_single(model.graph), reference_state());
  CHECK_THROWS_WITH(executor.run(), Catch::Contains("'x'") && Catch::Contains("never written"));
  CHECK_THROWS_WITH(executor.write("y", Tensor::zeros({DType::f64, {4, 6}})),
                    Catch::Contains("its inputs are: x"));
  CHECK_THROWS_WITH(executor.write("x", Tensor::zeros({DType::f64, {4, 5}})), Catch::Contains("[4, 5]"));
}

namespace {

// A rank's program of an all-reduce over both ranks, and a message from rank 0 to rank 1.
Program of_rank(int rank) {
  Program program;
  program.groups = {Group{{0, 1}}};
  const TensorType type{DType::f32, {4}};
  program.buffers.push_back({"x", type, Home::arena});
  const Operand x{0, Layout::contiguous(type)};
  CollectiveRequest sum;
  sum.kind = CollectiveKind::all_reduce;
  sum.dtype = DType::f32;
  sum.counts = {4};
  sum.label = "the sum";
  program.instructions.push_back(Start{0, sum, x, x, Phase::forward});
  program.instructions.push_back(Await{0});
  CollectiveRequest message = sum;
  message.kind = rank == 0 ? CollectiveKind::send : CollectiveKind::receive;
  message.peer = 1 - rank;
  message.label = "the message";
  program.instructions.push_back(Start{0, message, x, x, Phase::forward});
  program.instructions.push_back(Await{2});
  return program;
}

CollectiveRequest& request_at(Program& program, size_t at) {
  return std::get<Start>(program.instructions[at]).request;
}

std::string problem_of(const Program& first, const Program& second) {
  const auto problems = verify_together(std::vector{first, second});
  return problems.empty() ? "" : problems[0];
}

}  // namespace

TEST_CASE("programs that do not go together are found before they run") {
  CHECK(problem_of(of_rank(0), of_rank(1)) == "");

  Program other = of_rank(1);
  request_at(other, 0).kind = CollectiveKind::all_gather;
  CHECK_THAT(problem_of(of_rank(0), other),
             Catch::Contains("operation 0 of ranks 0,1: rank 1 starts all_gather"));
  other = of_rank(1);
  request_at(other, 0).counts = {5};
  CHECK_THAT(problem_of(of_rank(0), other), Catch::Contains("another one all_reduce of [4]"));
  other = of_rank(1);
  request_at(other, 2).dtype = DType::f64;
  CHECK_THAT(problem_of(of_rank(0), other),
             Catch::Contains("rank 0 sends rank 1 [4] f32, which expects [4] f64"));
  other = of_rank(1);
  request_at(other, 2).tag = 7;
  CHECK(problem_of(of_rank(0), other) ==
        "rank 0 waits at instruction 3 for send 'the message', which others never start");
  other = of_rank(1);
  other.instructions.resize(2);
  CHECK(problem_of(of_rank(0), other) ==
        "rank 0 waits at instruction 3 for send 'the message', which others never start");
  Program sender = of_rank(0);
  sender.instructions.resize(3);  // it does not wait
  CHECK(problem_of(sender, other) == "rank 0 sends to rank 1 1 messages that it does not receive");

  // Each waits for the other's message before it starts its part of the sum.
  other = of_rank(1);
  std::swap(other.instructions[0], other.instructions[2]);
  std::swap(other.instructions[1], other.instructions[3]);
  std::get<Await>(other.instructions[1]).start = 0;
  std::get<Await>(other.instructions[3]).start = 2;
  CHECK(problem_of(of_rank(0), other) ==
        "rank 0 waits at instruction 1 for all_reduce 'the sum', which others never start");
}
