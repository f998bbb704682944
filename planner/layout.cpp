#include "planner/layout.h"

#include <algorithm>
#include <map>
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

std::vector<StageLayout> chunks_of(const Layout& layout, int pipeline, int group) {
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

Plan to_plan(const Layout& layout, const Cluster& cluster) {
  Plan plan;
  plan.tensor = layout.tensor;
  plan.microbatch = layout.microbatch;
  plan.schedule = layout.schedule;
  plan.chunks = layout.chunks;
  plan.warmup = layout.warmup;
  plan.sharded_optimizer = layout.sharded_optimizer;
  std::map<std::pair<int, int>, int> used;
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
      if (s >= groups) {
        stage.devices = out.stages[s - groups].devices;
      } else {
        int& next = used[{from.node, from.host}];
        HET_REQUIRE(next + layout.tensor <= cluster.nodes[static_cast<size_t>(from.node)].devices, from.node,
                    from.host, next, layout.tensor);
        for (int i = 0; i < layout.tensor; ++i)
          stage.devices.push_back(device_name(cluster, from.node, from.host, next++));
      }
      out.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(out));
  }
  return plan;
}

Layout to_layout(const Plan& plan, const Cluster& cluster) {
  constexpr size_t kNamed = 8;  // in a message
  std::unordered_map<std::string, std::pair<int, int>> places;
  std::vector<std::string> names;
  for (int node = 0; node < static_cast<int>(cluster.nodes.size()); ++node)
    for (int host = 0; host < static_cast<int>(cluster.nodes[static_cast<size_t>(node)].hosts.size()); ++host)
      for (int device = 0; device < cluster.nodes[static_cast<size_t>(node)].devices; ++device) {
        names.push_back(device_name(cluster, node, host, device));
        places.emplace(names.back(), std::pair(node, host));
      }
  Shares shares = tensor_shares(plan);
  if (!plan.pipelines.empty() && !plan.pipelines[0].stages.empty())
    shares = tensor_shares(plan, plan.pipelines[0].stages[0]);
  const bool equal = std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 1; });
  const bool cut_by_names = !plan.pipelines.empty() && !plan.pipelines[0].stages.empty() &&
                            cut_of(plan, plan.pipelines[0].stages[0]).sharding;
  if (cut_by_names)
    fail_usage(
        "the plan says how layers are cut by `sharding`; hetrun runs such plans but does not simulate them "
        "yet");
  if (!has_uniform_cut(plan) || !equal)
    fail_usage(
        "the plan's stages share their layers unevenly, or over different numbers of devices; hetrun runs "
        "such plans but does not simulate them yet. Give all stages the same tensor = N to simulate");
  Layout layout;
  layout.tensor = static_cast<int>(shares.size());
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
      bool placed = false;
      for (const std::string& device : stage.devices) {
        const auto place = places.find(device);
        if (place == places.end()) {
          problems +=
              fmt::format("\n  pipeline {}, stage {}: the cluster has no device {}", p + 1, s + 1, device);
        } else if (placed && place->second != std::pair(to.node, to.host)) {
          problems += fmt::format(
              "\n  pipeline {}, stage {}: {} is on another host than {}; a tensor-parallel group "
              "stays inside one",
              p + 1, s + 1, device, stage.devices[0]);
        } else {
          std::tie(to.node, to.host) = place->second;
          placed = true;
        }
      }
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
