// Sums and maxima of equal blocks from several ranks, always in the order given, so that every rank and every
// way of communication gets the same bits. 16-bit floats are accumulated in f32 and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/comm/communicator.h"

namespace het {

// out[i] = in[0][i] + in[1][i] + ... for `count` elements; out may be one of the inputs. Integers wrap; a
// maximum with NaN is NaN.
void reduce_blocks(DType dtype, Reduction reduction, std::byte* out, const std::byte* const* in, int inputs,
                   int64_t count);

}  // namespace het
