#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/busy.h"
#include "core/program/executor.h"
#include "kernels/cpu/device.h"
#include "tests/emulated_cuda/device.h"
#include "tests/unit/core/trained_matrix.h"

using namespace het;
using namespace het::testing;

TEST_CASE("a recorded step on the emulated GPU gives the bits of one that is launched", "[executor][cuda]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f32, {6, 16}});
  const ValueId w = b.parameter("w", {DType::f32, {8, 16}}, {Initial::Kind::normal, 0.5});
  const ValueId scale = b.parameter("scale", {DType::f32, {16}}, {Initial::Kind::normal, 0.5});
  const auto normal = b.call_all(op_named("rms_norm"), {x, scale}, {{"eps", 1e-5}});
  b.output("y", b.call("linear", {normal[0], w}));
  const auto device = cuda_emulated::make_device();
  Executor executor(lower_single(graph), std::make_shared<StateStore>(device, 1));
  std::vector<std::vector<double>> results;
  for (int step = 0; step < 4; ++step) {
    executor.write("x", wave({DType::f32, {6, 16}}, step % 2 == 0 ? 0.1 : 0.7));
    REQUIRE(executor.run());
    results.push_back(values_of(executor.read("y")));
  }
  CHECK(results[0] != results[1]);
  CHECK(results[2] == results[0]);  // replayed, as it was launched
  CHECK(results[3] == results[1]);

  // The device's own clock times each instruction.
  const auto spans = executor.run_timed();
  CHECK(values_of(executor.read("y")) == results[1]);
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].begin < spans[0].end);
  CHECK(spans[0].end == Approx(spans[1].begin));
  CHECK(spans[1].begin < spans[1].end);
}

namespace {

// The feed-forward layer of a GPT: its loss, and the gradients of its weights.
Graph feed_forward(DType dtype) {
  Graph graph;
  GraphBuilder b(graph);
  const auto weight = [&](const char* name, Shape shape) {
    const ValueId master = b.parameter(name, {DType::f32, std::move(shape)}, {Initial::Kind::normal, 0.5});
    return dtype == DType::f32 ? master : b.call("cast", {master}, {{"dtype", std::string(name_of(dtype))}});
  };
  const ValueId up = weight("up", {24, 16}), down = weight("down", {16, 24});
  const ValueId bias = b.parameter("bias", {DType::f32, {24}}, {Initial::Kind::normal, 0.5});
  const ValueId x = b.input("x", {dtype, {6, 16}});
  const ValueId y = b.call("linear", {b.call("gelu", {b.call("linear", {x, up, bias})}), down});
  const ValueId loss = b.call("sum", {b.call("square", {y})}, {{"dtype", "f32"}});
  b.output("loss", loss);
  for (const auto& [parameter, gradient] : differentiate(graph, loss))
    b.output("d" + graph.values[parameter].name, gradient);
  return graph;
}

std::map<std::string, std::vector<double>> results_of(const Graph& graph,
                                                      const std::shared_ptr<Device>& device) {
  Executor executor(lower_single(graph), std::make_shared<StateStore>(device, 1));
  std::map<std::string, std::vector<double>> results;
  for (int step = 0; step < 3; ++step) {  // recorded and replayed
    executor.write("x", wave({DType::f32, {6, 16}}, 0.3));
    REQUIRE(executor.run());
  }
  for (const Output& output : graph.outputs) results[output.name] = values_of(executor.read(output.name));
  return results;
}

}  // namespace

TEST_CASE("a product makes gelu and its gradient as kernels of their own do", "[executor][cuda]") {
  for (const auto& device : {make_cpu_device(), make_reference_device(), cuda_emulated::make_device()})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(device->name() << ", " << name_of(dtype));
      const Graph graph = feed_forward(dtype);
      const auto apart = results_of(join_chains(prune(graph)), device),
                 joined = results_of(fuse(graph), device);
      // A GPU's library takes gelu of the product before it is rounded.
      if (dtype == DType::f32 || device->name() != "cuda") {
        CHECK(joined == apart);
        continue;
      }
      CHECK(joined != apart);
      for (const auto& [name, values] : apart)
        for (size_t i = 0; i < values.size(); ++i)
          CHECK(joined.at(name)[i] == Approx(values[i]).epsilon(0.02).margin(0.2));
    }
}

TEST_CASE("a product whose result no other node needs is its own gelu", "[executor][cuda]") {
  for (const auto& device : {make_cpu_device(), make_reference_device(), cuda_emulated::make_device()})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(device->name() << ", " << name_of(dtype));
      Graph graph;
      GraphBuilder b(graph);
      const ValueId x = b.input("x", {dtype, {6, 16}});
      const ValueId up = b.input("up", {dtype, {24, 16}}), down = b.input("down", {dtype, {16, 24}});
      b.output("y", b.call("linear", {b.call("gelu", {b.call("linear", {x, up})}), down}));
      std::vector<std::vector<double>> results;
      for (const Graph& each : {prune(graph), fuse(graph)}) {
        Executor executor(lower_single(each), std::make_shared<StateStore>(device, 1));
        executor.write("x", wave({DType::f32, {6, 16}}, 0.3));
        executor.write("up", wave({DType::f32, {24, 16}}, 0.1));
        executor.write("down", wave({DType::f32, {16, 24}}, 0.9));
        REQUIRE(executor.run());
        results.push_back(values_of(executor.read("y")));
      }
      CHECK(lower_single(fuse(graph)).instructions.size() == 2);
      if (dtype == DType::f32 || device->name() != "cuda") CHECK(results[0] == results[1]);
      for (size_t i = 0; i < results[0].size(); ++i)
        CHECK(results[1][i] == Approx(results[0][i]).epsilon(0.02).margin(0.05));
    }
}

namespace {

// AdamW of parameters of several shapes, whose gradients are inputs; `apart`: each has a separate input
// for the rate.
Graph updated(bool apart) {
  Graph graph;
  GraphBuilder b(graph);
  std::vector<ValueId> terms;
  for (const Shape& shape : {Shape{40, 300}, {7}, {}, {3, 5}, {9001}}) {
    const std::string name = fmt::format("p{}", elements_of(shape));
    const ValueId p = b.parameter(name, {DType::f32, shape}, {Initial::Kind::normal, 0.5});
    terms.push_back(b.call("sum", {b.call("mul", {p, b.input("d" + name, {DType::f32, shape})})}));
  }
  const ValueId loss = b.call("add_n", terms);
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss);
  b.set_phase(Phase::update);
  const ValueId step = b.input("step", {DType::i64, {}}, true), all = b.input("all", {DType::f32, {}}, true);
  for (const auto& [p, gradient] : gradients) {
    const Value parameter = graph.values[p];
    const ValueId lr = apart ? b.input("lr of " + parameter.name, {DType::f32, {}}, true) : all;
    b.call_all(op_named("adamw"),
               {p, b.buffer(parameter.name + ".m", parameter.type),
                b.buffer(parameter.name + ".v", parameter.type), gradient, lr, step, all},
               {{"beta2", 0.95}, {"weight_decay", parameter.type.shape.size() == 2 ? 0.1 : 0.0}});
  }
  return graph;
}

// How many instructions run the operator.
int64_t count_of(const Program& program, std::string_view op) {
  return std::count_if(program.instructions.begin(), program.instructions.end(),
                       [&](const Instruction& instruction) { return title_of(instruction) == op; });
}

}  // namespace

TEST_CASE("AdamW of all parameters at once changes each as it would alone", "[executor][cuda]") {
  const Program at_once = lower_single(updated(false)), one_by_one = lower_single(updated(true));
  CHECK(verify(at_once).empty());
  CHECK(count_of(at_once, "adamw_n") == 1);
  CHECK(count_of(at_once, "adamw") == 0);
  CHECK(count_of(one_by_one, "adamw") == 5);
  for (const auto& device : {make_cpu_device(), make_reference_device(), cuda_emulated::make_device()}) {
    INFO(device->name());
    std::vector<std::map<std::string, std::vector<double>>> states;
    for (const Program& program : {at_once, one_by_one}) {
      Executor executor(program, std::make_shared<StateStore>(device, 1));
      for (int step = 1; step <= 3; ++step) {
        for (const BufferSpec& buffer : program.buffers)
          if (buffer.home == Home::input && buffer.type.dtype == DType::f32)
            executor.write(buffer.name,
                           buffer.name[0] == 'd' ? wave(buffer.type, step) : Tensor::of<float>({0.25F}, {}));
        executor.write("step", Tensor::of<int64_t>({step}, {}));
        REQUIRE(executor.run());
      }
      auto& state = states.emplace_back();
      for (const BufferSpec& buffer : program.buffers)
        if (buffer.home == Home::state) state[buffer.name] = values_of(executor.state().read(buffer.name));
    }
    CHECK(states[0].size() == 15);
    CHECK(states[0] == states[1]);
  }
}

TEST_CASE("a GPU's kernels are timed by recordings of many launches", "[executor][cuda]") {
  Executor executor(lower_single(trained_matrix()),
                    std::make_shared<StateStore>(cuda_emulated::make_device(), 1));
  write_inputs(executor);
  REQUIRE(executor.run());
  const std::vector<int> repeats = executor.repeats_for(5e-3).times;
  REQUIRE(repeats.size() == executor.program().instructions.size());
  CHECK(std::all_of(repeats.begin(), repeats.end(),
                    [](int r) { return r >= 1 && r <= Executor::kMostRepeats; }));
  CHECK(std::any_of(repeats.begin(), repeats.end(), [](int r) { return r > 1; }));
  const auto before = values_of(executor.state().read("w"));
  const auto spans = executor.run_timed(executor.repeat(std::vector<int>(repeats.size(), 3)));
  CHECK(values_of(executor.state().read("w")) != before);
  for (size_t i = 0; i < spans.size(); ++i) {
    INFO(title_of(executor.program().instructions[i]));
    CHECK(spans[i].launches >= 1);
    CHECK(spans[i].begin < spans[i].end);
    // The next begins when all three are done. Events tell milliseconds since the first one, in f32.
    if (i > 0)
      CHECK(spans[i].begin - spans[i - 1].begin ==
            Approx(3 * (spans[i - 1].end - spans[i - 1].begin))
                .margin(1e-8 + 1e-7 * (spans[i].end - spans[0].begin)));
  }

  const auto busy = measure_busy(executor);
  REQUIRE(busy);
  CHECK(busy->seconds > 0);
  int launches = 0;
  for (const Executor::Span& span : spans) launches += span.launches;
  CHECK(busy->launches == launches);
  const double gap = executor.state().device().launch_gap();
  CHECK(gap >= 0);
  CHECK(gap < 1e-3);
  // Ordinary runs are as before.
  REQUIRE(executor.run());
  CHECK(executor.run_timed().size() == repeats.size());

  Executor on_host(lower_single(trained_matrix()), reference_state());
  write_inputs(on_host);
  REQUIRE(on_host.run());
  CHECK(on_host.repeats_for(1e-3).times.empty());
  CHECK_FALSE(measure_busy(on_host));
}

TEST_CASE("state is copied beside the next step, whose update waits for it", "[executor][cuda]") {
  const auto device = cuda_emulated::make_device();
  Executor executor(lower_single(trained_matrix()), std::make_shared<StateStore>(device, 1));
  write_inputs(executor);
  StateStore& state = executor.state();
  for (int step = 0; step < 3; ++step) REQUIRE(executor.run());  // recorded and replayed
  const auto before = values_of(state.read("w"));
  emulated::late_copies = 3000;
  const auto copy = state.copy();
  emulated::late_copies = 0;
  CHECK_FALSE(copy->done());
  REQUIRE(executor.run());
  CHECK(copy->done());
  const auto after = values_of(state.read("w"));
  CHECK(after != before);
  CHECK(values_of(copy->read("w")) == before);
  REQUIRE(executor.run());
  CHECK(values_of(copy->read("w")) == before);
  CHECK(values_of(state.copy()->read("w")) != after);

  // A copy that is read, or let go, before it has arrived is waited for.
  emulated::late_copies = 100;
  const auto now = values_of(state.read("w"));
  CHECK(values_of(state.copy()->read("w")) == now);
  state.copy();
  emulated::late_copies = 0;
}

TEST_CASE("a thread uses two GPUs in turn", "[executor][cuda]") {
  std::vector<std::unique_ptr<Executor>> executors;
  for (const int ordinal : {0, 1})
    executors.push_back(
        std::make_unique<Executor>(lower_single(trained_matrix()),
                                   std::make_shared<StateStore>(cuda_emulated::make_device(ordinal), 1)));
  for (int step = 0; step < 3; ++step) {
    for (const auto& executor : executors) write_inputs(*executor);
    for (const auto& executor : executors) REQUIRE(executor->run());
    CHECK(executors[0]->run_timed().size() == executors[1]->run_timed().size());
  }
  CHECK(values_of(executors[0]->state().read("w")) == values_of(executors[1]->state().read("w")));
  CHECK(executors[0]->find_non_finite().empty());
}
