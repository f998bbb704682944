// Where values that are not finite come from: the first NaN or infinity in what a program has in memory, as a
// sentence that names the buffer, or the layer and the operator. Executor::find_non_finite runs a step again
// and calls these between its instructions. Each returns an empty sentence where all values are finite.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "core/device/device.h"
#include "core/program/program.h"
#include "core/tensor/tensor.h"

namespace het {

// What a buffer holds now, copied from the device.
using CopyOfBuffer = std::function<Tensor(BufferId)>;

// In the state and the inputs, before the step.
std::string non_finite_operand(const Program& program, const CopyOfBuffer& copy_of);

// In the results of a computation that has just run on `device`. `inputs` are the addresses of its operands,
// which still hold what it read: a fused chain is run on them again, cut short after each step, to find the
// step.
std::string non_finite_result(const Program& program, const Compute& compute, Device& device,
                              std::span<std::byte* const> inputs, const CopyOfBuffer& copy_of);

// In what a collective has brought.
std::string non_finite_arrival(const Start& start, const CopyOfBuffer& copy_of);

}  // namespace het
