#include "core/program/state.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/base/elapsed.h"
#include "core/io/safetensors.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;

TEST_CASE("what was saved with another shape or of another kind is refused") {
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, {{"short", Tensor::zeros({DType::f32, {3}})},
                           {"whole", Tensor::zeros({DType::i32, {4}})},
                           {"half", Tensor::of<float>({1, 2, 3, 4}, {4}).to(DType::bf16)}});
  const StoredSafetensors file = open_safetensors(path);
  const auto state = reference_state(3);
  for (const auto& [name, tensor] : file.tensors) state->set_initial(name, tensor);
  const auto error = [&](const std::string& name) {
    return error_of([&] { state->require({name, {DType::f32, {4}}, Home::state}); });
  };
  CHECK_THAT(error("short"), Catch::Contains("'short' is f32[3] where it was saved, the model needs f32[4]"));
  CHECK_THAT(error("whole"), Catch::Contains("'whole' is i32[4] where it was saved"));
  CHECK(error("half") == "none");
  CHECK(values_of(state->read("half")) == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("a copy of a state stays as it was, and its memory is used again once it is released") {
  const auto state = reference_state(3);
  state->write("a", Tensor::of<float>({1, 2, 3}, {3}));
  state->write("b", Tensor::of<int64_t>({7}, {1}));
  auto copy = state->copy();
  CHECK(copy->done());
  state->write("a", Tensor::of<float>({4, 5, 6}, {3}));
  Tensor a = copy->read("a");
  CHECK(values_of(a) == std::vector<double>{1, 2, 3});
  CHECK(values_of(copy->read("b")) == std::vector<double>{7});
  CHECK(copy->entries().at("b").type == TensorType{DType::i64, {1}});
  CHECK(state->bytes() == 3 * 4 + 8);
  CHECK_THAT(error_of([&] { copy->read("c"); }), Catch::Contains("there is no state named 'c'"));

  const std::byte* first = a.bytes();
  copy = nullptr;  // `a` still holds its memory
  CHECK(state->copy()->read("a").bytes() != first);
  CHECK(values_of(a) == std::vector<double>{1, 2, 3});
  const std::byte* second = state->copy()->read("a").bytes();
  CHECK(state->copy()->read("a").bytes() == second);
  state->write("longer", Tensor::zeros({DType::f32, {100}}));
  CHECK(values_of(state->copy()->read("longer")) == std::vector<double>(100, 0));
  CHECK(values_of(state->copy()->read("a")) == std::vector<double>{4, 5, 6});
}

TEST_CASE("a state says how long its steps have waited for copies") {
  const auto state = reference_state(3);
  state->write("a", Tensor::of<float>({1, 2, 3}, {3}));
  state->await_copies();
  const double before = state->seconds_waited();
  constexpr std::chrono::milliseconds kHeld{30};
  auto copy = state->read_in_place();
  std::thread holder([&] {
    std::this_thread::sleep_for(kHeld);
    copy.reset();
  });
  const double began = steady_seconds();
  state->await_copies();
  const double passed = steady_seconds() - began;
  holder.join();
  CHECK(state->seconds_waited() - before <= passed);
  CHECK(state->seconds_waited() - before >= 0.5 * passed);
}

TEST_CASE("what changes a state waits until none reads it in place") {
  const auto state = reference_state(3);
  const auto value = [](double first) { return Tensor::of<float>({static_cast<float>(first), 2, 3}, {3}); };
  state->write("a", value(0));
  for (int round = 1; round <= 20; ++round) {
    auto first = state->read_in_place(), second = state->read_in_place();
    CHECK(first->read("a").bytes() == state->view("a").bytes());
    CHECK(first->version() == state->version());
    std::atomic<bool> begun = false;
    std::thread writer([&] {
      begun = true;
      if (round % 2 == 0)
        state->write("a", value(round));
      else
        state->install("a", {}, false, value(round));
    });
    while (!begun) std::this_thread::yield();
    second.reset();
    for (int i = 0; i < 1000; ++i) {
      std::this_thread::yield();
      if (values_of(first->read("a"))[0] != round - 1) break;
    }
    const double seen = values_of(first->read("a"))[0];
    first.reset();
    writer.join();
    CHECK(seen == round - 1);
    CHECK(values_of(state->read("a"))[0] == round);
  }
}
