// Plans that were really run, by the authors of Sailor (eth-easl/sailor, MIT): seconds of a step and memory
// on GH200 nodes, with the profile of the same machines. The files lie beside the repository or where
// HETRUN_MEASURED says; without them their test says so and passes. Readers, mixed types and mistakes are
// tested through the program, in tests/planning.
#include "planner/measured/measured.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "planner/measured/links.h"
#include "planner/measured/memory.h"

using namespace het;
using namespace het::planner;

namespace {

std::string data_folder() {
  if (const char* given = std::getenv("HETRUN_MEASURED"); given != nullptr) return given;
  std::filesystem::path at = std::filesystem::current_path();
  for (int up = 0; up < 6; ++up, at = at.parent_path())
    if (std::filesystem::exists(at / "shared/data/measured/plans"))
      return (at / "shared/data/measured").string();
  return {};
}

}  // namespace

TEST_CASE(
    "measured plans are predicted within 10 % and their memory within 15 %, save what its profile "
    "contradicts") {
  const std::string folder = data_folder();
  if (folder.empty()) {
    WARN("skipped: no measured plans beside the repository; set HETRUN_MEASURED to their folder");
    return;
  }
  MeasuredRequest request;
  request.profiles = folder + "/profiles";
  request.model_info = folder + "/model_info.json";
  request.plans = folder + "/plans";
  const MeasuredReport report = simulate_measured(request);
  CHECK(report.problems.empty());
  REQUIRE(report.plans.size() == 15);
  int judged = 0;
  for (const MeasuredPlan& plan : report.plans) {
    INFO(plan.name << ": predicted " << plan.seconds << " s and " << plan.memory_bytes << " bytes");
    REQUIRE(plan.problems.empty());
    CHECK(std::abs(plan.memory_error()) <= kMemoryAsked);
    // Micro-batches of 1 took longer in the profile than in the run, and longer than micro-batches of 2.
    CHECK(plan.contradicts == (plan.microbatch == 1));
    if (plan.contradicts) continue;
    ++judged;
    CHECK(std::abs(plan.error()) <= kSecondsAsked);
  }
  CHECK(judged == 11);
}

namespace {

// Three blocks of attention that writes its scores (8 outputs large) between an embedding and a last layer.
std::vector<LayerSize> with_last(LayerSize last) {
  const double unit = 1e6;
  const LayerSize block{12e6, 24 * unit, unit, unit};
  return {{50e6, unit, unit, 1e3}, block, block, block, last};
}
GpuMemory memory_of(const std::vector<LayerSize>& layers, int microbatches) {
  GpuStage stage;
  stage.layers = &layers;
  stage.count = static_cast<int>(layers.size());
  stage.microbatch = 4;
  stage.microbatches = microbatches;
  stage.types = {"A100-40"};
  return gpu_memory(stage);
}

}  // namespace

TEST_CASE("the allocator reserves whole segments", "[memory]") {
  constexpr double kMiB = 1024 * 1024;
  CHECK(segment_bytes(0) == 0);
  CHECK(segment_bytes(1) == 2 * kMiB);
  CHECK(segment_bytes(kMiB) == 2 * kMiB);
  CHECK(segment_bytes(kMiB + 1) == 20 * kMiB);
  CHECK(segment_bytes(10 * kMiB) == 10 * kMiB);
  CHECK(segment_bytes(10 * kMiB + 1) == 12 * kMiB);
}

TEST_CASE("logits are those of the last layer, of its input, or of the embedding", "[memory]") {
  CHECK(logits_bytes(with_last({50e6, 80e6, 40e6, 41e6}), 1) == 40e6);      // a classifier returns them
  CHECK(logits_bytes(with_last({4e3, 43e6, 1e6, 41e6}), 1) == 40e6);        // a loss has them as its input
  CHECK(logits_bytes(with_last({4e3, 2e6, 1e6, 2e6}), 1) == Approx(50e6));  // 50e6 x 12 / 12e6 outputs
  CHECK(logits_bytes(with_last({50e6, 2e6, 1e6, 2e6}), 1) == 0);            // nothing shows them
  CHECK(logits_bytes({{50e6, 1e6, 1e6, 0}}, 1) == 0);
}

TEST_CASE("one stage without a pipeline has the loss's workspace", "[memory]") {
  const auto segments = [](double bytes) { return segment_bytes(bytes * 4); };
  // The classifier's sizes have logits and softmax: those of the micro-batch before are beside them.
  const auto classifier = with_last({50e6, 81e6, 40e6, 41e6});
  CHECK(memory_of(classifier, 1).loss == 0);
  CHECK(memory_of(classifier, 2).loss == segments(40e6));
  // A last layer that keeps the softmax alone lacks the logits too.
  CHECK(memory_of(with_last({4e3, 41e6, 1e6, 41e6}), 2).loss == segments(80e6));
  GpuStage inner;
  inner.layers = &classifier;
  inner.first = 1;
  inner.count = 3;
  CHECK(gpu_memory(inner).loss == 0);
}

TEST_CASE("going back, attention that writes its scores has two gradients of their size", "[memory]") {
  const auto layers = with_last({50e6, 81e6, 40e6, 41e6});
  // Kept: 24 outputs, 4 + 12 of them beside the scores. Output, input, scores, probabilities, and 4 outputs.
  CHECK(memory_of(layers, 1).backward == Approx(4 * (2 + 2 * 8 + 4) * 1e6));
  auto flash = layers;
  for (LayerSize& layer : flash) layer.activation_bytes = std::min(layer.activation_bytes, 16e6);
  CHECK(memory_of(flash, 1).backward == Approx(4 * (2 + 8) * 1e6));
}

TEST_CASE("gradients are exchanged in buckets of at most 500 million elements", "[memory]") {
  auto layers = with_last({50e6, 81e6, 40e6, 41e6});
  CHECK(memory_of(layers, 1).flat_gradients == segment_bytes(136e6 * 4));
  layers[0].parameters = 900e6;
  CHECK(memory_of(layers, 1).flat_gradients == segment_bytes(500e6 * 4));
  CHECK(memory_of(layers, 1).state == Approx(986e6 * 16));
}

TEST_CASE("a ranking that other links would change is said, with the pairs and the fastest plan") {
  const auto plan = [](const char* name, double seconds, std::vector<double> with) {
    MeasuredPlan made;
    made.name = name;
    made.model = "m";
    made.batch = 8;
    made.seconds = seconds;
    for (const double other : with) made.links.cases.push_back({other < seconds ? 1.4 : 0.7, 1, other});
    return made;
  };
  // Two thirds of b are transfers. c is always the slowest; d is as fast as a, and so has no order with it.
  std::vector<MeasuredPlan> plans = {plan("a", 1.0, {1.01, 0.99}), plan("b", 1.1, {1.4, 0.88}),
                                     plan("c", 3.0, {3.1, 2.9}), plan("d", 1.005, {1.01, 0.99})};
  plans.push_back(plans[0]);
  plans.back().name = "of another batch";
  plans.back().batch = 16;
  plans.push_back(plans[1]);
  plans.back().problems = {"has none"};
  const std::vector<Ranking> rankings = rank(plans);
  REQUIRE(rankings.size() == 1);
  CHECK(rankings[0].plans == 4);
  CHECK(rankings[0].pairs == 5);
  CHECK(rankings[0].fastest == "a");
  CHECK(rankings[0].depends_on_links());
  REQUIRE(rankings[0].cases.size() == 2);
  CHECK(rankings[0].cases[0].changed == 0);
  CHECK(rankings[0].cases[1].changed == 2);
  CHECK(rankings[0].cases[1].fastest == "b");
  CHECK(to_text(rankings[0]) ==
        "the ranking of the 4 plans of m with batch 8 depends on link speeds: with bandwidth x 1.4 2 of 5 "
        "pairs "
        "change their order, and b is the fastest instead of a");
  plans[1].links.cases[1].seconds = 1.05;
  CHECK_FALSE(rank(plans)[0].depends_on_links());
}

TEST_CASE("links between machines are the published ones, by types, regions and GPUs that send at once") {
  const auto rate = [](const char* a, const char* b, const char* zone_b, int pairs, double bytes) {
    const PublishedLink link = published_link(a, "us-central1-a", b, zone_b, pairs, bytes);
    CHECK_FALSE(link.assumed);
    return link.link.bytes_per_second;
  };
  // log2(64 MB / 1 MB) = 6: -0.1657 * 36 + 2.79431 * 6 + 11.7441.
  CHECK(rate("GH-96", "GH-96", "us-central1-a", 1, 64e6) == Approx(22.54476e9));
  CHECK(rate("GH-96", "GH-96", "us-central1-a", 4, 64e6) > 80e9);
  CHECK(rate("GH-96", "GH-96", "us-central1-a", 1, 10) == Approx(11.7441e9));
  CHECK(rate("GH-96", "GH-96", "us-central1-a", 1, 1e12) <= 22.93e9);
  CHECK(rate("A100-40", "V100-16", "us-central1-b", 4, 32e6) ==
        rate("V100-16", "A100-40", "us-central1-c", 4, 32e6));
  CHECK(rate("A100-40", "V100-16", "us-central1-a", 1, 32e6) <
        rate("A100-40", "V100-16", "us-central1-a", 4, 32e6));
  CHECK(rate("A100-40", "V100-16", "us-west1-b", 4, 32e6) < 1.1e9);
  CHECK(rate("Titan-RTX", "RTX-3090", "us-central1-a", 8, 32e6) < 0.12e9);
  // Four GPUs of a GH200 node have four times what one has; of others they share a connection's worth or two.
  CHECK(published_interfaces("GH-96") == 4);
  for (const char* type : {"A100-40", "V100-16", "RTX-3090", "RTX-2080", "Titan-RTX", "B300"})
    CHECK(published_interfaces(type) == 1);
  const PublishedLink unknown = published_link("A", "x", "B", "x", 1, 1e6);
  CHECK(unknown.assumed);
  CHECK(unknown.link.bytes_per_second == kAssumedBandwidth);
}
