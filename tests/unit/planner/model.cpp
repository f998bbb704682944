#include "planner/model/model.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

using namespace het;
using namespace het::planner;

TEST_CASE("known models have the parameters of their papers") {
  const auto billions = [](const char* name) { return total_parameters(known_model(name)) / 1e9; };
  // Input and output embeddings are counted apart, where GPT-3 and BERT share one: up to 4 % more.
  CHECK(billions("bert-large") == Approx(0.366).epsilon(0.02));
  CHECK(billions("gpt3-6.7b") == Approx(6.86).epsilon(0.01));
  CHECK(billions("gpt3-13b") == Approx(13.1).epsilon(0.01));
  CHECK(billions("llama2-7b") == Approx(6.74).epsilon(0.005));
  CHECK(billions("llama3-8b") == Approx(8.03).epsilon(0.005));
}

TEST_CASE("layers that are alike are stored once") {
  const Model model = known_model("gpt3-13b");
  CHECK(model.kinds.size() == 3);
  CHECK(model.count() == 42);
  CHECK(model.layer(0).name == "embedding");
  CHECK(model.layer(20).name == "block");
  CHECK(model.layer(41).name == "head");
  CHECK(validate(model).empty());
}

TEST_CASE("work of a whole model is close to 6 FLOP for each parameter and token, attention apart") {
  const Model model = known_model("bert-large");
  double flops = 0;
  for (int i = 0; i < model.count(); ++i) {
    const LayerKind& kind = model.layer(i);
    flops += kind.forward_flops + kind.input_flops + kind.weight_flops;
  }
  const double body = 24.0 * 12 * 1024 * 1024 + 30522.0 * 1024;
  CHECK(flops == Approx(6 * body * 512 + 24 * 12.0 * 512 * 512 * 1024).epsilon(0.01));
}

TEST_CASE("an impossible transformer gets every reason, a misspelt one the nearest name") {
  try {
    transformer({"bad", 0, 100, 7, 7, 0, 10, 10});
    FAIL("accepted");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("layers = 0") != std::string::npos);
    CHECK(text.find("ffn = 0") != std::string::npos);
  }
  CHECK_THROWS_WITH(transformer({"bad", 1, 100, 7, 7, 1, 10, 10}),
                    Catch::Contains("heads = 7 does not divide width"));
  CHECK_THROWS_WITH(known_model("lama2-7b"), Catch::Contains("did you mean \"llama2-7b\"?"));
}

TEST_CASE("a model with impossible figures is refused") {
  Model model = known_model("llama2-7b");
  model.kinds[1].forward_flops = -1;
  model.layers[3] = 9;
  CHECK(validate(model).size() == 2);
}
