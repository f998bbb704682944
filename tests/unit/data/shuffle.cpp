#include "core/data/shuffle.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

using namespace het;

TEST_CASE("an epoch has each row once", "[shuffle]") {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = permuted(7, 2, count, i);
      CHECK((row >= 0 && row < count));
      seen.insert(row);
    }
    CHECK(static_cast<int64_t>(seen.size()) == count);
  }
}

TEST_CASE("seed and epoch decide the order of rows, and nothing else does", "[shuffle]") {
  const auto order = [](uint64_t seed, int64_t epoch) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < 200; ++i) rows.push_back(permuted(seed, epoch, 200, i));
    return rows;
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 0) != order(1, 1));
}

// Chi squared over the places of one row, and over the distance of neighbours: 5 standard deviations.
TEST_CASE("a row stands anywhere, and neighbours do not stay together", "[shuffle]") {
  constexpr int64_t kCount = 40, kTrials = 40'000;
  std::vector<int64_t> places(kCount), distances(kCount);
  for (int64_t epoch = 0; epoch < kTrials; ++epoch) {
    const int64_t a = permuted(3, epoch, kCount, 11), b = permuted(3, epoch, kCount, 12);
    ++places[static_cast<size_t>(a)];
    ++distances[static_cast<size_t>((b - a + kCount) % kCount)];
  }
  const auto chi_squared = [](const std::vector<int64_t>& counts, size_t first) {
    const double wanted = static_cast<double>(kTrials) / static_cast<double>(counts.size() - first);
    double sum = 0;
    for (size_t i = first; i < counts.size(); ++i)
      sum += (static_cast<double>(counts[i]) - wanted) * (static_cast<double>(counts[i]) - wanted) / wanted;
    return sum;
  };
  const auto bound = [](double freedom) { return freedom + 5 * std::sqrt(2 * freedom); };
  CHECK(distances[0] == 0);
  CHECK(chi_squared(places, 0) < bound(kCount - 1));
  CHECK(chi_squared(distances, 1) < bound(kCount - 2));
}
