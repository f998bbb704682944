#include "planner/autohet/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <tuple>

#include "planner/autohet/stages.h"

namespace het::planner {

std::vector<int> balance_microbatches(const std::vector<PipelineRate>& rates, int microbatches) {
  int pipelines = 0;
  for (const PipelineRate& rate : rates) pipelines += rate.copies;
  if (pipelines == 0 || microbatches < pipelines) return {};
  // Within `seconds` a pipeline runs this many; one even when that takes longer.
  const auto count = [&](const PipelineRate& rate, double seconds) {
    const double more = (seconds - rate.sum) / rate.longest * (1 + 1e-12);
    return more < 0 ? 1 : 1 + static_cast<int>(std::min(std::floor(more), static_cast<double>(microbatches)));
  };
  const auto total = [&](double seconds) {
    int64_t sum = 0;
    for (const PipelineRate& rate : rates) sum += static_cast<int64_t>(count(rate, seconds)) * rate.copies;
    return sum;
  };
  double low = 0, high = std::numeric_limits<double>::infinity();
  for (const PipelineRate& rate : rates) high = std::min(high, rate.sum + rate.longest * microbatches);
  for (int i = 0; i < 60 && high - low > 1e-9 * high; ++i) {
    const double middle = (low + high) / 2;
    (total(middle) >= microbatches ? high : low) = middle;
  }
  std::vector<int> counts;
  std::vector<double> ends;
  std::vector<PipelineRate> each;
  for (const PipelineRate& rate : rates)
    for (int i = 0; i < rate.copies; ++i) {
      counts.push_back(count(rate, high));
      each.push_back(rate);
    }
  // What is too much comes off where it ends latest; of equals, the first.
  int64_t excess = total(high) - microbatches;
  const auto end = [&](size_t p) { return each[p].sum + (counts[p] - 1) * each[p].longest; };
  std::priority_queue<std::tuple<double, int64_t>> latest;
  for (size_t p = 0; p < counts.size(); ++p)
    if (counts[p] > 1) latest.emplace(end(p), -static_cast<int64_t>(p));
  for (; excess > 0; --excess) {
    if (latest.empty()) return {};
    const auto p = static_cast<size_t>(-std::get<1>(latest.top()));
    latest.pop();
    if (--counts[p] > 1) latest.emplace(end(p), -static_cast<int64_t>(p));
  }
  return counts;
}

PipelineRate rate_of(const PipelineLayout& pipeline, const CostTable& costs) {
  PipelineRate rate;
  for (const StageLayout& stage : pipeline.stages) {
    const int end = stage.first + stage.layers;
    const double tau = costs.forward_seconds(stage.node, stage.first, end) +
                       costs.backward_seconds(stage.node, stage.first, end, stage.recompute);
    rate.sum += tau;
    rate.longest = std::max(rate.longest, tau);
  }
  return rate;
}

bool balance(PlanLayout& layout, const CostTable& costs, int microbatches, bool uneven) {
  const int pipelines = static_cast<int>(layout.pipelines.size());
  std::vector<int> counts;
  if (uneven) {
    std::vector<PipelineRate> rates;
    for (const PipelineLayout& pipeline : layout.pipelines) rates.push_back(rate_of(pipeline, costs));
    counts = balance_microbatches(rates, microbatches);
  } else if (microbatches % pipelines == 0) {
    counts.assign(layout.pipelines.size(), microbatches / pipelines);
  }
  for (size_t p = 0; p < counts.size(); ++p) layout.pipelines[p].microbatches = counts[p];
  return !counts.empty();
}

namespace {

// Bytes on one device of each stage without optimizer state.
std::vector<std::vector<double>> bytes_without_state(const PlanLayout& layout, const CostTable& costs) {
  StageRules rules;
  rules.schedule = layout.schedule;
  rules.warmup = layout.warmup;
  std::vector<std::vector<double>> bytes;
  for (const PipelineLayout& pipeline : layout.pipelines) {
    const int stages = static_cast<int>(pipeline.stages.size());
    bytes.emplace_back();
    for (int s = 0; s < stages; ++s) {
      const StageLayout& stage = pipeline.stages[static_cast<size_t>(s)];
      bytes.back().push_back(costs.stage_bytes(stage.first, stage.first + stage.layers,
                                               in_flight(rules, stages, s, pipeline.microbatches),
                                               stage.recompute, 0));
    }
  }
  return bytes;
}

// The least free byte of any stage under the layout's shares; negative when one does not fit.
double slack(const PlanLayout& layout, const CostTable& costs,
             const std::vector<std::vector<double>>& bytes) {
  std::vector<double> shares(static_cast<size_t>(costs.layers), 0), of_shared(costs.shared.size(), 0);
  for (const PipelineLayout& pipeline : layout.pipelines)
    for (const StageLayout& stage : pipeline.stages) {
      for (int l = stage.first; l < stage.first + stage.layers; ++l)
        shares[static_cast<size_t>(l)] += stage.share;
      for (size_t i = 0; i < costs.shared.size(); ++i)
        if (costs.shared[i].is_used_in(stage.first, stage.first + stage.layers)) of_shared[i] += stage.share;
    }
  double least = std::numeric_limits<double>::infinity();
  for (size_t p = 0; p < layout.pipelines.size(); ++p)
    for (size_t s = 0; s < layout.pipelines[p].stages.size(); ++s) {
      const StageLayout& stage = layout.pipelines[p].stages[s];
      double state = 0;
      for (int layer = stage.first; layer < stage.first + stage.layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        if (shares[l] <= 0) return -std::numeric_limits<double>::infinity();
        state += (costs.parameters[l + 1] - costs.parameters[l]) * stage.share / shares[l];
      }
      for (size_t i = 0; i < costs.shared.size(); ++i)
        if (costs.shared[i].is_used_in(stage.first, stage.first + stage.layers))
          state += costs.shared[i].parameters * stage.share / of_shared[i];
      least = std::min(least, costs.nodes[static_cast<size_t>(stage.node)].memory_bytes - bytes[p][s] -
                                  state * costs.optimizer_bytes);
    }
  return least;
}

}  // namespace

bool place_optimizer(PlanLayout& layout, const CostTable& costs) {
  for (PipelineLayout& pipeline : layout.pipelines)
    for (StageLayout& stage : pipeline.stages) stage.share = 1;
  const auto bytes = bytes_without_state(layout, costs);
  if (slack(layout, costs, bytes) >= 0) return true;
  // In proportion to the free bytes of each of a stage's parameters, on a scale of a hundred.
  double most = 0;
  std::vector<std::vector<double>> room(layout.pipelines.size());
  std::vector<double> roomiest(static_cast<size_t>(costs.layers), 0);  // of the stages that hold a layer
  for (size_t p = 0; p < layout.pipelines.size(); ++p)
    for (size_t s = 0; s < layout.pipelines[p].stages.size(); ++s) {
      const StageLayout& stage = layout.pipelines[p].stages[s];
      const int end = stage.first + stage.layers;
      const double parameters = costs.parameters_in(stage.first, end);
      const double free = costs.nodes[static_cast<size_t>(stage.node)].memory_bytes - bytes[p][s];
      if (free < 0) return false;
      // A stage cannot hold more than all of its layers' state.
      room[p].push_back(parameters > 0 ? std::min(free / parameters, costs.optimizer_bytes)
                                       : costs.optimizer_bytes);
      most = std::max(most, room[p].back());
      for (int layer = stage.first; layer < end; ++layer)
        roomiest[static_cast<size_t>(layer)] = std::max(roomiest[static_cast<size_t>(layer)], room[p].back());
    }
  // A layer's state lives somewhere.
  if (*std::min_element(roomiest.begin(), roomiest.end()) <= 0) return false;
  for (size_t p = 0; p < layout.pipelines.size(); ++p)
    for (size_t s = 0; s < layout.pipelines[p].stages.size(); ++s) {
      StageLayout& stage = layout.pipelines[p].stages[s];
      const auto holds = roomiest.begin() + stage.first;
      const bool is_roomiest =
          std::any_of(holds, holds + stage.layers, [&](double least) { return room[p][s] >= least; });
      stage.share = std::max(is_roomiest ? 1 : 0, static_cast<int>(std::floor(room[p][s] / most * 100)));
    }
  return slack(layout, costs, bytes) >= 0;
}

}  // namespace het::planner
