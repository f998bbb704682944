// What other families need of the elementwise kernel.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het::cpu::HET_VECTOR_ISA {

// Of any elementwise operator. Results may lie where operands of their layout do.
std::unique_ptr<Kernel> prepare_elementwise(const KernelRequest& request);

}  // namespace het::cpu::HET_VECTOR_ISA
