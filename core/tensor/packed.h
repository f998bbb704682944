// Slices of a tensor one after the other, each packed: the blocks that collectives send and receive.
#pragma once

#include <utility>

#include "core/tensor/slice.h"
#include "core/tensor/tensor.h"

namespace het {

// Written or read in one pass. `held` is what `local` has of the tensor, packed.
class PackedSlices {
 public:
  PackedSlices(DType dtype, int64_t elements) : tensor_(TensorType{dtype, {elements}}) {}
  explicit PackedSlices(Tensor tensor) : tensor_(std::move(tensor)) {}

  // The next slice is `slice`, which `local` has.
  void write(const TensorSlice& slice, const Tensor& local, const TensorSlice& held) {
    Tensor block = next(slice);
    copy(block, slice, local, held);
  }
  // Copies the next slice, which is `slice`, to its place in `local`.
  void read(const TensorSlice& slice, Tensor& local, const TensorSlice& held) {
    copy(local, held, next(slice), slice);
  }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor next(const TensorSlice& slice) {
    Layout layout = Layout::contiguous({tensor_.dtype(), slice.shape()});
    layout.offset = at_;
    at_ += slice.elements();
    return tensor_.view(std::move(layout));
  }

  Tensor tensor_;
  int64_t at_ = 0;
};

}  // namespace het
