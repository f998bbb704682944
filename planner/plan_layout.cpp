#include "planner/plan_layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace het::planner {

void number_layers(std::vector<StageLayout>& stages) {
  int first = 0;
  for (StageLayout& stage : stages) {
    stage.first = first;
    first += stage.layers;
  }
}

std::vector<StageLayout> chunks_of(const PlanLayout& layout, int pipeline, int group) {
  const std::vector<StageLayout>& stages = layout.pipelines[static_cast<size_t>(pipeline)].stages;
  const size_t groups = stages.size() / static_cast<size_t>(layout.chunks);
  std::vector<StageLayout> chunks;
  for (auto s = static_cast<size_t>(group); s < stages.size(); s += groups) chunks.push_back(stages[s]);
  return chunks;
}

std::string show_layers(const std::vector<StageLayout>& chunks) {
  std::string text;
  for (const StageLayout& chunk : chunks)
    text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", chunk.first, chunk.first + chunk.layers - 1);
  return text;
}

namespace {

bool all_equal(const Shares& shares) {
  return std::all_of(shares.begin(), shares.end(), [&](int64_t share) { return share == shares[0]; });
}

}  // namespace

Shares shares_of(const PlanLayout& layout, const StageLayout& stage) {
  return stage.group < 0 ? Shares(static_cast<size_t>(layout.tensor), 1)
                         : layout.groups[static_cast<size_t>(stage.group)].shares;
}

std::vector<DevicePlace> places_of(const PlanLayout& layout, const StageLayout& stage) {
  return stage.group < 0
             ? std::vector<DevicePlace>(static_cast<size_t>(layout.tensor), {stage.node, stage.host})
             : layout.groups[static_cast<size_t>(stage.group)].places;
}

void set_group(PlanLayout& layout, StageLayout& stage, TensorGroup group) {
  HET_REQUIRE(!group.places.empty() && group.places.size() == group.shares.size(), group.places.size(),
              group.shares.size());
  stage.node = group.places[0].node;
  stage.host = group.places[0].host;
  const bool one_host = std::all_of(group.places.begin(), group.places.end(),
                                    [&](const DevicePlace& place) { return place == group.places[0]; });
  stage.group = -1;
  if (one_host && all_equal(group.shares) && static_cast<int>(group.shares.size()) == layout.tensor) return;
  const auto known = std::find(layout.groups.begin(), layout.groups.end(), group);
  stage.group = static_cast<int>(known - layout.groups.begin());
  if (known == layout.groups.end()) layout.groups.push_back(std::move(group));
}

std::vector<int> degrees_of(const PlanLayout& layout) {
  std::set<int> degrees;
  for (const PipelineLayout& pipeline : layout.pipelines)
    for (const StageLayout& stage : pipeline.stages)
      degrees.insert(static_cast<int>(shares_of(layout, stage).size()));
  return {degrees.begin(), degrees.end()};
}

namespace {

// Where all stages have the same shares, the plan says them once.
void simplify_shares(Plan& plan) {
  if (plan.pipelines.empty() || plan.pipelines[0].stages.empty() || !has_uniform_cut(plan)) return;
  const Shares shares = tensor_shares(plan, plan.pipelines[0].stages[0]);
  plan.tensor = static_cast<int>(shares.size());
  plan.shares = all_equal(shares) ? Shares{} : shares;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) stage.shares.clear();
}

}  // namespace

Plan to_plan(const PlanLayout& layout, const Cluster& cluster) {
  Plan plan;
  plan.tensor = layout.tensor;
  plan.microbatch = layout.microbatch;
  plan.schedule = layout.schedule;
  plan.chunks = layout.chunks;
  plan.warmup = layout.warmup;
  plan.sharded_optimizer = layout.sharded_optimizer;
  std::map<DevicePlace, int> used;
  for (const PipelineLayout& pipeline : layout.pipelines) {
    Pipeline out;
    out.microbatches = pipeline.microbatches;
    const size_t groups = pipeline.stages.size() / static_cast<size_t>(layout.chunks);
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const StageLayout& from = pipeline.stages[s];
      Stage stage;
      stage.first_layer = from.first;
      stage.layers = from.layers;
      stage.recompute = from.recompute;
      stage.optimizer_share = from.share;
      if (from.group >= 0) stage.shares = shares_of(layout, from);
      if (s >= groups) {
        stage.devices = out.stages[s - groups].devices;
      } else {
        for (const auto& [node, host] : places_of(layout, from)) {
          int& next = used[{node, host}];
          HET_REQUIRE(next < cluster.nodes[static_cast<size_t>(node)].devices, node, host, next);
          stage.devices.push_back(device_name(cluster, node, host, next++));
        }
      }
      out.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(out));
  }
  simplify_shares(plan);
  return plan;
}

PlanLayout to_layout(const Plan& plan, const Cluster& cluster) {
  constexpr size_t kNamed = 8;  // in a message
  std::unordered_map<std::string, DevicePlace> places;
  std::vector<std::string> names;
  for (int node = 0; node < static_cast<int>(cluster.nodes.size()); ++node)
    for (int host = 0; host < static_cast<int>(cluster.nodes[static_cast<size_t>(node)].hosts.size()); ++host)
      for (int device = 0; device < cluster.nodes[static_cast<size_t>(node)].devices; ++device) {
        names.push_back(device_name(cluster, node, host, device));
        places.emplace(names.back(), DevicePlace{node, host});
      }
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (!cut_of(plan, stage).is_megatron())
        fail_usage(
            "the plan says how layers are cut by `sharding`, which layer times know nothing of; `hetrun "
            "simulate` "
            "of a recipe simulates such plans");
  PlanLayout layout;
  const bool uniform = !plan.pipelines.empty() && !plan.pipelines[0].stages.empty() && has_uniform_cut(plan);
  layout.tensor = static_cast<int>(
      (uniform ? tensor_shares(plan, plan.pipelines[0].stages[0]) : tensor_shares(plan)).size());
  layout.microbatch = plan.microbatch;
  layout.schedule = plan.schedule;
  layout.chunks = plan.chunks;
  layout.warmup = plan.warmup;
  layout.sharded_optimizer = plan.sharded_optimizer;
  std::string problems;
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    PipelineLayout out;
    out.microbatches = plan.pipelines[p].microbatches;
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const Stage& stage = plan.pipelines[p].stages[s];
      StageLayout to;
      to.first = stage.first_layer;
      to.layers = stage.layers;
      to.recompute = stage.recompute;
      to.share = stage.optimizer_share;
      TensorGroup group{tensor_shares(plan, stage), {}};
      for (const std::string& device : stage.devices) {
        const auto place = places.find(device);
        if (place == places.end()) {
          problems +=
              fmt::format("\n  pipeline {}, stage {}: the cluster has no device {}", p + 1, s + 1, device);
        } else {
          group.places.push_back(place->second);
        }
      }
      if (group.places.size() == group.shares.size()) set_group(layout, to, std::move(group));
      out.stages.push_back(to);
    }
    layout.pipelines.push_back(std::move(out));
  }
  if (!problems.empty())
    fail_usage("the plan does not fit the cluster, which has {}{}:{}",
               fmt::join(names.begin(),
                         names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kNamed)), ", "),
               names.size() > kNamed ? fmt::format(" and {} more", names.size() - kNamed) : "", problems);
  return layout;
}

}  // namespace het::planner
