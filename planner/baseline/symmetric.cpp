#include <algorithm>
#include <functional>
#include <numeric>

#include "planner/baseline/baseline.h"

namespace het::planner {
namespace {

struct Place {
  int node = 0, host = 0;
};

// Every tensor-parallel group in the order of nodes and hosts; empty when a node cannot be cut into such
// groups.
std::vector<Place> all_groups(const Request& request, int tensor) {
  std::vector<Place> places;
  for (int n = 0; n < static_cast<int>(request.cluster.nodes.size()); ++n) {
    const Machine& node = request.cluster.nodes[static_cast<size_t>(n)];
    if (node.devices % tensor != 0) return {};
    for (int h = 0; h < static_cast<int>(node.hosts.size()); ++h)
      for (int i = 0; i < node.devices / tensor; ++i) places.push_back({n, h});
  }
  return places;
}

// Blocks are the layers of the commonest kind; what stands before and after them goes with the first and
// last.
struct Blocks {
  int before = 0, count = 0, after = 0;
};
Blocks blocks_of(const Model& model) {
  std::vector<int> count(model.kinds.size(), 0);
  for (const int kind : model.layers) ++count[static_cast<size_t>(kind)];
  const int kind = static_cast<int>(std::max_element(count.begin(), count.end()) - count.begin());
  const auto first = std::find(model.layers.begin(), model.layers.end(), kind);
  const auto last = std::find(model.layers.rbegin(), model.layers.rend(), kind).base();
  return {static_cast<int>(first - model.layers.begin()), static_cast<int>(last - first),
          static_cast<int>(model.layers.end() - last)};
}

// `total` in proportion to the weights, at least one each, by largest remainder.
std::vector<int> in_proportion(const std::vector<double>& weights, int total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int> parts;
  std::vector<std::pair<double, size_t>> remainders;
  int given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * total;
    parts.push_back(std::max(1, static_cast<int>(exact)));
    given += parts.back();
    remainders.emplace_back(exact - parts.back(), i);
  }
  std::stable_sort(remainders.begin(), remainders.end(), [](auto& a, auto& b) { return a.first > b.first; });
  for (size_t i = 0; given < total; i = (i + 1) % remainders.size(), ++given) ++parts[remainders[i].second];
  for (size_t i = remainders.size(); given > total;) {
    i = i == 0 ? remainders.size() - 1 : i - 1;
    int& part = parts[remainders[i].second];
    if (part > 1) {
      --part;
      --given;
    }
  }
  return parts;
}

struct Shape {
  int tensor = 1, microbatch = 1, stages = 1, replicas = 1;
};

class Symmetric {
 public:
  Symmetric(Evaluator& evaluator, bool whale)
      : evaluator_(evaluator), request_(evaluator.request()), whale_(whale) {}

  void run() {
    for (const int tensor : tensor_degrees(request_)) {
      const std::vector<Place> places = all_groups(request_, tensor);
      const int groups = static_cast<int>(places.size());
      for (int stages = 1; stages <= std::min(groups, blocks_.count); ++stages)
        if (groups % stages == 0) try_shape(places, tensor, stages, groups / stages);
    }
    if (found_) return;
    // No plan over all devices fits: leave out as few as possible.
    int most = 0;
    for (const int tensor : tensor_degrees(request_))
      most = std::max(most, static_cast<int>(all_groups(request_, tensor).size()));
    for (int left_out = 1; left_out < std::min(most, 64) && !found_; ++left_out)
      for (const int tensor : tensor_degrees(request_)) {
        const std::vector<Place> places = all_groups(request_, tensor);
        const int groups = static_cast<int>(places.size()) - left_out;
        for (int stages = 1; stages <= std::min(groups, blocks_.count); ++stages)
          if (groups % stages == 0) try_shape(places, tensor, stages, groups / stages);
      }
  }

 private:
  void try_shape(const std::vector<Place>& places, int tensor, int stages, int replicas) {
    for (const int microbatch : microbatch_sizes(request_)) {
      const int microbatches = request_.batch / microbatch;
      if (microbatches < replicas || (!whale_ && microbatches % replicas != 0)) continue;
      const CostTable& costs = evaluator_.costs(tensor, microbatch);
      std::vector<Place> order = places;
      if (whale_)
        std::stable_sort(order.begin(), order.end(), [&](const Place& a, const Place& b) {
          return costs.nodes[static_cast<size_t>(a.node)].memory_bytes >
                 costs.nodes[static_cast<size_t>(b.node)].memory_bytes;
        });
      for (const bool recompute : {false, true})
        for (const bool sharded : {false, true}) {
          if (sharded && (replicas == 1 || (whale_ && (stages > 1 || tensor > 1 || microbatches > replicas))))
            continue;
          PlanLayout layout = layout_of(order, {tensor, microbatch, stages, replicas}, costs, recompute);
          layout.sharded_optimizer = sharded;
          if (too_slow(layout, costs)) continue;
          Candidate candidate = evaluator_.simulate(std::move(layout), whale_ ? "whale" : "megatron");
          found_ = found_ || candidate.feasible();
          evaluator_.submit(std::move(candidate));
        }
    }
  }

  // The busiest stage alone already takes longer than the best plan so far.
  bool too_slow(const PlanLayout& layout, const CostTable& costs) {
    if (!evaluator_.best().feasible() || request_.objective != Objective::time) return false;
    double most = 0;
    for (const PipelineLayout& pipeline : layout.pipelines)
      for (const StageLayout& stage : pipeline.stages) {
        const int end = stage.first + stage.layers;
        most = std::max(most, pipeline.microbatches *
                                  (costs.forward_seconds(stage.node, stage.first, end) +
                                   costs.backward_seconds(stage.node, stage.first, end, stage.recompute)));
      }
    return most >= evaluator_.best_score();
  }

  PlanLayout layout_of(const std::vector<Place>& order, const Shape& shape, const CostTable& costs,
                       bool recompute) const {
    const auto speed = [&](const Place& place) {
      return 1 / (costs.forward_seconds(place.node, 0, costs.layers) +
                  costs.backward_seconds(place.node, 0, costs.layers, false));
    };
    const auto at = [&](int stage, int replica) {
      return order[static_cast<size_t>(stage) * static_cast<size_t>(shape.replicas) +
                   static_cast<size_t>(replica)];
    };
    std::vector<double> power(static_cast<size_t>(shape.stages), whale_ ? 0 : 1);
    if (whale_)
      for (int s = 0; s < shape.stages; ++s)
        for (int r = 0; r < shape.replicas; ++r) power[static_cast<size_t>(s)] += speed(at(s, r));
    std::vector<int> layers = in_proportion(power, blocks_.count);
    layers.front() += blocks_.before;
    layers.back() += blocks_.after;
    std::vector<double> rate(static_cast<size_t>(shape.replicas), 1);
    if (whale_)
      for (int r = 0; r < shape.replicas; ++r) {
        double slowest = 0;
        for (int s = 0; s < shape.stages; ++s)
          slowest = std::max(slowest, layers[static_cast<size_t>(s)] / speed(at(s, r)));
        rate[static_cast<size_t>(r)] = 1 / slowest;
      }
    const std::vector<int> counts = in_proportion(rate, request_.batch / shape.microbatch);
    PlanLayout layout;
    layout.tensor = shape.tensor;
    layout.microbatch = shape.microbatch;
    for (int r = 0; r < shape.replicas; ++r) {
      PipelineLayout pipeline;
      pipeline.microbatches = counts[static_cast<size_t>(r)];
      int first = 0;
      for (int s = 0; s < shape.stages; ++s) {
        const Place place = at(s, r);
        pipeline.stages.push_back({place.node, place.host, first, layers[static_cast<size_t>(s)], recompute});
        first += layers[static_cast<size_t>(s)];
      }
      layout.pipelines.push_back(std::move(pipeline));
    }
    return layout;
  }

  Evaluator& evaluator_;
  const Request& request_;
  bool whale_, found_ = false;
  Blocks blocks_ = blocks_of(request_.model);
};

}  // namespace

void plan_megatron(Evaluator& evaluator) { Symmetric(evaluator, false).run(); }
void plan_whale(Evaluator& evaluator) { Symmetric(evaluator, true).run(); }

}  // namespace het::planner
