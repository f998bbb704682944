// What other families need of the elementwise kernels.
#pragma once

#include <memory>

#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

// Of any elementwise operator. Results may lie where operands of their layout do.
std::unique_ptr<Kernel> prepare_elementwise(const KernelRequest& request, const Context& context);

}  // namespace het::HET_CUDA
