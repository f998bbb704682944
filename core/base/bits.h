// Masks of 32 bits, as of the operands that a rule is about. What is numbered beyond them has none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace het {

constexpr bool has_bit(uint32_t mask, size_t index) { return index < 32 && ((mask >> index) & 1U) != 0; }

}  // namespace het
