// From a sharding program to what each rank computes.
#pragma once

#include "core/plan/sharding_program.h"

namespace het {

// What a value of a rank's graph is: a value of the single device's graph, or the part of it that is here.
struct Origin {
  ValueId value = kAbsent;  // kAbsent: neither; it stands between two such values
  PlacementId lies = kReplicated;
  bool operator==(const Origin&) const = default;
};

struct RankGraph {
  Graph graph;
  std::vector<Origin> origins;  // by value
};

// The graph of rank `part` of the mesh axis, with collectives (core/ops/collective.cpp) where ranks need more
// than they have. State says by Value::slice which part of it is here. Nodes are the same on all ranks but
// for sizes, and for operands that count once. The graph of the table and the program's have to be the same;
// each part of what is sharded has to have something. The graph may be a part itself, made by the program of
// another axis of the mesh; `axis` is the number of this one. `own`: what of it is run, if operands are
// absent there because they count on another part of that axis; values have the same numbers with them and
// without.
RankGraph partition(const PlacementTable& table, const ShardingProgram& program, int part, int axis = 0,
                    const Graph* own = nullptr);

}  // namespace het
