#include "tests/unit/planner/random_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "core/base/error.h"

namespace het::testing {
namespace {

// Every plan that has one thing less.
std::vector<Plan> simpler(const Plan& plan) {
  std::vector<Plan> plans;
  const auto add = [&](const auto& change) {
    Plan changed = plan;
    change(changed);
    if (changed != plan) plans.push_back(std::move(changed));
  };
  const auto each_stage = [](Plan& changed, const auto& change) {
    for (Pipeline& pipeline : changed.pipelines)
      for (Stage& stage : pipeline.stages) change(stage);
  };
  for (size_t p = 0; plan.pipelines.size() > 1 && p < plan.pipelines.size(); ++p)
    add([&](Plan& changed) { changed.pipelines.erase(changed.pipelines.begin() + static_cast<long>(p)); });
  add([&](Plan& changed) {
    changed.tensor = 1;
    changed.shares.clear();
    changed.sequence = false;
    each_stage(changed, [](Stage& stage) {
      stage.devices.resize(1);
      stage.shares.clear();
    });
  });
  if (!has_uniform_cut(plan))
    add([&](Plan& changed) {  // the first stage's everywhere
      const Shares first = tensor_shares(changed, changed.pipelines[0].stages[0]);
      each_stage(changed, [&](Stage& stage) {
        if (stage.devices.size() < first.size()) return;
        stage.devices.resize(first.size());
        stage.shares = first;
      });
    });
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; plan.chunks == 1 && s < plan.pipelines[p].stages.size(); ++s)
      if (plan.pipelines[p].stages[s].devices.size() > 1)
        add([&](Plan& changed) {
          changed.pipelines[p].stages[s].devices.resize(1);
          changed.pipelines[p].stages[s].shares = {1};
        });
  for (size_t p = 0; plan.chunks == 1 && p < plan.pipelines.size(); ++p)
    for (size_t s = 1; s < plan.pipelines[p].stages.size(); ++s)
      add([&](Plan& changed) {
        auto& stages = changed.pipelines[p].stages;
        stages[s - 1].layers += stages[s].layers;
        stages[s - 1].recompute = stages[s - 1].recompute || stages[s].recompute;
        stages.erase(stages.begin() + static_cast<long>(s));
      });
  add([](Plan& changed) { changed.sequence = false; });
  add([](Plan& changed) { changed.shares.clear(); });
  add([](Plan& changed) { changed.sharded_optimizer = false; });
  add([](Plan& changed) { changed.unlike_devices = false; });
  add([](Plan& changed) { changed.warmup = 0; });
  if (plan.chunks == 1)
    add([](Plan& changed) { changed.schedule = Schedule::one_f_one_b; });
  else
    add([](Plan& changed) {  // each device's stages become its first one; the last device has the layers that
                             // are left
      changed.schedule = Schedule::one_f_one_b;
      for (Pipeline& pipeline : changed.pipelines) {
        const size_t devices = pipeline.stages.size() / static_cast<size_t>(changed.chunks);
        const int layers = pipeline.stages.back().first_layer + pipeline.stages.back().layers;
        for (size_t s = devices; s < pipeline.stages.size(); ++s)
          if (pipeline.stages[s].recompute) pipeline.stages[s % devices].recompute = true;
        pipeline.stages.resize(devices);
        pipeline.stages.back().layers = layers - pipeline.stages.back().first_layer;
      }
      changed.chunks = 1;
    });
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    const int least = plan.chunks > 1 ? static_cast<int>(plan.pipelines[p].stages.size()) / plan.chunks : 1;
    for (const int fewer : {least, plan.pipelines[p].microbatches - least})
      if (fewer >= least && fewer < plan.pipelines[p].microbatches)
        add([&](Plan& changed) { changed.pipelines[p].microbatches = fewer; });
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      add([&](Plan& changed) { changed.pipelines[p].stages[s].recompute = false; });
      add([&](Plan& changed) { changed.pipelines[p].stages[s].optimizer_share = 1; });
    }
  }
  return plans;
}

}  // namespace

Plan random_plan(std::mt19937& random, int layers, int samples, bool uneven) {
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  Plan plan;
  plan.microbatch = samples;
  const int degrees[] = {1, 1, 2, 2, 4};
  plan.tensor = degrees[draw(0, 4)];
  const auto draw_shares = [&](int degree) {
    constexpr int64_t kUnits = 4;  // key heads of the models that random plans train: each rank has one
    for (;;) {
      Shares shares;
      for (int t = 0; t < degree; ++t) shares.push_back(draw(1, 3));
      const auto points = cut_points(kUnits, shares);
      if (std::adjacent_find(points.begin(), points.end()) == points.end()) return shares;
    }
  };
  if (uneven && plan.tensor > 1 && draw(0, 1) == 1) plan.shares = draw_shares(plan.tensor);
  const bool mixed = uneven && draw(0, 2) == 0;  // each group of devices has a separate degree and shares
  plan.sequence = (plan.tensor > 1 || mixed) && draw(0, 1) == 1;
  const Schedule schedules[] = {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved,
                                Schedule::split_backward};
  plan.schedule = schedules[draw(0, 3)];
  plan.chunks = plan.schedule == Schedule::interleaved ? 2 : 1;
  if (plan.schedule == Schedule::one_f_one_b || plan.schedule == Schedule::split_backward)
    plan.warmup = draw(0, 2);
  plan.sharded_optimizer = draw(0, 1) == 1;
  int device = 0;
  // Of devices that share layers.
  const int most_groups = mixed ? 4 : plan.tensor == 1 ? 9 : 8 / plan.tensor;
  int left = most_groups;
  const int pipelines = draw(1, std::min(3, most_groups));
  for (int p = 0; p < pipelines; ++p) {
    const int groups = draw(1, std::min(3, left - (pipelines - p - 1)));
    left -= groups;
    const int stages = groups * plan.chunks;
    std::vector<int> cuts;  // first layers of the stages after the first
    while (static_cast<int>(cuts.size()) < stages - 1) {
      const int cut = draw(1, layers - 1);
      if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
    }
    std::sort(cuts.begin(), cuts.end());
    Pipeline pipeline;
    pipeline.microbatches = plan.chunks > 1 ? groups * draw(1, 2) : draw(1, 4);
    std::vector<Stage> hosts(static_cast<size_t>(groups));  // devices and shares of each group
    for (Stage& host : hosts) {
      if (mixed) host.shares = draw_shares(degrees[draw(0, 4)]);
      for (size_t t = 0; t < tensor_shares(plan, host).size(); ++t)
        host.devices.push_back(fmt::format("d:{}", device++));
    }
    for (int s = 0; s < stages; ++s) {
      Stage stage = hosts[static_cast<size_t>(s % groups)];
      stage.first_layer = s == 0 ? 0 : cuts[s - 1];
      stage.layers = (s == stages - 1 ? layers : cuts[s]) - stage.first_layer;
      stage.recompute = draw(0, 2) == 0;
      stage.optimizer_share = draw(1, 3);
      pipeline.stages.push_back(stage);
    }
    plan.pipelines.push_back(pipeline);
  }
  plan.unlike_devices = device % 3 == 0;  // draws nothing, so that plans stay those of their seeds
  return plan;
}

Plan with_a_host_for_each_stage(Plan plan) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) {
      const std::string host = "h" + stage.devices.at(0).substr(2);
      for (std::string& device : stage.devices) device.replace(0, 1, host);
    }
  return plan;
}

int devices_in(const Plan& plan) {
  std::set<std::string> names;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) names.insert(stage.devices.begin(), stage.devices.end());
  return static_cast<int>(names.size());
}

Plan simplest_failing(Plan plan, const std::function<bool(const Plan&)>& fails) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (Plan& candidate : simpler(plan)) {
      if (!fails(candidate)) continue;
      plan = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return plan;
}

TEST_CASE("a failing plan is made as simple as it fails", "[distributed]") {
  constexpr int kLayers = 6;
  const auto valid = [](const Plan& plan) {
    int samples = 0;
    for (const Pipeline& pipeline : plan.pipelines) samples += pipeline.microbatches * plan.microbatch;
    return validate(plan, {kLayers, samples}).empty();
  };
  int found = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, 2, true);
    REQUIRE(valid(plan));
    // An invented mistake: two pipelines, and a stage of one of them recomputes.
    const auto fails = [&](const Plan& tried) {
      INFO(to_lua(tried));
      REQUIRE(valid(tried));
      bool recomputes = false;
      for (const Pipeline& pipeline : tried.pipelines)
        for (const Stage& stage : pipeline.stages) recomputes = recomputes || stage.recompute;
      return tried.pipelines.size() >= 2 && recomputes;
    };
    if (!fails(plan)) continue;
    ++found;
    const Plan least = simplest_failing(plan, fails);
    INFO(to_lua(least));
    CHECK(fails(least));
    CHECK(least.pipelines.size() == 2);
    CHECK(least.tensor == 1);
    CHECK(least.schedule == Schedule::one_f_one_b);
    CHECK_FALSE(least.sharded_optimizer);
    CHECK_FALSE(least.unlike_devices);
    CHECK(devices_in(least) == 2);
    CHECK(least.pipelines[0].microbatches + least.pipelines[1].microbatches == 2);
  }
  CHECK(found > 20);
}

}  // namespace het::testing
