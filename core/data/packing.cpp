#include "core/data/packing.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/data/shuffle.h"

namespace het {

std::span<const int64_t> PackedRows::row(int64_t index) const {
  const auto begin = static_cast<size_t>(first[static_cast<size_t>(index)]),
             end = static_cast<size_t>(first[static_cast<size_t>(index) + 1]);
  return std::span(examples).subspan(begin, end - begin);
}

PackedRows pack_rows(std::span<const int64_t> lengths, int64_t context, uint64_t seed) {
  const auto count = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> order(lengths.size());
  for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = permuted(seed, 0, count, i);
  const auto length_of = [&](int64_t example) { return lengths[static_cast<size_t>(example)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });

  std::vector<int64_t> row_of(lengths.size()), sizes;
  std::map<int64_t, std::vector<int64_t>> rows;  // by the room that is left in them
  for (const int64_t example : order) {
    const int64_t length = length_of(example);
    HET_REQUIRE(length >= 0 && length <= context, length, context);
    const auto found = rows.lower_bound(length);
    int64_t row = static_cast<int64_t>(sizes.size()), room = context;
    if (found == rows.end()) {
      sizes.push_back(0);
    } else {
      room = found->first;
      row = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) rows.erase(found);
    }
    row_of[static_cast<size_t>(example)] = row;
    ++sizes[static_cast<size_t>(row)];
    rows[room - length].push_back(row);
  }

  PackedRows packed;
  packed.first.push_back(0);
  for (const int64_t size : sizes) packed.first.push_back(packed.first.back() + size);
  packed.examples.resize(lengths.size());
  std::vector<int64_t> at(packed.first.begin(), packed.first.end() - 1);
  for (const int64_t example : order)
    packed.examples[static_cast<size_t>(at[static_cast<size_t>(row_of[static_cast<size_t>(example)])]++)] =
        example;
  return packed;
}

}  // namespace het
