// The processor itself: its name, its peak, and how fast the instruction sets multiply on it. What is
// measured here is not kept: lua/kernel_choice.h and lua/het/profile/peak.lua do that.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/dtype.h"

namespace het {

// "AMD EPYC (family 25, model 17)": models of one name differ in what they can do.
std::string processor_name();

struct CpuPeak {
  double flops;             // FLOP/s of thread_count() threads together
  std::string instruction;  // that reaches it: "f32 multiply-add", "bf16 dot product", "bf16 matrix units"
};

// The most that this processor does in `dtype`, by its fastest instruction on registers alone, whatever set
// of kernels is in use; bf16 and f16 may be widened to f32. Takes about a tenth of a second; the threads must
// have the processor to themselves. Throws Error(usage) for other dtypes.
CpuPeak measure_cpu_peak(DType dtype);

// Shapes of a training step that differ in what limits them, in the order of ProductSpeed::flops.
std::span<const std::string_view> product_classes();

struct ProductSpeed {
  std::string set;            // an instruction set of cpu_instruction_sets()
  std::vector<double> flops;  // FLOP/s of one thread in each class
};

// The sets that this processor runs and that multiply bf16 each in its own way, plainest last. Empty where
// there is nothing to choose from.
std::vector<std::string> product_sets();

// Of product_sets(), in their order. One thread, some ten milliseconds for each set; starts no threads.
std::vector<ProductSpeed> measure_product_speeds();

// The set that makes a step fastest: the last one, unless another gains a tenth, so that chance does not
// decide between equals. Empty where nothing was measured.
std::string fastest_set(std::span<const ProductSpeed> speeds);

}  // namespace het
