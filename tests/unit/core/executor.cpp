#include "core/program/executor.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/eager.h"
#include "kernels/cpu/device.h"
#include "tests/unit/core/trained_matrix.h"

using namespace het;
using namespace het::testing;

namespace {

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

}  // namespace

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

TEST_CASE("the prologue has a separate recording", "[executor]") {
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

TEST_CASE("another program on the same state is recorded again", "[executor]") {
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
