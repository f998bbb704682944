// Which tensor-parallel groups form a pipeline together: planning.md section 1, step 2. A grouping is written
// by composition: how many groups of each node a pipeline has, and how many pipelines are alike, so that
// nothing here grows with copies.
#pragma once

#include <utility>
#include <vector>

#include "planner/plan_layout.h"

namespace het::planner {

using Composition = std::vector<int>;  // [nodes] tensor-parallel groups of each node in one pipeline

struct Grouping {
  std::vector<std::pair<Composition, int>> parts;  // (composition, pipelines), each composition once
  bool operator==(const Grouping&) const = default;
  int pipelines() const;
  void add(const Composition& composition, int copies);
};

struct Pool {
  std::vector<int> groups;     // [nodes] tensor-parallel groups that there are
  std::vector<double> power;   // [nodes] of one group: micro-batches of the whole model a second
  std::vector<double> memory;  // [nodes] bytes of one group
};

// Every node spread evenly over `pipelines`; what is left goes, strongest first, to the weakest pipeline.
Grouping spread_evenly(const Pool& pool, int pipelines);
// Groups one at a time, strongest first, each to the weakest pipeline: equal power, whatever the mixture.
Grouping level_power(const Pool& pool, int pipelines);
// Pipelines of one node each, as many for a node as its share of the power; `least[n]`: fewest groups of node
// n that hold the model (0: they cannot). What cannot stand alone joins the weakest.
Grouping keep_apart(const Pool& pool, int pipelines, const std::vector<int>& least);
// All groupings into `pipelines` of some or all of the pool; stops after `limit`.
std::vector<Grouping> all_groupings(const Pool& pool, int pipelines, size_t limit);

// Of the columns (compositions, each worth so much), the best choice that the pool allows, as an integer
// program. `exactly` pipelines, or any number when 0.
Grouping choose_columns(const Pool& pool, const std::vector<Composition>& columns,
                        const std::vector<double>& worth, int exactly);

// Where each pipeline's groups are: hosts filled so that a pipeline stays in as few as can be (packed), or so
// that the groups of one pipeline are on different hosts and its replicas beside it (spread). Returns for
// each pipeline, for each node, the hosts of its groups.
using Places = std::vector<std::vector<std::vector<int>>>;
Places place(const std::vector<Composition>& pipelines, const std::vector<int>& hosts,
             const std::vector<int>& per_host, bool packed);

}  // namespace het::planner
