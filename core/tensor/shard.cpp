#include "core/tensor/shard.h"

#include <cstring>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

namespace het {
std::vector<Range> ranges_of(const std::vector<int64_t>& segments, int parts, int part) {
  std::vector<Range> ranges;
  int64_t start = 0;
  for (const int64_t size : segments) {
    const Range own = share_of(size, parts, part);
    ranges.push_back({start + own.begin, start + own.end});
    start += size;
  }
  return ranges;
}

int64_t share_of(const std::vector<int64_t>& segments, int parts, int part) {
  int64_t total = 0;
  for (const Range& range : ranges_of(segments, parts, part)) total += range.end - range.begin;
  return total;
}

Shape shape_of(const Shard& shard) {
  Shape shape = shard.whole;
  shape[static_cast<size_t>(shard.dim)] = share_of(shard.segments, shard.parts, shard.part);
  return shape;
}

void each_run(const Shard& shard, DType dtype, const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const size_t dim = static_cast<size_t>(shard.dim);
  int64_t outer = 1, inner = bytes_of(dtype);
  for (size_t d = 0; d < dim; ++d) outer *= shard.whole[d];
  for (size_t d = dim + 1; d < shard.whole.size(); ++d) inner *= shard.whole[d];
  const auto ranges = ranges_of(shard.segments, shard.parts, shard.part);
  int64_t at = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (const Range& range : ranges) {
      const int64_t bytes = (range.end - range.begin) * inner;
      visit((o * shard.whole[dim] + range.begin) * inner, at, bytes);
      at += bytes;
    }
}

Tensor take(const Tensor& whole, const Shard& shard) {
  HET_REQUIRE(whole.shape() == shard.whole, to_string(whole.shape()), to_string(shard.whole));
  Tensor part(TensorType{whole.dtype(), shape_of(shard)});
  each_run(shard, whole.dtype(), [&](int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(part.bytes() + to, whole.bytes() + from, static_cast<size_t>(bytes));
  });
  return part;
}

void put(Tensor& whole, const Tensor& part, const Shard& shard) {
  HET_REQUIRE(whole.shape() == shard.whole, to_string(whole.shape()), to_string(shard.whole));
  HET_REQUIRE(part.shape() == shape_of(shard), to_string(part.shape()), to_string(shape_of(shard)));
  HET_REQUIRE(part.dtype() == whole.dtype(), name_of(part.dtype()), name_of(whole.dtype()));
  each_run(shard, whole.dtype(), [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(whole.bytes() + to, part.bytes() + from, static_cast<size_t>(bytes));
  });
}

}  // namespace het
