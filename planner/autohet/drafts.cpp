#include "planner/autohet/drafts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace het::planner {
namespace {

size_t permutations_of(const Composition& composition, size_t limit) {
  double count = 1;
  int placed = 0;
  for (const int n : composition)
    for (int i = 1; i <= n; ++i) count = count * ++placed / i;
  return count > static_cast<double>(limit) ? limit + 1 : static_cast<size_t>(std::lround(count));
}

}  // namespace

Pool pool_of(const Request& request, const CostTable& costs) {
  Pool pool;
  for (size_t n = 0; n < costs.nodes.size(); ++n) {
    const int node = static_cast<int>(n);
    pool.groups.push_back(costs.nodes[n].groups * static_cast<int>(request.cluster.nodes[n].hosts.size()));
    pool.power.push_back(1 / (costs.forward_seconds(node, 0, costs.layers) +
                              costs.backward_seconds(node, 0, costs.layers, false)));
    pool.memory.push_back(costs.nodes[n].memory_bytes * costs.tensor);
  }
  return pool;
}

std::vector<std::vector<int>> stage_orders(const Composition& composition, const CostTable& costs,
                                           size_t limit) {
  std::vector<int> nodes;
  for (size_t n = 0; n < composition.size(); ++n)
    if (composition[n] > 0) nodes.push_back(static_cast<int>(n));
  const auto blocks = [&](const std::vector<int>& order) {
    std::vector<int> stages;
    for (const int node : order)
      stages.insert(stages.end(), static_cast<size_t>(composition[static_cast<size_t>(node)]), node);
    return stages;
  };
  std::vector<std::vector<int>> orders;
  // Early stages hold most activations: the largest memory first.
  const auto memory = [&](int node) { return costs.nodes[static_cast<size_t>(node)].memory_bytes; };
  std::vector<int> by_memory = nodes;
  std::stable_sort(by_memory.begin(), by_memory.end(), [&](int a, int b) { return memory(a) > memory(b); });
  orders.push_back(blocks(by_memory));
  if (limit <= 1) return orders;
  std::vector<int> order = blocks(nodes);
  if (permutations_of(composition, limit) <= limit) {
    do {
      if (order != orders[0]) orders.push_back(order);
    } while (std::next_permutation(order.begin(), order.end()));
  } else if (nodes.size() <= 4) {
    std::vector<int> sequence = nodes;
    do {
      if (blocks(sequence) != orders[0]) orders.push_back(blocks(sequence));
    } while (std::next_permutation(sequence.begin(), sequence.end()));
  } else {
    std::reverse(by_memory.begin(), by_memory.end());
    orders.push_back(blocks(by_memory));
    const auto power = [&](int node) { return -costs.forward_seconds(node, 0, costs.layers); };
    std::stable_sort(by_memory.begin(), by_memory.end(), [&](int a, int b) { return power(a) > power(b); });
    orders.push_back(blocks(by_memory));
    std::reverse(by_memory.begin(), by_memory.end());
    orders.push_back(blocks(by_memory));
  }
  return orders;
}

PlanLayout make_layout(const Request& request, const CostTable& costs,
                       const std::vector<PipelineDraft>& drafts, bool packed) {
  const size_t nodes = costs.nodes.size();
  std::vector<Composition> compositions;
  for (const PipelineDraft& draft : drafts) {
    Composition composition(nodes, 0);
    for (const int node : draft.nodes) ++composition[static_cast<size_t>(node)];
    compositions.push_back(std::move(composition));
  }
  std::vector<int> hosts, per_host;
  for (size_t n = 0; n < nodes; ++n) {
    hosts.push_back(static_cast<int>(request.cluster.nodes[n].hosts.size()));
    per_host.push_back(costs.nodes[n].groups);
  }
  const Places places = place(compositions, hosts, per_host, packed);
  PlanLayout layout;
  layout.tensor = costs.tensor;
  layout.microbatch = costs.microbatch;
  for (size_t p = 0; p < drafts.size(); ++p) {
    PipelineLayout pipeline;
    pipeline.microbatches = drafts[p].microbatches;
    std::vector<size_t> next(nodes, 0);
    for (const int node : drafts[p].nodes) {
      StageLayout stage;
      stage.node = node;
      const auto n = static_cast<size_t>(node);
      stage.host = places[p][n][next[n]++];
      pipeline.stages.push_back(stage);
    }
    adopt(drafts[p].solution, pipeline.stages);
    layout.pipelines.push_back(std::move(pipeline));
  }
  return layout;
}

}  // namespace het::planner
