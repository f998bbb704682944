// Counter-based random numbers: every draw is a pure function of (key, counter), so that no result depends on
// which device drew it, in what order, or how often. Philox4x32-10 of Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace het {

struct PhiloxKey {
  uint32_t low = 0, high = 0;
  bool operator==(const PhiloxKey&) const = default;
};

// Four independent 32-bit words for a 128-bit counter.
constexpr std::array<uint32_t, 4> philox(PhiloxKey key, std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key.low, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key.high, static_cast<uint32_t>(a)};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

// A 64-bit hash of a name (FNV-1a), the same on every machine: the `stream` of a parameter or a layer.
constexpr uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// The key of one stream under a seed. Both are mixed (splitmix64) so that nearby seeds are unrelated.
constexpr PhiloxKey philox_key(uint64_t seed, uint64_t stream) {
  uint64_t z = seed + 0x9E3779B97F4A7C15ull * (stream | 1) + (stream << 17);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

constexpr std::array<uint32_t, 4> philox(PhiloxKey key, uint64_t low, uint64_t high = 0) {
  return philox(key, {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                      static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)});
}

// Uniform in [0, 1), from the upper 24 bits (exact in float).
constexpr float uniform_of(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace het
