// The sharded optimizer (ZeRO stage 1, Rajbhandari et al. 2020): the ranks that hold a parameter divide its
// optimizer state by rows. Each updates its rows and gives them to the others. Here: which updates can be
// made row by row, and which rows each rank takes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/base/range.h"
#include "core/graph/graph.h"
#include "core/tensor/slice.h"

namespace het {

// The update of one parameter from one gradient of its shape, in which each element of the result depends on
// the same element of its operands. Then a rank that has some rows of the optimizer state can update these.
struct RowUpdate {
  ValueId parameter = kAbsent;
  std::set<NodeId> nodes;   // that read the gradient, or what is made of it, up to those that write in place
  std::set<ValueId> state;  // of the optimizer, which nothing else reads
};

// By gradient. `sums_behind`: of each node of the update, the gradients that its operands come from.
// `is_summed`: whether an all-reduce of the update along an axis of the stage's mesh does nothing, because
// the gradient comes summed over it.
struct RowUpdateQuestions {
  std::map<NodeId, std::set<ValueId>> sums_behind;
  std::function<bool(ValueId parameter, ValueId gradient, size_t axis)> is_summed;
};
std::map<ValueId, RowUpdate> row_updates(const Graph& graph, const RowUpdateQuestions& ask);

// Whether all devices make the same bits of the same gradients: every parameter is updated by an operator
// that does (AdamW, SGD: kernels/README.md), and before it nothing but sums is computed of its gradient.
bool updates_alike(const Graph& graph);

// The parameters that a node of the update writes in place.
std::vector<ValueId> parameters_updated(const Graph& graph, const Node& node);

// The dimension whose indices are a tensor's rows: the outermost longer than 1, so that rows that follow one
// another are one block of memory. Not for a scalar.
int64_t row_dim(const Shape& shape);

// The rows of `part` as they are counted in `held`, which has them all.
Ranges rows_within(const TensorSlice& part, const TensorSlice& held);

// The rows of a tensor that a rank keeps the optimizer state of.
struct KeptRows {
  int rank = 0;
  Range rows;
  bool operator==(const KeptRows&) const = default;
};

// Tensors one after the other, cut where the shares of the ranks end, rounded to rows: of each tensor, who
// keeps which rows, in the order of the ranks. `shares`: one for each rank, not all 0.
std::vector<std::vector<KeptRows>> cut_by_rows(std::span<const Shape> shapes, std::span<const int> ranks,
                                               const Shares& shares);

// What a device has of a parameter that stages cut differently.
struct HeldSlice {
  int rank = 0;
  int stage = 0;  // a number that differs between stages
  TensorSlice slice;
  int64_t share = 1;  // of the optimizer state, relative to the others
};
// What each of them keeps the optimizer state of: disjoint slices, in each the rows of its own slice that no
// other keeps. Stages that have the same rows divide them by their shares; devices of a stage that have the
// same divide it among them. nullopt: every share of some rows is 0.
std::optional<std::map<int, TensorSlice>> keep_rows(std::span<const HeldSlice> held);

}  // namespace het
