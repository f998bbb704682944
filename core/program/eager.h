// One operator at once on host tensors: what the prompt does with `het.randn(3, 4) + 1`. The same operators
// and kernels as in a Program; the kernels used last are kept.
#pragma once

#include <memory>
#include <vector>

#include "core/base/recently_used.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace het {

// Used from one thread. On a device with separate memory each call copies its operands there and back.
class Eager {
 public:
  // Keeps at most so many `kernels` (one or more): attributes are part of a request, so that a loop over
  // numbers would fill the memory with kernels.
  explicit Eager(std::shared_ptr<Device> device, size_t kernels = 256)
      : device_(std::move(device)), kernels_(kernels) {}

  // Results of the call; views share their input's buffer. Absent operands are empty tensors.
  std::vector<Tensor> call(const OpDef& op, const std::vector<Tensor>& inputs, const Attributes& attributes);

 private:
  Kernel& kernel_for(const KernelRequest& request);
  void run_on_copies(Kernel& kernel, const std::vector<Tensor>& inputs, std::vector<Tensor>& results);

  std::shared_ptr<Device> device_;
  RecentlyUsed<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace het
