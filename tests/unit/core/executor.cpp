#include "core/program/executor.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/busy.h"
#include "core/program/eager.h"
#include "kernels/cpu/device.h"
#include "tests/emulated_cuda/device.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"

using namespace het;
using namespace het::testing;

namespace {

// What the process asked operator new for while `counting`, on any thread.
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

// The reference device, with a say in what memory it allows, a call before each kernel that runs, and
// recordings where they are asked for.
class Watched final : public Device {
 public:
  bool records = false;
  int recordings = 0, replays = 0, launches = 0;  // launches: those that were not part of a replay
  std::function<void(std::string_view op)> before_kernel = [](std::string_view) {};
  int64_t available = int64_t{1} << 40, budget = int64_t{1} << 40;

  std::string name() const override { return "watched"; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override { return device_->allocate(bytes); }
  int64_t available_bytes() const override { return available; }
  int64_t memory_budget_bytes() const override { return budget; }
  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    std::shared_ptr<Kernel> kernel = device_->prepare(request);
    return make_kernel(
        [this, kernel, op = request.op.name](const KernelArguments& arguments) {
          const auto work = [this, kernel, op, arguments] {
            before_kernel(op);
            kernel->run(arguments);
          };
          if (kept_ != nullptr) return kept_->push_back(work);
          ++launches;
          work();
        },
        kernel->workspace_bytes());
  }
  std::unique_ptr<Recording> record(const std::function<void()>& body) override {
    class Replayed final : public Recording {
     public:
      explicit Replayed(Watched& device) : device_(device) {}
      void replay() override {
        ++device_.replays;
        for (const auto& work : works) work();
      }
      std::vector<std::function<void()>> works;

     private:
      Watched& device_;
    };
    if (!records) return nullptr;
    ++recordings;
    auto recording = std::make_unique<Replayed>(*this);
    kept_ = &recording->works;
    body();
    kept_ = nullptr;
    return recording;
  }
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override {
    device_->copy_in(to, host, bytes);
  }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    device_->copy_out(host, from, bytes);
  }

 private:
  std::shared_ptr<Device> device_ = make_reference_device();
  std::vector<std::function<void()>>* kept_ = nullptr;  // where a recording keeps what is launched
};

// loss = Σ (x wᵀ)², one step of SGD with an lr that is an input.
Graph trained_matrix(DType compute = DType::f32) {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {compute, {4, 6}});
  const ValueId w = b.parameter("w", {DType::f32, {6, 6}}, {Initial::Kind::normal, 0.5});
  const ValueId used =
      compute == DType::f32 ? w : b.call("cast", {w}, {{"dtype", std::string(name_of(compute))}});
  const ValueId y = b.call("linear", {x, used});
  const ValueId loss =
      b.call("sum", {b.call("square", {y})}, {{"dims", std::vector<int64_t>{0, 1}}, {"dtype", "f32"}});
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss);
  b.set_phase(Phase::update);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true);
  const auto norm = b.call_all(op_named("global_norm"), {gradients.at(w)}, {{"max_norm", 0.0}});
  b.call_all(op_named("sgd"), {w, kAbsent, gradients.at(w), lr, norm[1]},
             {{"momentum", 0.0}, {"weight_decay", 0.0}, {"nesterov", false}});
  return graph;
}

void write_inputs(Executor& executor) {
  for (int m = 0; m < executor.program().microbatches; ++m)
    executor.write("x", wave({DType::f32, {4, 6}}, 0.5 + m), m);
  executor.write("lr", Tensor::of<float>({0.01F}, {}));
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

TEST_CASE("a step allocates nothing", "[executor]") {
  for (const auto& device : {make_cpu_device(), make_reference_device()}) {
    INFO(device->name());
    Executor executor(lower_single(fuse(trained_matrix(DType::bf16)), 3),
                      std::make_shared<StateStore>(device, 1));
    write_inputs(executor);
    executor.run();  // a thread's first work may make what it keeps
    allocations = 0;
    counting = true;
    for (int step = 0; step < 3; ++step) executor.run();
    counting = false;
    CHECK(allocations == 0);
    counting = true;
    const std::vector<int> more(100);
    counting = false;
    CHECK(allocations == 1);
  }
}

TEST_CASE("a step of a GPT allocates nothing", "[executor]") {
  Tensor tokens(TensorType{DType::i32, {2, 16}});
  for (int64_t i = 0; i < tokens.elements(); ++i) tokens.set(i, static_cast<double>(i * 7 % 11));
  Executor executor(lower_single(fuse(testing::trained_gpt({2, 16, 24, 3, 11, 2})), 2),
                    std::make_shared<StateStore>(make_cpu_device(), 1));
  for (int m = 0; m < 2; ++m) {
    executor.write("tokens", tokens, m);
    executor.write("labels", tokens, m);
  }
  executor.write("scale", Tensor::of<float>({1.0F / 64}, {1}));
  executor.write("lr", Tensor::of<float>({1e-3F}, {}));
  executor.write("step", Tensor::of<int64_t>({1}, {}));
  executor.run();
  allocations = 0;
  counting = true;
  for (int step = 0; step < 3; ++step) executor.run();
  counting = false;
  CHECK(allocations == 0);
}

TEST_CASE("what depends on state alone is computed once, and again when the state changes", "[executor]") {
  const Program program = lower_single(fuse(trained_matrix(DType::bf16)), 2);
  REQUIRE(program.prologue > 0);
  Program always = program;
  always.prologue = 0;
  const auto device = std::make_shared<Watched>();
  int casts = 0;
  device->before_kernel = [&](std::string_view op) { casts += op == "cast"; };
  Executor once(program, std::make_shared<StateStore>(device, 1)), each(always, reference_state());
  const auto run = [&](Executor& executor) {
    write_inputs(executor);
    REQUIRE(executor.run());
    return executor.read("loss").at(0);
  };
  double last = 1e300;
  for (int step = 0; step < 4; ++step) {
    const double loss = run(once);
    CHECK(loss == run(each));
    CHECK(loss < last);
    last = loss;
  }
  for (Executor* executor : {&once, &each}) executor->state().write("w", wave({DType::f32, {6, 6}}, 0.2));
  CHECK(run(once) == run(each));

  // Evaluation changes no state: the weights are cast in its first run alone.
  Graph graph;
  GraphBuilder b(graph);
  const ValueId w = b.parameter("w", {DType::f32, {6, 6}}, {});
  b.output("y",
           b.call("linear", {b.input("x", {DType::bf16, {4, 6}}), b.call("cast", {w}, {{"dtype", "bf16"}})}));
  Executor evaluation(lower_single(graph), std::make_shared<StateStore>(device, 1));
  evaluation.write("x", wave({DType::f32, {4, 6}}, 0.5));
  casts = 0;
  for (int i = 0; i < 3; ++i) evaluation.run();
  CHECK(casts == 1);
  evaluation.state().write("w", wave({DType::f32, {6, 6}}, 0.2));
  evaluation.run();
  CHECK(casts == 2);
}

TEST_CASE(
    "what depends on state and a number of the step is computed once a step, whatever the micro-batches",
    "[executor]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::bf16, {4, 6}});
  const ValueId step = b.input("step", {DType::i64, {}}, true);
  const ValueId w = b.parameter("w", {DType::f32, {6, 6}}, {Initial::Kind::normal, 0.5});
  const ValueId copy = b.call("stochastic_cast", {w, step}, {{"seed", int64_t{1}}, {"stream", int64_t{2}}});
  b.output("y", b.call("sum", {b.call("linear", {x, copy})}, {{"dtype", "f32"}}));
  const Program program = lower_single(graph, 3);
  CHECK(verify(program).empty());
  CHECK(program.prologue == 0);  // whose state may stay the same from step to step
  const auto device = std::make_shared<Watched>();
  int casts = 0;
  device->before_kernel = [&](std::string_view op) { casts += op == "stochastic_cast"; };
  Executor executor(program, std::make_shared<StateStore>(device, 1));
  for (int m = 0; m < 3; ++m) executor.write("x", wave({DType::f32, {4, 6}}, 0.5 + m), m);
  const auto at = [&](double number) {
    Tensor counter({DType::i64, {}});
    counter.set(0, number);
    executor.write("step", counter);
    REQUIRE(executor.run());
    return executor.read("y").at(0);
  };
  const double first = at(1), second = at(2);
  CHECK(casts == 2);
  CHECK(first != second);
  CHECK(at(1) == first);
}

TEST_CASE("a stop that comes when the update has begun does not stop the next step", "[executor]") {
  const auto device = std::make_shared<Watched>();
  Executor executor(lower_single(trained_matrix()), std::make_shared<StateStore>(device, 1));
  write_inputs(executor);
  const auto before = values_of(executor.state().read("w"));
  device->before_kernel = [&](std::string_view op) {
    if (op == "sgd") executor.request_stop();
  };
  CHECK(executor.run());
  CHECK(values_of(executor.state().read("w")) != before);
  CHECK(executor.run());
}

TEST_CASE("a step is recorded when it has run and replayed from then on, with the same results",
          "[executor]") {
  const auto recording = std::make_shared<Watched>(), plain = std::make_shared<Watched>();
  recording->records = true;
  const Program program = lower_single(fuse(trained_matrix(DType::bf16)), 2);
  REQUIRE(program.prologue > 0);
  const int all = static_cast<int>(program.instructions.size());
  Executor replayed(program, std::make_shared<StateStore>(recording, 1)),
      launched(program, std::make_shared<StateStore>(plain, 1));
  for (int step = 0; step < 5; ++step) {
    for (Executor* executor : {&replayed, &launched}) {
      write_inputs(*executor);
      executor->write("x", wave({DType::f32, {4, 6}}, 0.1 * step), 1);
      REQUIRE(executor->run());
    }
    CHECK(replayed.read("loss").at(0) == launched.read("loss").at(0));
    CHECK(values_of(replayed.state().read("w")) == values_of(launched.state().read("w")));
  }
  // Every step changes the weights, so that all begin with the prologue: it, what follows up to the update,
  // and the update are recordings.
  REQUIRE(program.prologue > 1);
  CHECK(recording->recordings == 3);
  CHECK(recording->replays == 3 * 4);
  CHECK(recording->launches == all);
  CHECK(plain->launches == 5 * all);

  // What looks at each instruction by itself launches each by itself.
  replayed.run_timed();
  CHECK(recording->launches == 2 * all);
  CHECK(replayed.find_non_finite().empty());
  CHECK(recording->launches > 2 * all);
  CHECK(recording->replays == 3 * 4);
}

TEST_CASE("the prologue has a recording of its own", "[executor]") {
  const auto device = std::make_shared<Watched>();
  device->records = true;
  Graph graph;
  GraphBuilder b(graph);
  ValueId y = b.input("x", {DType::bf16, {4, 6}});
  for (const char* name : {"w", "v"}) {
    const ValueId weight = b.parameter(name, {DType::f32, {6, 6}}, {Initial::Kind::normal, 0.5});
    y = b.call("linear", {y, b.call("cast", {weight}, {{"dtype", "bf16"}})});
  }
  b.output("y", y);
  Executor evaluation(lower_single(graph), std::make_shared<StateStore>(device, 1));
  evaluation.write("x", wave({DType::f32, {4, 6}}, 0.5));
  const auto result = [&] {
    REQUIRE(evaluation.run());
    return values_of(evaluation.read("y"));
  };
  const auto first = result();
  CHECK(device->launches == 4);  // two casts and two products
  for (int replays = 1; replays <= 2; ++replays) {
    CHECK(result() == first);  // recorded behind the prologue
    CHECK(device->replays == replays);
  }
  CHECK(device->recordings == 2);
  evaluation.state().write("w", wave({DType::f32, {6, 6}}, 0.2));
  const auto changed = result();
  CHECK(changed != first);
  CHECK(device->replays == 4);
  CHECK(result() == changed);
  CHECK(device->replays == 5);
  CHECK(device->launches == 4);
}

TEST_CASE("a stop that was asked for before a replay is honoured", "[executor]") {
  const auto device = std::make_shared<Watched>();
  device->records = true;
  Executor executor(lower_single(trained_matrix()), std::make_shared<StateStore>(device, 1));
  write_inputs(executor);
  for (int step = 0; step < 3; ++step) REQUIRE(executor.run());
  const auto before = values_of(executor.state().read("w"));
  executor.request_stop();
  CHECK_FALSE(executor.run());
  CHECK(values_of(executor.state().read("w")) == before);
  CHECK(device->replays == 3 * 2);  // what depends on state alone, up to the update, and the update
  CHECK(executor.run());
  CHECK(values_of(executor.state().read("w")) != before);
  CHECK(device->replays == 3 * 3);
}

TEST_CASE("another program on the same state is recorded anew", "[executor]") {
  std::vector<double> weights[2];
  for (const bool records : {false, true}) {
    const auto device = std::make_shared<Watched>();
    device->records = records;
    const auto state = std::make_shared<StateStore>(device, 1);
    int recorded[2];
    for (const int microbatches : {1, 2}) {  // as a new plan would have it
      const int before = device->recordings;
      Executor executor(lower_single(trained_matrix(), microbatches), state);
      write_inputs(executor);
      for (int step = 0; step < 3; ++step) REQUIRE(executor.run());
      recorded[microbatches - 1] = device->recordings - before;
    }
    CHECK(recorded[0] == (records ? 3 : 0));  // from state alone, up to the update, the update
    CHECK(recorded[1] == recorded[0]);
    weights[records] = values_of(state->read("w"));
  }
  CHECK(weights[0] == weights[1]);
}

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

TEST_CASE("a product whose result nobody else needs is its own gelu", "[executor][cuda]") {
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

// AdamW of parameters of several shapes, whose gradients are inputs; `apart`: each has an input of its own
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

TEST_CASE("a timed run counts as a run, a search for what is not finite does not", "[executor]") {
  Executor executor(lower_single(trained_matrix()), reference_state());
  write_inputs(executor);
  CHECK(executor.run());
  const double once = executor.usage().seconds;
  executor.run_timed();
  CHECK(executor.usage().runs == 2);
  CHECK(executor.usage().seconds > once);
  const double twice = executor.usage().seconds;
  CHECK(executor.find_non_finite().empty());
  CHECK(executor.usage().runs == 2);
  CHECK(executor.usage().seconds == twice);
}

TEST_CASE("an executor whose state was dropped refuses to run, and its memory stays", "[executor]") {
  const auto state = reference_state();
  Executor executor(lower_single(trained_matrix()), state);
  write_inputs(executor);
  REQUIRE(executor.run());
  const TensorType type = state->entries().at("w").type;
  state->drop("w");
  for (const bool made_again : {false, true}) {
    if (made_again) state->write("w", Tensor::zeros(type));
    CHECK_THROWS_WITH(executor.run(), Catch::Contains("'w' was dropped from the state"));
    CHECK_THROWS_WITH(executor.run_timed(), Catch::Contains("'w' was dropped from the state"));
    CHECK_THROWS_WITH(executor.find_non_finite(), Catch::Contains("'w' was dropped from the state"));
  }
  write_inputs(executor);
  Executor next(lower_single(trained_matrix()), state);
  write_inputs(next);
  CHECK(next.run());
}

TEST_CASE("a program of absurdly many micro-batches is refused before it is written", "[executor]") {
  CHECK_THROWS_WITH(lower_single(trained_matrix(), 1 << 30), Catch::Contains("are available"));
  Graph graph;
  GraphBuilder builder(graph);
  builder.output("y", builder.call("relu", {builder.input("x", {DType::f64, {int64_t{1} << 48}})}));
  CHECK_THROWS_WITH(lower_single(graph, 1 << 15), Catch::Contains("no machine holds them"));
}

TEST_CASE("a model must fit in what the device allows, not in what the machine has", "[executor]") {
  const auto device = std::make_shared<Watched>();
  device->available = int64_t{64} << 20;
  device->budget = 100;
  const Program program = lower_single(trained_matrix());
  CHECK_THROWS_WITH(Executor(program, std::make_shared<StateStore>(device, 1)),
                    Catch::Contains("100 B are available on watched (of its 64 MiB, the rest is promised"));
  device->budget = 100000;
  CHECK_NOTHROW(Executor(program, std::make_shared<StateStore>(device, 1)));
  device->budget = device->available = 100;
  CHECK_THROWS_WITH(Executor(program, std::make_shared<StateStore>(device, 1)),
                    Catch::Contains("100 B are available on watched; a smaller"));
}

TEST_CASE("at the prompt the kernels used last are kept, and no more", "[eager]") {
  class Counting final : public Device {
   public:
    int prepared = 0;
    std::string name() const override { return device_->name(); }
    std::unique_ptr<Memory> allocate(int64_t bytes) override { return device_->allocate(bytes); }
    int64_t available_bytes() const override { return device_->available_bytes(); }
    std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
      ++prepared;
      return device_->prepare(request);
    }
    void copy_in(std::byte* to, const std::byte* host, int64_t n) override { device_->copy_in(to, host, n); }
    void copy_out(std::byte* host, const std::byte* from, int64_t n) override {
      device_->copy_out(host, from, n);
    }

   private:
    std::shared_ptr<Device> device_ = make_reference_device();
  };
  const auto device = std::make_shared<Counting>();
  Eager eager(device, 2);
  const Tensor x = Tensor::of<float>({1, 2}, {2});
  const auto scaled = [&](double factor) {
    return values_of(eager.call(op_named("scale"), {x}, {{"factor", factor}})[0])[1];
  };
  CHECK(scaled(1) == 2);
  CHECK(scaled(2) == 4);
  CHECK(scaled(1) == 2);
  CHECK(device->prepared == 2);
  CHECK(scaled(3) == 6);  // takes the place of 2, the one used longest ago
  CHECK(scaled(1) == 2);
  CHECK(device->prepared == 3);
  CHECK(scaled(2) == 4);
  CHECK(device->prepared == 4);
}

TEST_CASE("the gradient of a sum keeps no constant of the full shape", "[executor]") {
  const std::string op = GENERATE("sum", "mean");
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f64, {8, 16, 32}});
  const ValueId w = b.parameter("w", {DType::f64, {32}}, {Initial::Kind::normal, 1});
  const ValueId y = b.call("mul", {x, w});
  const ValueId rows = b.call(op, {y}, {{"dims", std::vector<int64_t>{0, -1}}});
  const ValueId loss = b.call(op, {b.call("square", {rows})});
  b.output("loss", loss);
  b.output("dw", differentiate(graph, loss).at(w));
  const bool fused = GENERATE(false, true);
  const Program program = lower_single(fused ? fuse(graph) : graph);
  CHECK(memory_of(program).persistent < 8 * 8 * 16 * 32 / 8);
  Executor executor(program, reference_state());
  const Tensor values = wave({DType::f64, {8, 16, 32}}, 0.1);
  executor.write("x", values);
  executor.run();
  // d/dw_k Σ_t (Σ_bk x_btk w_k)² = Σ_t 2 (Σ_bk x_btk w_k) Σ_b x_btk, over the counts for the mean.
  const auto weights = values_of(executor.state().read("w")), found = values_of(executor.read("dw"));
  const double count = op == "mean" ? 8 * 32 : 1, steps = op == "mean" ? 16 : 1;
  for (int64_t k = 0; k < 32; ++k) {
    double expected = 0;
    for (int64_t t = 0; t < 16; ++t) {
      double row = 0, column = 0;
      for (int64_t s = 0; s < 8; ++s) {
        column += values.at((s * 16 + t) * 32 + k);
        for (int64_t j = 0; j < 32; ++j) row += values.at((s * 16 + t) * 32 + j) * weights[j];
      }
      expected += 2 * row * column / (count * count * steps);
    }
    CHECK(found[k] == Approx(expected).epsilon(1e-9).margin(1e-12));
  }
}
