// The sharded optimizer: which rank keeps the optimizer state behind which rows of a parameter.
#include <algorithm>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/lower/rank_assigner.h"

namespace het {

void RankAssigner::find_row_updates() {
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

std::map<int, TensorSlice> RankAssigner::kept_slices(ValueId parameter) const {
  if (!sharded_optimizer_) return {};
  const std::string& name = graph_.values[parameter].name;
  std::vector<HeldSlice> held;
  for (const auto& [pipeline, stage] : holders_.at(parameter)) {
    const StageCut& cut = cut_at(pipeline, stage);
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

void RankAssigner::refuse_shares(const std::string& name) {
  fail_usage("every stage that holds '{}' has optimizer_share = 0; one of them needs at least 1", name);
}

void RankAssigner::find_rows(RankAssignment& assignment, RankAssignment::Gradient& gradient, ValueId id,
                             int tensor, bool counts) const {
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
    const int owner = owner_of(id, exchanged_axes(gradient.parameter, id), tensor);
    gradient.kept_by = {{owner, all}};
    gradient.rows = owner == assignment.rank ? Ranges{all} : Ranges{};
    gradient.counted = counts && owner == assignment.rank;
  }
}

void RankAssigner::divide_buckets(RankAssignment& assignment) const {
  std::map<std::tuple<int, int, DType, bool>, std::vector<ValueId>> buckets;
  for (const auto& [id, gradient] : assignment.gradients)
    if (gradient.group >= 0 && assignment.row_updates.count(id) != 0)
      buckets[{gradient.group, gradient.layer, graph_.type(id).dtype, gradient.gathered}].push_back(id);
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

int RankAssigner::share_of_rank(int rank) const {
  const auto [pipeline, stage, tensor] = place_of(rank);
  return plan_.pipelines[pipeline].stages[stage].optimizer_share;
}

void RankAssigner::find_owners() {
  std::map<Axes, std::vector<std::pair<ValueId, ValueId>>> by_axes;  // parameter and gradient
  for (const Node& node : graph_.nodes) {
    if (node.phase != Phase::update) continue;
    for (const ValueId parameter : parameters_updated(graph_, node))
      for (const ValueId id : sums_behind(node))
        if (is_cut_as_here(parameter) && row_updates_.count(id) == 0)
          by_axes[exchanged_axes(parameter, id)].emplace_back(parameter, id);
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

void RankAssigner::level(const Axes& axes, std::map<int, double>& kept) const {
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

void RankAssigner::place_whole(const Axes& axes, std::vector<std::pair<ValueId, ValueId>>& gradients,
                               std::map<int, double>& kept) {
  const auto size_of = [&](ValueId parameter) {
    const Value& value = graph_.values[parameter];
    return static_cast<double>(value.slice ? elements_of(value.slice->whole_shape()) : value.type.elements());
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
      owners_[id] = best;
    }
  }
}

int RankAssigner::owner_of(ValueId gradient, const Axes& summed, int tensor) const {
  const Place owner = place_of(owners_.at(gradient));
  for (int t = 0; t < cut_.parts(); ++t)
    if (agree(cut_, t, tensor, all_but(summed)) && agree(cut_, t, owner.tensor, summed))
      return rank_at(owner.pipeline, owner.stage, t);
  HET_REQUIRE(false, gradient, tensor);
  return -1;
}

}  // namespace het
