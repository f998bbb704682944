#include "core/base/random.h"

#include <catch2/catch.hpp>
#include <set>

#include "core/program/state.h"

using namespace het;

TEST_CASE("philox gives the published known answers") {
  // Known-answer vectors of philox4x32-10 from the Random123 distribution (kat_vectors).
  CHECK(philox({0, 0}, std::array<uint32_t, 4>{0, 0, 0, 0}) ==
        std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff},
               std::array<uint32_t, 4>{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0xa4093822, 0x299f31d0},
               std::array<uint32_t, 4>{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("keys of different seeds and streams differ") {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 100; ++seed)
    for (uint64_t stream = 0; stream < 100; ++stream) {
      const PhiloxKey key = philox_key(seed, stream);
      seen.insert((uint64_t{key.high} << 32) | key.low);
    }
  CHECK(seen.size() >= 9990);
}

TEST_CASE("initial weights have the stated spread and depend on name and seed alone") {
  const TensorType type{DType::f32, {100, 1000}};
  const Initial normal{Initial::Kind::normal, 0.02};
  const Tensor a = initial_tensor("w", type, normal, 1), again = initial_tensor("w", type, normal, 1);
  const Tensor other_name = initial_tensor("v", type, normal, 1),
               other_seed = initial_tensor("w", type, normal, 2);
  double sum = 0, squares = 0, same_name = 0, same_seed = 0;
  bool equal = true;
  for (int64_t i = 0; i < a.elements(); ++i) {
    sum += a.at(i);
    squares += a.at(i) * a.at(i);
    equal = equal && a.at(i) == again.at(i);
    same_name += a.at(i) * other_name.at(i);
    same_seed += a.at(i) * other_seed.at(i);
  }
  CHECK(equal);
  CHECK(std::abs(sum / 1e5) < 3e-4);
  CHECK(squares / 1e5 == Approx(0.0004).epsilon(0.02));
  CHECK(std::abs(same_name / squares) < 0.02);
  CHECK(std::abs(same_seed / squares) < 0.02);
}
