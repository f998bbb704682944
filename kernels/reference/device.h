// The reference device: every operator in plain loops, computed in double for every dtype, on one thread. It
// is what the other devices are checked against, and it runs any program, slowly.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het {

std::shared_ptr<Device> make_reference_device();

}  // namespace het
