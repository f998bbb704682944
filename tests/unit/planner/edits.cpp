#include "planner/autohet/edits.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "planner/autohet/limits.h"
#include "planner/autohet/refine.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

// Two hosts of four fast devices and one of four slow ones.
Request small_request() {
  Request request;
  request.model = plain_model(12, 1e7, 4e7);
  request.cluster.types = {plain_type("fast", 3, 4), plain_type("slow", 1, 4)};
  request.cluster.nodes = {plain_machine("a", "fast", 4, 2), plain_machine("b", "slow", 4)};
  request.cluster.between = {1e-5, 1e10};
  request.batch = 32;
  return request;
}

// Pipelines 1 and 2 are alike but for their hosts.
PlanLayout three_pipelines() {
  PlanLayout layout;
  layout.microbatch = 2;
  layout.pipelines = {{6, {{0, 0, 0, 6}, {0, 0, 6, 6}}},
                      {6, {{0, 1, 0, 6}, {0, 1, 6, 6}}},
                      {4, {{1, 0, 0, 4}, {1, 0, 4, 4}, {1, 0, 8, 4}}}};
  return layout;
}

const Edit* find(const std::vector<Edit>& edits, const std::string& name) {
  const auto found =
      std::find_if(edits.begin(), edits.end(), [&](const Edit& edit) { return edit.name == name; });
  return found == edits.end() ? nullptr : &*found;
}

int samples_of(const PlanLayout& layout) {
  int samples = 0;
  for (const PipelineLayout& pipeline : layout.pipelines)
    samples += pipeline.microbatches * layout.microbatch;
  return samples;
}

void check_edits(const Request& request, const PlanLayout& layout) {
  Evaluator evaluator(request);
  for (const Edit& edit : edits_of(layout, evaluator)) {
    INFO(edit.name);
    CHECK_FALSE(edit.layout == layout);
    CHECK(samples_of(edit.layout) == request.batch);
    CHECK(validate(to_plan(edit.layout, request.cluster), {request.model.count(), request.batch}).empty());
  }
}

// The share of its time that the best edit gains.
double best_gain(const Request& request, const PlanLayout& layout) {
  Evaluator evaluator(request);
  const double seconds = evaluator.simulate(layout, "from").score;
  double gain = 0;
  for (Edit& edit : edits_of(layout, evaluator))
    gain = std::max(gain, 1 - evaluator.simulate(std::move(edit.layout), "edit").score / seconds);
  return gain;
}

}  // namespace

TEST_CASE("every edit is another valid plan of the same batch", "[edits]") {
  const Request request = small_request();
  PlanLayout layout = three_pipelines();
  check_edits(request, layout);
  layout.sharded_optimizer = true;
  layout.schedule = Schedule::split_backward;
  layout.warmup = 1;
  check_edits(request, layout);
  PlanLayout interleaved;
  interleaved.schedule = Schedule::interleaved;
  interleaved.chunks = 2;
  interleaved.microbatch = 2;
  interleaved.pipelines = {{16, {{0, 0, 0, 3}, {0, 1, 3, 4}, {0, 0, 7, 2}, {0, 1, 9, 3}}}};
  check_edits(request, interleaved);
  PlanLayout wide;
  wide.tensor = 4;
  wide.microbatch = 8;
  wide.pipelines = {{2, {{0, 0, 0, 12}}}, {2, {{0, 1, 0, 12}}}};
  check_edits(request, wide);
}

TEST_CASE("edits change one thing of a plan, and of pipelines that are alike the first or all", "[edits]") {
  const Request request = small_request();
  const PlanLayout layout = three_pipelines();
  Evaluator evaluator(request);
  const std::vector<Edit> edits = edits_of(layout, evaluator);
  for (const char* name :
       {"schedule split_backward", "schedule gpipe", "schedule 1f1b, warm-up 1",
        "micro-batches of 1 instead of 2", "micro-batches of 4 instead of 2", "all stages recompute",
        "sharded optimizer state", "without b", "without every slow", "without pipeline 3",
        "a micro-batch of pipeline 3 to 1", "recompute in stage 1 of pipeline 3"}) {
    INFO(name);
    CHECK(find(edits, name) != nullptr);
  }
  CHECK(find(edits, "a layer from stage 1 to 2 of pipeline 2") == nullptr);
  const Edit* first = find(edits, "a layer from stage 1 to 2 of pipeline 1");
  const Edit* all = find(edits, "a layer from stage 1 to 2 of pipeline 1 and all like it");
  REQUIRE(first != nullptr);
  REQUIRE(all != nullptr);
  PlanLayout moved = layout;
  moved.pipelines[0].stages = {{0, 0, 0, 5}, {0, 0, 5, 7}};
  CHECK(first->layout == moved);
  moved.pipelines[1].stages = {{0, 1, 0, 5}, {0, 1, 5, 7}};
  CHECK(all->layout == moved);
  PlanLayout halved = layout;
  halved.microbatch = 1;
  for (PipelineLayout& pipeline : halved.pipelines) pipeline.microbatches *= 2;
  CHECK(find(edits, "micro-batches of 1 instead of 2")->layout == halved);
}

TEST_CASE("edits keep to the sizes, degrees and extensions that the request allows", "[edits]") {
  Request request = small_request();
  request.microbatches = {2};
  request.tensors = {1};
  request.extensions = kPublished;
  Evaluator evaluator(request);
  for (const Edit& edit : edits_of(three_pipelines(), evaluator)) {
    INFO(edit.name);
    CHECK(edit.layout.microbatch == 2);
    CHECK(edit.layout.tensor == 1);
    CHECK(edit.layout.schedule == Schedule::one_f_one_b);
  }
}

TEST_CASE("a refined plan is beaten by no edit, a plan before it may be", "[edits]") {
  const Request request = small_request();
  PlanLayout poor = three_pipelines();
  poor.microbatch = 4;
  poor.pipelines[0].microbatches = poor.pipelines[1].microbatches = 3;
  poor.pipelines[2].microbatches = 2;
  REQUIRE(best_gain(request, poor) > 0.1);
  Evaluator evaluator(request);
  evaluator.submit(evaluator.simulate(poor, "poor"));
  const double before = evaluator.best_score();
  refine_best(evaluator, "refined");
  CHECK(evaluator.best().origin == "refined");
  CHECK(evaluator.best_score() < 0.8 * before);
  CHECK(best_gain(request, evaluator.best().layout) <= limits::refine::kGain);
}

TEST_CASE("without local search plans are not refined", "[edits]") {
  Request request = small_request();
  request.extensions.local_search = false;
  Evaluator evaluator(request);
  evaluator.submit(evaluator.simulate(three_pipelines(), "first"));
  refine_best(evaluator, "refined");
  CHECK(evaluator.best().origin == "first");
}
