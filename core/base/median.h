#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/error.h"

namespace het {

// Of an even number of values: halfway between the two in the middle.
inline double median(std::vector<double> values) {
  HET_REQUIRE(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace het
