// Rows of several examples: which of them share one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace het {

struct PackedRows {
  std::vector<int64_t> examples;  // row after row
  std::vector<int64_t> first;     // of each row in `examples`, and where the last one ends

  int64_t count() const { return static_cast<int64_t>(first.size()) - 1; }
  std::span<const int64_t> row(int64_t index) const;
};

// Examples of these lengths, each at most `context`, in rows of `context` tokens: best fit, the longest first
// (Johnson, "Near-optimal bin packing algorithms", 1973, proves at most 11/9 of the fewest rows). Each goes
// to the row with the least room that takes it. Of like lengths the seed decides which comes first, so that
// it decides which share a row. A pure function of its arguments: each example is in one row, whole.
PackedRows pack_rows(std::span<const int64_t> lengths, int64_t context, uint64_t seed);

}  // namespace het
