// The merges of byte-pair encoding (Sennrich et al. 2016): of a word's neighbouring symbols the pair that
// stands first in the list is joined, again and again; of equal ones the leftmost. Immutable once filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace het {

// Bytes of a word that is split into symbols, at most: in the making it takes some 50 times as many.
inline constexpr size_t kMostWord = size_t{64} << 20;

class Merges {
 public:
  // In the order of the list. Of equal pairs the first counts.
  void add(int32_t first, int32_t second, int32_t result);
  // The symbols of one word, joined as far as they go. Takes n log n steps.
  void apply(std::vector<int32_t>& symbols) const;

 private:
  struct Merge {
    int32_t rank, result;
  };
  const Merge* find(int32_t first, int32_t second) const;
  void apply_short(std::vector<int32_t>& symbols) const;

  std::unordered_map<uint64_t, Merge> pairs_;
};

}  // namespace het
