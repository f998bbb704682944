// The state of a model as changes of plans see it: the tensors of each layer, and which slices of them the
// devices of a stage hold. State is weights and what is kept beside them, optimizer state above all.
#pragma once

#include <functional>
#include <vector>

#include "core/plan/plan.h"
#include "core/tensor/slice.h"
#include "planner/model/model.h"

namespace het::planner {

struct StateTensor {
  Shape shape;               // of the whole
  double element_bytes = 0;  // need not be a whole number: several buffers may count as one tensor
  bool trained = false;      // weights; false: state beside them
  bool sharded = false;      // optimizer state, which Plan::sharded_optimizer divides over replicas
  bool operator==(const StateTensor&) const = default;
};

struct ModelState {
  std::vector<std::vector<StateTensor>> kinds;  // the tensors of a layer of each kind
  std::vector<int> layers;                      // the kind of each layer, in order

  // Of each device of a stage that is cut so, a slice of each tensor of a layer: [device][tensor]. Throws
  // Error(usage) for cuts that the model does not allow. One thread.
  std::function<std::vector<std::vector<TensorSlice>>(int layer, const StageCut& cut)> slices;

  int count() const { return static_cast<int>(layers.size()); }
  const std::vector<StateTensor>& tensors(int layer) const {
    return kinds[static_cast<size_t>(layers[static_cast<size_t>(layer)])];
  }
};

// Of a model of numbers. A layer has four tensors of one dimension, with an element for each parameter:
// weights that tensor parallelism divides, weights that every rank has whole, and the optimizer state of
// each. Copies that are made from the weights do not count (Model::made_bytes). Stages with `sharding` are
// refused: which parameters it cuts is known of graphs alone.
ModelState state_of(const Model& model);

}  // namespace het::planner
