#include "core/graph/axes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

using Key = std::pair<ValueId, int64_t>;  // a dimension of a value

// Letters that one node cuts together, or never, and where they run.
struct Letters {
  struct Place {
    ValueId value;
    int64_t dim;
    std::vector<LetterRuns> parts;  // one after the other

    std::vector<int64_t> natural() const {
      std::vector<int64_t> segments;
      for (const LetterRuns& part : parts)
        segments.insert(segments.end(), static_cast<size_t>(part.outer), part.size * part.inner);
      return segments;
    }
    bool is_plain() const { return parts.size() == 1 && parts[0].outer == 1; }
  };
  std::vector<Place> places;
  std::string obstacle;  // of letters that are never cut
};

class Axes {
 public:
  explicit Axes(const Graph& graph) : graph_(graph) {}

  std::vector<LogicalAxis> find() {
    for (const Node& node : graph_.nodes) {
      read(node);
      ++node_;
    }
    // Segments travel from node to node until no dimension learns of others.
    for (size_t i = 0; i < places_.size(); ++i)
      for (const size_t user : users_[{places_[i].value, places_[i].dim}]) carry(i, letters_[user]);
    return collect();
  }

 private:
  // --- the letters of each node

  void read(const Node& node) {
    const auto inputs = types_of(graph_, node.inputs), outputs = types_of(graph_, node.outputs);
    if (node.op->sharding.empty()) return read_without_rules(node);
    const OpCall call{*node.op, inputs, node.attributes};
    const Notation notation = notation_of(call, outputs);
    std::vector<std::vector<std::string>> cut;
    for (const ShardingInstance& instance : sharding_of(call, outputs)) {
      if (instance.letters.empty() || std::find(cut.begin(), cut.end(), instance.letters) != cut.end())
        continue;
      cut.push_back(instance.letters);
      add(node, notation, instance.letters, "");
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
    for (const std::string& letter : notation.letters) {
      const bool known = std::any_of(cut.begin(), cut.end(), [&](const auto& set) {
        return std::find(set.begin(), set.end(), letter) != set.end();
      });
      if (!known) add(node, notation, {letter}, reason(node, letter));
    }
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
    if (size > 1) remember({{{id, static_cast<int64_t>(dim), {{1, size, 1}}}}, std::move(obstacle)});
  }

  std::string reason(const Node& node, const std::string& letter) const {
    std::string why = "no rule of it holds for this call";
    for (const NeverCut& never : node.op->never_cut)
      if (names(never.letter, letter)) why = never.reason;
    const std::string& scope = graph_.scopes[static_cast<size_t>(node.scope)];
    return fmt::format("{}{} never cuts {}: {}", node.op->name, scope.empty() ? "" : " of " + scope, letter,
                       why);
  }

  void add(const Node& node, const Notation& notation, const std::vector<std::string>& cut,
           const std::string& obstacle) {
    Letters letters;
    letters.obstacle = obstacle;
    const auto visit = [&](const std::vector<OperandNotation>& operands, const std::vector<ValueId>& ids) {
      for (size_t i = 0; i < operands.size(); ++i)
        for (size_t d = 0; d < operands[i].dims.size(); ++d) {
          Letters::Place place{ids[i], static_cast<int64_t>(d), {}};
          for (const MergedLetters& part : operands[i].dims[d])
            if (const auto runs = runs_of(part, notation, cut); runs && runs->size > 0)
              place.parts.push_back(*runs);
          if (!place.parts.empty()) letters.places.push_back(std::move(place));
        }
    };
    visit(notation.inputs, node.inputs);
    visit(notation.outputs, node.outputs);
    remember(std::move(letters));
  }

  void remember(Letters letters) {
    const size_t index = letters_.size();
    std::vector<size_t> together;
    for (const Letters::Place& place : letters.places) {
      auto& users = users_[{place.value, place.dim}];
      if (users.empty() || users.back() != index) users.push_back(index);
      together.push_back(number_of({place.value, place.dim, place.natural()}));
    }
    letters_.push_back(std::move(letters));
    nodes_.push_back(node_);
    for (const size_t each : together) join(together[0], each);
  }

  // --- segments, from one place of a node's letters to the others

  void carry(size_t from, const Letters& letters) {
    for (const Letters::Place& here : letters.places) {
      if (here.value != places_[from].value || here.dim != places_[from].dim || !here.is_plain()) continue;
      const std::vector<int64_t> segments = places_[from].segments;  // places_ grows below
      const int64_t inner = here.parts[0].inner;
      if (std::any_of(segments.begin(), segments.end(), [&](int64_t size) { return size % inner != 0; }))
        continue;
      for (const Letters::Place& there : letters.places) {
        std::vector<int64_t> carried;
        constexpr size_t kMostSegments = 4096;
        if (there.parts.size() != 1) continue;  // of other letters, too
        if (static_cast<size_t>(there.parts[0].outer) * segments.size() > kMostSegments) continue;
        // In proportion: of letters that are cut together one may have more entries than the other.
        const int64_t own = there.parts[0].size * there.parts[0].inner, given = here.parts[0].size * inner;
        if (given == 0 || std::any_of(segments.begin(), segments.end(), [&](int64_t size) {
              return size * own % given != 0 || size * own / given % there.parts[0].inner != 0;
            }))
          continue;
        for (int64_t o = 0; o < there.parts[0].outer; ++o)
          for (const int64_t size : segments) carried.push_back(size * own / given);
        join(from, number_of({there.value, there.dim, std::move(carried)}));
      }
    }
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

  // --- the result

  // Whether letters of a node can follow a cut of this dimension into these segments.
  static bool follows(const Letters& letters, const AxisPlace& place) {
    for (const Letters::Place& here : letters.places) {
      if (here.value != place.value || here.dim != place.dim) continue;
      if (here.natural() == place.segments) return true;
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

  std::vector<LogicalAxis> collect() {
    std::map<size_t, LogicalAxis> axes;
    std::map<size_t, size_t> obstacles;  // by axis
    for (size_t i = 0; i < places_.size(); ++i) {
      const AxisPlace& place = places_[i];
      LogicalAxis& axis = axes[root_of(i)];
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
    for (auto& [root, axis] : axes) {
      if (obstacles.at(root) < letters_.size()) axis.obstacle = letters_[obstacles.at(root)].obstacle;
      std::sort(axis.places.begin(), axis.places.end(), [](const AxisPlace& a, const AxisPlace& b) {
        return std::tie(a.value, a.dim, a.segments) < std::tie(b.value, b.dim, b.segments);
      });
      if (axis.units > 1) result.push_back(std::move(axis));
    }
    return result;
  }

  // Each node that makes or reads the value has letters that follow.
  bool all_follow(const AxisPlace& place) {
    const auto& users = users_[{place.value, place.dim}];
    std::map<size_t, bool> follow;  // by node
    for (const size_t user : users) {
      bool& any = follow[nodes_[user]];
      any = any || follows(letters_[user], place);
    }
    return std::all_of(follow.begin(), follow.end(), [](const auto& entry) { return entry.second; });
  }

  const Graph& graph_;
  size_t node_ = 0;  // that is read
  std::vector<Letters> letters_;
  std::vector<size_t> nodes_;                 // of letters
  std::map<Key, std::vector<size_t>> users_;  // letters that run along a dimension
  std::vector<AxisPlace> places_;
  std::vector<size_t> parents_;
  std::map<Key, std::vector<size_t>> numbers_;
};

}  // namespace

std::vector<LogicalAxis> logical_axes(const Graph& graph) { return Axes(graph).find(); }

TensorSlice slice_of(const Graph& graph, const LogicalAxis& axis, const AxisPlace& place,
                     const Shares& shares, int part) {
  const std::vector<int64_t> points = cut_points(axis.units, shares);
  Ranges keep;
  int64_t start = 0;
  for (const int64_t size : place.segments) {
    const int64_t granule = size / axis.units;
    keep.push_back({start + points[static_cast<size_t>(part)] * granule,
                    start + points[static_cast<size_t>(part) + 1] * granule});
    start += size;
  }
  return TensorSlice::whole(graph.type(place.value).shape).narrowed(place.dim, keep);
}

}  // namespace het
