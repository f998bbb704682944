// The emulated GPU as a device. See README.md.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het::cuda_emulated {

std::shared_ptr<Device> make_device(int ordinal = 0);

}  // namespace het::cuda_emulated

namespace emulated {

// Copies to pinned memory are made that many times 100 us after their turn: what ought to wait for them and
// does not shows. Set before they are begun, by the thread that begins them.
extern int late_copies;

}  // namespace emulated
