#include "core/tensor/slice_map.h"

#include "core/base/error.h"
#include "core/tensor/slice.h"

namespace het {

SliceMap::SliceMap(const TensorSlice& slice) {
  const Shape& whole = slice.whole_shape();
  const Shape shape = slice.shape();
  int64_t inner = 1;  // elements, or rows of the cut before, within one index of dimension d
  for (size_t d = whole.size(); d-- > 0;) {
    if (shape[d] == whole[d]) {
      inner *= whole[d];
      continue;
    }
    const Ranges ranges = slice.ranges(static_cast<int64_t>(d));
    if (dims_ == kMostDims || ranges.size() > kMostRanges)
      fail_usage("the slice {} has more than {} cut dimensions, or more than {} ranges of one",
                 to_string(slice), kMostDims, kMostRanges);
    Cut& cut = cut_[dims_++];
    cut.row = shape[d] * inner;
    cut.whole_row = whole[d] * inner;
    int64_t entries = 0;
    for (const Range& range : ranges) {
      cut.begin[cut.ranges] = entries * inner;
      cut.moved[cut.ranges++] = (range.begin - entries) * inner;
      entries += range.size();
    }
    inner = 1;
  }
}

}  // namespace het
