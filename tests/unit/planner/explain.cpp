#include "planner/explain.h"

#include <catch2/catch.hpp>

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

TEST_CASE("what a device that is full or slow is bound by is named") {
  Request request;
  request.cluster.types = {plain_type("slow", 1, 64), plain_type("full", 10, 0.5)};
  request.cluster.nodes = {plain_node("a", "slow", 1), plain_node("b", "full", 1)};
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
