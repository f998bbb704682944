// One operator at once on host tensors: what the prompt does with `het.randn(3, 4) + 1`. The same operators
// and kernels as in a Program; kernels are cached by request.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace het {

// Used from one thread. The device must work on host memory (the CPU, the reference).
class Eager {
 public:
  explicit Eager(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // Results of the call; views share their input's buffer. Absent operands are empty tensors.
  std::vector<Tensor> call(const OpDef& op, const std::vector<Tensor>& inputs, const Attributes& attributes);

 private:
  std::shared_ptr<Device> device_;
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace het
