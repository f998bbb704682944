// A sharding program: how each value of a graph lies over the ranks of a mesh axis, how each node runs, and
// where a value is brought to lie otherwise. Plain data, that a planner or a person writes and partition()
// turns into the graph of each rank.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/graph/placements.h"

namespace het {

// A value that nodes of a phase need otherwise than it was made: by a slice where it is replicated, an
// all-reduce or a reduce-scatter where it is partial, an all-gather where it is sharded, or an all-to-all
// where it shall be sharded along another dimension. What is not sharded is converted once, for all phases;
// sharded values are gathered again in each phase, since kept from forward to backward it would take the
// memory that sharding it saves.
struct Conversion {
  ValueId value;
  PlacementId to;
  Phase phase;  // in which it is made
  bool operator==(const Conversion&) const = default;
};

struct ShardingProgram {
  Shares shares;                    // one weight for each rank of the axis
  std::vector<PlacementId> values;  // as they are made, or declared
  std::vector<NodeSharding> nodes;
  std::vector<Conversion> conversions;  // in the order of the nodes that need them first
  bool operator==(const ShardingProgram&) const = default;

  int parts() const { return static_cast<int>(shares.size()); }
};

// The conversion of `value` that a node of phase `use` reads when it needs it to lie as `to`: its phase.
// Gradients are gathered before they are summed over micro-batches: what is summed and exchanged between
// replicas is then of their parameter's size.
Phase phase_of_conversion(const PlacementTable& table, const ShardingProgram& program, ValueId value,
                          Phase use);

// For messages: " with the shares { 3, 1 }"; "" where they are equal.
std::string show_uneven(const Shares& shares);

// Whether every part has a unit of an axis; the axes where every part has one.
bool fills(const LogicalAxis& axis, const Shares& shares);
std::set<int> fillable(const PlacementTable& table, const Shares& shares);

// Whether a node writes a result over this operand: state that it updates where it lies.
bool updates(const Node& node, size_t input);
// Whether a node reads a value of another layer. Between layers values are whole or sharded, so that a stage
// can begin at any layer. Sums of a gradient's parts are made where the parts are.
bool leaves_layer(const Graph& graph, ValueId id, const Node& reader);
// Whether a node adds up a gradient of a parameter that several layers use.
bool adds_layers(const Graph& graph, const Node& node);

// Where a node stands and what it runs, for messages: "blocks.0.mlp linear".
std::string name_of(const Graph& graph, const Node& node);

// What propagate() may use.
struct ShardingHints {
  std::map<ValueId, PlacementId> given;  // how state and inputs lie; others are replicated
  std::set<int> axes;                    // of PlacementTable::axes(), that may be cut
  // How these run, whatever that moves; of a graph that does not train, those that can.
  std::map<NodeId, NodeSharding> nodes;
  bool whole_inputs = true;  // each rank gets all of an input; false: what `given` says
};

// The bytes that all ranks together send for the conversions of some layers: in each micro-batch, and for the
// update of a step.
struct MovedBytes {
  int64_t microbatch = 0, update = 0;
};
MovedBytes moved_bytes(const PlacementTable& table, const ShardingProgram& program, Range layers);

// The program that follows from how state lies, node by node: each runs in the way that moves the fewest
// bytes, of equals in the first of its operator's rules. Only what lies sharded or partial already is kept
// so; work on operands that are all replicated is not shared out.
ShardingProgram propagate(const PlacementTable& table, const Shares& shares, const ShardingHints& hints);

// The nodes that propagate() would run otherwise than `program` does, where all nodes before them run as
// there.
std::vector<NodeId> differences(const PlacementTable& table, const ShardingHints& hints,
                                const ShardingProgram& program);

}  // namespace het
