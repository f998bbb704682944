// Plans over GPUs, ranks that are lost, and what is not finite.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/comm/loopback.h"
#include "core/graph/fuse.h"
#include "core/io/safetensors.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "kernels/cpu/device.h"
#include "planner/megatron/sharding.h"
#include "tests/emulated_cuda/reference_on_gpu.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/planner/distributed.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;
using namespace het::testing::distributed;

TEST_CASE("random plans train the same model from GPU to GPU, and on GPUs and processors", "[distributed]") {
  const bool mixed = GENERATE(false, true);
  const Graph models[] = {small_model(false, DType::f64), small_model(true, DType::f64)};
  for (unsigned seed = 101; seed < 107; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = with_a_host_for_each_stage(random_plan(random, kLayers, kSamples, true));
    const Graph& model = models[seed % 2];
    INFO("seed " << seed << (mixed ? ", mixed\n" : "\n") << to_lua(plan));
    const Verdict verdict =
        judge(model, plan, alone(model, microbatches_of(plan)), 1e-12, mixed ? On::either : On::gpus);
    CHECK(verdict.problem == "");
  }
}

TEST_CASE("a step between GPUs that loses a rank leaves the state of the others as it was", "[distributed]") {
  const Graph model = small_model(false, DType::f64);
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  plan.sharded_optimizer = GENERATE(false, true);
  Stage whole;
  whole.layers = kLayers;
  for (const char* device : {"d:0", "d:1"}) {
    whole.devices = {device};
    plan.pipelines.push_back({1, {whole}});
  }
  std::map<std::string, std::pair<Tensor, Tensor>> parameters;  // before and after
  std::string ended;
  const auto errors = on_ranks(
      lower_all(model, plan, true), std::chrono::seconds(60),
      [&](int rank, Executor& executor) {
        write_inputs(executor, 1, 2);
        executor.run();
        if (rank == 1) fail(ErrorKind::environment, "the machine was taken away");
        for (const auto& [name, entry] : executor.state().entries())
          parameters[name].first = executor.state().read(name);
        write_inputs(executor, 2, 2);
        try {
          executor.run();
        } catch (const Error& error) {
          HET_REQUIRE(error.kind() == ErrorKind::peer);
          ended = error.what();
        }
        for (const auto& [name, entry] : executor.state().entries())
          parameters[name].second = executor.state().read(name);
      },
      On::gpus);
  CHECK(errors[0] == "");
  CHECK_THAT(ended, Catch::Contains("lost rank 1 ("));
  CHECK(!parameters.empty());
  for (const auto& [name, values] : parameters) {
    INFO(name);
    CHECK(values_of(values.first) == values_of(values.second));
  }
}

TEST_CASE("ranks look for what is not finite together, and can go on afterwards", "[distributed]") {
  const Graph model = small_model(false, DType::f64);
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  plan.sharded_optimizer = GENERATE(false, true);
  const auto stage = [](const char* device, int first, int layers) {
    Stage stage;
    stage.devices = {device};
    stage.first_layer = first;
    stage.layers = layers;
    return stage;
  };
  plan.pipelines = {{2, {stage("d:0", 0, 3), stage("d:1", 3, kLayers - 3)}}, {1, {stage("d:2", 0, kLayers)}}};
  const std::string spoilt = GENERATE("parameter", "input");
  INFO((plan.sharded_optimizer ? "sharded optimizer, " : "") << spoilt);
  std::vector<std::string> found(3);
  std::vector<double> losses(3);
  std::array<bool, 3> counted{};
  const auto errors =
      on_ranks(lower_all(model, plan, true), std::chrono::seconds(10), [&](int rank, Executor& executor) {
        write_inputs(executor, 1, 3);
        const std::string weight = "blocks.0.up.weight";
        Tensor before;
        if (spoilt == "input" && rank == 2) executor.write("scale", Tensor::of<double>({NAN}, {1}));
        if (spoilt == "parameter" && rank == 0) {
          before = executor.state().read(weight);
          Tensor huge(before.type());
          for (int64_t i = 0; i < huge.elements(); ++i) huge.set(i, 1e250 * before.at(i));
          executor.state().write(weight, huge);
        }
        found[rank] = executor.find_non_finite();
        if (before.present()) executor.state().write(weight, before);
        write_inputs(executor, 1, 3);
        const double waited = executor.usage().waited;
        executor.run();
        losses[rank] = executor.read("loss").at(0);
        counted[rank] = waited == 0 && executor.usage().runs == 1 && executor.usage().waited > 0;
      });
  CHECK(errors == std::vector<std::string>(3));
  for (const bool right : counted) CHECK(right);
  const int finder = spoilt == "input" ? 2 : 0;
  CHECK_THAT(found[finder], Catch::Contains(spoilt == "input" ? "input 'scale' holds a value" : " gave "));
  for (int rank = 0; rank < 3; ++rank)
    if (rank != finder) CHECK_THAT(found[rank], Catch::StartsWith("another rank's part in "));
  for (const double loss : losses) CHECK(loss == Approx(alone(model, 3).losses[0]).epsilon(1e-12));
}

TEST_CASE("a rank reads of a saved model what it holds, and nothing else", "[distributed]") {
  const Graph graph = small_model(false, DType::f32);
  std::map<std::string, Tensor> saved;
  int64_t all = 0;
  for (const Value& value : graph.values) {
    if (value.role != Role::parameter && value.role != Role::buffer) continue;
    Tensor tensor = initial_tensor(value.name, value.type, {Initial::Kind::normal, 1}, 11);
    all += value.type.bytes();
    saved.emplace(value.name, std::move(tensor));
  }
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, saved);

  const auto stage = [](std::vector<std::string> devices, int first, int layers) {
    Stage stage;
    stage.devices = std::move(devices);
    stage.first_layer = first;
    stage.layers = layers;
    return stage;
  };
  Plan deep, wide, sharded;
  for (Plan* plan : {&deep, &wide, &sharded}) plan->microbatch = kSamples;
  deep.pipelines = {{2, {stage({"a"}, 0, 2), stage({"b"}, 2, 1), stage({"c"}, 3, 2), stage({"d"}, 5, 1)}}};
  wide.tensor = 4;
  wide.pipelines = {{2, {stage({"a", "b", "c", "d"}, 0, kLayers)}}};
  sharded.sharded_optimizer = true;
  sharded.tensor = 2;
  sharded.pipelines = {{1, {stage({"a", "b"}, 0, kLayers)}}, {1, {stage({"c", "d"}, 0, kLayers)}}};
  for (const Plan* plan : {&deep, &wide, &sharded}) {
    for (int rank = 0; rank < 4; ++rank) {
      const StoredSafetensors file = open_safetensors(path);
      const auto state = reference_state(3);
      for (const auto& [name, tensor] : file.tensors) state->set_initial(name, tensor);
      int64_t held = 0;
      for (const BufferSpec& buffer : lower(graph, *plan, rank, true).buffers) {
        if (buffer.home != Home::state) continue;
        state->require(buffer);
        const Tensor& whole = saved.at(buffer.name);
        const Tensor own = state->read(buffer.name),
                     wanted = buffer.slice ? take(whole, *buffer.slice) : whole;
        REQUIRE(own.type() == wanted.type());
        CHECK(std::memcmp(own.bytes(), wanted.bytes(), static_cast<size_t>(own.type().bytes())) == 0);
        held += own.type().bytes();
      }
      CHECK(file.bytes_read() == held);
      CHECK(state->bytes_restored() == held);
      CHECK(held < all / 2);
    }
  }
}
