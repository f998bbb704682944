// Stochastic rounding from f32 to bf16: up or down by chance, so that the expected value is the number itself
// (Croci et al. 2022, "Stochastic rounding: implementation, error analysis and applications"). A pure
// function of (seed, stream, step, element), so that every device and every plan rounds alike.
//
// `stream` is the hash of the parameter's name; `element` counts row-major in the whole parameter, also where
// a rank holds a part of it. One Philox call serves eight elements: each needs as many random bits as bf16
// drops.
#pragma once

#include <cstdint>

#include "core/base/random.h"
#include "core/graph/attributes.h"
#include "core/tensor/shape.h"

namespace het {

// The four words for elements 8 * group .. 8 * group + 7. The key is philox_key(seed, stream).
constexpr std::array<uint32_t, 4> rounding_words(PhiloxKey key, int64_t step, int64_t group) {
  return philox(key, static_cast<uint64_t>(group), static_cast<uint64_t>(step));
}

// The 16 bits of element k of such a group.
constexpr uint32_t rounding_bits(const std::array<uint32_t, 4>& words, int64_t k) {
  return words[static_cast<size_t>(k / 2)] >> (k % 2 * 16) & 0xffffu;
}

// The bits of an f32 rounded to a bf16, as an f32: the share of numbers `random` below 2^16 that round it
// away from 0 is its distance from the bf16 below, in units of the last place. What is beyond the largest
// finite bf16, or not finite, comes back as it is, to be rounded to nearest: chance makes no infinity.
constexpr uint32_t rounded_by_chance(uint32_t bits, uint32_t random) {
  return (bits & 0x7fffffffu) > 0x7f7f0000u ? bits : (bits + random) & 0xffff0000u;
}

// Where the elements of a part of a tensor lie in the whole: one dimension is divided, and the part has some
// ranges of it (core/tensor/shard.h). Of a tensor that is whole, everywhere the same place.
struct RoundingPlace {
  static constexpr int kMostRanges = 16;
  int64_t row = 0, whole_row = 0;  // elements of a row, of all that the divided dimension holds; row 0: whole
  int ranges = 0;                  // in a row of the part
  int64_t begin[kMostRanges] = {};  // first element of each
  int64_t moved[kMostRanges] = {};  // how much further in its row of the whole it begins

  // A run: what follows element i in the part, `left` elements, follows it in the whole.
  struct Run {
    int64_t element, left;
  };
  // Inlined always: files compiled for several instruction sets share no copy of it.
  [[gnu::always_inline]] constexpr Run at(int64_t i, int64_t elements) const {
    if (row == 0) return {i, elements - i};
    const int64_t outside = i / row, inside = i - outside * row;
    int k = 0;
    while (k + 1 < ranges && begin[k + 1] <= inside) ++k;
    const int64_t end = k + 1 < ranges ? begin[k + 1] : row;
    return {outside * whole_row + inside + moved[k], end - inside};
  }
};

// Of a tensor of this shape under the attributes of stochastic_cast, which its shape rule has seen.
RoundingPlace rounding_place(const Shape& shape, const Attributes& attributes);

}  // namespace het
