// One operator at once on host tensors: what the prompt does with `het.randn(3, 4) + 1`. The same operators
// and kernels as in a Program; the kernels used last are kept.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace het {

// Used from one thread. On a device with memory of its own each call copies its operands there and back.
class Eager {
 public:
  // Keeps at most so many `kernels` (one or more): attributes are part of a request, so that a loop over
  // numbers would fill the memory with kernels.
  explicit Eager(std::shared_ptr<Device> device, size_t kernels = 256)
      : device_(std::move(device)), most_(kernels) {}

  // Results of the call; views share their input's buffer. Absent operands are empty tensors.
  std::vector<Tensor> call(const OpDef& op, const std::vector<Tensor>& inputs, const Attributes& attributes);

 private:
  using Kept = std::list<std::pair<std::string, std::unique_ptr<Kernel>>>;
  Kernel& kernel_for(const KernelRequest& request);
  void run_on_copies(Kernel& kernel, const std::vector<Tensor>& inputs, std::vector<Tensor>& results);

  std::shared_ptr<Device> device_;
  size_t most_;
  Kept kernels_;  // the one used last first, by key
  std::unordered_map<std::string, Kept::iterator> places_;
};

}  // namespace het
