// The processor as a Device: host memory and the vector kernels of this folder, in the variant for the best
// instruction set that the processor has, or for the one asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"

namespace het {

// The sets that were compiled in and that this processor can run, best first; which of the first ones
// multiplies fastest is measured (processor.h).
std::vector<std::string> cpu_instruction_sets();

// The set for devices that ask for none: what HETRUN_INSTRUCTION_SET says, else the first.
// Throws Error(environment) where this build has none for this processor.
std::string cpu_instruction_set();

// Kernels for the named instruction set ("generic", "v3", "v4", "v4_bf16", "v4_dot", "v4_amx"), or for
// cpu_instruction_set() when the name is empty. `sharing` processes share the machine's memory evenly. Throws
// Error(usage) for an unknown name, Error(environment) for a set that the processor lacks.
std::shared_ptr<Device> make_cpu_device(std::string_view instruction_set = {}, int sharing = 1);

}  // namespace het
