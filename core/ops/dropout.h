// The dropout mask, and numbers that are drawn likewise: a pure function of (seed, stream, step, sample,
// element), so that every device and every plan drops the same elements, and the backward pass draws the mask
// again instead of keeping it.
//
// `stream` is the hash of the layer's name; `sample` counts samples within the step over all ranks and
// micro-batches; `element` counts row-major within one sample. One Philox call serves four elements. Also
// where a rank has a slice of the tensor, samples and elements count in the whole (core/ops/part.h).
#pragma once

#include <cstdint>

#include "core/base/random.h"

namespace het {

// The four words for elements 4 * quad .. 4 * quad + 3 of a sample.
constexpr std::array<uint32_t, 4> dropout_words(PhiloxKey key, int64_t step, int64_t sample, int64_t quad) {
  return philox(key, static_cast<uint64_t>(quad),
                static_cast<uint64_t>(step) << 32 | (static_cast<uint64_t>(sample) & 0xffffffffu));
}

// Kept, and then scaled by 1 / (1 - p), when the uniform draw is at least p.
constexpr bool dropout_keeps(uint32_t word, float p) { return uniform_of(word) >= p; }

// The key is philox_key(seed, stream).
constexpr bool dropout_keeps(PhiloxKey key, int64_t step, int64_t sample, int64_t element, float p) {
  return dropout_keeps(dropout_words(key, step, sample, element / 4)[static_cast<size_t>(element % 4)], p);
}

// What "uniform" makes of a word: above 0 and below 1, in steps of 2^-24, so that it has a logarithm.
constexpr float uniform_inside(uint32_t word) { return uniform_of(word) + 0x1p-25f; }

}  // namespace het
