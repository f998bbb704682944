// Ranges of whole numbers, and how a size is cut into parts.
#pragma once

#include <cstdint>
#include <vector>

namespace het {

struct Range {  // [begin, end)
  int64_t begin, end;
  constexpr int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// A contiguous share of `total` items for part `index` of `parts`; sizes differ by at most one, and the first
// parts have the larger ones.
constexpr Range share_of(int64_t total, int64_t parts, int64_t index) {
  const int64_t base = total / parts, extra = total % parts;
  const int64_t begin = index * base + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// Whole-number weights, one for each part. A part of weight 0 gets nothing.
using Shares = std::vector<int64_t>;

// Where `units` are cut into parts in proportion to `shares`: part p has [points[p], points[p + 1]). By the
// method of the largest remainder, in exact integers; of equal remainders the lower part's counts as larger,
// so that equal shares give what share_of gives. Throws Error(usage) for shares that are negative, all 0, or
// none.
std::vector<int64_t> cut_points(int64_t units, const Shares& shares);

}  // namespace het
