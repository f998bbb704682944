// Slices against sets of indices: every function, on random slices of tensors of rank 0 to 4.
#include "core/tensor/slice.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/base/error.h"
#include "core/tensor/slice_map.h"
#include "core/tensor/tensor.h"

using namespace het;
using Catch::Contains;

namespace {

using Index = std::vector<int64_t>;
using Indices = std::set<Index>;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t below(int64_t bound) { return std::uniform_int_distribution<int64_t>(0, bound - 1)(engine_); }

  Shape shape() {
    Shape shape(static_cast<size_t>(below(5)));
    for (int64_t& size : shape) size = below(8);
    return shape;
  }
  TensorSlice slice(const Shape& shape) {
    TensorSlice slice = TensorSlice::whole(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (below(3) == 0) continue;
      Ranges keep;
      for (int64_t i = 0, count = below(4); i < count; ++i) {
        const int64_t begin = below(shape[d] + 1);
        keep.push_back({begin, begin + below(4)});
      }
      slice = slice.narrowed(static_cast<int64_t>(d), keep);
    }
    return slice;
  }

 private:
  std::mt19937 engine_;
};

void collect(const TensorSlice& slice, Index& index, Indices& found, std::vector<Index>& order) {
  const size_t d = index.size();
  if (d == slice.whole_shape().size()) {
    found.insert(index);
    order.push_back(index);
    return;
  }
  for (const Range& range : slice.ranges(static_cast<int64_t>(d)))
    for (int64_t i = range.begin; i < range.end; ++i) {
      index.push_back(i);
      collect(slice, index, found, order);
      index.pop_back();
    }
}

Indices indices_of(const TensorSlice& slice) {
  Indices found;
  std::vector<Index> order;
  Index index;
  collect(slice, index, found, order);
  return found;
}

// In the order in which the packed elements lie.
std::vector<Index> order_of(const TensorSlice& slice) {
  Indices found;
  std::vector<Index> order;
  Index index;
  collect(slice, index, found, order);
  return order;
}

Indices minus(const Indices& a, const Indices& b) {
  Indices result;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(result, result.end()));
  return result;
}
Indices common(const Indices& a, const Indices& b) {
  Indices result;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(result, result.end()));
  return result;
}
// All indices of slices that must not share one.
Indices joined(const std::vector<TensorSlice>& slices) {
  Indices result;
  for (const TensorSlice& slice : slices)
    for (const Index& index : indices_of(slice)) REQUIRE(result.insert(index).second);
  return result;
}

// The number of each element, counted in the whole tensor: what a packed tensor holds must be its slice's.
Tensor numbered(const TensorSlice& slice) {
  Tensor tensor(TensorType{DType::i32, slice.shape()});
  const Strides strides = contiguous_strides(slice.whole_shape());
  int32_t* at = tensor.data<int32_t>();
  for (const Index& index : order_of(slice))
    *at++ = static_cast<int32_t>(std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0}));
  return tensor;
}

std::vector<int32_t> values(const Tensor& tensor) {
  const auto span = tensor.span<int32_t>();
  return {span.begin(), span.end()};
}

}  // namespace

TEST_CASE("slices are sets of indices", "[slice]") {
  Random random(1);
  for (int trial = 0; trial < 20'000; ++trial) {
    const Shape shape = random.shape();
    const TensorSlice a = random.slice(shape), b = random.slice(shape), c = random.slice(shape);
    const Indices in_a = indices_of(a), in_b = indices_of(b), in_c = indices_of(c);
    CAPTURE(to_string(shape), to_string(a), to_string(b), to_string(c));

    REQUIRE(a.elements() == static_cast<int64_t>(in_a.size()));
    REQUIRE(a.is_empty() == in_a.empty());
    REQUIRE(a.is_whole() == (a == TensorSlice::whole(shape)));
    if (!in_a.empty()) REQUIRE((a == b) == (in_a == in_b));
    REQUIRE(shared_elements(a, b) == static_cast<int64_t>(common(in_a, in_b).size()));
    REQUIRE(parse_slice(shape, to_string(a)) == a);

    const auto both = intersection(a, b);
    REQUIRE((both ? indices_of(*both) : Indices{}) == common(in_a, in_b));
    const std::vector<TensorSlice> only = difference(a, b);
    REQUIRE(only.size() <= std::max<size_t>(1, shape.size()));
    REQUIRE(joined(only) == minus(in_a, in_b));
    REQUIRE(joined(missing(a, std::vector{b, c})) == minus(minus(in_a, in_b), in_c));

    const std::vector<TensorSlice> given{a, b, c};
    const std::vector<TensorSlice> parts = refine(given);
    Indices all = in_a;
    all.insert(in_b.begin(), in_b.end());
    all.insert(in_c.begin(), in_c.end());
    REQUIRE(joined(parts) == all);
    for (const TensorSlice& part : parts)
      for (const TensorSlice& each : given) {
        const auto inside = intersection(part, each);
        REQUIRE((!inside || *inside == part));
      }
  }
}

TEST_CASE("elements of slices are copied to their place", "[slice]") {
  Random random(2);
  for (int trial = 0; trial < 5'000; ++trial) {
    const Shape shape = random.shape();
    const TensorSlice from = random.slice(shape), to = random.slice(shape);
    CAPTURE(to_string(shape), to_string(from), to_string(to));
    const Tensor whole = numbered(TensorSlice::whole(shape)), source = numbered(from);
    REQUIRE(values(take(whole, from)) == values(source));

    Tensor target(TensorType{DType::i32, to.shape()});
    for (int64_t i = 0; i < target.elements(); ++i) target.set(i, -1);
    copy(target, to, source, from);
    const Indices in_from = indices_of(from);
    const std::vector<int32_t> wanted = values(numbered(to));
    const std::vector<Index> order = order_of(to);
    for (size_t i = 0; i < order.size(); ++i)
      REQUIRE(values(target)[i] == (in_from.contains(order[i]) ? wanted[i] : -1));

    const TensorSlice inner = random.slice(from.shape());
    REQUIRE(values(numbered(nested(from, inner))) == values(take(source, inner)));

    int64_t bytes = 0, last = -1;
    each_run(from, to, 4, [&](int64_t at, int64_t, int64_t count) {
      REQUIRE(at > last);
      last = at;
      bytes += count;
    });
    REQUIRE(bytes == 4 * static_cast<int64_t>(common(in_from, indices_of(to)).size()));

    Tensor together = Tensor::zeros({DType::i32, shape});
    put(together, source, from);
    for (const TensorSlice& rest : difference(TensorSlice::whole(shape), from))
      put(together, numbered(rest), rest);
    REQUIRE(values(together) == values(whole));
  }
}

TEST_CASE("views of a slice are where its elements lie in another", "[slice]") {
  Random random(3);
  for (int trial = 0; trial < 3'000; ++trial) {
    const Shape shape = random.shape();
    const TensorSlice held = random.slice(shape);
    const auto part = intersection(held, random.slice(shape));
    if (!part) continue;
    CAPTURE(to_string(shape), to_string(held), to_string(*part));
    const Tensor elements = numbered(held);
    std::vector<int32_t> seen;
    for (const Layout& box : views(*part, held, DType::i32)) {
      const std::vector<int32_t> in_box = values(elements.view(box).contiguous());
      seen.insert(seen.end(), in_box.begin(), in_box.end());
    }
    std::vector<int32_t> wanted = values(numbered(*part));
    std::sort(seen.begin(), seen.end());
    std::sort(wanted.begin(), wanted.end());
    REQUIRE(seen == wanted);
  }
}

TEST_CASE("a map of a slice finds each element's place in the whole", "[slice]") {
  Random random(4);
  int mapped = 0;
  for (int trial = 0; trial < 5'000; ++trial) {
    const Shape shape = random.shape();
    const TensorSlice slice = random.slice(shape);
    int cut = 0;
    for (size_t d = 0; d < shape.size(); ++d) cut += slice.shape()[d] < shape[d];
    CAPTURE(to_string(shape), to_string(slice));
    if (cut > SliceMap::kMostDims) {
      CHECK_THROWS_WITH(SliceMap(slice), Contains("has more than 2 cut dimensions"));
      continue;
    }
    const SliceMap map(slice);
    const std::vector<int32_t> places = values(numbered(slice));
    for (size_t i = 0; i < places.size(); ++i) {
      const auto run = map.at(static_cast<int64_t>(i), slice.elements());
      REQUIRE(run.element == places[i]);
      REQUIRE(run.left >= 1);
      for (size_t k = 1; k < static_cast<size_t>(run.left); ++k)
        REQUIRE(places[i + k] == places[i] + static_cast<int32_t>(k));
    }
    mapped += places.empty() ? 0 : 1;
  }
  CHECK(mapped > 1'000);
}

TEST_CASE("runs of bytes are as long as they can be", "[slice]") {
  const auto runs = [](const TensorSlice& from, const TensorSlice& to) {
    int count = 0;
    each_run(from, to, 4, [&](int64_t, int64_t, int64_t) { ++count; });
    return count;
  };
  const TensorSlice whole = TensorSlice::whole({24, 8, 4});
  const TensorSlice rows = whole.narrowed(0, {{0, 2}, {8, 10}, {16, 18}}),
                    columns = whole.narrowed(1, {2, 4});
  CHECK(runs(whole, whole) == 1);
  CHECK(runs(whole, rows) == 3);
  CHECK(runs(rows, rows) == 1);  // packed alike, whatever ranges they are
  CHECK(runs(whole, columns) == 24);
  CHECK(runs(columns, columns) == 1);
  CHECK(runs(rows, columns) == 6);
}

TEST_CASE("refining slices that were cut along one dimension leaves few parts", "[slice]") {
  const TensorSlice whole = TensorSlice::whole({24, 8});
  const auto part = [&](int64_t parts, int64_t index) {  // of queries, keys and values of 8 rows each
    Ranges keep;
    for (int64_t segment = 0; segment < 3; ++segment) {
      const Range own = share_of(8, parts, index);
      keep.push_back({8 * segment + own.begin, 8 * segment + own.end});
    }
    return whole.narrowed(0, keep);
  };
  CHECK(refine(std::vector{part(2, 0), part(2, 1)}).size() == 2);
  CHECK(refine(std::vector{part(2, 0), part(2, 1), part(4, 0), part(4, 1), part(4, 2), part(4, 3)}).size() ==
        4);
  CHECK(refine(std::vector{whole.narrowed(0, {0, 18}), whole.narrowed(0, {18, 24}),
                           whole.narrowed(0, {0, 12}), whole.narrowed(0, {12, 24})})
            .size() == 3);
  CHECK(refine(std::vector{whole, whole.narrowed(1, {0, 4}), whole.narrowed(0, {0, 6})}).size() == 4);
}

TEST_CASE("slices as text", "[slice]") {
  const TensorSlice whole = TensorSlice::whole({88, 8});
  const TensorSlice slice = whole.narrowed(0, {{64, 88}, {0, 40}, {40, 48}});
  CHECK(to_string(slice) == "[0:48+64:88, :]");
  CHECK(slice.shape() == Shape{72, 8});
  CHECK(to_string(whole) == "[:, :]");
  CHECK(to_string(whole.narrowed(-1, Ranges{})) == "[:, 0:0]");
  CHECK(to_string(TensorSlice()) == "[]");
  CHECK(parse_slice({88, 8}, " [ 0:48 + 64:88,: ] ") == slice);
  CHECK(parse_slice({}, "[]") == TensorSlice());
  for (const char* text :
       {"", "[", "[:]", "[:, :, :]", "[:, 0:9]", "[:, 3:2]", "[:, -1:2]", "[:, a]", "[:, 1]", "[4:8+0:2, :]",
        "[0:4+2:6, :]", "[:, :] x", "[0:99999999999999999999, :]"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_slice({88, 8}, text), Contains("is no slice of a tensor [88, 8]"));
  }
}

TEST_CASE("sizes are cut in proportion to shares", "[slice]") {
  CHECK(cut_points(8, {3, 1}) == std::vector<int64_t>{0, 6, 8});
  CHECK(cut_points(10, {1, 1, 1}) == std::vector<int64_t>{0, 4, 7, 10});
  CHECK(cut_points(7, {0, 2, 1}) == std::vector<int64_t>{0, 0, 5, 7});
  CHECK(cut_points(0, {1, 2}) == std::vector<int64_t>{0, 0, 0});
  CHECK(cut_points(int64_t{1} << 60, {int64_t{1} << 60, int64_t{1} << 60})[1] == int64_t{1} << 59);
  CHECK_THROWS_WITH(cut_points(4, {}), "0 shares give no part anything");
  CHECK_THROWS_WITH(cut_points(4, {0, 0}), "2 shares give no part anything");
  CHECK_THROWS_WITH(cut_points(4, {2, -1}), "a share of -1 is negative");
  for (int64_t units = 0; units < 40; ++units)
    for (int64_t parts = 1; parts < 9; ++parts) {
      const std::vector<int64_t> points = cut_points(units, Shares(static_cast<size_t>(parts), 5));
      for (int64_t p = 0; p < parts; ++p) {
        const auto index = static_cast<size_t>(p);
        CHECK(share_of(units, parts, p) == Range{points[index], points[index + 1]});
      }
    }
}
