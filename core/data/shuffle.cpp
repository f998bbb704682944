#include "core/data/shuffle.h"

#include "core/base/error.h"
#include "core/base/random.h"

namespace het {

int64_t permuted(uint64_t seed, int64_t epoch, int64_t count, int64_t index) {
  HET_REQUIRE(index >= 0 && index < count, index, count);
  int half = 1;  // bits of each half: 2^(2 half) is at least count, and at most four times as much
  while (half < 31 && int64_t{1} << (2 * half) < count) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const PhiloxKey key = philox_key(seed, hash_of("shuffle"));
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = philox(key, right << 2 | round, static_cast<uint64_t>(epoch))[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

}  // namespace het
