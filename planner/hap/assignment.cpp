#include "planner/hap/assignment.h"

#include <algorithm>
#include <map>

#include "planner/hap/steps.h"

namespace het::planner::hap {
namespace {

using assignment::AssignmentEdge;
using assignment::AssignmentNode;

// How a value is made, and what is held of it.
struct Holding {
  PlacementId made;
  Needs held;
  Ticks cost;
  bool has(PlacementId lies, int phase) const {
    return lies == made || (held[static_cast<size_t>(phase)] & form(lies)) != 0;
  }
};

// A value that steps share: how it can be made, and how they may read it.
struct Shared {
  ValueId id;
  Forms made = 0;
  Needs may{};
  std::vector<Holding> holdings;
};

bool is_within(const Needs& a, const Needs& b) { return united(a, b) == b; }

// Every set of needs is within a holding that costs no more.
class Holdings {
 public:
  Holdings(const ValueCosts& costs, const Needs& may) : costs_(costs), may_(may) {}

  std::vector<Holding> run(Forms made, bool& exact) {
    std::vector<Holding> all;
    for (PlacementId lies = 0; lies < kMostPlacements; ++lies)
      if ((made & form(lies)) != 0) add(lies, all, exact);
    return all;
  }

 private:
  struct Need {
    size_t phase;
    Forms form;
  };

  void add(PlacementId made, std::vector<Holding>& all, bool& exact) {
    constexpr size_t kMostNeeds = 12;  // whose subsets are looked at
    std::vector<Need> needs;
    for (size_t phase = 0; phase < kPhases; ++phase)
      for (PlacementId lies = 0; lies < kMostPlacements; ++lies)
        if ((may_[phase] & form(lies)) != 0 && lies != kPartial && lies != made)
          needs.push_back({phase, form(lies)});
    Needs free{};
    for (; needs.size() > kMostNeeds; needs.pop_back()) {
      free[needs.back().phase] |= needs.back().form;
      exact = false;
    }
    std::vector<Holding> own;
    for (size_t subset = 0; subset < size_t{1} << needs.size(); ++subset) {
      Needs asked{};
      for (size_t i = 0; i < needs.size(); ++i)
        if ((subset >> i & 1) != 0) asked[needs[i].phase] |= needs[i].form;
      const Ticks cost = costs_.cost(made, asked);
      if (cost >= kNever) continue;
      // What costs nothing more is held, too.
      for (const Need& need : needs) {
        Needs more = asked;
        more[need.phase] |= need.form;
        if (costs_.cost(made, more) == cost) asked = more;
      }
      own.push_back({made, asked, cost});
    }
    std::stable_sort(own.begin(), own.end(),
                     [](const Holding& a, const Holding& b) { return a.cost < b.cost; });
    const size_t first = all.size();
    for (Holding& each : own) {
      each.held = united(each.held, free);
      if (std::none_of(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                       [&](const Holding& other) { return is_within(each.held, other.held); }))
        all.push_back(each);
    }
  }

  const ValueCosts& costs_;
  const Needs& may_;
};

class Viewer {
 public:
  Viewer(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options)
      : options_(options), groups_(make_groups(costs, shares, options)) {}

  AssignmentView run() {
    for (const Group& group : groups_.list)
      for (const Step& step : group.steps) add_step(step);
    for (const Group& group : groups_.list)
      for (const Step& step : group.steps) find_uses(group, step);
    for (Shared& value : values_) add_value(value);
    int number = 0;
    for (const Group& group : groups_.list)
      for (const Step& step : group.steps) add_edges(group, step, number++);
    return std::move(view_);
  }

 private:
  void add_node(const std::vector<Ticks>& costs) {
    AssignmentNode node;
    for (const Ticks cost : costs)  // what takes weeks is allowed
      node.costs.push_back(cost >= kNever ? assignment::kForbiddenCost
                                          : std::min(cost, assignment::kForbiddenCost - 1));
    if (costs.empty()) node.costs = {assignment::kForbiddenCost};
    node.usages.assign(node.costs.size(), 0);
    view_.problem.nodes.push_back(std::move(node));
  }

  void add_step(const Step& step) {
    std::vector<Ticks> costs;
    std::vector<int> numbers;
    for (const Step::Way& way : step.ways) {
      costs.push_back(way.cost);
      numbers.push_back(way.number);
    }
    add_node(costs);
    view_.nodes.push_back(step.node);
    view_.ways.push_back(std::move(numbers));
  }

  Shared& shared(const Group& group, int slot) {
    const ValueId id = group.members[static_cast<size_t>(slot)].value;
    const auto [place, fresh] = places_.emplace(id, values_.size());
    if (fresh) {
      values_.push_back({id, 0, {}, {}});
      if (group.members[static_cast<size_t>(slot)].is_state) values_.back().made = made_as_state(id);
    }
    return values_[place->second];
  }

  Forms made_as_state(ValueId id) const {
    const ValueCosts& costs = groups_.of(id);
    Forms made = 0;
    for (PlacementId lies = 0; lies < costs.placements(); ++lies)
      if (lies != kPartial && costs.fills(lies) &&
          (!options_.allows_state || options_.allows_state(id, lies)))
        made |= form(lies);
    return made;
  }

  // What is read as it lies is held by being made so.
  static bool as_it_lies(const Step& step, const Step::Way& way, size_t read) {
    return step.reads[read].changes || ((way.once >> read) & 1) != 0;
  }

  void find_uses(const Group& group, const Step& step) {
    for (const Step::Way& way : step.ways) {
      for (size_t r = 0; r < step.reads.size(); ++r)
        if (Shared& value = shared(group, step.reads[r].slot); !as_it_lies(step, way, r))
          value.may[static_cast<size_t>(step.reads[r].phase)] |= form(way.reads[r]);
      for (size_t w = 0; w < step.writes.size(); ++w)
        shared(group, step.writes[w]).made |= form(way.writes[w]);
      if (way.wanted) shared(group, step.wanted);
    }
  }

  void add_value(Shared& value) {
    value.holdings = Holdings(groups_.of(value.id), value.may).run(value.made, view_.exact);
    if (value.holdings.empty()) value.holdings.push_back({kReplicated, {}, kNever});
    std::vector<Ticks> costs;
    for (const Holding& holding : value.holdings) costs.push_back(holding.cost);
    add_node(costs);
  }

  static bool fits(const Step& step, const Step::Way& way, int slot, const Holding& holding) {
    for (size_t r = 0; r < step.reads.size(); ++r)
      if (step.reads[r].slot == slot &&
          (as_it_lies(step, way, r) ? holding.made != way.reads[r]
                                    : !holding.has(way.reads[r], step.reads[r].phase)))
        return false;
    for (size_t w = 0; w < step.writes.size(); ++w)
      if (step.writes[w] == slot && holding.made != way.writes[w]) return false;
    return !way.wanted || step.wanted != slot || holding.made == *way.wanted;
  }

  void add_edges(const Group& group, const Step& step, int number) {
    if (step.ways.empty()) return;
    const auto steps = static_cast<int>(view_.nodes.size());
    for (int slot = 0; slot < std::ssize(group.members); ++slot) {
      const auto place = places_.find(group.members[static_cast<size_t>(slot)].value);
      if (place == places_.end() || !touches(step, slot)) continue;
      AssignmentEdge edge{{number, steps + static_cast<int>(place->second)}, {}};
      for (const Step::Way& way : step.ways)
        for (const Holding& holding : values_[place->second].holdings)
          edge.costs.push_back(fits(step, way, slot, holding) ? 0 : assignment::kForbiddenCost);
      view_.problem.edges.push_back(std::move(edge));
    }
  }

  static bool touches(const Step& step, int slot) {
    return step.wanted == slot ||
           std::find(step.writes.begin(), step.writes.end(), slot) != step.writes.end() ||
           std::any_of(step.reads.begin(), step.reads.end(),
                       [&](const Step::Read& read) { return read.slot == slot; });
  }

  const SearchOptions& options_;
  const Groups groups_;
  AssignmentView view_;
  std::map<ValueId, size_t> places_;
  std::vector<Shared> values_;
};

}  // namespace

std::vector<int> AssignmentView::ways_of(const std::vector<int>& choice, size_t graph_nodes) const {
  std::vector<int> chosen(graph_nodes, 0);
  for (size_t s = 0; s < nodes.size(); ++s)
    if (nodes[s] >= 0) chosen[static_cast<size_t>(nodes[s])] = ways[s][static_cast<size_t>(choice[s])];
  return chosen;
}

AssignmentView as_assignment(ShardingCosts& costs, const MaybeShares& shares, const SearchOptions& options) {
  return Viewer(costs, shares, options).run();
}

}  // namespace het::planner::hap
