#include "core/tensor/shape.h"

#include <catch2/catch.hpp>

using namespace het;

TEST_CASE("a reshape of a packed layout is always a view") {
  const Layout layout = Layout::contiguous({DType::f32, {2, 3, 4}});
  const auto flat = reshaped(layout, {6, 4});
  REQUIRE(flat);
  CHECK(flat->strides == Strides{4, 1});
  CHECK(reshaped(layout, {24})->is_contiguous());
  CHECK(reshaped(layout, {1, 2, 1, 12})->is_contiguous());
  CHECK_FALSE(reshaped(layout, {5, 5}));
}

TEST_CASE("splitting the last dimension of a slice keeps its row stride; merging across the gap is refused") {
  const Layout packed = Layout::contiguous({DType::f32, {2, 5, 12}});
  const Layout part = sliced(packed, 2, 4, 4);
  const auto heads = reshaped(part, {2, 5, 2, 2});
  REQUIRE(heads);
  CHECK(heads->strides == Strides{60, 12, 2, 1});
  CHECK(heads->offset == 4);
  CHECK_FALSE(reshaped(part, {2, 20}));
  CHECK(reshaped(part, {10, 4})->strides == Strides{12, 1});
}

TEST_CASE("transposing twice gives the layout back") {
  const Layout layout = Layout::contiguous({DType::f32, {2, 3, 4}});
  const Layout turned = permuted(layout, {2, 0, 1});
  CHECK(turned.type.shape == Shape{4, 2, 3});
  CHECK_FALSE(turned.is_contiguous());
  CHECK(permuted(turned, {1, 2, 0}) == layout);
}

TEST_CASE("a shape that no tensor has is refused, also where a size of 0 hides it") {
  const int64_t large = int64_t{1} << 40;
  CHECK(elements_of({0, 7}) == 0);
  CHECK(elements_of({}) == 1);
  CHECK_THROWS_WITH(elements_of({2, -1}), "a dimension of [2, -1] is negative");
  for (const Shape& shape : {Shape{large, large, large}, Shape{0, large, large}, Shape{large, 0, large}})
    CHECK_THROWS_WITH(elements_of(shape), Catch::Contains("more than 2^48 elements"));
  CHECK_THROWS_WITH(elements_of({large, 0}), Catch::Contains("multiply to more than 2^32"));
  CHECK_THROWS_WITH(elements_of(Shape(33, 1)), "a tensor has at most 32 dimensions, not 33");
  CHECK(to_string(Shape(1000, 1)) == "[1, 1, 1, ... 1000 in all]");
  CHECK(contiguous_strides({2, 0, 3}) == Strides{3, 3, 1});
  CHECK(Layout::contiguous({DType::f32, {2, 0, 3}}).is_contiguous());
}

TEST_CASE("shapes broadcast from the right") {
  CHECK(broadcast_of({2, 3}, {3}) == Shape{2, 3});
  CHECK(broadcast_of({2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_of({}, {5}) == Shape{5});
  CHECK_FALSE(broadcast_of({2, 3}, {2}));
  const Layout row = broadcast_to(Layout::contiguous({DType::f32, {3}}), {2, 3});
  CHECK(row.strides == Strides{0, 1});
}
