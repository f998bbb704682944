#include "kernels/cuda/spin.h"

namespace het::HET_CUDA {
namespace {

__global__ void spin_for(long long cycles, int64_t* total) {
  const long long begin = clock64();
  long long now = begin;
  while (now - begin < cycles) now = clock64();
  *total += now - begin;
}

}  // namespace

void spin(const Context& context, int64_t cycles, int64_t* total) {
  launch(context, spin_for, 1, 1, 0, cycles, total);
}

}  // namespace het::HET_CUDA
