#include "planner/work.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

// What holds for all ranks.
class Division {
 public:
  Division(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan), devices_(devices_of(plan)) {
    find_invariant();
    find_sums();
    for (size_t p = 0; p < plan.pipelines.size(); ++p) stages_.push_back(stages_in(plan.pipelines[p]));
    find_holders();
    find_owners();
  }

  Work work(int rank) const {
    Work work;
    work.rank = rank;
    const auto [pipeline, stage, tensor] = place_of(rank);
    const Pipeline& line = plan_.pipelines[pipeline];
    work.microbatches = line.microbatches;
    for (int p = 0; p < pipeline; ++p) work.first_microbatch += plan_.pipelines[p].microbatches;
    work.first_tensor_rank = tensor == 0;
    work.stage = stages_[pipeline];
    for (const Stage& each : line.stages) work.recompute.push_back(each.recompute);
    const bool backward = std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                                      [](const Node& node) { return node.phase == Phase::backward; });
    work.units = units_of(plan_, pipeline, stage, backward);
    work.part_of = part_of_;
    work.sums.assign(sums_.begin(), sums_.end());

    std::set<int> own;  // stages of this rank
    for (size_t s = 0; s < line.stages.size(); ++s)
      if (rank_at(pipeline, static_cast<int>(s), tensor) == rank) own.insert(static_cast<int>(s));
    if (devices_.size() > 1) work.groups = groups_with(rank);
    if (plan_.tensor > 1) work.tensor_group = index_of(work.groups, Group{tensor_group(pipeline, stage)});
    find_messages(work, pipeline, tensor, own);
    find_later(work);
    find_gradients(work, tensor);
    find_mine(work, pipeline, tensor, own);
    return work;
  }

 private:
  struct Place {
    int pipeline, stage, tensor;
  };

  Place place_of(int rank) const {
    for (size_t p = 0; p < plan_.pipelines.size(); ++p)
      for (size_t s = 0; s < plan_.pipelines[p].stages.size(); ++s)
        for (int t = 0; t < plan_.tensor; ++t)
          if (rank_at(static_cast<int>(p), static_cast<int>(s), t) == rank)
            return {static_cast<int>(p), static_cast<int>(s), t};
    fail_usage("the plan has {} devices; there is no rank {}", devices_.size(), rank);
  }

  int rank_at(int pipeline, int stage, int tensor) const {
    const std::string& device = plan_.pipelines[pipeline].stages[stage].devices[tensor];
    return static_cast<int>(std::find(devices_.begin(), devices_.end(), device) - devices_.begin());
  }

  bool in_step(NodeId n) const { return graph_.nodes[n].phase != Phase::update && !invariant_[n]; }

  // Nodes that depend on state and numbers of the step alone belong to no stage: whoever needs them computes
  // them.
  void find_invariant() {
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

  // Sums over micro-batches; and summands of those among them that only add, which are added where they are
  // made.
  void find_sums() {
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

  std::vector<int> stages_in(const Pipeline& pipeline) const {
    std::vector<int> of_layer(graph_.layers.size(), 0);
    for (size_t s = 0; s < pipeline.stages.size(); ++s)
      for (int layer = 0; layer < pipeline.stages[s].layers; ++layer)
        of_layer[pipeline.stages[s].first_layer + layer] = static_cast<int>(s);
    std::vector<int> stages(graph_.nodes.size(), kAnywhere);
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
      if (stages[n] == kAnywhere && (last == 0 || summed || !node.op->in_place.empty())) stages[n] = last;
    }
    return stages;
  }

  // The parameters that a node reads, also through nodes that are computed anywhere.
  void parameters_of(NodeId n, const std::vector<int>& stages, std::set<ValueId>& found) const {
    for (const ValueId id : graph_.nodes[n].inputs) {
      if (id == kAbsent) continue;
      const Value& value = graph_.values[id];
      if (value.role == Role::parameter) found.insert(id);
      if (value.producer >= 0 && stages[value.producer] == kAnywhere)
        parameters_of(value.producer, stages, found);
    }
  }

  // holders_[tensor][parameter]: the ranks that read it or make a gradient of it, in order. (An operand that
  // counts once is read by the first tensor-parallel rank alone; all of them keep and update it.)
  void find_holders() {
    holders_.resize(plan_.tensor);
    for (size_t p = 0; p < plan_.pipelines.size(); ++p) {
      const std::vector<int>& stages = stages_[p];
      const auto hold = [&](ValueId parameter, int stage) {
        for (int t = 0; t < plan_.tensor; ++t)
          holders_[t][parameter].insert(rank_at(static_cast<int>(p), stage, t));
      };
      for (const Node& node : graph_.nodes) {
        if (node.phase != Phase::update) continue;
        for (const ValueId parameter : updated_by(graph_, node))
          for (const ValueId sum : sums_behind(node))
            for (const NodeId maker : makers_of(sum))
              if (stages[maker] != kAnywhere) hold(parameter, stages[maker]);
      }
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        if (stages[n] == kAnywhere || !in_step(static_cast<NodeId>(n))) continue;
        std::set<ValueId> found;
        parameters_of(static_cast<NodeId>(n), stages, found);
        for (const ValueId id : found) hold(id, stages[n]);
      }
    }
  }

  // The nodes that make a sum over micro-batches, or the summands that are added where they are made.
  std::vector<NodeId> makers_of(ValueId sum) const {
    const NodeId producer = graph_.values[sum].producer;
    const Node& node = graph_.nodes[producer];
    if (!is_gathered(node)) return {producer};
    std::vector<NodeId> makers;
    for (const ValueId part : node.inputs) makers.push_back(graph_.values[part].producer);
    return makers;
  }

  std::vector<int> tensor_group(int pipeline, int stage) const {
    std::vector<int> ranks;
    for (int t = 0; t < plan_.tensor; ++t) ranks.push_back(rank_at(pipeline, stage, t));
    return ranks;
  }

  static int index_of(const std::vector<Group>& groups, const Group& group) {
    const auto found = std::find(groups.begin(), groups.end(), group);
    HET_REQUIRE(found != groups.end(), to_string(Shape(group.ranks.begin(), group.ranks.end())));
    return static_cast<int>(found - groups.begin());
  }

  // Every group that the rank is in, all ranks first, then in the order that all its members use.
  std::vector<Group> groups_with(int rank) const {
    std::set<std::vector<int>> lists;
    if (plan_.tensor > 1) {
      const Place place = place_of(rank);
      lists.insert(tensor_group(place.pipeline, place.stage));
    }
    for (const auto& of_parameter : holders_)
      for (const auto& [id, ranks] : of_parameter)
        if (ranks.size() > 1 && ranks.count(rank) != 0) lists.insert({ranks.begin(), ranks.end()});
    std::vector<int> all(devices_.size());
    for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
    std::vector<Group> groups{{all}};
    for (const auto& list : lists)
      if (list != all) groups.push_back({list});
    return groups;
  }

  void find_messages(Work& work, int pipeline, int tensor, const std::set<int>& own) const {
    const std::vector<int>& stages = stages_[pipeline];
    const int chunks = plan_.schedule == Schedule::interleaved ? plan_.chunks : 1;
    const int groups = static_cast<int>(plan_.pipelines[pipeline].stages.size()) / chunks;
    // (value, receiving stage) -> the earliest phase of its use there
    std::map<std::pair<ValueId, int>, Phase> passed;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!in_step(static_cast<NodeId>(n)) || stages[n] == kAnywhere) continue;
      if (!node.outputs.empty() && node.outputs[0] != kAbsent && is_gathered(node)) continue;
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || graph_.values[id].producer < 0) continue;
        const int from = stages[graph_.values[id].producer];
        if (from == kAnywhere || from == stages[n]) continue;
        const auto [entry, fresh] = passed.emplace(std::pair{id, stages[n]}, node.phase);
        if (!fresh) entry->second = std::min(entry->second, node.phase);
      }
    }
    for (const auto& [key, phase] : passed) {
      const auto [id, to] = key;
      const NodeId producer = graph_.values[id].producer;
      const int from = stages[producer];
      const int sender = rank_at(pipeline, from, tensor), receiver = rank_at(pipeline, to, tensor);
      if (sender == receiver) continue;
      const int tag = 2 * (from / groups) + (graph_.nodes[producer].phase == Phase::backward ? 1 : 0);
      if (own.count(from) != 0) work.sends.push_back({id, from, receiver, tag, graph_.nodes[producer].phase});
      if (own.count(to) != 0) work.receives.push_back({id, to, sender, tag, phase});
    }
  }

  bool is_gathered(const Node& node) const {
    return node.op->adds_operands && !node.inputs.empty() && part_of_.count(node.inputs[0]) != 0;
  }

  // Of a split backward: what no earlier stage waits for.
  void find_later(Work& work) const {
    work.later.assign(graph_.nodes.size(), false);
    if (plan_.schedule != Schedule::split_backward) return;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      work.later[n] = graph_.nodes[n].phase == Phase::backward && in_step(static_cast<NodeId>(n));
    std::vector<NodeId> stack;
    for (const Work::Message& message : work.sends) stack.push_back(graph_.values[message.value].producer);
    while (!stack.empty()) {
      const NodeId n = stack.back();
      stack.pop_back();
      if (!work.later[n]) continue;
      work.later[n] = false;
      for (const ValueId id : graph_.nodes[n].inputs)
        if (id != kAbsent && graph_.values[id].producer >= 0) stack.push_back(graph_.values[id].producer);
    }
  }

  // The sums that an update of a parameter is computed from; the global norm's own operands are no reason.
  std::set<ValueId> sums_behind(const Node& update) const {
    std::set<ValueId> sums;
    for (const ValueId id : update.inputs)
      if (id != kAbsent && !is_state(graph_.values[id])) sums_behind(id, sums);
    return sums;
  }
  void sums_behind(ValueId id, std::set<ValueId>& found) const {
    if (sums_.count(id) != 0) {
      found.insert(id);
      return;
    }
    const NodeId producer = graph_.values[id].producer;
    if (producer < 0 || graph_.nodes[producer].op->name == "global_norm") return;
    for (const ValueId input : graph_.nodes[producer].inputs)
      if (input != kAbsent) sums_behind(input, found);
  }

  static std::vector<ValueId> updated_by(const Graph& graph, const Node& node) {
    std::vector<ValueId> updated;
    for (const auto& [output, input] : node.op->in_place)
      if (input < static_cast<int>(node.inputs.size()) && node.inputs[input] != kAbsent &&
          graph.values[node.inputs[input]].role == Role::parameter)
        updated.push_back(node.inputs[input]);
    return updated;
  }

  void find_gradients(Work& work, int tensor) const {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::update) continue;
      for (const ValueId parameter : updated_by(graph_, node)) {
        const auto held = holders_[tensor].find(parameter);
        if (held == holders_[tensor].end() || held->second.count(work.rank) == 0) continue;
        const std::vector<int> ranks(held->second.begin(), held->second.end());
        for (const ValueId id : sums_behind(node)) {
          Work::Gradient gradient;
          gradient.layer = graph_.nodes[graph_.values[id].producer].layer;
          // What a tensor-parallel group has whole, its first rank counts.
          const bool own = tensor == 0 || graph_.values[parameter].slice.has_value();
          gradient.counted = own && ranks[0] == work.rank;
          gradient.parameter = parameter;
          if (plan_.sharded_optimizer && ranks.size() > 1) {
            gradient.owner = owners_[tensor].at(id);
            gradient.counted = own && gradient.owner == work.rank;
          }
          if (ranks.size() > 1) gradient.group = index_of(work.groups, Group{ranks});
          work.gradients[id] = gradient;
        }
      }
    }
  }

  static bool kept_elsewhere(const Work& work, ValueId parameter) {
    return std::any_of(work.gradients.begin(), work.gradients.end(), [&](const auto& entry) {
      const Work::Gradient& gradient = entry.second;
      return gradient.parameter == parameter && gradient.owner >= 0 && gradient.owner != work.rank;
    });
  }

  // The share of optimizer state that a rank's stages ask for.
  int share_of_rank(int rank) const {
    const auto [pipeline, stage, tensor] = place_of(rank);
    return plan_.pipelines[pipeline].stages[stage].optimizer_share;
  }

  // With a sharded optimizer: who keeps the state behind each gradient. The largest first, each to the holder
  // that then has the least for its share. Sizes are those of whole parameters, so that all ranks of a
  // tensor-parallel group find the same.
  void find_owners() {
    owners_.resize(plan_.tensor);
    if (!plan_.sharded_optimizer) return;
    std::map<ValueId, double> size;  // of each gradient, elements
    for (int t = 0; t < plan_.tensor; ++t) {
      std::map<std::set<int>, std::vector<ValueId>> by_holders;
      for (const Node& node : graph_.nodes) {
        if (node.phase != Phase::update) continue;
        for (const ValueId parameter : updated_by(graph_, node)) {
          const auto held = holders_[t].find(parameter);
          if (held == holders_[t].end()) continue;
          const Value& value = graph_.values[parameter];
          for (const ValueId id : sums_behind(node)) {
            by_holders[held->second].push_back(id);
            size[id] = static_cast<double>(value.slice ? elements_of(value.slice->whole_shape())
                                                       : value.type.elements());
          }
        }
      }
      std::map<int, double> kept;  // elements of each rank, over all groups
      for (auto& [ranks, gradients] : by_holders) {
        std::stable_sort(gradients.begin(), gradients.end(),
                         [&](ValueId a, ValueId b) { return size.at(a) > size.at(b); });
        for (const ValueId id : gradients) {
          int best = -1;
          double least = 0;
          for (const int rank : ranks) {
            const int share = share_of_rank(rank);
            if (share == 0) continue;
            const double load = (kept[rank] + size.at(id)) / share;
            if (best < 0 || load < least) {
              best = rank;
              least = load;
            }
          }
          if (best < 0)
            fail_usage("every stage that holds '{}' has optimizer_share = 0; one of them needs at least 1",
                       graph_.scopes[graph_.nodes[graph_.values[id].producer].scope]);
          kept[best] += size.at(id);
          owners_[t][id] = best;
        }
      }
    }
  }

  void find_mine(Work& work, int pipeline, int tensor, const std::set<int>& own) const {
    work.mine.assign(graph_.nodes.size(), false);
    std::vector<NodeId> stack;
    const auto need = [&](ValueId id) {
      if (id == kAbsent || graph_.values[id].producer < 0) return;
      const NodeId producer = graph_.values[id].producer;
      if (work.mine[producer]) return;
      const bool own_stage = in_step(producer) && stages_[pipeline][producer] != kAnywhere;
      if (own_stage) return;  // made here anyway, received, or summed
      work.mine[producer] = true;
      stack.push_back(producer);
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      bool mine = false;
      if (in_step(static_cast<NodeId>(n))) {
        mine =
            stages_[pipeline][n] != kAnywhere && own.count(stages_[pipeline][n]) != 0 && !is_gathered(node);
      } else if (node.phase == Phase::update && !node.op->in_place.empty()) {
        const auto updated = updated_by(graph_, node);
        mine = updated.empty() || std::all_of(updated.begin(), updated.end(), [&](ValueId id) {
                 const auto held = holders_[tensor].find(id);
                 return held != holders_[tensor].end() && held->second.count(work.rank) != 0 &&
                        !kept_elsewhere(work, id);
               });
      }
      if (!mine) continue;
      work.mine[n] = true;
      stack.push_back(static_cast<NodeId>(n));
    }
    for (const Output& output : graph_.outputs) need(output.value);
    while (!stack.empty()) {
      const NodeId n = stack.back();
      stack.pop_back();
      if (graph_.nodes[n].op->name == "global_norm") continue;  // of the gradients that are here
      for (const ValueId id : graph_.nodes[n].inputs) need(id);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::vector<std::string> devices_;
  std::vector<bool> invariant_;  // of nodes
  std::set<ValueId> sums_;
  std::map<ValueId, ValueId> part_of_;
  std::vector<std::vector<int>> stages_;                   // [pipeline][node]
  std::vector<std::map<ValueId, std::set<int>>> holders_;  // [tensor rank][parameter]
  std::vector<std::map<ValueId, int>> owners_;             // [tensor rank][gradient]
};

}  // namespace

std::vector<std::string> devices_of(const Plan& plan) {
  std::vector<std::string> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices)
        if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  return devices;
}

int tensor_rank_of(const Plan& plan, int rank) {
  const std::vector<std::string> devices = devices_of(plan);
  if (rank < 0 || rank >= static_cast<int>(devices.size()))
    fail_usage("the plan has {} devices; there is no rank {}", devices.size(), rank);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (size_t t = 0; t < stage.devices.size(); ++t)
        if (stage.devices[t] == devices[static_cast<size_t>(rank)]) return static_cast<int>(t);
  return 0;
}

Work work_of(const Graph& graph, const Plan& plan, int rank) { return Division(graph, plan).work(rank); }

}  // namespace het
