// Stochastic rounding from f32 to bf16: up or down by chance, so that the expected value is the number itself
// (Croci et al. 2022, "Stochastic rounding: implementation, error analysis and applications"). A pure
// function of (seed, stream, step, element), so that every device and every plan rounds alike.
//
// `stream` is the hash of the parameter's name; `element` counts row-major in the whole parameter, also where
// a rank has a slice of it. One Philox call serves eight elements: each needs as many random bits as bf16
// drops.
#pragma once

#include <cstdint>

#include "core/base/random.h"

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

}  // namespace het
