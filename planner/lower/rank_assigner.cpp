#include "planner/lower/rank_assigner.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {

RankAssigner::RankAssigner(const Graph& graph, const Plan& plan, StageCut cut, StageGraphs* graphs,
                           const std::vector<StageValue>* values)
    : graph_(graph),
      plan_(plan),
      cut_(std::move(cut)),
      graphs_(graphs),
      values_(values),
      uniform_(graphs == nullptr),
      sharded_optimizer_(plan.sharded_optimizer || (plan.unlike_devices && !updates_alike(graph))),
      devices_(devices_of(plan)) {
  find_cuts();
  find_invariant();
  find_sums();
  for (size_t p = 0; p < plan.pipelines.size(); ++p) stages_.push_back(stages_in(plan.pipelines[p]));
  find_holders();
  if (!sharded_optimizer_) return;
  find_row_updates();
  find_owners();
}

RankAssignment RankAssigner::assign(int rank) const {
  RankAssignment assignment;
  assignment.rank = rank;
  const auto [pipeline, stage, tensor] = place_of(rank);
  const Pipeline& line = plan_.pipelines[pipeline];
  assignment.microbatches = line.microbatches;
  for (int p = 0; p < pipeline; ++p) assignment.first_microbatch += plan_.pipelines[p].microbatches;
  assignment.first_tensor_rank = tensor == 0;
  assignment.shares_coefficient = plan_.unlike_devices;
  assignment.stage = stages_[pipeline];
  for (const Stage& each : line.stages) assignment.recompute.push_back(each.recompute);
  const bool backward = std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                                    [](const Node& node) { return node.phase == Phase::backward; });
  assignment.units = units_of(plan_, pipeline, stage, backward);
  assignment.shape = shape_of(plan_, pipeline);
  assignment.part_of = part_of_;
  assignment.sums.assign(sums_.begin(), sums_.end());

  std::set<int> own;  // stages of this rank
  for (size_t s = 0; s < line.stages.size(); ++s)
    if (tensor < degree_at(pipeline, static_cast<int>(s)) &&
        rank_at(pipeline, static_cast<int>(s), tensor) == rank)
      own.insert(static_cast<int>(s));
  const std::vector<SharedPart> parts = uniform_ ? std::vector<SharedPart>{} : parts_of(rank);
  if (devices_.size() > 1) assignment.groups = groups_with(rank, parts);
  for (size_t axis = 0; axis < cut_.axes.size() && cut_.parts() > 1; ++axis)
    assignment.axis_groups.push_back(
        index_of(assignment.groups, Group{axis_group(pipeline, stage, tensor, axis)}));
  find_messages(assignment, pipeline, tensor, own);
  find_deferred(assignment);
  find_gradients(assignment, pipeline, tensor, own);
  find_pieces(assignment, parts);
  find_assigned(assignment, pipeline, tensor, own);
  return assignment;
}

RankAssigner::Place RankAssigner::place_of(int rank) const {
  for (size_t p = 0; p < plan_.pipelines.size(); ++p)
    for (size_t s = 0; s < plan_.pipelines[p].stages.size(); ++s)
      for (int t = 0; t < degree_at(static_cast<int>(p), static_cast<int>(s)); ++t)
        if (rank_at(static_cast<int>(p), static_cast<int>(s), t) == rank)
          return {static_cast<int>(p), static_cast<int>(s), t};
  fail_usage("the plan has {} devices; there is no rank {}", devices_.size(), rank);
}

void RankAssigner::find_cuts() {
  for (const Pipeline& pipeline : plan_.pipelines) {
    std::vector<int>& numbers = cut_numbers_.emplace_back();
    for (const Stage& stage : pipeline.stages) {
      StageCut cut = cut_of(plan_, stage);
      const auto known = std::find(cuts_.begin(), cuts_.end(), cut);
      numbers.push_back(static_cast<int>(known - cuts_.begin()));
      if (known == cuts_.end()) cuts_.push_back(std::move(cut));
    }
  }
  uniform_ = uniform_ || cuts_.size() == 1;
}

int RankAssigner::rank_at(int pipeline, int stage, int tensor) const {
  const std::string& device = plan_.pipelines[pipeline].stages[stage].devices[tensor];
  return static_cast<int>(std::find(devices_.begin(), devices_.end(), device) - devices_.begin());
}

void RankAssigner::find_invariant() {
  std::vector<bool> constant(graph_.values.size());
  for (size_t i = 0; i < graph_.values.size(); ++i) constant[i] = is_of_step(graph_.values[i]);
  invariant_.resize(graph_.nodes.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.phase == Phase::update || !node.op->in_place.empty()) continue;
    invariant_[n] = std::all_of(node.inputs.begin(), node.inputs.end(),
                                [&](ValueId id) { return id == kAbsent || constant[id]; });
    for (const ValueId id : node.outputs)
      if (id != kAbsent) constant[id] = invariant_[n];
  }
}

void RankAssigner::find_sums() {
  std::vector<int> uses(graph_.values.size());
  const auto note = [&](ValueId id) {
    const NodeId producer = graph_.values[id].producer;
    if (producer >= 0 && in_step(producer)) sums_.insert(id);
  };
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs) {
      if (id == kAbsent) continue;
      ++uses[id];
      if (node.phase == Phase::update) note(id);
    }
  for (const Output& output : graph_.outputs) {
    ++uses[output.value];
    note(output.value);
  }
  for (const ValueId id : sums_) {
    const Node& node = graph_.nodes[graph_.values[id].producer];
    if (!node.op->adds_operands) continue;
    const bool alone = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId part) {
      const NodeId producer = graph_.values[part].producer;
      return uses[part] == 1 && producer >= 0 && in_step(producer);
    });
    if (!alone) continue;
    for (const ValueId part : node.inputs) part_of_[part] = id;
  }
}

std::vector<int> RankAssigner::stages_in(const Pipeline& pipeline) const {
  std::vector<int> of_layer(graph_.layers.size(), 0);
  for (size_t s = 0; s < pipeline.stages.size(); ++s)
    for (int layer = 0; layer < pipeline.stages[s].layers; ++layer)
      of_layer[pipeline.stages[s].first_layer + layer] = static_cast<int>(s);
  std::vector<int> stages(graph_.nodes.size(), kAllStages);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (!in_step(static_cast<NodeId>(n))) continue;
    if (node.layer >= 0) {
      stages[n] = of_layer[node.layer];
      continue;
    }
    // Outside all layers: with the latest of what it needs; sums are made once, so not anywhere.
    for (const ValueId id : node.inputs)
      if (id != kAbsent && graph_.values[id].producer >= 0)
        stages[n] = std::max(stages[n], stages[graph_.values[id].producer]);
    const int last = static_cast<int>(pipeline.stages.size()) - 1;
    const bool summed = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id != kAbsent && (sums_.count(id) != 0 || part_of_.count(id) != 0);
    });
    if (stages[n] == kAllStages && (last == 0 || summed || !node.op->in_place.empty())) stages[n] = last;
  }
  return stages;
}

std::vector<ValueId> RankAssigner::operands_of(const Node& node) {
  std::vector<ValueId> operands = node.inputs;
  std::erase(operands, kAbsent);
  return operands;
}

template <typename GoesOn>
void RankAssigner::look_behind(std::vector<ValueId> values, const GoesOn& goes_on) const {
  std::set<ValueId> seen(values.begin(), values.end());
  while (!values.empty()) {
    const ValueId id = values.back();
    values.pop_back();
    const NodeId producer = graph_.values[id].producer;
    if (!goes_on(id) || producer < 0 || graph_.nodes[producer].op->any_placement) continue;
    for (const ValueId input : graph_.nodes[producer].inputs)
      if (input != kAbsent && seen.insert(input).second) values.push_back(input);
  }
}

std::set<ValueId> RankAssigner::parameters_of(const Node& node, const std::vector<int>& stages) const {
  std::set<ValueId> parameters;
  look_behind(operands_of(node), [&](ValueId id) {
    const Value& value = graph_.values[id];
    if (value.role == Role::parameter) parameters.insert(id);
    return value.producer >= 0 && stages[value.producer] == kAllStages;
  });
  return parameters;
}

void RankAssigner::find_holders() {
  for (const Node& node : graph_.nodes) {
    if (node.phase != Phase::update) continue;
    for (const ValueId parameter : parameters_updated(graph_, node))
      for (const ValueId sum : sums_behind(node)) {
        sums_of_[parameter].insert(sum);
        parameter_of_[sum] = parameter;
        updated_[graph_.values[parameter].name] = parameter;
      }
  }
  // Of a sum that no update is made from no rank would count the squares.
  for (const Node& node : graph_.nodes)
    if (node.op->any_placement && node.phase == Phase::update)
      for (const ValueId sum : sums_behind(node)) HET_REQUIRE(parameter_of_.count(sum) != 0, sum);
  for (size_t p = 0; p < plan_.pipelines.size(); ++p) {
    const std::vector<int>& stages = stages_[p];
    const auto hold = [&](ValueId parameter, int stage) {
      if (stage != kAllStages) holders_[parameter].insert({static_cast<int>(p), stage});
    };
    for (const auto& [parameter, sums] : sums_of_)
      for (const ValueId sum : sums)
        for (const NodeId maker : makers_of(sum)) hold(parameter, stages[maker]);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (stages[n] == kAllStages || !in_step(static_cast<NodeId>(n))) continue;
      for (const ValueId id : parameters_of(graph_.nodes[n], stages)) hold(id, stages[n]);
    }
  }
}

bool RankAssigner::is_cut_alike(ValueId parameter) const {
  const auto held = holders_.find(parameter);
  if (uniform_ || held == holders_.end()) return true;
  const auto& [first, stage] = *held->second.begin();
  return std::all_of(held->second.begin(), held->second.end(), [&](const auto& place) {
    return cut_number(place.first, place.second) == cut_number(first, stage);
  });
}

bool RankAssigner::is_cut_as_here(ValueId parameter) const {
  const auto held = holders_.find(parameter);
  if (held == holders_.end() || !is_cut_alike(parameter)) return false;
  const auto& [pipeline, stage] = *held->second.begin();
  return cut_at(pipeline, stage) == cut_;
}

std::set<int> RankAssigner::holders_of(ValueId parameter, int tensor) const {
  std::set<int> ranks;
  const auto held = holders_.find(parameter);
  if (held == holders_.end()) return ranks;
  for (const auto& [pipeline, stage] : held->second)
    if (tensor < degree_at(pipeline, stage)) ranks.insert(rank_at(pipeline, stage, tensor));
  return ranks;
}

std::vector<NodeId> RankAssigner::makers_of(ValueId sum) const {
  const NodeId producer = graph_.values[sum].producer;
  const Node& node = graph_.nodes[producer];
  if (!is_gathered(node)) return {producer};
  std::vector<NodeId> makers;
  for (const ValueId part : node.inputs) makers.push_back(graph_.values[part].producer);
  return makers;
}

std::vector<int> RankAssigner::axis_group(int pipeline, int stage, int tensor, size_t axis) const {
  Axes others(cut_.axes.size(), true);
  others[axis] = false;
  std::vector<int> ranks;
  for (int t = 0; t < cut_.parts(); ++t)
    if (agree(cut_, t, tensor, others)) ranks.push_back(rank_at(pipeline, stage, t));
  return ranks;
}

int RankAssigner::index_of(const std::vector<Group>& groups, const Group& group) {
  const auto found = std::find(groups.begin(), groups.end(), group);
  HET_REQUIRE(found != groups.end(), to_string(Shape(group.ranks.begin(), group.ranks.end())));
  return static_cast<int>(found - groups.begin());
}

std::vector<Group> RankAssigner::groups_with(int rank, const std::vector<SharedPart>& parts) const {
  std::set<std::vector<int>> lists;
  const Place place = place_of(rank);
  for (size_t axis = 0; axis < cut_.axes.size() && cut_.parts() > 1; ++axis)
    lists.insert(axis_group(place.pipeline, place.stage, place.tensor, axis));
  for (const auto& [id, sums] : sums_of_) {
    if (!is_cut_as_here(id)) continue;
    for (const ValueId sum : sums) {
      const std::set<int> ranks = summers_of(id, sum, place.tensor);
      if (ranks.size() > 1 && ranks.count(rank) != 0) lists.insert({ranks.begin(), ranks.end()});
    }
  }
  for (const SharedPart& part : parts)
    if (part.ranks.size() > 1) lists.insert(part.ranks);
  std::vector<int> all(devices_.size());
  for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  std::vector<Group> groups{{all}};
  for (const auto& list : lists)
    if (list != all) groups.push_back({list});
  return groups;
}

const RankAssigner& RankAssigner::other(const StageCut& cut) const {
  std::shared_ptr<const RankAssigner>& known = others_[cut];
  if (!known) {
    const StageGraph& of = graphs_->of(cut, 0);
    known = std::make_shared<const RankAssigner>(of.graph, plan_, cut, graphs_, &of.values);
  }
  return *known;
}

bool RankAssigner::is_gathered(const Node& node) const {
  return node.op->adds_operands && !node.inputs.empty() && part_of_.count(node.inputs[0]) != 0;
}

void RankAssigner::find_deferred(RankAssignment& assignment) const {
  assignment.deferred.assign(graph_.nodes.size(), false);
  if (plan_.schedule != Schedule::split_backward) return;
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    assignment.deferred[n] = graph_.nodes[n].phase == Phase::backward && in_step(static_cast<NodeId>(n));
  std::vector<NodeId> stack;
  for (const ValueId id : assignment.passed_on) stack.push_back(graph_.values[id].producer);
  while (!stack.empty()) {
    const NodeId n = stack.back();
    stack.pop_back();
    if (!assignment.deferred[n]) continue;
    assignment.deferred[n] = false;
    for (const ValueId id : graph_.nodes[n].inputs)
      if (id != kAbsent && graph_.values[id].producer >= 0) stack.push_back(graph_.values[id].producer);
  }
}

std::set<ValueId> RankAssigner::sums_behind(const Node& update) const {
  std::vector<ValueId> values = operands_of(update);
  std::erase_if(values, [&](ValueId id) { return is_state(graph_.values[id]); });
  std::set<ValueId> sums;
  look_behind(std::move(values), [&](ValueId id) {
    if (sums_.count(id) == 0) return true;
    sums.insert(id);
    return false;
  });
  return sums;
}

std::vector<ValueId> RankAssigner::parameters_behind(const Node& update) const {
  std::vector<ValueId> parameters = parameters_updated(graph_, update);
  if (!parameters.empty()) return parameters;
  for (const ValueId sum : sums_behind(update))
    if (const auto found = parameter_of_.find(sum); found != parameter_of_.end())
      parameters.push_back(found->second);
  return parameters;
}

std::set<ValueId> RankAssigner::parameters_read(const Node& node) const {
  std::set<ValueId> parameters;
  look_behind(operands_of(node), [&](ValueId id) {
    if (holders_.count(id) != 0) parameters.insert(id);
    return true;
  });
  return parameters;
}

bool RankAssigner::updates_here(const Node& update, const RankAssignment& assignment, int tensor) const {
  const auto holds = [&](ValueId id) { return holders_of(id, tensor).count(assignment.rank) != 0; };
  const std::vector<ValueId> updated = parameters_behind(update);
  if (!updated.empty())
    return std::all_of(updated.begin(), updated.end(),
                       [&](ValueId id) { return holds(id) && !kept_elsewhere(assignment, id); });
  const std::set<ValueId> read = parameters_read(update);
  return read.empty() || std::any_of(read.begin(), read.end(), holds);
}

void RankAssigner::find_assigned(RankAssignment& assignment, int pipeline, int tensor,
                                 const std::set<int>& own) const {
  assignment.assigned.assign(graph_.nodes.size(), false);
  std::vector<NodeId> stack;
  const auto need = [&](ValueId id) {
    if (id == kAbsent || graph_.values[id].producer < 0) return;
    const NodeId producer = graph_.values[id].producer;
    if (assignment.assigned[producer]) return;
    const bool own_stage = in_step(producer) && stages_[pipeline][producer] != kAllStages;
    if (own_stage) return;  // made here anyway, received, or summed
    assignment.assigned[producer] = true;
    stack.push_back(producer);
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    bool mine = false;
    if (in_step(static_cast<NodeId>(n))) {
      mine = stages_[pipeline][n] != kAllStages && own.count(stages_[pipeline][n]) != 0 && !is_gathered(node);
    } else if (node.phase == Phase::update && !node.op->in_place.empty()) {
      mine = updates_here(node, assignment, tensor);
    }
    if (!mine) continue;
    assignment.assigned[n] = true;
    stack.push_back(static_cast<NodeId>(n));
  }
  for (const Output& output : graph_.outputs) need(output.value);
  while (!stack.empty()) {
    const NodeId n = stack.back();
    stack.pop_back();
    if (graph_.nodes[n].op->any_placement) continue;  // of the gradients that are here
    for (const ValueId id : graph_.nodes[n].inputs) need(id);
  }
}

}  // namespace het
