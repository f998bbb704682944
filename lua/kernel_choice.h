// Which instruction set's kernels this program uses: the one that HETRUN_INSTRUCTION_SET names, else the one
// that multiplies fastest, by a measurement of the first run on a processor that the user's cache folder
// keeps.
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/processor.h"

namespace het::lua {

// For make_cpu_device(): empty where nothing is to be chosen or the environment says it.
std::string chosen_instruction_set();

// Measure again and keep it: what chosen_instruction_set() follows from the next start on. Empty where
// nothing is to be chosen.
std::vector<ProductSpeed> remeasure_products();

}  // namespace het::lua
