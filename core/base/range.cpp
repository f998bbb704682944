#include "core/base/range.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace het {

std::vector<int64_t> cut_points(int64_t units, const Shares& shares) {
  __extension__ typedef __int128 Wide;  // units * share does not fit 64 bits
  Wide total = 0;
  for (const int64_t share : shares) {
    if (share < 0) fail_usage("a share of {} is negative", share);
    total += share;
  }
  if (total == 0) fail_usage("{} shares give no part anything", shares.size());

  std::vector<int64_t> sizes;
  std::vector<Wide> remainders;
  for (const int64_t share : shares) {
    const Wide exact = Wide{units} * share;
    sizes.push_back(static_cast<int64_t>(exact / total));
    remainders.push_back(exact % total);
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // The remainders add up to fewer units than there are parts with one.
  const int64_t left = units - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++sizes[order[static_cast<size_t>(i)]];

  std::vector<int64_t> points{0};
  for (const int64_t size : sizes) points.push_back(points.back() + size);
  return points;
}

}  // namespace het
