// Which ranks sum a gradient, and what of it each of them has.
#include <algorithm>
#include <ranges>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/lower/rank_assigner.h"

namespace het {

bool RankAssigner::lies_so(ValueId id, size_t axis, Placement::Kind kind) const {
  const StageValue& value = (*values_)[id];
  return value.value != kAbsent && value.lies[axis] == kind;
}

RankAssigner::Axes RankAssigner::summed_axes(ValueId parameter, ValueId gradient) const {
  Axes axes(cut_.axes.size());
  if (values_ == nullptr || !is_cut_alike(parameter)) return axes;
  for (size_t a = 0; a < axes.size(); ++a)
    axes[a] =
        lies_so(gradient, a, Placement::Kind::partial) && !lies_so(parameter, a, Placement::Kind::sharded);
  return axes;
}

bool RankAssigner::is_partial(ValueId parameter, ValueId gradient) const {
  const Axes axes = summed_axes(parameter, gradient);
  return std::find(axes.begin(), axes.end(), true) != axes.end();
}

RankAssigner::Axes RankAssigner::copied_axes(ValueId parameter, ValueId gradient) const {
  Axes axes(cut_.axes.size());
  if (!plan_.unlike_devices || values_ == nullptr || !is_cut_alike(parameter)) return axes;
  for (size_t a = 0; a < axes.size(); ++a)
    axes[a] = lies_so(gradient, a, Placement::Kind::replicated) &&
              lies_so(parameter, a, Placement::Kind::replicated);
  return axes;
}

RankAssigner::Axes RankAssigner::exchanged_axes(ValueId parameter, ValueId gradient) const {
  Axes axes = summed_axes(parameter, gradient);
  const Axes copied = copied_axes(parameter, gradient);
  for (size_t a = 0; a < axes.size(); ++a) axes[a] = axes[a] || copied[a];
  return axes;
}

bool RankAssigner::agree(const StageCut& cut, int a, int b, const Axes& along) {
  for (size_t axis = 0; axis < along.size(); ++axis)
    if (along[axis] && cut.coordinate(a, axis) != cut.coordinate(b, axis)) return false;
  return true;
}

RankAssigner::Axes RankAssigner::all_but(Axes axes) {
  axes.flip();
  return axes;
}

std::set<int> RankAssigner::summers_of(ValueId parameter, ValueId gradient, int tensor) const {
  const Axes others = all_but(exchanged_axes(parameter, gradient));
  std::set<int> ranks;
  for (const auto& [pipeline, stage] : holders_.at(parameter))
    for (int t = 0; t < cut_.parts(); ++t)
      if (agree(cut_, t, tensor, others)) ranks.insert(rank_at(pipeline, stage, t));
  return ranks;
}

bool RankAssigner::speaks_for(ValueId parameter, int tensor, const Axes& but) const {
  for (size_t axis = 0; axis < cut_.axes.size(); ++axis)
    if (!but[axis] && cut_.coordinate(tensor, axis) != 0 &&
        !(values_ != nullptr && lies_so(parameter, axis, Placement::Kind::sharded)))
      return false;
  return true;
}

void RankAssigner::find_gradients(RankAssignment& assignment, int pipeline, int tensor,
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
        if (!alike) gradient.counted = own && first.first == pipeline && own_stages.count(first.second) != 0;
        gradient.parameter = parameter;
        const Axes copied = copied_axes(parameter, id);
        const auto copies =
            static_cast<size_t>(std::ranges::count_if(std::views::iota(0, cut_.parts()), [&](int t) {
              return agree(cut_, t, tensor, all_but(copied));
            }));
        gradient.gathered = copies > 1 && copies == ranks.size();
        gradient.gives_none = copies > 1 && !gradient.gathered && !agree(cut_, tensor, 0, copied);
        if (ranks.size() > 1)
          gradient.group = index_of(assignment.groups, Group{{ranks.begin(), ranks.end()}});
        if (sharded_optimizer_)
          find_rows(assignment, gradient, id, tensor,
                    !alike || speaks_for(parameter, tensor, exchanged_axes(parameter, id)));
        assignment.gradients[id] = gradient;
      }
    }
  }
  if (sharded_optimizer_) divide_buckets(assignment);
}

ValueId RankAssigner::only_sum_of(ValueId parameter) const {
  const auto& sums = sums_of_.at(parameter);
  if (sums.size() != 1)
    fail_usage(
        "the update of '{}' is made from {} sums over micro-batches; stages that share their layers "
        "differently can sum one",
        graph_.values[parameter].name, sums.size());
  return *sums.begin();
}

std::vector<RankAssigner::SharedPart> RankAssigner::parts_of(int rank) const {
  std::vector<SharedPart> parts;
  for (const auto& [name, id] : updated_) {  // in an order that does not depend on the rank
    if (is_cut_alike(id)) continue;
    struct Member {
      TensorSlice slice;
      bool counts, is_partial;
    };
    std::map<int, Member> members;  // by rank
    for (const auto& [pipeline, stage] : holders_.at(id)) {
      const StageCut& cut = cut_at(pipeline, stage);
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
        if (has(slice)) shared.owner = member;
      parts.push_back(std::move(shared));
    }
  }
  return parts;
}

bool RankAssigner::is_first_of_copies(const StageValue& value, int device) const {
  for (size_t axis = 0; axis < cut_.axes.size(); ++axis)
    if (value.lies[axis] == Placement::Kind::replicated && cut_.coordinate(device, axis) != 0) return false;
  return true;
}

void RankAssigner::find_pieces(RankAssignment& assignment, const std::vector<SharedPart>& parts) const {
  for (const SharedPart& part : parts) {
    if (part.is_partial) assignment.summed[part.gradient] = Axes(cut_.axes.size(), true);
    if (part.ranks.size() < 2) continue;
    assignment.pieces.push_back({part.gradient, index_of(assignment.groups, Group{part.ranks}),
                                 graph_.nodes[graph_.values[part.gradient].producer].layer, part.places,
                                 part.elements, part.counts, part.owner});
  }
}

bool RankAssigner::kept_elsewhere(const RankAssignment& assignment, ValueId parameter) {
  return std::any_of(assignment.gradients.begin(), assignment.gradients.end(), [&](const auto& entry) {
    return entry.second.parameter == parameter && entry.second.keeps_none();
  });
}

}  // namespace het
