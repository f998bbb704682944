#include "planner/step_parts.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "planner/explain.h"
#include "planner/what_if.h"
#include "tests/unit/planner/planned.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

constexpr double kLayer = 2e-3 + kLaunchSeconds;  // a forward, or half a backward, at 1 TFLOP/s

Request request_of(std::vector<Machine> nodes, Model model, int batch, Link between) {
  Request request;
  request.cluster.types = {plain_type("unit", 1, 16), plain_type("half", 0.5, 16)};
  request.cluster.nodes = std::move(nodes);
  request.cluster.between = between;
  request.model = std::move(model);
  request.batch = batch;
  return request;
}

// The parts of each stage, which add up to the step; none is negative.
std::vector<StepParts> checked_parts(const Request& request, const Planned& planned) {
  const std::vector<StepParts> all = parts_of_stages(request, planned);
  REQUIRE(all.size() == planned.best.simulation.stages.size());
  for (const StepParts& parts : all) {
    INFO(to_text(parts));
    CHECK(parts.total() == Approx(planned.best.simulation.seconds).epsilon(1e-9));
    for (const StepPart& part : step_parts()) CHECK(parts.*part.seconds >= 0);
  }
  return all;
}

bool has(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const WhatIf* find(const std::vector<WhatIf>& all, WhatIf::Kind kind) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const WhatIf& what) { return what.kind == kind; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("a step of equal stages goes to compute and to the bubble") {
  const Request request = request_of({plain_machine("a", "unit", 4)}, plain_model(4, 1), 6, {0, 1e15});
  PlanLayout layout;
  layout.pipelines = {{6, {{0, 0, 0, 1}, {0, 0, 1, 1}, {0, 0, 2, 1, true}, {0, 0, 3, 1}}}};
  Planned planned = planned_of(request, layout);
  for (const StepParts& parts : checked_parts(request, planned)) {
    CHECK(parts.compute == Approx(6 * 3 * kLayer));
    CHECK(parts.bubble + parts.again + parts.update == Approx(parts.total() - parts.compute));
  }
  CHECK(parts_of_stages(request, planned)[2].again == Approx(6 * kLayer));
  CHECK(slowest_stage(planned.best.simulation) == 2);

  layout.pipelines[0].microbatches = 1;
  planned = planned_of(request, layout);
  const std::vector<StepParts> alone = checked_parts(request, planned);
  CHECK(what_binds(alone[0]) == std::vector<std::string_view>{"bubble"});
  // Of 13 forwards, or as long, that one micro-batch takes, the slowest device computes 4.
  const PlanReport report = explain(request, planned);
  CHECK(report.slowest == "a:2");
  CHECK(report.devices[2].why.find("bubble: 69 % of the step") == 0);
  CHECK(report.devices[2].busy_share < 0.5);
}

TEST_CASE("transfers take as long as the step is longer than without them") {
  const Request slow = request_of({plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)},
                                  plain_model(2, 1), 4, {1e-3, 1e8});
  Request fast = slow;
  fast.cluster.between = {0, 1e15};
  PlanLayout layout;
  layout.pipelines = {{4, {{0, 0, 0, 1}, {1, 0, 1, 1}}}};
  for (const bool blocking : {false, true}) {
    Request request = slow, other = fast;
    request.runtime.blocking = other.runtime.blocking = blocking;
    const Planned planned = planned_of(request, layout);
    const double without = planned_of(other, layout).best.simulation.seconds;
    for (const StepParts& parts : checked_parts(request, planned))
      CHECK(parts.transfers == Approx(planned.best.simulation.seconds - without).epsilon(1e-6));
  }
}

TEST_CASE("replicas exchange gradients beside nothing, and the faster waits for the slower") {
  // 4e7 parameters: 160 MB of gradients over 1 GB/s.
  const Request request = request_of({plain_machine("a", "unit", 1), plain_machine("b", "half", 1)},
                                     plain_model(4, 1e7), 4, {1e-5, 1e9});
  PlanLayout layout;
  layout.pipelines = {{2, {{0, 0, 0, 4}}}, {2, {{1, 0, 0, 4}}}};
  for (const bool sharded : {false, true}) {
    layout.sharded_optimizer = sharded;
    const Planned planned = planned_of(request, layout);
    const std::vector<StepParts> parts = checked_parts(request, planned);
    // The slower one's; the faster exchanges its last layers while the slower still computes.
    CHECK(parts[1].gradients + parts[1].gather == Approx(planned.best.simulation.exposed_seconds));
    CHECK(parts[0].gradients > parts[1].gradients);
    CHECK((parts[0].gather > 0) == sharded);
    CHECK(parts[0].waiting > 0);
    CHECK(parts[1].waiting == Approx(0).margin(1e-6));
    CHECK(has(what_binds(parts[1]), "gradients"));
  }
}

TEST_CASE("parts add up to the step under every schedule, degree and exchange") {
  Request request = request_of({plain_machine("a", "unit", 8), plain_machine("b", "half", 4, 2)},
                               plain_model(8, 1e6), 16, {1e-4, 1e9});
  for (Machine& node : request.cluster.nodes) node.inside = {1e-5, 1e10};
  request.model.kinds[0].tensor_reductions = 2;
  for (const bool mesh : {false, true})
    for (const int tensor : {1, 2})
      for (const auto& [schedule, chunks] : {std::pair{Schedule::one_f_one_b, 1},
                                             {Schedule::gpipe, 1},
                                             {Schedule::split_backward, 1},
                                             {Schedule::interleaved, 2}}) {
        request.cluster.mesh = mesh;
        PlanLayout layout;
        layout.tensor = tensor;
        layout.microbatch = 2;
        layout.schedule = schedule;
        layout.chunks = chunks;
        layout.sharded_optimizer = tensor == 2;
        for (const int host : {0, 1}) {
          PipelineLayout pipeline{4, {}};
          for (int s = 0; s < 4; ++s) {
            const bool first = chunks == 1 ? s < 2 : s % 2 == 0;
            pipeline.stages.push_back({first ? 0 : 1, first ? 0 : host, 2 * s, 2});
          }
          if (chunks == 1) {
            pipeline.stages[0].layers = 1;
            pipeline.stages[1].layers = 3;
            number_layers(pipeline.stages);
          }
          layout.pipelines.push_back(pipeline);
        }
        INFO(name_of(schedule) << ", tensor " << tensor << ", mesh " << mesh);
        const std::vector<StepParts> parts = checked_parts(request, planned_of(request, layout));
        CHECK((parts[0].tensor > 0) == (tensor == 2));
      }
}

TEST_CASE("the link that would have to be faster is named") {
  Request request = request_of(
      {plain_machine("a", "unit", 1), plain_machine("b", "unit", 1), plain_machine("c", "unit", 1)},
      plain_model(3, 1), 8, {1e-6, 1e12});
  for (size_t n = 0; n < 3; ++n) request.cluster.nodes[n].zone = request.cluster.nodes[n].hosts[0];
  request.cluster.zone_links = {{"b", "c", {1e-6, 1.25e7}}};
  PlanLayout layout;
  layout.pipelines = {{8, {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 0, 2, 1}}}};
  const Planned planned = planned_of(request, layout);
  const PlanReport report = explain(request, planned);
  const std::string text = to_text(report);
  INFO(text);
  REQUIRE_FALSE(report.helps.empty());
  CHECK(report.helps[0].kind == WhatIf::Kind::link);
  CHECK(report.helps[0].from == "b");
  CHECK(report.helps[0].to == "c");
  CHECK(text.find("the link between b and c (100 Mbit/s) twice as fast: ") != std::string::npos);
  CHECK(has(report.binds, "transfers"));
  request.cluster.zone_links[0].link.bytes_per_second *= 2;
  CHECK(report.helps[0].step_seconds == Approx(planned_of(request, layout).best.simulation.seconds));
}

TEST_CASE("a link that sets the pace of stages that compute most of the step binds it") {
  Request request = request_of({plain_machine("a", "unit", 4), plain_machine("b", "unit", 4)},
                               plain_model(8, 1), 64, {1e-6, 1e12});
  PlanLayout layout;
  layout.warmup = 1;
  for (int p = 0; p < 4; ++p) layout.pipelines.push_back({16, {{0, 0, 0, 4}, {1, 0, 4, 4}}});
  const auto at = [&](double bytes_per_second) {
    request.cluster.between.bytes_per_second = bytes_per_second;
    return explain(request, planned_of(request, layout));
  };
  // A boundary in four fifths of what a stage takes for a micro-batch forward and backward, of four
  // pipelines.
  const double stage = at(1e12).devices[0].busy_share * at(1e12).step_seconds / 16;
  const double bytes = request.model.kinds[0].boundary_bytes;
  const PlanReport fast = at(1e12), slow = at(4 * bytes / (1.1 * stage));
  INFO(to_text(fast) << to_text(slow));
  CHECK(fast.binds == std::vector<std::string_view>{"compute"});
  CHECK(slow.parts.compute > 0.6 * slow.step_seconds);
  CHECK(slow.parts.transfers < kBinds * slow.step_seconds);
  CHECK(slow.binds[0] == "transfers");
}

TEST_CASE("machines that are alike are named once, and the slowest of several links is said") {
  Request request = request_of({plain_machine("n", "unit", 1, 4)}, plain_model(4, 1e6), 4, {1e-6, 1.25e7});
  PlanLayout layout;
  for (int host = 0; host < 4; ++host) layout.pipelines.push_back({1, {{0, host, 0, 4}}});
  const std::string one = to_text(explain(request, planned_of(request, layout)));
  INFO(one);
  CHECK(one.find("the links among n1 ... n4 (100 Mbit/s) twice as fast: ") != std::string::npos);
  request.cluster.nodes.push_back(plain_machine("z", "unit", 1, 4));
  request.cluster.nodes[0].zone = "n";
  request.cluster.nodes[1].zone = "z";
  request.cluster.zone_links = {
      {"n", "n", {1e-6, 1.25e7}}, {"z", "z", {1e-6, 1.25e7}}, {"n", "z", {1e-6, 1.25e7}}};
  request.batch = 8;
  for (int host = 0; host < 4; ++host) layout.pipelines.push_back({1, {{1, host, 0, 4}}});
  const Planned planned = planned_of(request, layout);
  const std::string several = to_text(explain(request, planned));
  INFO(several);
  CHECK(
      several.find("all links between machines twice as fast (the slowest: among n1 ... n4, 100 Mbit/s): ") !=
      std::string::npos);
  CHECK(explain(request, planned, false).helps.empty());
}

TEST_CASE("more micro-batches and memory that would help are said, with what lacks") {
  Request request = request_of({plain_machine("a", "unit", 2)}, plain_model(8, 1, 1e9), 4, {0, 1e15});
  request.cluster.types[0].memory_bytes = 12e9;
  PlanLayout layout;
  layout.microbatch = 2;
  layout.pipelines = {{2, {{0, 0, 0, 4, true}, {0, 0, 4, 4, true}}}};
  const Planned planned = planned_of(request, layout);
  REQUIRE(planned.best.simulation.fits);
  const PlanReport report = explain(request, planned);
  INFO(to_text(report));
  const WhatIf* smaller = find(report.helps, WhatIf::Kind::microbatch);
  REQUIRE(smaller != nullptr);
  CHECK(smaller->words == "micro-batches of 1 instead of 2");
  CHECK(smaller->lacks_bytes == 0);
  const WhatIf* kept = find(report.helps, WhatIf::Kind::recompute);
  REQUIRE(kept != nullptr);
  CHECK(kept->lacks_bytes > 1e9);
  CHECK(has(report.binds, "memory"));
  CHECK(to_text(report).find("memory (without recompute: ") != std::string::npos);
  const WhatIf* batch = find(report.helps, WhatIf::Kind::batch);
  REQUIRE(batch != nullptr);
  CHECK(batch->gain > 0.1);
}
