// The kernels of all families. Written by the build from the list in meson.build.
#pragma once

#include "kernels/cuda/kernel.h"

namespace het::HET_CUDA {

std::vector<Entry> all_kernels();

}  // namespace het::HET_CUDA
