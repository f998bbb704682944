// Where the packed elements of a slice lie in the whole tensor, element by element: for kernels that draw
// random numbers by an element's place, so that every plan draws alike. A plain value of fixed size, which
// kernels on a GPU take by value.
#pragma once

#include <cstdint>

namespace het {

class TensorSlice;

class SliceMap {
 public:
  static constexpr int kMostDims = 2;     // that are cut
  static constexpr int kMostRanges = 16;  // of each

  SliceMap() = default;  // of a whole tensor
  // Throws Error(usage) for a slice with more cut dimensions, or more ranges.
  explicit SliceMap(const TensorSlice& slice);

  // A run: what follows element i of the slice, `left` elements with itself, follows it in the whole.
  struct Run {
    int64_t element, left;
  };
  // `elements`: that the slice has, at least one. Inlined always: files compiled for several instruction sets
  // share no copy.
  [[gnu::always_inline]] constexpr Run at(int64_t i, int64_t elements) const {
    if (dims_ == 0) return {i, elements - i};
    Run run = cut_[0].at(i);
    if (dims_ == 2) {
      // The row that i lies in is itself an element of a slice, one dimension further out.
      const int64_t row = i / cut_[0].row;
      run.element += (cut_[1].at(row).element - row) * cut_[0].whole_row;
    }
    return run;
  }

 private:
  // One cut dimension. A row is all that lies within one index of the dimensions outside of it.
  struct Cut {
    int64_t row = 0, whole_row = 0;  // elements of a row, in the slice and in the whole
    int ranges = 0;
    int64_t begin[kMostRanges] = {};  // first element of each range in a row of the slice
    int64_t moved[kMostRanges] = {};  // how much further in a row of the whole it begins

    [[gnu::always_inline]] constexpr Run at(int64_t i) const {
      const int64_t outside = i / row, inside = i - outside * row;
      int k = 0;
      while (k + 1 < ranges && begin[k + 1] <= inside) ++k;
      const int64_t end = k + 1 < ranges ? begin[k + 1] : row;
      return {outside * whole_row + inside + moved[k], end - inside};
    }
  };

  int dims_ = 0;
  Cut cut_[kMostDims];  // innermost first; rows of the second count rows of the first
};

}  // namespace het
