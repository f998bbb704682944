#include "planner/lower/rank_assignment.h"

#include <algorithm>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/lower/stage_graphs.h"

namespace het {
namespace {

// What each rank runs. Everything that holds for all ranks is found once, in the constructor.
class RankAssigner {
 public:
  // `graph`: of the stages that are cut as `cut`. `graphs`: null where every stage has one device; `values`
  // are otherwise what the graph's are.
  RankAssigner(const Graph& graph, const Plan& plan, StageCut cut, StageGraphs* graphs,
               const std::vector<StageValue>* values)
      : graph_(graph),
        plan_(plan),
        cut_(std::move(cut)),
        graphs_(graphs),
        values_(values),
        uniform_(graphs == nullptr || has_uniform_cut(plan)),
        devices_(devices_of(plan)) {
    find_invariant();
    find_sums();
    for (size_t p = 0; p < plan.pipelines.size(); ++p) stages_.push_back(stages_in(plan.pipelines[p]));
    find_holders();
    if (!plan.sharded_optimizer) return;
    find_row_updates();
    find_keepers();
  }

  RankAssignment assign(int rank) const {
    RankAssignment assignment;
    assignment.rank = rank;
    const auto [pipeline, stage, tensor] = place_of(rank);
    const Pipeline& line = plan_.pipelines[pipeline];
    assignment.microbatches = line.microbatches;
    for (int p = 0; p < pipeline; ++p) assignment.first_microbatch += plan_.pipelines[p].microbatches;
    assignment.first_tensor_rank = tensor == 0;
    assignment.stage = stages_[pipeline];
    for (const Stage& each : line.stages) assignment.recompute.push_back(each.recompute);
    const bool backward = std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                                      [](const Node& node) { return node.phase == Phase::backward; });
    assignment.units = units_of(plan_, pipeline, stage, backward);
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

 private:
  struct Place {
    int pipeline, stage, tensor;
  };

  // A part of a gradient that the ranks of a list have, and how it lies in this rank's.
  struct SharedPart {
    ValueId gradient;
    std::vector<int> ranks;
    std::vector<Layout> places;
    int64_t elements;
    bool counts, is_partial;
    int keeper;  // of its optimizer state; -1: every rank
  };

  Place place_of(int rank) const {
    for (size_t p = 0; p < plan_.pipelines.size(); ++p)
      for (size_t s = 0; s < plan_.pipelines[p].stages.size(); ++s)
        for (int t = 0; t < degree_at(static_cast<int>(p), static_cast<int>(s)); ++t)
          if (rank_at(static_cast<int>(p), static_cast<int>(s), t) == rank)
            return {static_cast<int>(p), static_cast<int>(s), t};
    fail_usage("the plan has {} devices; there is no rank {}", devices_.size(), rank);
  }

  StageCut cut_at(int pipeline, int stage) const {
    return cut_of(plan_, plan_.pipelines[pipeline].stages[stage]);
  }
  int degree_at(int pipeline, int stage) const { return cut_at(pipeline, stage).parts(); }

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

  // The parameters that a node reads, also through nodes that are computed anywhere.
  void parameters_of(NodeId n, const std::vector<int>& stages, std::set<ValueId>& found) const {
    for (const ValueId id : graph_.nodes[n].inputs) {
      if (id == kAbsent) continue;
      const Value& value = graph_.values[id];
      if (value.role == Role::parameter) found.insert(id);
      if (value.producer >= 0 && stages[value.producer] == kAllStages)
        parameters_of(value.producer, stages, found);
    }
  }

  // The stages that read a parameter or make a gradient of it. (An operand that counts once is read by the
  // first tensor-parallel rank alone; all of them keep and update it.)
  void find_holders() {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::update) continue;
      for (const ValueId parameter : parameters_updated(graph_, node))
        for (const ValueId sum : sums_behind(node)) {
          sums_of_[parameter].insert(sum);
          updated_[graph_.values[parameter].name] = parameter;
        }
    }
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
        std::set<ValueId> found;
        parameters_of(static_cast<NodeId>(n), stages, found);
        for (const ValueId id : found) hold(id, stages[n]);
      }
    }
  }

  // Whether all stages that hold a parameter cut it alike.
  bool is_cut_alike(ValueId parameter) const {
    const auto held = holders_.find(parameter);
    if (uniform_ || held == holders_.end()) return true;
    const auto& [first, stage] = *held->second.begin();
    return std::all_of(held->second.begin(), held->second.end(), [&](const auto& place) {
      return cut_at(place.first, place.second) == cut_at(first, stage);
    });
  }

  // Whether they all cut it as the stages do whose graph this is.
  bool is_cut_as_here(ValueId parameter) const {
    const auto held = holders_.find(parameter);
    if (held == holders_.end() || !is_cut_alike(parameter)) return false;
    const auto& [pipeline, stage] = *held->second.begin();
    return cut_at(pipeline, stage) == cut_;
  }

  // The ranks that have what a tensor-parallel rank has of a parameter that is cut alike, in order.
  std::set<int> holders_of(ValueId parameter, int tensor) const {
    std::set<int> ranks;
    const auto held = holders_.find(parameter);
    if (held == holders_.end()) return ranks;
    for (const auto& [pipeline, stage] : held->second)
      if (tensor < degree_at(pipeline, stage)) ranks.insert(rank_at(pipeline, stage, tensor));
    return ranks;
  }

  // Axes of the mesh, by number.
  using Axes = std::vector<bool>;

  bool lies_so(ValueId id, size_t axis, Placement::Kind kind) const {
    const StageValue& value = (*values_)[id];
    return value.value != kAbsent && value.lies[axis] == kind;
  }

  // The axes along which the ranks of a stage have summands of a gradient, as where the batch or its tokens
  // are cut, and all of its parameter.
  Axes summed_axes(ValueId parameter, ValueId gradient) const {
    Axes axes(cut_.axes.size());
    if (values_ == nullptr || !is_cut_alike(parameter)) return axes;
    for (size_t a = 0; a < axes.size(); ++a)
      axes[a] =
          lies_so(gradient, a, Placement::Kind::partial) && !lies_so(parameter, a, Placement::Kind::sharded);
    return axes;
  }
  bool is_partial(ValueId parameter, ValueId gradient) const {
    const Axes axes = summed_axes(parameter, gradient);
    return std::find(axes.begin(), axes.end(), true) != axes.end();
  }

  // Whether two devices of a stage have the same coordinates along these axes.
  static bool agree(const StageCut& cut, int a, int b, const Axes& along) {
    for (size_t axis = 0; axis < along.size(); ++axis)
      if (along[axis] && cut.coordinate(a, axis) != cut.coordinate(b, axis)) return false;
    return true;
  }
  static Axes all_but(Axes axes) {
    axes.flip();
    return axes;
  }

  // The ranks that add up a gradient of a parameter that is cut as here: those that have what a
  // tensor-parallel rank has of it, with all that have a summand.
  std::set<int> summers_of(ValueId parameter, ValueId gradient, int tensor) const {
    const Axes others = all_but(summed_axes(parameter, gradient));
    std::set<int> ranks;
    for (const auto& [pipeline, stage] : holders_.at(parameter))
      for (int t = 0; t < cut_.parts(); ++t)
        if (agree(cut_, t, tensor, others)) ranks.insert(rank_at(pipeline, stage, t));
    return ranks;
  }

  // Whether no rank of its stage that has the same of a parameter comes before; those along `but` are not
  // looked at.
  bool speaks_for(ValueId parameter, int tensor, const Axes& but) const {
    for (size_t axis = 0; axis < cut_.axes.size(); ++axis)
      if (!but[axis] && cut_.coordinate(tensor, axis) != 0 &&
          !(values_ != nullptr && lies_so(parameter, axis, Placement::Kind::sharded)))
        return false;
    return true;
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

  // The ranks of a stage that differ from one of them along an axis of the mesh alone.
  std::vector<int> axis_group(int pipeline, int stage, int tensor, size_t axis) const {
    Axes others(cut_.axes.size(), true);
    others[axis] = false;
    std::vector<int> ranks;
    for (int t = 0; t < cut_.parts(); ++t)
      if (agree(cut_, t, tensor, others)) ranks.push_back(rank_at(pipeline, stage, t));
    return ranks;
  }

  static int index_of(const std::vector<Group>& groups, const Group& group) {
    const auto found = std::find(groups.begin(), groups.end(), group);
    HET_REQUIRE(found != groups.end(), to_string(Shape(group.ranks.begin(), group.ranks.end())));
    return static_cast<int>(found - groups.begin());
  }

  // Every group that the rank is in, all ranks first, then in the order that all its members use.
  std::vector<Group> groups_with(int rank, const std::vector<SharedPart>& parts) const {
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

  // Values that pass from one stage of a pipeline to another, by value and receiving stage.
  std::set<std::pair<ValueId, int>> passed_in(int pipeline) const {
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

  // The channel between two devices, in which messages keep their order: one for each pair of their stages,
  // and of values made in forward and backward passes.
  int tag_of(int pipeline, int from, int to, Phase made) const {
    const int chunks = plan_.schedule == Schedule::interleaved ? plan_.chunks : 1;
    const int groups = static_cast<int>(plan_.pipelines[pipeline].stages.size()) / chunks;
    return 2 * (from / groups * chunks + to / groups) + (made == Phase::backward ? 1 : 0);
  }

  // The pass in which a stage receives a value: all that earlier stages make in a forward pass in its own
  // forward pass, also what only its backward pass reads, so that a channel's order is that of its sender.
  static Phase received_in(int from, int to, Phase made) {
    return made == Phase::forward && from < to ? Phase::forward : Phase::backward;
  }

  void find_messages(RankAssignment& assignment, int pipeline, int tensor, const std::set<int>& own) const {
    for (const auto& [id, to] : passed_in(pipeline)) {
      const NodeId producer = graph_.values[id].producer;
      const int from = stages_[pipeline][producer];
      if (cut_at(pipeline, from) != cut_at(pipeline, to)) continue;  // below
      if (tensor >= degree_at(pipeline, from)) continue;
      const int sender = rank_at(pipeline, from, tensor), receiver = rank_at(pipeline, to, tensor);
      if (sender == receiver) continue;
      const Phase made = graph_.nodes[producer].phase;
      const int tag = tag_of(pipeline, from, to, made);
      const Layout whole = Layout::contiguous(graph_.type(id));
      if (own.count(from) != 0) {
        assignment.sends.push_back({id, from, receiver, tag, made, whole});
        assignment.passed_on.insert(id);
      }
      if (own.count(to) != 0)
        assignment.receives.push_back({id, to, sender, tag, received_in(from, to, made), whole});
    }
    if (uniform_) return;
    const int stages = static_cast<int>(plan_.pipelines[pipeline].stages.size());
    for (int from = 0; from < stages; ++from)
      for (int to = 0; to < stages; ++to)
        if ((own.count(from) != 0 || own.count(to) != 0) && cut_at(pipeline, from) != cut_at(pipeline, to))
          find_messages_between(assignment, pipeline, from, to, own.count(from) != 0);
  }

  // Messages between stages that share their layers differently: who has what of the values that pass, in the
  // order of the receiver's.
  void find_messages_between(RankAssignment& assignment, int pipeline, int from, int to, bool sends) const {
    const StageCut senders = cut_at(pipeline, from), receivers = cut_at(pipeline, to);
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
          // Of those that have the same, the one that lies nearest.
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

  // What the devices of a stage have of a value, and which of them have it.
  std::vector<std::pair<TensorSlice, std::vector<int>>> holders_by_slice(const StageCut& cut,
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

  // The same for stages with another cut. All parts of a stage have the same values and nodes.
  const RankAssigner& other(const StageCut& cut) const {
    std::shared_ptr<const RankAssigner>& known = others_[cut];
    if (!known) {
      const StageGraph& of = graphs_->of(cut, 0);
      known = std::make_shared<const RankAssigner>(of.graph, plan_, cut, graphs_, &of.values);
    }
    return *known;
  }

  // What a stage can send of a value of the single device's graph: what it makes first, of the same pass all
  // of it rather than parts.
  ValueId offer_of(ValueId value, int pipeline, int stage) const {
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

  [[noreturn]] void refuse_exchange(int pipeline, int from, int to, const Graph& graph, ValueId id) const {
    const NodeId producer = graph.values[static_cast<size_t>(id)].producer;
    fail_usage(
        "pipeline {}: stages {} and {} share their layers differently, and '{}' passes between them in a "
        "form that only "
        "stages with the same shares exchange; the same `tensor` for both works",
        pipeline + 1, from + 1, to + 1,
        producer < 0 ? graph.values[static_cast<size_t>(id)].name
                     : graph.nodes[static_cast<size_t>(producer)].op->name);
  }
  // Whether a node makes a value still: of what was joined or dropped, the producer is stale.
  bool makes(NodeId producer, ValueId id) const {
    const auto& outputs = graph_.nodes[producer].outputs;
    return std::find(outputs.begin(), outputs.end(), id) != outputs.end();
  }

  // A slice as products of one range for each dimension.
  static std::vector<TensorSlice> boxes_of(const TensorSlice& slice) {
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

  bool is_gathered(const Node& node) const {
    return node.op->adds_operands && !node.inputs.empty() && part_of_.count(node.inputs[0]) != 0;
  }

  // Of a split backward: what no earlier stage waits for.
  void find_deferred(RankAssignment& assignment) const {
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
    if (producer < 0 || graph_.nodes[producer].op->any_placement) return;
    for (const ValueId input : graph_.nodes[producer].inputs)
      if (input != kAbsent) sums_behind(input, found);
  }

  void find_gradients(RankAssignment& assignment, int pipeline, int tensor,
                      const std::set<int>& own_stages) const {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::update) continue;
      for (const ValueId parameter : parameters_updated(graph_, node)) {
        const std::set<int> held = holders_of(parameter, tensor);
        if (held.count(assignment.rank) == 0) continue;
        const bool alike = is_cut_alike(parameter);
        for (const ValueId id : sums_behind(node)) {
          const std::set<int> ranks = alike ? summers_of(parameter, id, tensor) : std::set{assignment.rank};
          const Axes summed = summed_axes(parameter, id);
          if (is_partial(parameter, id)) assignment.summed[id] = summed;
          RankAssignment::Gradient gradient;
          gradient.layer = graph_.nodes[graph_.values[id].producer].layer;
          // What several ranks of a stage have, the first of them counts.
          const bool own = speaks_for(parameter, tensor, Axes(cut_.axes.size()));
          gradient.counted = own && *ranks.begin() == assignment.rank;
          // Cut differently: the first stage that has the parameter counts it.
          const auto& first = *holders_.at(parameter).begin();
          if (!alike)
            gradient.counted = own && first.first == pipeline && own_stages.count(first.second) != 0;
          gradient.parameter = parameter;
          if (ranks.size() > 1)
            gradient.group = index_of(assignment.groups, Group{{ranks.begin(), ranks.end()}});
          if (plan_.sharded_optimizer)
            find_rows(assignment, gradient, id, tensor, !alike || speaks_for(parameter, tensor, summed));
          assignment.gradients[id] = gradient;
        }
      }
    }
    if (plan_.sharded_optimizer) divide_buckets(assignment);
  }

  // --- gradients of parameters that stages cut differently

  ValueId only_sum_of(ValueId parameter) const {
    const auto& sums = sums_of_.at(parameter);
    if (sums.size() != 1)
      fail_usage(
          "the update of '{}' is made from {} sums over micro-batches; stages that share their layers "
          "differently can sum one",
          graph_.values[parameter].name, sums.size());
    return *sums.begin();
  }

  // The parts of this rank's gradients, by parameter: such that each is had whole or not at all by every
  // rank.
  std::vector<SharedPart> parts_of(int rank) const {
    std::vector<SharedPart> parts;
    for (const auto& [name, id] : updated_) {  // in an order that does not depend on the rank
      if (is_cut_alike(id)) continue;
      struct Member {
        TensorSlice slice;
        bool counts, is_partial;
      };
      std::map<int, Member> members;  // by rank
      for (const auto& [pipeline, stage] : holders_.at(id)) {
        const StageCut cut = cut_at(pipeline, stage);
        const RankAssigner& there = other(cut);
        const auto parameter = there.updated_.find(name);
        HET_REQUIRE(parameter != there.updated_.end(), name);
        const ValueId sum = there.only_sum_of(parameter->second);
        const StageValue& value = (*there.values_)[sum];
        HET_REQUIRE(value.value != kAbsent, name);
        for (int t = 0; t < cut.parts(); ++t)
          members[rank_at(pipeline, stage, t)] = {graphs_->slice(cut, sum, t),
                                                  there.is_first_of_copies(value, t), value.is_partial()};
      }
      const auto own = members.find(rank);
      if (own == members.end()) continue;
      std::vector<TensorSlice> slices;
      for (const auto& [member, of] : members) slices.push_back(of.slice);
      const std::map<int, TensorSlice> kept = kept_slices(id);
      for (const auto& [member, slice] : kept) slices.push_back(slice);
      const ValueId gradient = only_sum_of(id);
      for (const TensorSlice& part : refine(slices)) {
        const auto has = [&](const TensorSlice& slice) { return intersection(part, slice).has_value(); };
        if (!has(own->second.slice)) continue;
        SharedPart shared{gradient,
                          {},
                          views(part, own->second.slice, graph_.type(gradient).dtype),
                          part.elements(),
                          own->second.counts,
                          own->second.is_partial,
                          -1};
        for (const auto& [member, of] : members)
          if (has(of.slice)) shared.ranks.push_back(member);
        for (const auto& [member, slice] : kept)
          if (has(slice)) shared.keeper = member;
        parts.push_back(std::move(shared));
      }
    }
    return parts;
  }

  // Whether a device is the first of those of its stage that have the same of a value.
  bool is_first_of_copies(const StageValue& value, int device) const {
    for (size_t axis = 0; axis < cut_.axes.size(); ++axis)
      if (value.lies[axis] == Placement::Kind::replicated && cut_.coordinate(device, axis) != 0) return false;
    return true;
  }

  void find_pieces(RankAssignment& assignment, const std::vector<SharedPart>& parts) const {
    for (const SharedPart& part : parts) {
      if (part.is_partial) assignment.summed[part.gradient] = Axes(cut_.axes.size(), true);
      if (part.ranks.size() < 2) continue;
      assignment.pieces.push_back({part.gradient, index_of(assignment.groups, Group{part.ranks}),
                                   graph_.nodes[graph_.values[part.gradient].producer].layer, part.places,
                                   part.elements, part.counts, part.keeper});
    }
  }

  static bool kept_elsewhere(const RankAssignment& assignment, ValueId parameter) {
    return std::any_of(assignment.gradients.begin(), assignment.gradients.end(), [&](const auto& entry) {
      return entry.second.parameter == parameter && entry.second.keeps_none();
    });
  }

  // --- the sharded optimizer: who keeps the state behind which rows of each gradient

  void find_row_updates() {
    RowUpdateQuestions ask;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (graph_.nodes[n].phase == Phase::update && !parameters_updated(graph_, graph_.nodes[n]).empty())
        ask.sums_behind[static_cast<NodeId>(n)] = sums_behind(graph_.nodes[n]);
    ask.is_summed = [this](ValueId parameter, ValueId gradient, size_t axis) {
      return values_ != nullptr && (*values_)[gradient].is_partial() &&
             (!is_cut_alike(parameter) || summed_axes(parameter, gradient)[axis]);
    };
    row_updates_ = row_updates(graph_, ask);
  }

  // What each rank keeps of a parameter that stages cut differently; nothing: all of what it has, because its
  // update is not made row by row in every stage.
  std::map<int, TensorSlice> kept_slices(ValueId parameter) const {
    if (!plan_.sharded_optimizer) return {};
    const std::string& name = graph_.values[parameter].name;
    std::vector<HeldSlice> held;
    for (const auto& [pipeline, stage] : holders_.at(parameter)) {
      const StageCut cut = cut_at(pipeline, stage);
      const RankAssigner& there = other(cut);
      const ValueId own = there.updated_.at(name);
      if (there.row_updates_.count(there.only_sum_of(own)) == 0) return {};
      for (int t = 0; t < cut.parts(); ++t) {
        const int rank = rank_at(pipeline, stage, t);
        held.push_back({rank, rank_at(pipeline, stage, 0), graphs_->slice(cut, own, t), share_of_rank(rank)});
      }
    }
    auto kept = keep_rows(held);
    if (!kept) refuse_shares(name);
    return std::move(*kept);
  }

  [[noreturn]] static void refuse_shares(const std::string& name) {
    fail_usage("every stage that holds '{}' has optimizer_share = 0; one of them needs at least 1", name);
  }

  // Which rows this rank keeps of a gradient; of one that is divided with others, divide_buckets() says.
  void find_rows(RankAssignment& assignment, RankAssignment::Gradient& gradient, ValueId id, int tensor,
                 bool counts) const {
    const auto by_rows = row_updates_.find(id);
    if (!is_cut_alike(gradient.parameter)) {
      const auto kept = kept_slices(gradient.parameter);
      if (kept.empty()) return;
      const TensorSlice held = graphs_->slice(cut_, gradient.parameter, tensor);
      gradient.rows = rows_within(kept.at(assignment.rank), held);
      gradient.row_dim = row_dim(held.whole_shape());
      gradient.counted = !gradient.keeps_none();
      assignment.row_updates.insert(*by_rows);
    } else if (gradient.group >= 0 && by_rows != row_updates_.end()) {
      gradient.counted = counts;
      assignment.row_updates.insert(*by_rows);
    } else if (gradient.group >= 0) {
      const Shape& shape = graph_.type(gradient.parameter).shape;
      if (!shape.empty()) gradient.row_dim = row_dim(shape);
      const Range all{0, shape.empty() ? 1 : shape[static_cast<size_t>(gradient.row_dim)]};
      const int keeper = keeper_of(id, summed_axes(gradient.parameter, id), tensor);
      gradient.kept_by = {{keeper, all}};
      gradient.rows = keeper == assignment.rank ? Ranges{all} : Ranges{};
      gradient.counted = counts && keeper == assignment.rank;
    }
  }

  // The gradients that are summed together, one after the other, are divided by the shares of their ranks.
  void divide_buckets(RankAssignment& assignment) const {
    std::map<std::tuple<int, int, DType>, std::vector<ValueId>> buckets;
    for (const auto& [id, gradient] : assignment.gradients)
      if (gradient.group >= 0 && assignment.row_updates.count(id) != 0)
        buckets[{gradient.group, gradient.layer, graph_.type(id).dtype}].push_back(id);
    for (const auto& [key, gradients] : buckets) {
      const std::vector<int>& ranks = assignment.groups[static_cast<size_t>(std::get<0>(key))].ranks;
      Shares shares;
      for (const int rank : ranks) shares.push_back(share_of_rank(rank));
      if (std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 0; }))
        refuse_shares(graph_.values[assignment.gradients.at(gradients[0]).parameter].name);
      std::vector<Shape> shapes;
      for (const ValueId id : gradients) shapes.push_back(graph_.type(id).shape);
      const auto kept = cut_by_rows(shapes, ranks, shares);
      for (size_t i = 0; i < gradients.size(); ++i) {
        RankAssignment::Gradient& gradient = assignment.gradients.at(gradients[i]);
        gradient.kept_by = kept[i];
        gradient.row_dim = row_dim(shapes[i]);
        gradient.rows = Ranges{};
        for (const KeptRows& own : kept[i])
          if (own.rank == assignment.rank) gradient.rows->push_back(own.rows);
        gradient.counted = gradient.counted && !gradient.keeps_none();
      }
    }
  }

  // The share of optimizer state that a rank's stages ask for.
  int share_of_rank(int rank) const {
    const auto [pipeline, stage, tensor] = place_of(rank);
    return plan_.pipelines[pipeline].stages[stage].optimizer_share;
  }

  // Of gradients that only whole tensors can be updated of: the largest first, each to the holder that then
  // has the least for its share. Ranks of a stage that differ along axes over which a gradient is not summed
  // choose alike, so that they run the same updates: first those are placed that are summed over most axes.
  // Sizes are those of whole parameters.
  void find_keepers() {
    std::map<Axes, std::vector<std::pair<ValueId, ValueId>>> by_axes;  // parameter and gradient
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::update) continue;
      for (const ValueId parameter : parameters_updated(graph_, node))
        for (const ValueId id : sums_behind(node))
          if (is_cut_as_here(parameter) && row_updates_.count(id) == 0)
            by_axes[summed_axes(parameter, id)].emplace_back(parameter, id);
    }
    std::vector<Axes> order;
    for (const auto& [axes, gradients] : by_axes) order.push_back(axes);
    std::stable_sort(order.begin(), order.end(), [](const Axes& a, const Axes& b) {
      return std::count(a.begin(), a.end(), true) > std::count(b.begin(), b.end(), true);
    });
    std::map<int, double> kept;  // elements of each rank
    for (const Axes& axes : order) {
      level(axes, kept);
      place_whole(axes, by_axes.at(axes), kept);
    }
  }

  // In stages cut as here: the mean over the ranks of a stage that agree along these axes.
  void level(const Axes& axes, std::map<int, double>& kept) const {
    std::map<int, double> means;
    for (size_t p = 0; p < plan_.pipelines.size(); ++p)
      for (size_t s = 0; s < plan_.pipelines[p].stages.size(); ++s) {
        const int pipeline = static_cast<int>(p), stage = static_cast<int>(s);
        if (cut_at(pipeline, stage) != cut_) continue;
        for (int t = 0; t < cut_.parts(); ++t) {
          double all = 0;
          int alike = 0;
          for (int other = 0; other < cut_.parts(); ++other) {
            if (!agree(cut_, t, other, axes)) continue;
            all += kept[rank_at(pipeline, stage, other)];
            ++alike;
          }
          means[rank_at(pipeline, stage, t)] = all / alike;
        }
      }
    kept = std::move(means);
  }

  // Gradients that are summed over these axes. `kept`: elements of each rank.
  void place_whole(const Axes& axes, std::vector<std::pair<ValueId, ValueId>>& gradients,
                   std::map<int, double>& kept) {
    const auto size_of = [&](ValueId parameter) {
      const Value& value = graph_.values[parameter];
      return static_cast<double>(value.slice ? elements_of(value.slice->whole_shape())
                                             : value.type.elements());
    };
    // By the ranks that sum them, so that where they stand in the graph does not matter.
    std::map<std::set<int>, std::vector<std::pair<ValueId, ValueId>>> by_ranks;
    for (const auto& [parameter, id] : gradients)
      by_ranks[summers_of(parameter, id, 0)].emplace_back(parameter, id);
    for (auto& [ranks, own] : by_ranks) {
      std::stable_sort(own.begin(), own.end(),
                       [&](const auto& a, const auto& b) { return size_of(a.first) > size_of(b.first); });
      for (const auto& [parameter, id] : own) {
        int best = -1;
        double least = 0;
        for (const int rank : ranks) {
          const int share = share_of_rank(rank);
          if (share == 0) continue;
          const double load = (kept[rank] + size_of(parameter)) / share;
          if (best < 0 || load < least) {
            best = rank;
            least = load;
          }
        }
        if (best < 0) refuse_shares(graph_.scopes[graph_.nodes[graph_.values[id].producer].scope]);
        const Place place = place_of(best);
        for (int t = 0; t < cut_.parts(); ++t)
          if (agree(cut_, t, place.tensor, axes))
            kept[rank_at(place.pipeline, place.stage, t)] += size_of(parameter);
        keepers_[id] = best;
      }
    }
  }

  // Who keeps a whole tensor: of the ranks of the keeper's stage, the one that sums it with this rank.
  int keeper_of(ValueId gradient, const Axes& summed, int tensor) const {
    const Place keeper = place_of(keepers_.at(gradient));
    for (int t = 0; t < cut_.parts(); ++t)
      if (agree(cut_, t, tensor, all_but(summed)) && agree(cut_, t, keeper.tensor, summed))
        return rank_at(keeper.pipeline, keeper.stage, t);
    HET_REQUIRE(false, gradient, tensor);
    return -1;
  }

  void find_assigned(RankAssignment& assignment, int pipeline, int tensor, const std::set<int>& own) const {
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
        mine =
            stages_[pipeline][n] != kAllStages && own.count(stages_[pipeline][n]) != 0 && !is_gathered(node);
      } else if (node.phase == Phase::update && !node.op->in_place.empty()) {
        const auto updated = parameters_updated(graph_, node);
        mine = updated.empty() || std::all_of(updated.begin(), updated.end(), [&](ValueId id) {
                 return holders_of(id, tensor).count(assignment.rank) != 0 && !kept_elsewhere(assignment, id);
               });
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

  const Graph& graph_;
  const Plan& plan_;
  StageCut cut_;
  StageGraphs* graphs_;
  const std::vector<StageValue>* values_;  // null: every value is that of the single device's graph
  bool uniform_;                           // all stages are cut alike
  std::vector<std::string> devices_;
  std::vector<bool> invariant_;  // of nodes
  std::set<ValueId> sums_;
  std::map<ValueId, ValueId> part_of_;
  std::vector<std::vector<int>> stages_;    // [pipeline][node]
  std::map<std::string, ValueId> updated_;  // parameters by name
  mutable std::map<StageCut, std::shared_ptr<const RankAssigner>> others_;
  std::map<ValueId, std::set<ValueId>> sums_of_;  // of parameters: what their updates are made from
  std::map<ValueId, std::set<std::pair<int, int>>> holders_;  // of parameters: pipeline and stage
  std::map<ValueId, RowUpdate> row_updates_;                  // by gradient
  std::map<ValueId, int> keepers_;  // of whole tensors, by gradient: of the ranks that sum it with device 0
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

namespace {

// The first stage that a rank runs, and which of its devices the rank is.
std::pair<const Stage*, size_t> stage_of(const Plan& plan, int rank) {
  const std::vector<std::string> devices = devices_of(plan);
  if (rank < 0 || rank >= static_cast<int>(devices.size()))
    fail_usage("the plan has {} devices; there is no rank {}", devices.size(), rank);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (size_t t = 0; t < stage.devices.size(); ++t)
        if (stage.devices[t] == devices[static_cast<size_t>(rank)]) return {&stage, t};
  HET_REQUIRE(false, rank);
  return {};
}

}  // namespace

int tensor_rank_of(const Plan& plan, int rank) { return static_cast<int>(stage_of(plan, rank).second); }

StageCut cut_of(const Plan& plan, int rank) { return cut_of(plan, *stage_of(plan, rank).first); }

RankAssignment assignment_of(const Graph& graph, const Plan& plan, int rank, StageGraphs* graphs) {
  const StageCut cut = cut_of(plan, rank);
  const std::vector<StageValue>* values = graphs == nullptr ? nullptr : &graphs->of(cut, 0).values;
  return RankAssigner(graph, plan, cut, graphs, values).assign(rank);
}

}  // namespace het
