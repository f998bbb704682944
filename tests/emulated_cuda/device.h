// The emulated GPU as a device. See README.md.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het::cuda_emulated {

std::shared_ptr<Device> make_device(int ordinal = 0);

}  // namespace het::cuda_emulated
