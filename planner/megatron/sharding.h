// Megatron-LM's tensor parallelism (Shoeybi et al. 2019) as a sharding program: the projections into
// attention heads and hidden features are cut by columns, those back by rows, so that one all-reduce forward
// and one backward serve a layer; embeddings and the classifier are cut by vocabulary. Which weights these
// are is found from the graph, not from their names: an axis is cut that runs along parameters, along no
// input, and that every node which makes or reads its values can cut. What nothing can cut, every rank
// computes whole.
#pragma once

#include <map>
#include <optional>

#include "core/plan/partition.h"
#include "core/plan/plan.h"

namespace het {

// The program for ranks with these shares; equal shares have to come out even, but for the rows of tables and
// classifiers. Graphs with the same forward pass lay their parameters alike. With `sequence`, what lies
// between the projections (norms, dropout, residuals) is cut by tokens (Korthikanti et al. 2022): a
// reduce-scatter and an all-gather take the place of each all-reduce, and activations shrink. Throws
// Error(usage) when an axis has too few units for the ranks, or equal shares do not come out even, naming
// what would do.
// Parameters with a hint for the mesh axis `hinted_axis` lie as it says, and with them their optimizer state;
// Error(usage) names those that cannot. "": as if there were none.
ShardingProgram megatron_sharding(const PlacementTable& table, const Shares& shares, bool sequence = false,
                                  std::string_view hinted_axis = kModelAxis);

// The program along one axis of a stage's mesh: as its plan says, with the hints of layers for an axis of
// this name; without `sharding`, Megatron's. Throws Error(usage) where the graph cannot be cut so.
ShardingProgram sharding_program_of(const PlacementTable& table, const StageAxis& axis, bool sequence);

// How state lies under that program, by value; what is not named is whole on every rank. Of a plan's
// `sharding` this takes what it says of state alone, so the graph may be of fewer samples than the run's.
// Throws Error(usage) as sharding_program_of.
std::map<ValueId, PlacementId> state_placements(const PlacementTable& table, const StageAxis& axis);

// The bytes that the ranks of stages send each other in a step of a plan beyond what Megatron's way would
// take, because the plan or layers say how they are cut; below 0: less. Exchanges between pipelines are left
// out. nullopt: they say nothing, Megatron's way does not fit the model, or a stage has a mesh.
std::optional<int64_t> bytes_beyond_megatron(const Graph& graph, const Plan& plan);

// The graph of rank `part` under that program; the graph itself where there is one rank.
Graph tensor_parallel(const Graph& graph, const Shares& shares, int part, bool sequence = false);

}  // namespace het
