// What ranks send to each other: values that pass from one stage to another.
#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/plan/device_name.h"
#include "planner/lower/rank_assigner.h"

namespace het {

std::set<std::pair<ValueId, int>> RankAssigner::passed_in(int pipeline) const {
  const std::vector<int>& stages = stages_[pipeline];
  std::set<std::pair<ValueId, int>> passed;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (!in_step(static_cast<NodeId>(n)) || stages[n] == kAllStages) continue;
    if (!node.outputs.empty() && node.outputs[0] != kAbsent && is_gathered(node)) continue;
    for (const ValueId id : node.inputs) {
      if (id == kAbsent || graph_.values[id].producer < 0) continue;
      const int from = stages[graph_.values[id].producer];
      if (from == kAllStages || from == stages[n]) continue;
      passed.emplace(id, stages[n]);
    }
  }
  return passed;
}

int RankAssigner::tag_of(int pipeline, int from, int to, Phase made) const {
  const int chunks = plan_.schedule == Schedule::interleaved ? plan_.chunks : 1;
  const int groups = static_cast<int>(plan_.pipelines[pipeline].stages.size()) / chunks;
  return 2 * (from / groups * chunks + to / groups) + (made == Phase::backward ? 1 : 0);
}

Phase RankAssigner::received_in(int from, int to, Phase made) {
  return made == Phase::forward && from < to ? Phase::forward : Phase::backward;
}

void RankAssigner::find_messages(RankAssignment& assignment, int pipeline, int tensor,
                                 const std::set<int>& own) const {
  for (const auto& [id, to] : passed_in(pipeline)) {
    const NodeId producer = graph_.values[id].producer;
    const int from = stages_[pipeline][producer];
    if (cut_number(pipeline, from) != cut_number(pipeline, to)) continue;  // below
    if (tensor >= degree_at(pipeline, from) || (own.count(from) == 0 && own.count(to) == 0)) continue;
    const int sender = rank_at(pipeline, from, tensor), receiver = rank_at(pipeline, to, tensor);
    if (sender == receiver) continue;
    const Phase made = graph_.nodes[producer].phase;
    const int tag = tag_of(pipeline, from, to, made);
    Layout part = Layout::contiguous(graph_.type(id));
    const std::vector<int64_t> gathered = divided(pipeline, from, to, id);
    if (!gathered.empty()) {
      part = Layout::contiguous({graph_.type(id).dtype, {gathered[static_cast<size_t>(tensor)]}});
      part.offset = std::accumulate(gathered.begin(), gathered.begin() + tensor, int64_t{0});
    }
    if (own.count(from) != 0) {
      assignment.sends.push_back({id, from, receiver, tag, made, part, gathered});
      assignment.passed_on.insert(id);
    }
    if (own.count(to) != 0)
      assignment.receives.push_back({id, to, sender, tag, received_in(from, to, made), part, gathered});
  }
  if (uniform_) return;
  const int stages = static_cast<int>(plan_.pipelines[pipeline].stages.size());
  for (int from = 0; from < stages; ++from)
    for (int to = 0; to < stages; ++to)
      if ((own.count(from) != 0 || own.count(to) != 0) &&
          cut_number(pipeline, from) != cut_number(pipeline, to))
        find_messages_between(assignment, pipeline, from, to, own.count(from) != 0);
}

std::vector<int64_t> RankAssigner::divided(int pipeline, int from, int to, ValueId id) const {
  constexpr int64_t kLeastBytes = 4096;  // what takes a latency alone
  const StageCut& cut = cut_at(pipeline, from);
  if (cut.parts() == 1 || cut.axes.size() != 1 || !(*values_)[static_cast<size_t>(id)].is_replicated())
    return {};
  const TensorType& type = graph_.type(id);
  if (type.bytes() <= kLeastBytes || !on_one_host(pipeline, to)) return {};
  const Pipeline& stages = plan_.pipelines[static_cast<size_t>(pipeline)];
  const auto host = [&](int stage) { return host_of(stages.stages[static_cast<size_t>(stage)].devices[0]); };
  if (on_one_host(pipeline, from) && host(from) == host(to)) return {};
  std::vector<int64_t> counts = cut_points(type.elements(), Shares(static_cast<size_t>(cut.parts()), 1));
  std::adjacent_difference(counts.begin(), counts.end(), counts.begin());
  counts.erase(counts.begin());
  return counts;
}

bool RankAssigner::on_one_host(int pipeline, int stage) const {
  const auto& devices =
      plan_.pipelines[static_cast<size_t>(pipeline)].stages[static_cast<size_t>(stage)].devices;
  return std::all_of(devices.begin(), devices.end(),
                     [&](const std::string& device) { return host_of(device) == host_of(devices[0]); });
}

void RankAssigner::find_messages_between(RankAssignment& assignment, int pipeline, int from, int to,
                                         bool sends) const {
  const StageCut &senders = cut_at(pipeline, from), &receivers = cut_at(pipeline, to);
  const RankAssigner &at_sender = other(senders), &at_receiver = other(receivers);
  for (const auto& [wanted, stage] : at_receiver.passed_in(pipeline)) {
    const Graph& there = at_receiver.graph_;
    if (stage != to || at_receiver.stages_[pipeline][there.values[wanted].producer] != from) continue;
    const StageValue& need = (*at_receiver.values_)[wanted];
    if (need.value == kAbsent || need.is_partial()) refuse_exchange(pipeline, from, to, there, wanted);
    const ValueId offered = at_sender.offer_of(need.value, pipeline, from);
    if (offered == kAbsent) refuse_exchange(pipeline, from, to, there, wanted);
    const Phase made = at_sender.graph_.nodes[at_sender.graph_.values[offered].producer].phase;
    const int tag = tag_of(pipeline, from, to, made);
    const DType dtype = there.type(wanted).dtype;
    if (sends) assignment.passed_on.insert(offered);
    const auto holders = holders_by_slice(senders, offered);
    for (int r = 0; r < receivers.parts(); ++r) {
      const TensorSlice needed = graphs_->slice(receivers, wanted, r);
      for (const auto& [had, devices] : holders) {
        // Of those that have the same, the nearest.
        const int s =
            devices[static_cast<size_t>(r) * devices.size() / static_cast<size_t>(receivers.parts())];
        const int sender = rank_at(pipeline, from, s), receiver = rank_at(pipeline, to, r);
        const auto both = intersection(needed, had);
        if (!both || (sender != assignment.rank && receiver != assignment.rank)) continue;
        for (const TensorSlice& box : boxes_of(*both)) {
          if (sender == assignment.rank)
            assignment.sends.push_back({offered, from, receiver, tag, made, views(box, had, dtype).at(0)});
          if (receiver == assignment.rank)
            assignment.receives.push_back(
                {wanted, to, sender, tag, received_in(from, to, made), views(box, needed, dtype).at(0)});
        }
      }
    }
  }
}

std::vector<std::pair<TensorSlice, std::vector<int>>> RankAssigner::holders_by_slice(const StageCut& cut,
                                                                                     ValueId value) const {
  std::vector<std::pair<TensorSlice, std::vector<int>>> holders;
  for (int t = 0; t < cut.parts(); ++t) {
    const TensorSlice had = graphs_->slice(cut, value, t);
    const auto known =
        std::find_if(holders.begin(), holders.end(), [&](const auto& entry) { return entry.first == had; });
    if (known == holders.end())
      holders.push_back({had, {t}});
    else
      known->second.push_back(t);
  }
  return holders;
}

ValueId RankAssigner::offer_of(ValueId value, int pipeline, int stage) const {
  ValueId best = kAbsent;
  for (size_t id = 0; id < graph_.values.size(); ++id) {
    const StageValue& offered = (*values_)[id];
    const NodeId producer = graph_.values[id].producer;
    if (offered.value != value || offered.is_partial() || producer < 0) continue;
    if (static_cast<size_t>(producer) >= graph_.nodes.size() || !makes(producer, static_cast<ValueId>(id)))
      continue;
    if (stages_[pipeline][producer] != stage) continue;
    const auto order = [&](ValueId each) {
      return std::pair(graph_.nodes[graph_.values[each].producer].phase, !(*values_)[each].is_replicated());
    };
    if (best == kAbsent || order(static_cast<ValueId>(id)) < order(best)) best = static_cast<ValueId>(id);
  }
  return best;
}

void RankAssigner::refuse_exchange(int pipeline, int from, int to, const Graph& graph, ValueId id) const {
  const NodeId producer = graph.values[static_cast<size_t>(id)].producer;
  fail_usage(
      "pipeline {}: stages {} and {} share their layers differently, and '{}' passes between them in a "
      "form that only stages with the same shares exchange; the same `tensor` for both works",
      pipeline + 1, from + 1, to + 1,
      producer < 0 ? graph.values[static_cast<size_t>(id)].name
                   : graph.nodes[static_cast<size_t>(producer)].op->name);
}

bool RankAssigner::makes(NodeId producer, ValueId id) const {
  const auto& outputs = graph_.nodes[producer].outputs;
  return std::find(outputs.begin(), outputs.end(), id) != outputs.end();
}

std::vector<TensorSlice> RankAssigner::boxes_of(const TensorSlice& slice) {
  std::vector<TensorSlice> boxes{slice};
  for (size_t d = 0; d < slice.whole_shape().size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    std::vector<TensorSlice> next;
    for (const TensorSlice& box : boxes)
      for (const Range& range : slice.ranges(dim)) next.push_back(box.narrowed(dim, range));
    boxes = std::move(next);
  }
  return boxes;
}

}  // namespace het
