// The index arithmetic of the kernels, at sizes that no test's tensors reach.
#include "kernels/cuda/loops.h"

#include <catch2/catch.hpp>

namespace het::HET_CUDA {

TEST_CASE("a divisor gives the quotient of every number below its limit") {
  for (const int64_t limit : {int64_t{1} << 20, int64_t{1} << 32, int64_t{1} << 36})
    for (const int64_t size :
         {1L, 2L, 3L, 5L, 7L, 8L, 768L, 1023L, 50257L, 65536L, 1000003L, (1L << 28) - 1}) {
      const Divisor divisor(size, limit);
      for (const int64_t near : {int64_t{0}, size, limit / size / 2 * size, limit / size * size, limit})
        for (int64_t n = std::max<int64_t>(0, near - 3); n < std::min(limit, near + 4); ++n) {
          INFO(n << " / " << size);
          CHECK(divisor.quotient(n) == static_cast<uint64_t>(n / size));
        }
    }
}

TEST_CASE("a divisor refuses limits at which it would be wrong") {
  CHECK_NOTHROW(Divisor(int64_t{1} << 28, int64_t{1} << 35));
  CHECK_THROWS_AS(Divisor((int64_t{1} << 34) + 1, int64_t{1} << 36), Error);
}

TEST_CASE("the outermost loop may be of any length") {
  kernels::Loops loops;
  loops.rank = 2;
  loops.size[0] = int64_t{1} << 34;
  loops.size[1] = 8;
  loops.stride[0][0] = 8;
  loops.stride[0][1] = 1;
  loops.stride[1][1] = 3;
  const auto walk = walk_of<2>(loops, 2);
  int64_t offset[2];
  walk.at(loops.elements() - 3, offset);
  CHECK(offset[0] == loops.elements() - 3);
  CHECK(offset[1] == 15);
}

}  // namespace het::HET_CUDA
