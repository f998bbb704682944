// The kernels of the reference device, queued on an emulated GPU's stream: for tests of what is between
// devices.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het::cuda_emulated {

std::shared_ptr<Device> make_reference_on_gpu(int ordinal);

}  // namespace het::cuda_emulated
