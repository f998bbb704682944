// The logical axes of a graph: what "heads", "hidden features" or "batch" are to it. Letters of operators'
// notations are joined over the values that they run along; an axis is what can be cut as one, in all values
// that it runs along at once. Found from rules alone: no operator is known here by name.
#pragma once

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
  // Why it cannot be cut everywhere: "layer_norm of block.norm1 never cuts n: a norm is of all elements of
  // its row"; empty: every node that makes or reads one of its values can.
  std::string obstacle;
};

// All axes of a graph whose operators have rules, those of one unit left out; in the order of their first
// places.
std::vector<LogicalAxis> logical_axes(const Graph& graph);

// What part `part` of shares has of a value along which an axis runs.
TensorSlice slice_of(const Graph& graph, const LogicalAxis& axis, const AxisPlace& place,
                     const Shares& shares, int part);

}  // namespace het
