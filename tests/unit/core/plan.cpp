#include "core/plan/plan.h"

#include <catch2/catch.hpp>

using namespace het;

TEST_CASE("the single-device plan of a batch is valid and prints as Lua") {
  const PlanSubject subject{6, 12};
  const Plan plan = single_device_plan(subject, 4);
  CHECK(validate(plan, subject).empty());
  CHECK(plan.pipelines[0].microbatches == 3);
  CHECK(to_lua(plan) ==
        "het.plan { tensor = 1, microbatch = 4,\n"
        "  het.pipeline { microbatches = 3, het.stage { \"here:0\", layers = 6 } },\n}");
}

TEST_CASE("a plan with several mistakes names them all") {
  Plan plan;
  plan.tensor = 2;
  plan.microbatch = 5;
  plan.pipelines = {{1, {{{"a:0"}, 0, 3}, {{"a:0", "b:0"}, 4, 4}}}, {0, {}}};
  const auto problems = validate(plan, {8, 12});
  const auto has = [&](const std::string& text) {
    for (const auto& problem : problems)
      if (problem.find(text) != std::string::npos) return true;
    return false;
  };
  CHECK(has("1 devices for tensor = 2"));
  CHECK(has("begins at layer 4, the stage before it ends at layer 3"));
  CHECK(has("a:0 is already used by pipeline 1, stage 1"));
  CHECK(has("pipeline 2 has no stage"));
  CHECK(has("microbatches = 0"));
  CHECK(has("run 5 samples in a step"));
}
