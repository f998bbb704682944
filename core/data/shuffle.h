// The order of rows in an epoch, without a list of them.
#pragma once

#include <cstdint>

namespace het {

// Where item `index` of `count` goes in a permutation that (seed, epoch) chooses: all of [0, count), each
// once. A Feistel network of four rounds (Luby and Rackoff 1988) whose round function is Philox, walked until
// it lands below `count`; four walks at most are expected.
int64_t permuted(uint64_t seed, int64_t epoch, int64_t count, int64_t index);

}  // namespace het
