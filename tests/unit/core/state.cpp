#include "core/program/state.h"

#include <catch2/catch.hpp>

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
  for (const auto& [name, tensor] : file.tensors) state->offer(name, tensor);
  const auto error = [&](const std::string& name) {
    return error_of([&] { state->require({name, {DType::f32, {4}}, Home::state}); });
  };
  CHECK_THAT(error("short"), Catch::Contains("'short' is f32[3] where it was saved, the model needs f32[4]"));
  CHECK_THAT(error("whole"), Catch::Contains("'whole' is i32[4] where it was saved"));
  CHECK(error("half") == "none");
  CHECK(values_of(state->read("half")) == std::vector<double>{1, 2, 3, 4});
}
