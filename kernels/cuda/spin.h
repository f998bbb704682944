// A kernel that does nothing for a while, by which device.cpp measures what lies between two kernels.
#pragma once

#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

// Queue one that runs for so many cycles of its multiprocessor's clock, and adds to *total how many they
// were.
void spin(const Context& context, int64_t cycles, int64_t* total);

}  // namespace het::HET_CUDA
