#include "planner/autohet/reshape.h"

#include <map>
#include <utility>

#include "planner/autohet/group.h"

namespace het::planner {

std::vector<StageLayout> joined_chunks(const std::vector<StageLayout>& stages, int chunks) {
  const size_t groups = stages.size() / static_cast<size_t>(chunks);
  std::vector<StageLayout> joined(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t s = groups; s < stages.size(); ++s) {
    joined[s % groups].layers += stages[s].layers;
    joined[s % groups].recompute = joined[s % groups].recompute || stages[s].recompute;
  }
  number_layers(joined);
  return joined;
}

std::vector<StageLayout> cut_into_chunks(const std::vector<StageLayout>& stages, int chunks) {
  std::vector<StageLayout> cut;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (const StageLayout& stage : stages) {
      if (stage.layers < chunks) return {};
      cut.push_back(stage);
      cut.back().layers = stage.layers / chunks + (chunk < stage.layers % chunks ? 1 : 0);
    }
  number_layers(cut);
  return cut;
}

bool place_again(PlanLayout& layout, const Cluster& cluster, const CostTable& costs, bool packed) {
  const size_t nodes = costs.nodes.size();
  std::vector<Composition> compositions;
  std::vector<int> used(nodes, 0), hosts, per_host;
  for (const PipelineLayout& pipeline : layout.pipelines) {
    Composition& composition = compositions.emplace_back(nodes, 0);
    for (const StageLayout& stage : pipeline.stages) {
      ++composition[static_cast<size_t>(stage.node)];
      ++used[static_cast<size_t>(stage.node)];
    }
  }
  for (size_t n = 0; n < nodes; ++n) {
    hosts.push_back(static_cast<int>(cluster.nodes[n].hosts.size()));
    per_host.push_back(costs.nodes[n].groups);
    if (used[n] > hosts[n] * per_host[n]) return false;
  }
  const Places places = place(compositions, hosts, per_host, packed);
  for (size_t p = 0; p < layout.pipelines.size(); ++p) {
    std::vector<size_t> next(nodes, 0);
    for (StageLayout& stage : layout.pipelines[p].stages) {
      const auto n = static_cast<size_t>(stage.node);
      stage.host = places[p][n][next[n]++];
    }
  }
  return true;
}

std::optional<PlanLayout> with_joined_pipelines(const PlanLayout& from) {
  PlanLayout layout = from;
  layout.tensor *= 2;
  layout.pipelines.clear();
  std::map<std::vector<int>, std::vector<size_t>> alike;  // by the nodes of their stages
  for (size_t p = 0; p < from.pipelines.size(); ++p) {
    std::vector<int> nodes;
    for (const StageLayout& stage : from.pipelines[p].stages) nodes.push_back(stage.node);
    alike[std::move(nodes)].push_back(p);
  }
  for (const auto& [nodes, members] : alike) {
    if (members.size() % 2 != 0) return std::nullopt;
    for (size_t i = 0; i < members.size(); i += 2) {
      layout.pipelines.push_back(from.pipelines[members[i]]);
      layout.pipelines.back().microbatches += from.pipelines[members[i + 1]].microbatches;
    }
  }
  return layout;
}

std::optional<PlanLayout> with_twice_the_pipelines(const PlanLayout& from) {
  PlanLayout layout = from;
  layout.tensor /= 2;
  layout.pipelines.clear();
  for (const PipelineLayout& pipeline : from.pipelines) {
    const int half = pipeline.microbatches / 2;
    if (half == 0) return std::nullopt;
    layout.pipelines.insert(layout.pipelines.end(), 2, pipeline);
    layout.pipelines.back().microbatches = half;
    (layout.pipelines.end() - 2)->microbatches -= half;
  }
  return layout;
}

std::optional<PlanLayout> with_joined_stages(const PlanLayout& from) {
  PlanLayout layout = from;
  layout.tensor *= 2;
  for (PipelineLayout& pipeline : layout.pipelines) {
    std::vector<StageLayout> joined;
    for (size_t s = 0; s < pipeline.stages.size(); s += 2) {
      if (s + 1 == pipeline.stages.size() || pipeline.stages[s].node != pipeline.stages[s + 1].node)
        return std::nullopt;
      joined.push_back(pipeline.stages[s]);
      joined.back().layers += pipeline.stages[s + 1].layers;
    }
    pipeline.stages = std::move(joined);
    number_layers(pipeline.stages);
  }
  return layout;
}

std::optional<PlanLayout> with_twice_the_stages(const PlanLayout& from) {
  PlanLayout layout = from;
  layout.tensor /= 2;
  for (PipelineLayout& pipeline : layout.pipelines) {
    std::vector<StageLayout> twice;
    for (const StageLayout& stage : pipeline.stages) {
      if (stage.layers < 2) return std::nullopt;
      twice.insert(twice.end(), 2, stage);
      twice.back().layers = stage.layers / 2;
      (twice.end() - 2)->layers -= stage.layers / 2;
    }
    pipeline.stages = std::move(twice);
    number_layers(pipeline.stages);
  }
  return layout;
}

}  // namespace het::planner
