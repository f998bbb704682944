// The processor as a Device: host memory and the vector kernels of this folder, in the variant for the best
// instruction set that the processor has.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"

namespace het {

// Kernels for the named instruction set ("generic", "v3", "v4", "v4_bf16"), or for the best one this
// processor has when the name is empty. `sharing` processes share the machine's memory evenly. Throws
// Error(usage) for an unknown name, Error(environment) for a set that it lacks.
std::shared_ptr<Device> make_cpu_device(std::string_view instruction_set = {}, int sharing = 1);

// The sets that were compiled in and that this processor can run, best first.
std::vector<std::string> cpu_instruction_sets();

}  // namespace het
