#include "planner/lower/sharded_update.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/comm/communicator.h"
#include "core/ops/op.h"

namespace het {
namespace {

// The rows of `part`, counted among those of `all`.
Ranges within(const Ranges& all, Range part) {
  const TensorSlice held = TensorSlice::whole({all.back().end}).narrowed(0, all);
  return nested(held, TensorSlice::whole({size_of(all)}).narrowed(0, part)).ranges(0);
}

class RowUpdates {
 public:
  RowUpdates(const Graph& graph, const RowUpdateQuestions& ask) : graph_(graph), ask_(ask) {
    users_.resize(graph.values.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const ValueId id : graph.nodes[n].inputs)
        if (id != kAbsent) users_[static_cast<size_t>(id)].push_back(static_cast<NodeId>(n));
    for (const Output& output : graph.outputs) outputs_.insert(output.value);
  }

  std::optional<RowUpdate> find(NodeId update, ValueId parameter, ValueId gradient) {
    const Shape& shape = graph_.type(parameter).shape;
    if (shape.empty() || graph_.type(gradient).shape != shape) return std::nullopt;
    RowUpdate found;
    found.parameter = parameter;
    made_ = {gradient};
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n) {
      const Node& node = graph_.nodes[static_cast<size_t>(n)];
      if (node.phase != Phase::update || node.op->any_placement) continue;
      const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId id) { return made_.count(id) != 0; });
      if (!reads) continue;
      const auto axis = static_cast<size_t>(node.attributes.get<int64_t>("axis", 0));
      const bool summed = node.op->collective && ask_.is_summed(parameter, gradient, axis);
      if (!is_by_rows(node, shape, summed)) return std::nullopt;
      found.nodes.insert(n);
      for (const ValueId id : node.outputs)
        if (id != kAbsent) made_.insert(id);
    }
    if (found.nodes.count(update) == 0) return std::nullopt;
    for (const NodeId n : found.nodes)
      if (!take_state(graph_.nodes[static_cast<size_t>(n)], found)) return std::nullopt;
    for (const ValueId id : made_)
      if (id != gradient && outputs_.count(id) != 0) return std::nullopt;
    return found;
  }

 private:
  // Whether a node makes each element from the same elements of its operands, and from scalars.
  bool is_by_rows(const Node& node, const Shape& shape, bool summed) const {
    const OpDef& op = *node.op;
    const bool passes = op.collective && *op.collective == CollectiveKind::all_reduce && summed;
    const bool cuts_all = std::any_of(op.sharding.begin(), op.sharding.end(), [](const ShardingRule& rule) {
      return rule.cut == "..." && rule.sums.empty() && rule.when == nullptr;
    });
    const bool each = op.elementwise || op.adds_operands || !op.in_place.empty();
    if (!passes && !(each && cuts_all && op.localize == nullptr)) return false;
    const auto fits = [&](ValueId id) {
      return id == kAbsent || graph_.type(id).shape.empty() || graph_.type(id).shape == shape;
    };
    return std::all_of(node.inputs.begin(), node.inputs.end(), fits) &&
           std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return id == kAbsent || graph_.type(id).shape == shape; });
  }

  // Of a node of the update: the parameter is the only one that it writes, other state is its own.
  bool take_state(const Node& node, RowUpdate& found) const {
    for (const auto& [output, input] : node.op->in_place) {
      const ValueId id = static_cast<size_t>(input) < node.inputs.size() ? node.inputs[input] : kAbsent;
      if (id == kAbsent || id == found.parameter) continue;
      if (!is_state(graph_.values[id]) || graph_.values[id].role == Role::parameter) return false;
      const auto& users = users_[static_cast<size_t>(id)];
      const bool own =
          std::all_of(users.begin(), users.end(), [&](NodeId n) { return found.nodes.count(n) != 0; });
      if (!own || outputs_.count(id) != 0) return false;
      found.state.insert(id);
    }
    return true;
  }

  const Graph& graph_;
  const RowUpdateQuestions& ask_;
  std::vector<std::vector<NodeId>> users_;  // of values
  std::set<ValueId> outputs_;
  std::set<ValueId> made_;  // from the gradient: of the update that is looked at
};

}  // namespace

std::map<ValueId, RowUpdate> row_updates(const Graph& graph, const RowUpdateQuestions& ask) {
  RowUpdates updates(graph, ask);
  std::map<ValueId, RowUpdate> found;
  std::set<ValueId> several;  // gradients that update several parameters
  for (const auto& [n, gradients] : ask.sums_behind) {
    const std::vector<ValueId> parameters = parameters_updated(graph, graph.nodes[static_cast<size_t>(n)]);
    if (parameters.empty()) continue;
    for (const ValueId gradient : gradients) {
      const bool first = several.insert(gradient).second;
      auto update = first && gradients.size() == 1 && parameters.size() == 1
                        ? updates.find(n, parameters[0], gradient)
                        : std::nullopt;
      if (update)
        found.emplace(gradient, std::move(*update));
      else
        found.erase(gradient);
    }
  }
  return found;
}

bool updates_alike(const Graph& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    const std::vector<ValueId> parameters =
        node.phase == Phase::update ? parameters_updated(graph, node) : std::vector<ValueId>();
    if (parameters.empty()) return true;
    if (node.op->flops == nullptr) return false;  // it stores what others computed
    const Shape& shape = graph.type(parameters[0]).shape;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      const NodeId producer = id == kAbsent ? -1 : graph.values[static_cast<size_t>(id)].producer;
      if (producer < 0 || graph.type(id).shape != shape) return true;
      const Node& before = graph.nodes[static_cast<size_t>(producer)];
      return before.phase != Phase::update || before.op->collective || before.op->any_placement ||
             before.op->adds_operands || (!before.op->elementwise && before.op->flops == nullptr);
    });
  });
}

int64_t row_dim(const Shape& shape) {
  HET_REQUIRE(!shape.empty());
  const auto longer = std::find_if(shape.begin(), shape.end(), [](int64_t size) { return size > 1; });
  return longer == shape.end() ? 0 : longer - shape.begin();
}

std::vector<ValueId> parameters_updated(const Graph& graph, const Node& node) {
  std::vector<ValueId> updated;
  for (const auto& [output, input] : node.op->in_place)
    if (input < static_cast<int>(node.inputs.size()) && node.inputs[input] != kAbsent &&
        graph.values[node.inputs[input]].role == Role::parameter)
      updated.push_back(node.inputs[input]);
  return updated;
}

Ranges rows_within(const TensorSlice& part, const TensorSlice& held) {
  const int64_t dim = row_dim(held.whole_shape()), size = held.whole_shape()[static_cast<size_t>(dim)];
  const auto rows_of = [&](const TensorSlice& slice) {
    return TensorSlice::whole({size}).narrowed(0, slice.ranges(dim));
  };
  Ranges rows;
  each_run(rows_of(part), rows_of(held), 1, [&](int64_t, int64_t at, int64_t count) {
    if (!rows.empty() && rows.back().end == at)
      rows.back().end += count;
    else
      rows.push_back({at, at + count});
  });
  return rows;
}

std::vector<std::vector<KeptRows>> cut_by_rows(std::span<const Shape> shapes, std::span<const int> ranks,
                                               const Shares& shares) {
  HET_REQUIRE(ranks.size() == shares.size(), ranks.size(), shares.size());
  int64_t total = 0;
  for (const Shape& shape : shapes) total += elements_of(shape);
  const std::vector<int64_t> cuts = cut_points(total, shares);
  std::vector<std::vector<KeptRows>> kept;
  int64_t start = 0;  // of the tensor, in elements
  for (const Shape& shape : shapes) {
    const int64_t rows = shape[static_cast<size_t>(row_dim(shape))];
    const int64_t elements = elements_of(shape), each = rows == 0 ? 0 : elements / rows;
    auto& own = kept.emplace_back();
    int64_t row = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      // The first row that begins nearer to the cut than the one before it, or after.
      const int64_t until = std::clamp<int64_t>(cuts[r + 1] - start, 0, elements);
      const bool last = r + 1 == ranks.size();
      const int64_t end = last ? rows : std::max(row, each == 0 ? 0 : (until + each / 2) / each);
      if (end > row) own.push_back({ranks[r], {row, end}});
      row = std::max(row, end);
    }
    start += elements;
  }
  return kept;
}

std::optional<std::map<int, TensorSlice>> keep_rows(std::span<const HeldSlice> held) {
  HET_REQUIRE(!held.empty());
  const Shape& whole = held[0].slice.whole_shape();
  const int64_t dim = row_dim(whole), size = whole[static_cast<size_t>(dim)];
  const auto rows_of = [&](const HeldSlice& each) {
    return TensorSlice::whole({size}).narrowed(0, each.slice.ranges(dim));
  };
  std::vector<TensorSlice> slices;
  for (const HeldSlice& each : held) slices.push_back(rows_of(each));
  std::map<int, std::vector<TensorSlice>> rows;  // by rank
  for (const TensorSlice& part : refine(slices)) {
    std::map<int, std::vector<const HeldSlice*>> stages;
    for (const HeldSlice& each : held)
      if (intersection(part, rows_of(each))) stages[each.stage].push_back(&each);
    Shares shares;
    for (const auto& [stage, devices] : stages) shares.push_back(devices[0]->share);
    if (std::accumulate(shares.begin(), shares.end(), int64_t{0}) == 0) return std::nullopt;
    const Ranges all = part.ranges(0);
    const std::vector<int64_t> cuts = cut_points(size_of(all), shares);
    size_t s = 0;
    for (const auto& [stage, devices] : stages) {
      const Range own{cuts[s], cuts[s + 1]};
      ++s;
      for (size_t d = 0; d < devices.size(); ++d) {
        const auto has_same = [&](const HeldSlice* other) { return other->slice == devices[d]->slice; };
        const int64_t copies = std::count_if(devices.begin(), devices.end(), has_same);
        const int64_t copy =
            std::count_if(devices.begin(), devices.begin() + static_cast<int64_t>(d), has_same);
        Range mine = share_of(own.size(), copies, copy);
        mine = {mine.begin + own.begin, mine.end + own.begin};
        if (mine.size() > 0)
          rows[devices[d]->rank].push_back(TensorSlice::whole({size}).narrowed(0, within(all, mine)));
      }
    }
  }
  std::map<int, TensorSlice> kept;
  for (const HeldSlice& each : held) {
    Ranges own;
    for (const TensorSlice& part : rows[each.rank])
      for (const Range& range : part.ranges(0)) own.push_back(range);
    std::sort(own.begin(), own.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    kept.emplace(each.rank, each.slice.narrowed(dim, own));
  }
  return kept;
}

}  // namespace het
