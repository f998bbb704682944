// Collectives for devices with memory of their own: operands pass through memory of the host, so that ranks
// on GPUs and ranks on processors form one group. The way for groups that no library of the device's maker
// can serve.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace het {

// `inner` with operands at addresses of the device. Its start() waits for the device and copies what is sent;
// wait() queues the copy of what came. The device outlives it.
std::unique_ptr<Collective> make_staged(std::unique_ptr<Collective> inner, const Communicator& group,
                                        Device& device);

}  // namespace het
