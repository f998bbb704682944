#include "core/graph/placements.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

using Key = std::pair<ValueId, int64_t>;  // a dimension of a value

// Letters that one node cuts together by a rule, or never, and where they run.
struct Letters {
  struct Place {
    ValueId value;
    int64_t dim;
    size_t operand;                 // of the node; results follow the inputs
    std::vector<LetterRuns> parts;  // one after the other

    std::vector<int64_t> natural() const {
      std::vector<int64_t> segments;
      for (const LetterRuns& part : parts)
        segments.insert(segments.end(), static_cast<size_t>(part.outer), part.size * part.inner);
      return segments;
    }
    bool is_plain() const { return parts.size() == 1 && parts[0].outer == 1; }
  };
  size_t node;
  std::vector<Place> places;
  std::string obstacle;                   // of letters that are never cut
  ShardingInstance rule;                  // of others
  bool one_range = false;                 // the rule cuts no segments
  std::vector<std::vector<size_t>> ways;  // to cut them: for each place the number of its segments
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {}

  void run() {
    for (; node_ < graph_.nodes.size(); ++node_) read(graph_.nodes[node_]);
    // Segments travel from node to node until no dimension learns of others.
    for (size_t i = 0; i < places_.size(); ++i)
      for (const size_t user : users_[{places_[i].value, places_[i].dim}]) carry(i, letters_[user]);
  }

  std::vector<LogicalAxis> axes() {
    std::map<size_t, LogicalAxis> found;  // by root
    std::map<size_t, size_t> obstacles;   // letters, by root
    for (size_t i = 0; i < places_.size(); ++i) {
      const AxisPlace& place = places_[i];
      LogicalAxis& axis = found[root_of(i)];
      axis.places.push_back(place);
      for (const int64_t size : place.segments) axis.units = std::gcd(axis.units, size);
      const Value& value = graph_.values[static_cast<size_t>(place.value)];
      axis.has_parameters = axis.has_parameters || value.role == Role::parameter;
      axis.has_inputs = axis.has_inputs || value.role == Role::input;
      size_t& obstacle = obstacles.emplace(root_of(i), letters_.size()).first->second;
      obstacle = std::min(obstacle, obstacle_at(place));
      if (axis.obstacle.empty() && !all_follow(place))
        axis.obstacle =
            fmt::format("a node that uses '{}' cannot cut its dimension {} so", value.name, place.dim);
    }
    std::vector<LogicalAxis> result;
    axis_of_.assign(places_.size(), -1);
    std::map<size_t, int> numbers;
    for (auto& [root, axis] : found) {
      if (axis.units <= 1) continue;
      if (obstacles.at(root) < letters_.size()) axis.obstacle = letters_[obstacles.at(root)].obstacle;
      std::sort(axis.places.begin(), axis.places.end(), [](const AxisPlace& a, const AxisPlace& b) {
        return std::tie(a.value, a.dim, a.segments) < std::tie(b.value, b.dim, b.segments);
      });
      numbers.emplace(root, static_cast<int>(result.size()));
      result.push_back(std::move(axis));
    }
    for (size_t i = 0; i < places_.size(); ++i)
      if (const auto number = numbers.find(root_of(i)); number != numbers.end()) axis_of_[i] = number->second;
    return result;
  }

  // After axes().
  std::vector<std::vector<Placement>> placements() {
    std::vector<std::vector<Placement>> result(graph_.values.size(),
                                               {Placement{}, Placement{Placement::Kind::partial, -1, 0, {}}});
    placement_of_.assign(places_.size(), kReplicated);
    for (size_t i = 0; i < places_.size(); ++i) {
      auto& of_value = result[static_cast<size_t>(places_[i].value)];
      if (axis_of_[i] < 0 || of_value.size() > std::numeric_limits<PlacementId>::max()) continue;
      placement_of_[i] = static_cast<PlacementId>(of_value.size());
      of_value.push_back({Placement::Kind::sharded, axis_of_[i], places_[i].dim, places_[i].segments});
    }
    return result;
  }

  // After placements().
  std::vector<std::vector<NodeSharding>> shardings() const {
    std::vector<std::vector<NodeSharding>> result(graph_.nodes.size());
    for (const Letters& letters : letters_)
      if (letters.obstacle.empty())
        for (const std::vector<size_t>& way : letters.ways)
          if (auto sharding = sharding_by(letters, way)) result[letters.node].push_back(std::move(*sharding));
    return result;
  }

 private:
  // --- the letters of each node

  void read(const Node& node) {
    const auto inputs = types_of(graph_, node.inputs), outputs = types_of(graph_, node.outputs);
    if (node.op->sharding.empty()) return read_without_rules(node);
    const OpCall call{*node.op, inputs, node.attributes};
    const Notation notation = notation_of(call, outputs);
    // A letter of one entry is never cut, and runs where the letters merged with it run: it would join them.
    const auto is_single = [&](const std::string& letter) { return notation.sizes.at(letter) == 1; };
    std::vector<std::string> cut;
    for (ShardingInstance& instance : sharding_of(call, outputs)) {
      cut.insert(cut.end(), instance.letters.begin(), instance.letters.end());
      auto places = places_of(node, notation, instance.letters);
      if (!instance.letters.empty() && instance.units == 1) {
        refuse_together(node, instance.letters, places);
        continue;
      }
      const bool one_range = node.op->sharding[instance.rule].one_range;
      remember({node_, std::move(places), "", std::move(instance), one_range, {}});
    }
    const auto numbers = [&](const std::vector<OperandNotation>& operands, const std::vector<ValueId>& ids) {
      for (size_t i = 0; i < operands.size(); ++i)
        for (size_t d = 0; d < operands[i].dims.size(); ++d)
          if (std::all_of(operands[i].dims[d].begin(), operands[i].dims[d].end(),
                          [](const MergedLetters& part) { return part.letters.empty(); }))
            refuse(ids[i], d,
                   fmt::format("{} needs dimension {} of {} whole", node.op->name, d, operands[i].name));
    };
    numbers(notation.inputs, node.inputs);
    numbers(notation.outputs, node.outputs);
    for (const std::string& letter : notation.letters)
      if (!is_single(letter) && std::find(cut.begin(), cut.end(), letter) == cut.end())
        remember({node_, places_of(node, notation, {letter}), reason(node, letter), {}, false, {}});
  }

  // What an operator that takes operands however they lie is to an axis: nothing.
  void read_without_rules(const Node& node) {
    if (node.op->any_placement) return;
    for (const auto* ids : {&node.inputs, &node.outputs})
      for (const ValueId id : *ids) {
        if (id == kAbsent) continue;
        const Shape& shape = graph_.type(id).shape;
        for (size_t d = 0; d < shape.size(); ++d)
          refuse(id, d, fmt::format("{} has no rules", node.op->name));
      }
  }

  // A dimension that a node needs whole, however it would be cut.
  void refuse(ValueId id, size_t dim, std::string obstacle) {
    const int64_t size = graph_.type(id).shape[dim];
    if (size > 1)
      remember(
          {node_, {{id, static_cast<int64_t>(dim), 0, {{1, size, 1}}}}, std::move(obstacle), {}, false, {}});
  }

  // Dimensions of letters that are cut together, and whose sizes have nothing in common: 8 query heads and 1
  // key head.
  void refuse_together(const Node& node, const std::vector<std::string>& letters,
                       const std::vector<Letters::Place>& places) {
    for (const Letters::Place& place : places)
      if (std::any_of(place.parts.begin(), place.parts.end(),
                      [](const LetterRuns& part) { return part.size > 1; }))
        refuse(place.value, static_cast<size_t>(place.dim),
               fmt::format("{} cuts {} together, whose sizes have no common divisor", node.op->name,
                           fmt::join(letters, ", ")));
  }

  std::string reason(const Node& node, const std::string& letter) const {
    std::string why = "no rule of it holds for this call";
    for (const NeverCut& never : node.op->never_cut)
      if (names(never.letter, letter)) why = never.reason;
    const std::string& scope = graph_.scopes[static_cast<size_t>(node.scope)];
    return fmt::format("{}{} never cuts {}: {}", node.op->name, scope.empty() ? "" : " of " + scope, letter,
                       why);
  }

  static std::vector<Letters::Place> places_of(const Node& node, const Notation& notation,
                                               const std::vector<std::string>& letters) {
    std::vector<Letters::Place> places;
    const auto visit = [&](const std::vector<OperandNotation>& operands, const std::vector<ValueId>& ids,
                           size_t first) {
      for (size_t i = 0; i < operands.size(); ++i)
        for (size_t d = 0; d < operands[i].dims.size(); ++d) {
          Letters::Place place{ids[i], static_cast<int64_t>(d), first + i, {}};
          for (const MergedLetters& part : operands[i].dims[d])
            if (const auto runs = runs_of(part, notation, letters); runs && runs->size > 0)
              place.parts.push_back(*runs);
          if (!place.parts.empty()) places.push_back(std::move(place));
        }
    };
    visit(notation.inputs, node.inputs, 0);
    visit(notation.outputs, node.outputs, node.inputs.size());
    return places;
  }

  void remember(Letters letters) {
    const size_t index = letters_.size();
    std::vector<size_t> together;
    for (const Letters::Place& place : letters.places) {
      auto& users = users_[{place.value, place.dim}];
      if (users.empty() || users.back() != index) users.push_back(index);
      together.push_back(number_of({place.value, place.dim, place.natural()}));
    }
    for (const size_t each : together) join(together[0], each);
    letters.ways.push_back(std::move(together));
    letters_.push_back(std::move(letters));
  }

  // --- segments, from one place of a node's letters to the others

  void carry(size_t from, Letters& letters) {
    for (const Letters::Place& here : letters.places) {
      if (here.value != places_[from].value || here.dim != places_[from].dim || !here.is_plain()) continue;
      const std::vector<int64_t> segments = places_[from].segments;  // places_ grows below
      if (letters.one_range && segments.size() > 1) continue;
      const int64_t inner = here.parts[0].inner;
      if (std::any_of(segments.begin(), segments.end(), [&](int64_t size) { return size % inner != 0; }))
        continue;
      std::vector<size_t> way;
      for (const Letters::Place& there : letters.places) {
        auto carried = carried_to(there, here, segments);
        if (carried.empty()) continue;
        way.push_back(number_of({there.value, there.dim, std::move(carried)}));
        join(from, way.back());
      }
      const bool complete = way.size() == letters.places.size();
      if (complete && std::find(letters.ways.begin(), letters.ways.end(), way) == letters.ways.end())
        letters.ways.push_back(std::move(way));
    }
  }

  // The segments in one place of letters when they have these in another, plain one; none: it cannot follow.
  static std::vector<int64_t> carried_to(const Letters::Place& there, const Letters::Place& here,
                                         const std::vector<int64_t>& segments) {
    constexpr size_t kMostSegments = 4096;
    if (there.parts.size() != 1) return {};  // of other letters, too
    const LetterRuns& runs = there.parts[0];
    if (static_cast<size_t>(runs.outer) * segments.size() > kMostSegments) return {};
    // In proportion: of letters that are cut together one may have more entries than the other.
    const int64_t own = runs.size * runs.inner, given = here.parts[0].size * here.parts[0].inner;
    if (given == 0 || std::any_of(segments.begin(), segments.end(), [&](int64_t size) {
          return size * own % given != 0 || size * own / given % runs.inner != 0;
        }))
      return {};
    // The tokens of each sample in merged rows are no segments of samples: cut so, nothing is left to cut.
    int64_t units = 0;
    for (const int64_t size : segments) units = std::gcd(units, size * own / given);
    if (units <= 1) return {};
    std::vector<int64_t> carried;
    for (int64_t o = 0; o < runs.outer; ++o)
      for (const int64_t size : segments) carried.push_back(size * own / given);
    return carried;
  }

  // --- union-find over places

  size_t number_of(AxisPlace place) {
    auto& known = numbers_[{place.value, place.dim}];
    for (const size_t number : known)
      if (places_[number].segments == place.segments) return number;
    known.push_back(places_.size());
    parents_.push_back(places_.size());
    places_.push_back(std::move(place));
    return known.back();
  }
  size_t root_of(size_t number) {
    while (parents_[number] != number) number = parents_[number] = parents_[parents_[number]];
    return number;
  }
  void join(size_t a, size_t b) {
    a = root_of(a);
    b = root_of(b);
    parents_[std::max(a, b)] = std::min(a, b);
  }

  // --- the results

  // Whether letters of a node can follow a cut of this dimension into these segments.
  static bool follows(const Letters& letters, const AxisPlace& place) {
    for (const Letters::Place& here : letters.places) {
      if (here.value != place.value || here.dim != place.dim) continue;
      if (here.natural() == place.segments) return true;
      if (letters.one_range && place.segments.size() > 1) continue;
      if (here.is_plain() && std::all_of(place.segments.begin(), place.segments.end(),
                                         [&](int64_t size) { return size % here.parts[0].inner == 0; }))
        return true;
    }
    return false;
  }

  // The first letters, in the order of nodes, that run along the dimension and cannot be cut so;
  // letters_.size(): there are none.
  size_t obstacle_at(const AxisPlace& place) {
    for (const size_t user : users_[{place.value, place.dim}])
      if (!letters_[user].obstacle.empty() && follows(letters_[user], place)) return user;
    return letters_.size();
  }

  // Each node that makes or reads the value has letters that follow.
  bool all_follow(const AxisPlace& place) {
    std::map<size_t, bool> follow;  // by node
    for (const size_t user : users_[{place.value, place.dim}]) {
      bool& any = follow[letters_[user].node];
      any = any || follows(letters_[user], place);
    }
    return std::all_of(follow.begin(), follow.end(), [](const auto& entry) { return entry.second; });
  }

  std::optional<NodeSharding> sharding_by(const Letters& letters, const std::vector<size_t>& way) const {
    const Node& node = graph_.nodes[letters.node];
    const ShardingInstance& rule = letters.rule;
    NodeSharding sharding{static_cast<int>(rule.rule), -1, {}, {}, 0};
    std::vector<PlacementId> operands(node.inputs.size() + node.outputs.size(), kReplicated);
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool is_input = i < node.inputs.size();
      const Lies lies = is_input ? rule.inputs[i] : rule.outputs[i - node.inputs.size()];
      if (lies == Lies::partial) operands[i] = kPartial;
      if (lies == Lies::once) sharding.once |= uint32_t{1} << i;
    }
    for (size_t p = 0; p < way.size(); ++p) {
      PlacementId& placement = operands[letters.places[p].operand];
      if (placement != kReplicated || placement_of_[way[p]] == kReplicated) return std::nullopt;
      placement = placement_of_[way[p]];
      sharding.axis = axis_of_[way[p]];
    }
    const auto results = operands.begin() + static_cast<std::ptrdiff_t>(node.inputs.size());
    sharding.inputs.assign(operands.begin(), results);
    sharding.outputs.assign(results, operands.end());
    return sharding;
  }

  const Graph& graph_;
  size_t node_ = 0;  // that is read
  std::vector<Letters> letters_;
  std::map<Key, std::vector<size_t>> users_;  // letters that run along a dimension
  std::vector<AxisPlace> places_;
  std::vector<size_t> parents_;
  std::map<Key, std::vector<size_t>> numbers_;
  std::vector<int> axis_of_;               // of places; -1: of one unit
  std::vector<PlacementId> placement_of_;  // of places, among those of their value
};

}  // namespace

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicated: return "replicated";
    case Placement::Kind::partial: return "partial";
    case Placement::Kind::sharded: break;
  }
  return fmt::format("sharded by {} in {}", placement.dim, to_string(Shape(placement.segments)));
}

PlacementTable::PlacementTable(const Graph& graph) : graph_(graph) {
  Finder finder(graph);
  finder.run();
  axes_ = finder.axes();
  placements_ = finder.placements();
  shardings_ = finder.shardings();
}

std::optional<PlacementId> PlacementTable::find(ValueId id, int64_t dim,
                                                const std::vector<int64_t>& segments) const {
  const auto& of_value = placements(id);
  for (size_t i = kPartial + 1; i < of_value.size(); ++i)
    if (of_value[i].dim == dim && of_value[i].segments == segments) return static_cast<PlacementId>(i);
  return std::nullopt;
}

NodeSharding PlacementTable::replicated(NodeId node) const {
  const Node& of = graph_.nodes[static_cast<size_t>(node)];
  return {-1, -1, std::vector<PlacementId>(of.inputs.size(), kReplicated),
          std::vector<PlacementId>(of.outputs.size(), kReplicated), 0};
}

TensorSlice PlacementTable::slice(ValueId id, PlacementId placement, const Shares& shares, int part) const {
  AxisCuts cuts(shares);
  return slice(id, placement, cuts, part);
}

TensorSlice PlacementTable::slice(ValueId id, PlacementId placement, AxisCuts& cuts, int part) const {
  const TensorSlice whole = TensorSlice::whole(graph_.type(id).shape);
  const Placement& lies = placements(id)[placement];
  if (!lies.is_sharded()) return whole;
  const LogicalAxis& axis = axes_[static_cast<size_t>(lies.axis)];
  const Range units = cuts.units_of(axis, lies.axis, part);
  Ranges keep;
  int64_t start = 0;
  for (const int64_t size : lies.segments) {
    const int64_t granule = size / axis.units;
    keep.push_back({start + units.begin * granule, start + units.end * granule});
    start += size;
  }
  return whole.narrowed(lies.dim, keep);
}

Range AxisCuts::units_of(const LogicalAxis& axis, int number, int part) {
  const auto at = static_cast<size_t>(number);
  if (points_.size() <= at) points_.resize(at + 1);
  if (points_[at].empty()) points_[at] = cut_points(axis.units, shares_);
  return {points_[at][static_cast<size_t>(part)], points_[at][static_cast<size_t>(part) + 1]};
}

}  // namespace het
