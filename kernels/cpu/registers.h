// Loops of multiply-adds on registers alone: nothing else that a processor does is faster, which makes them
// the peak that its utilisation is measured against.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor/dtype.h"

namespace het::cpu {

struct RegisterLoop {
  std::string_view instruction;  // "bf16 dot product"
  DType dtype;                   // of the factors
  double flops;                  // floating-point operations of one iteration
  void (*run)(int64_t iterations);
};

}  // namespace het::cpu
