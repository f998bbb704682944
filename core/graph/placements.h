// How the values of a graph can lie over the ranks of one mesh axis, and how each node runs on values that
// lie so. Found from the operators' sharding rules alone: no operator is known here by name.
//
// Letters of operators' notations are joined over the values that they run along. What is joined is a logical
// axis of the graph: heads, hidden features, vocabulary, tokens, samples. Cutting an axis cuts every value
// that it runs along at once, in the same proportion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace het {

// Where an axis runs along a value: a dimension that consists of segments, one after the other, each cut in
// the same proportion: [n] alone, [q, k, v] of a joined projection, b times [t] of merged rows.
struct AxisPlace {
  ValueId value;
  int64_t dim;
  std::vector<int64_t> segments;
  bool operator==(const AxisPlace&) const = default;
};

struct LogicalAxis {
  std::vector<AxisPlace> places;  // in the order of values
  int64_t units = 0;              // in which it can be cut: what all its segments have in common
  bool has_parameters = false, has_inputs = false;
  // Why it cannot be cut everywhere: "attention of block never cuts d: a score needs all elements of a head";
  // empty: every node that makes or reads one of its values can.
  std::string obstacle;
};

// How a value lies over ranks.
struct Placement {
  enum class Kind : uint8_t {
    replicated,  // every rank has all of it
    partial,     // every rank has a summand of it
    sharded,     // every rank has its part of each segment of a dimension
  };
  Kind kind = Kind::replicated;
  int axis = -1;    // of sharded ones: of PlacementTable::axes()
  int64_t dim = 0;  // along which
  std::vector<int64_t> segments;
  bool operator==(const Placement&) const = default;

  bool is_replicated() const { return kind == Kind::replicated; }
  bool is_partial() const { return kind == Kind::partial; }
  bool is_sharded() const { return kind == Kind::sharded; }
};
std::string to_string(const Placement& placement);  // "replicated", "partial", "sharded by 2 in [64, 64, 64]"

// An index into PlacementTable::placements(value): the first two are those of every value.
using PlacementId = uint8_t;
inline constexpr PlacementId kReplicated = 0, kPartial = 1;

// One way to run a node on every rank: how its operands have to lie, and how its results then lie. Absent
// ones are replicated.
struct NodeSharding {
  int rule = -1;  // of OpDef::sharding; -1: everything is replicated
  int axis = -1;  // that it cuts; -1: none, as a rule of summands
  std::vector<PlacementId> inputs, outputs;
  uint32_t once = 0;  // bit i: operand i is replicated, and counts on the first rank alone
  bool operator==(const NodeSharding&) const = default;
};

// Where axes are cut into parts in proportion to shares; each is found when it is first asked for.
class AxisCuts {
 public:
  explicit AxisCuts(Shares shares) : shares_(std::move(shares)) {}
  // The units of an axis that a part has. `number`: the axis among those of its table.
  Range units_of(const LogicalAxis& axis, int number, int part);

 private:
  Shares shares_;
  std::vector<std::vector<int64_t>> points_;  // by axis; empty: not yet
};

// Immutable once made; safe to read from several threads. Keeps the graph by reference.
class PlacementTable {
 public:
  // Axes of one unit are left out, and with them every way to cut them.
  explicit PlacementTable(const Graph& graph);

  const Graph& graph() const { return graph_; }
  const std::vector<LogicalAxis>& axes() const { return axes_; }  // in the order of their first places
  const std::vector<Placement>& placements(ValueId id) const { return placements_[static_cast<size_t>(id)]; }
  // The placement of a value that cuts this dimension so; nullopt: there is none.
  std::optional<PlacementId> find(ValueId id, int64_t dim, const std::vector<int64_t>& segments) const;
  // Every way to run a node but the replicated one, in the order of its operator's rules.
  const std::vector<NodeSharding>& shardings(NodeId node) const {
    return shardings_[static_cast<size_t>(node)];
  }
  NodeSharding replicated(NodeId node) const;

  // What part `part` of `shares` has of a value that lies so; all of it where it is not sharded. For many
  // values: AxisCuts of these shares, which cut each axis once.
  TensorSlice slice(ValueId id, PlacementId placement, const Shares& shares, int part) const;
  TensorSlice slice(ValueId id, PlacementId placement, AxisCuts& cuts, int part) const;

 private:
  const Graph& graph_;
  std::vector<LogicalAxis> axes_;
  std::vector<std::vector<Placement>> placements_;    // by value
  std::vector<std::vector<NodeSharding>> shardings_;  // by node
};

}  // namespace het
