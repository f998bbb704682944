// A sharding program by names, as people and planners write it into a plan: how state and inputs lie, and the
// rules of nodes that propagate() would run otherwise.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/sharding_program.h"

namespace het {

// Whether all of `name` matches `pattern`, in which * stands for any characters.
bool matches(std::string_view pattern, std::string_view name);

// The name with * for each number that begins it or follows one of the characters `before`:
// "blocks.*.mlp.up.weight".
std::string pattern_of(std::string_view name, std::string_view before = ".");

// The names of a graph's nodes: scope and operator, "blocks.0.mlp.down linear"; numbered where a scope has
// several of an operator: "blocks.0 add 2".
std::vector<std::string> node_names(const Graph& graph);
// How a node runs: "x dim 1, weight dim 1 -> y partial", with operands and results as the operator's
// signature calls them; those that are replicated are left out. "replicated".
std::string describe(const PlacementTable& table, NodeId node, const NodeSharding& way);

// The placement of a value that cuts dimension `dim` in these segments, or, where there are none, in those
// that most of its readers can follow; such that every part has some. nullopt: there is none, and `problem`
// says why.
std::optional<PlacementId> placement_of(const PlacementTable& table, const Shares& shares, ValueId id,
                                        int64_t dim, const std::vector<int64_t>& segments,
                                        std::string& problem);

// Has a parameter lie so, and with it the optimizer's state of its shape, which the same nodes update.
void give(const PlacementTable& table, ValueId parameter, PlacementId lies,
          std::map<ValueId, PlacementId>& given);

// What propagate() starts from to get the program that `sharding` describes. Throws Error(usage) with all
// that does not fit the graph: dimensions that cannot be cut among `shares`, rules that a node does not have.
ShardingHints hints_of(const PlacementTable& table, const Shares& shares, const AxisSharding& sharding);
// A sentence for each pattern that matches nothing of a graph. Graphs for evaluation lack what only training
// has.
std::vector<std::string> unmatched(const Graph& graph, const AxisSharding& sharding);
// The shortest description of a program: propagate(hints_of(it)) is `program` again.
AxisSharding sharding_of(const PlacementTable& table, const ShardingProgram& program);

}  // namespace het
