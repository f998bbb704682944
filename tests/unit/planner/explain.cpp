#include "planner/explain.h"

#include <catch2/catch.hpp>

#include "planner/autohet/parts.h"
#include "tests/unit/planner/planned.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

TEST_CASE("a plan is explained device by device, with its money and its distance from the bound") {
  Request request;
  request.cluster = cluster_of({{"A100-80", 2}, {"H20", 2}});
  request.cluster.nodes[0].price_per_hour = 4;
  request.cluster.nodes[1].price_per_hour = 2;
  request.model = known_model("gpt3-6.7b");
  request.batch = 32;
  const Planned planned = plan_with(request, "auto");
  REQUIRE(planned.feasible);
  const PlanReport report = explain(request, planned);
  REQUIRE(report.devices.size() + report.idle.size() == 4);
  for (const DeviceReport& device : report.devices) {
    INFO(device.device);
    CHECK(device.busy_share > 0);
    CHECK(device.busy_share <= 1);
    CHECK(device.free_bytes >= 0);
    CHECK_FALSE(device.why.empty());
  }
  CHECK(report.gap >= 0);
  CHECK(report.tokens_per_second == Approx(32 * 2048 / report.step_seconds));
  CHECK(report.price_per_billion_tokens ==
        Approx(report.price_per_hour * 1e9 / report.tokens_per_second / 3600));
  CHECK(report.layers_estimated > 0);
  CHECK(report.layers_measured == 0);
  const std::string text = to_text(report);
  for (const char* part :
       {"pipeline 1", "A100-80", "tokens/s", "no plan takes less than", "for a billion tokens"})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("a plan says of each device type what was measured") {
  Request request;
  request.cluster = cluster_of({{"A100-80", 1}, {"H20", 1}});
  request.model = known_model("gpt3-6.7b");
  request.batch = 32;
  request.profile.model = request.model.name;
  for (const int microbatch : {2, 4})
    request.profile.points.push_back(
        {"block", "A100-80", 1, microbatch, 0.01 * microbatch, 0.01 * microbatch, 0.01 * microbatch, 0.001});
  request.profile.links = {{"A100-80", "a", "a", {{1e6, 1e-4}}}};
  const auto layers = request.model.count();
  for (const int microbatch : {1, 2}) {
    PlanLayout layout;
    layout.microbatch = microbatch;
    layout.pipelines = {{32 / microbatch, {{0, 0, 0, 20}, {1, 0, 20, layers - 20}}}};
    const PlanReport report = explain(request, planned_of(request, layout));
    REQUIRE(report.sources.size() == 2);
    CHECK(report.sources[0].type == "A100-80");
    CHECK(report.sources[0].layers_measured == (microbatch == 2 ? layers - 2 : 0));
    CHECK(report.sources[0].layers_interpolated == 0);
    CHECK(report.sources[0].layers_extrapolated == (microbatch == 1 ? layers - 2 : 0));
    CHECK(report.sources[0].layers_calibrated == 2);
    CHECK(report.sources[0].calibrated_by == "block");
    CHECK(report.sources[0].layers_estimated == 0);
    CHECK(report.sources[0].link_measured);
    CHECK(report.sources[1].layers_estimated == layers);
    CHECK_FALSE(report.sources[1].link_measured);
    const std::string text = to_text(report);
    CHECK(text.find("estimated from the data sheet; link measured") != std::string::npos);
    CHECK(text.find("2 from the data sheet calibrated by block, 0 estimated") != std::string::npos);
    CHECK((text.find("32 extrapolated beyond the sizes measured") != std::string::npos) == (microbatch == 1));
    CHECK(text.find("layer times on H20: 0 measured, 0 interpolated, 34 estimated") != std::string::npos);
  }
}

TEST_CASE("what a device that is full or slow is bound by is named") {
  Request request;
  request.cluster.types = {plain_type("slow", 1, 64), plain_type("full", 10, 0.5)};
  request.cluster.nodes = {plain_machine("a", "slow", 1), plain_machine("b", "full", 1)};
  request.cluster.between = {1e-5, 1e10};
  request.model = plain_model(8, 1.2e7, 2e7);
  request.batch = 16;
  const Planned planned = plan_with(request, "auto");
  REQUIRE(planned.feasible);
  const PlanReport report = explain(request, planned);
  INFO(to_text(report));
  bool compute = false, memory = false;
  for (const DeviceReport& device : report.devices) {
    compute = compute || device.why.find("compute") == 0;
    memory = memory || device.why.find("memory: another layer takes") == 0;
  }
  CHECK(compute);
  CHECK(memory);
}

TEST_CASE("a device of an interleaved plan is explained by all the layers that it holds") {
  Request request;
  request.cluster.types = {plain_type("unit", 1, 64), plain_type("full", 1, 0.3)};
  request.cluster.nodes = {plain_machine("a", "full", 1), plain_machine("b", "unit", 1)};
  request.cluster.between = {1e-5, 1e10};
  request.model = plain_model(8, 3e6);
  request.batch = 4;
  PlanLayout layout;
  layout.schedule = Schedule::interleaved;
  layout.chunks = 2;
  layout.pipelines = {{4, {{0, 0, 0, 2, true}, {1, 0, 2, 1}, {0, 0, 3, 3}, {1, 0, 6, 2}}}};
  const Planned planned = planned_of(request, layout);
  const PlanReport report = explain(request, planned);
  REQUIRE(report.devices.size() == 2);
  int layers = 0;
  for (const DeviceReport& device : report.devices)
    for (const StageLayout& chunk : device.chunks) layers += chunk.layers;
  CHECK(layers == request.model.count());
  CHECK(report.devices[0].device == "a:0");
  CHECK(show_layers(report.devices[0].chunks) == "0-1, 3-5");
  CHECK(show_layers(report.devices[1].chunks) == "2-2, 6-7");
  // a sets the pace; four layers on b would still take less than its five.
  CHECK(report.devices[0].why.find("compute") == 0);
  CHECK(report.devices[1].why.find("whole layers") == std::string::npos);
  const std::string text = to_text(report);
  INFO(text);
  CHECK(text.find("0-1, 3-5") != std::string::npos);
  CHECK(text.find("recomputes 0-1; compute") != std::string::npos);
}

TEST_CASE("bandwidths are shown in bits") {
  CHECK(show_bandwidth(1.25e9) == "10 Gbit/s");
  CHECK(show_bandwidth(300e9) == "2.4 Tbit/s");
  CHECK(show_bandwidth(40) == "320 bit/s");
}

TEST_CASE("a plan names the links that the cluster does not state") {
  Request request;
  request.cluster.types = {plain_type("unit", 1, 64)};
  request.cluster.nodes = {plain_machine("a", "unit", 1, 2), plain_machine("b", "unit", 1)};
  request.cluster.nodes[0].zone = "x";
  request.cluster.nodes[1].zone = "y";
  request.cluster.zone_links = {{"x", "x", {50e-6, 1.25e9}, true}, {"y", "x", {20e-6, 25e9}}};
  request.model = plain_model(3);
  request.batch = 4;
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 0, 2, 1}}}};
  const PlanReport report = explain(request, planned_of(request, layout));
  CHECK(report.links_assumed == 1);
  CHECK(report.links_stated == 1);
  REQUIRE(report.links.size() == 2);
  CHECK(report.links[0].source == "assumed");
  CHECK(report.links[1].source == "stated");
  const std::string text = to_text(report);
  INFO(text);
  CHECK(text.find(
            "links between hosts: 0 measured, 1 as the cluster states them, 1 assumed: 10 Gbit/s, 50 us") !=
        std::string::npos);
}

TEST_CASE("a part of the cluster that is as fast and cheaper is found, by price or by devices") {
  Request request;
  request.cluster.types = {plain_type("unit", 1, 64), plain_type("half", 0.5, 64)};
  request.cluster.nodes = {plain_machine("a", "unit", 4), plain_machine("b", "half", 4)};
  request.cluster.nodes[0].price_per_hour = 1;
  request.cluster.nodes[1].price_per_hour = 10;
  request.cluster.between = {1e-5, 1e10};
  request.model = plain_model(8);
  request.batch = 8;
  // A replica on each device: the slow ones set the pace.
  PlanLayout layout;
  for (const int node : {0, 0, 0, 0, 1, 1, 1, 1}) layout.pipelines.push_back({1, {{node, 0, 0, 8}}});
  const Planned answer = planned_of(request, layout);
  auto cheaper = find_cheaper(request, answer);
  REQUIRE(cheaper);
  CHECK(cheaper->by_price);
  CHECK(cheaper->devices == 4);
  CHECK(cheaper->answer_devices == 8);
  CHECK(cheaper->price == Approx(1.0 / 11));
  CHECK(cheaper->speed >= 1);
  CHECK(cheaper->speed == Approx(answer.best.simulation.seconds / cheaper->seconds));
  for (const Pipeline& pipeline : cheaper->plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices) CHECK(device.find("a:") == 0);
  CHECK(to_text(*cheaper).find("cheaper: 4 devices where this plan has 8 reach ") == 0);
  CHECK(to_text(*cheaper).find(" of its speed at 9 % of its price: ") != std::string::npos);

  request.cluster.nodes[0].price_per_hour = 0;
  cheaper = find_cheaper(request, answer);
  REQUIRE(cheaper);
  CHECK_FALSE(cheaper->by_price);
  CHECK(cheaper->price == 0.5);

  // Where all devices are alike and busy, half of them take twice as long.
  request.cluster.nodes[1] = plain_machine("b", "unit", 4);
  CHECK_FALSE(find_cheaper(request, planned_of(request, layout)));
}
