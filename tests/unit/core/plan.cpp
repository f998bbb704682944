#include "core/plan/plan.h"

#include <catch2/catch.hpp>

#include <fmt/format.h>

using namespace het;

TEST_CASE("a stage's sharding decides how it is cut, and prints as it is written") {
  Plan plan;
  plan.tensor = 2;
  plan.pipelines = {{1, {{{"a:0", "a:1"}, 0, 2}, {{"b:0", "b:1"}, 2, 2}}}};
  CHECK(has_uniform_cut(plan));
  plan.sharding = along_one_axis({{{"*.weight", 0, {}}}, {{"tokens", 0, {}}}, {}});
  CHECK(has_uniform_cut(plan));
  plan.pipelines[0].stages[1].sharding =
      along_one_axis({{{"norm", -1, {}}, {"qkv", 0, {16, 16, 16}}}, {}, {{"a linear", "replicated"}}});
  CHECK_FALSE(has_uniform_cut(plan));
  CHECK(validate(plan, {4, 1}).empty());
  CHECK_THAT(
      to_lua(plan),
      Catch::Contains("sharding = { state = { [\"*.weight\"] = 0 }, inputs = { [\"tokens\"] = 0 } },"));
  CHECK_THAT(
      to_lua(plan),
      Catch::Contains(
          "sharding = { state = { [\"norm\"] = \"replicated\", [\"qkv\"] = { dim = 0, segments = { 16, "
          "16, 16 } } }, nodes = { [\"a linear\"] = \"replicated\" } }, layers = 2"));
  plan.sequence = true;
  plan.pipelines[0].stages[0] = {{"a:0"}, 0, 2, false, 1, {1}, along_one_axis({})};
  const std::vector<std::string> problems = validate(plan, {4, 1});
  REQUIRE(problems.size() == 3);
  CHECK(problems[0] ==
        "pipeline 1, stage 1: sharding says how layers are cut, and it has one device; remove it");
  CHECK_THAT(problems[1],
             Catch::Contains("pipeline 1, stage 2: sequence = true divides Megatron's activations"));
  CHECK(problems[2] ==
        "sharding says how layers are cut, and no stage without a `sharding` has several devices; remove it");
}

TEST_CASE("the devices of a stage lie over the axes of a mesh, and those of a stage of one device do not") {
  Plan plan;
  AxisSharding batch{{}, {{"tokens", 0, {}}}, {}}, odd{{{"a\"b\\", 1, {}}, {"c", 0, {}}}, {}, {}};
  plan.sharding = StageSharding{{{"data", {1, 1}, batch}, {"model", {6, 2}, odd}}};
  plan.pipelines = {{1, {{{"a:0", "a:1", "a:2", "a:3"}, 0, 2}, {{"b:0"}, 2, 2, false, 1, {1}}}}};
  CHECK(validate(plan, {4, 1}).empty());
  const StageCut cut = cut_of(plan, plan.pipelines[0].stages[0]);
  CHECK(cut.parts() == 4);
  CHECK(cut.axes[0].shares == Shares{1, 1});
  CHECK(cut.axes[1].shares == Shares{3, 1});
  CHECK(cut.coordinate(1, 0) == 0);
  CHECK(cut.coordinate(2, 0) == 1);
  CHECK(cut.coordinate(3, 1) == 1);
  CHECK_FALSE(cut.is_megatron());
  CHECK(cut_of(plan, plan.pipelines[0].stages[1]).parts() == 1);
  CHECK_THAT(to_lua(plan),
             Catch::Contains("sharding = { mesh = { data = 2, model = { 6, 2 } }, state = { "
                             "[\"a\\\"b\\\\\"] = { model = 1 }, [\"c\"] = { model = 0 } }, inputs = { "
                             "[\"tokens\"] = { data = 0 } } },"));
  std::swap(plan.sharding->axes[0], plan.sharding->axes[1]);
  CHECK_THAT(to_lua(plan), Catch::Contains("mesh = { { \"model\", { 6, 2 } }, { \"data\", 2 } }"));
  plan.sequence = true;  // no axis is Megatron's
  REQUIRE(validate(plan, {4, 1}).size() == 1);
  CHECK_THAT(validate(plan, {4, 1})[0], Catch::Contains("sequence = true divides Megatron's activations"));
  plan.sharding->axes[0].sharding.reset();
  CHECK(validate(plan, {4, 1}).empty());
}

TEST_CASE("what is wrong with the mesh of a stage is named") {
  Plan plan;
  plan.tensor = 2;
  plan.sharding = StageSharding{{{"data", {1}, {}}, {"data", {3, 0}, {}}}};
  plan.pipelines = {{1, {{{"a:0", "a:1", "a:2"}, 0, 4, false, 1, {1, 1, 1}}}}};
  const auto problems = validate(plan, {4, 1});
  const std::string where = "pipeline 1, stage 1: ";
  CHECK(
      problems ==
      std::vector<std::string>{
          "tensor = 2 beside a mesh, whose axes say how many devices share a layer; leave tensor out",
          where + "axis data of the mesh has 1 part; leave it out",
          where + "axis data of the mesh: share 0 leaves devices idle",
          where + "two axes of the mesh are called data",
          where + "tensor = 3 beside a mesh, whose axes say how many devices share a layer; leave tensor out",
          where + "mesh = { data = 1, data = { 3, 0 } } needs 2 devices, there are 3"});
  plan.sharding->axes.push_back({"more", {1, 1}, {}});
  CHECK(validate(plan, {4, 1})[1] == where + "the mesh has 3 axes; one or two work");
}

TEST_CASE("a plan for one device is valid and prints as Lua") {
  const PlanSubject subject{6, 12};
  Plan plan;
  plan.microbatch = 4;
  plan.pipelines = {{3, {{{"here:0"}, 0, 6}}}};
  CHECK(validate(plan, subject).empty());
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
  CHECK(has("1 device for tensor = 2"));
  CHECK(has("begins at layer 4, the stage before it ends at layer 3"));
  CHECK(has("a:0 is already used by pipeline 1, stage 1"));
  CHECK(has("pipeline 2 has no stage"));
  CHECK(has("microbatches = 0"));
  CHECK(has("run 5 samples in a step"));
}

TEST_CASE("a plan that leaves layers out gets an error that lists the layers") {
  Plan plan;
  plan.pipelines = {{1, {{{"a:0"}, 0, 4}}}};
  const auto problem = [&](std::vector<std::string> names) {
    return validate(plan, {static_cast<int>(names.size()), 1, names}).at(0);
  };
  CHECK(problem({"embedding", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"}) ==
        "pipeline 1: its stages hold 4 layers, the model has 6 (embedding, blocks.0, ..., blocks.3, head)");
  CHECK(problem({"embedding", "blocks.0", "head"}) ==
        "pipeline 1: its stages hold 4 layers, the model has 3 (embedding, blocks.0, head)");
  plan.pipelines[0].stages[0].layers = 0;
  CHECK(problem({"model"}) ==
        "pipeline 1, stage 1: layers = 0; a stage holds at least 1, and the model has 1 (model); "
        "self.builder:begin_layer(\"name\") in the forward of an nn.layer begins another");
}

TEST_CASE("a long pipeline is written in lines of at most 110 characters, none of them for nothing") {
  Plan plan;
  plan.pipelines.resize(1);
  for (int s = 0; s < 12; ++s) plan.pipelines[0].stages.push_back({{fmt::format("rack{}:0", s)}, s, 1});
  const std::string text = to_lua(plan);
  std::vector<size_t> widths;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    widths.push_back(end - at);
  REQUIRE(widths.size() == 7);  // the head, and two stages a line
  for (const size_t width : widths) CHECK(width <= 110);
  const size_t stage = std::string_view("het.stage { \"rack0:0\", layers = 1 }, ").size();
  for (size_t i = 1; i + 2 < widths.size(); ++i) CHECK(widths[i] + stage > 110);
}

TEST_CASE(
    "schedule, warm-up and placed optimizer state print as Lua, and only where they differ from the "
    "default") {
  Plan plan;
  plan.microbatch = 2;
  plan.warmup = 1;
  plan.sharded_optimizer = true;
  plan.unlike_devices = true;
  plan.pipelines = {{2, {{{"a:0"}, 0, 3, false, 4}, {{"a:1"}, 3, 1, true, 0}}}, {1, {{{"b:0"}, 0, 4}}}};
  CHECK(validate(plan, {4, 6}).empty());
  CHECK(
      to_lua(plan) ==
      "het.plan { tensor = 1, microbatch = 2, warmup = 1, sharded_optimizer = true, unlike_devices = true,\n"
      "  het.pipeline { microbatches = 2, het.stage { \"a:0\", layers = 3, optimizer_share = 4 },\n"
      "    het.stage { \"a:1\", layers = 1, recompute = true, optimizer_share = 0 } },\n"
      "  het.pipeline { microbatches = 1, het.stage { \"b:0\", layers = 4 } },\n}");
}

TEST_CASE("stages share their layers over devices of their own number, by shares") {
  Plan plan;
  plan.tensor = 2;
  plan.pipelines = {{1, {{{"a:0", "a:1"}, 0, 2}, {{"a:2"}, 2, 2}}}, {1, {{{"b:0", "b:1"}, 0, 4}}}};
  plan.pipelines[0].stages[1].shares = {1};
  plan.pipelines[1].stages[0].shares = {3, 1};
  CHECK(validate(plan, {4, 2}).empty());
  CHECK_FALSE(has_uniform_cut(plan));
  CHECK(to_lua(plan) ==
        "het.plan { tensor = 2, microbatch = 1,\n"
        "  het.pipeline { microbatches = 1, het.stage { \"a:0\", \"a:1\", layers = 2 },\n"
        "    het.stage { \"a:2\", tensor = 1, layers = 2 } },\n"
        "  het.pipeline { microbatches = 1, het.stage { \"b:0\", \"b:1\", tensor = { 3, 1 }, layers = 4 } "
        "},\n}");
  plan.pipelines[1].stages[0].shares = {3, 0};
  REQUIRE(validate(plan, {4, 2}).size() == 1);
  CHECK(validate(plan, {4, 2})[0] ==
        "pipeline 2, stage 1: share 0 leaves b:1 idle; leave it out of the stage");
  plan.pipelines[1].stages[0].shares = {0, 0};
  CHECK(validate(plan, {4, 2}) ==
        std::vector<std::string>{
            "pipeline 2, stage 1: tensor = { 0, 0 }: shares are all 0; each is at least 1"});
  plan.shares = {0, 0};
  CHECK(validate(plan, {4, 2})[0] == "tensor = { 0, 0 }: shares are all 0; each is at least 1");
  plan.shares.clear();
  plan.pipelines[1].stages[0].shares = {3, 1, 1};
  REQUIRE(validate(plan, {4, 2}).size() == 1);
  CHECK(validate(plan, {4, 2})[0] ==
        "pipeline 2, stage 1: 2 devices for 3 shares, { 3, 1, 1 }; each device of a stage has one share");
  plan.pipelines[1].stages[0].shares = {1, 1, 1};
  CHECK(validate(plan, {4, 2})[0] ==
        "pipeline 2, stage 1: 2 devices for 3 equal shares; each device of a stage has one share");
  plan.pipelines[1].stages[0].shares = {1, 1};
  plan.pipelines[0].stages[1].shares = {};
  plan.pipelines[0].stages[1].devices = {"a:2", "a:3"};
  CHECK(has_uniform_cut(plan));
  plan.shares = {2, 1};
  CHECK_FALSE(has_uniform_cut(plan));  // one stage has other shares
  CHECK(to_lua(plan).find("het.plan { tensor = { 2, 1 },") == 0);
}

TEST_CASE("interleaved stages share devices; other schedules may not") {
  Plan plan;
  plan.schedule = Schedule::interleaved;
  plan.chunks = 2;
  plan.pipelines = {{2, {{{"a:0"}, 0, 1}, {{"a:1"}, 1, 1}, {{"a:0"}, 2, 1}, {{"a:1"}, 3, 1}}}};
  CHECK(validate(plan, {4, 2}).empty());
  plan.pipelines[0].microbatches = 3;
  REQUIRE(validate(plan, {4, 3}).size() == 1);
  CHECK(validate(plan, {4, 3})[0].find("a multiple of its 2 device groups") != std::string::npos);
  plan.schedule = Schedule::gpipe;
  CHECK(validate(plan, {4, 3}).size() == 3);
}

TEST_CASE("optimizer state that lives nowhere is a mistake") {
  Plan plan;
  plan.sharded_optimizer = true;
  plan.pipelines = {{1, {{{"a:0"}, 0, 2, false, 0}, {{"a:1"}, 2, 2}}}, {1, {{{"b:0"}, 0, 4, false, 0}}}};
  const auto problems = validate(plan, {4, 2});
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].find("layer 0: every stage that holds it has optimizer_share = 0") == 0);
}
