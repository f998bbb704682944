// The instruction sets that the kernels were compiled for, and the kernels of each. Written by the build from
// the lists in meson.build.
#pragma once

#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "kernels/cpu/registers.h"

namespace het::cpu {

struct InstructionSet {
  std::string_view name;
  std::vector<std::vector<KernelEntry> (*)()> families;
  std::vector<RegisterLoop> (*register_loops)();
};

// Best first; the last runs everywhere.
const std::vector<InstructionSet>& instruction_sets();

}  // namespace het::cpu
