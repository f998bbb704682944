#include "core/plan/inventory.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "core/base/error.h"

namespace het {
namespace {

const Inventory::Tensor kWeight{{DType::f32, {4, 6}}, true};

TensorSlice random_slice(const Shape& shape, std::mt19937& random) {
  TensorSlice slice = TensorSlice::whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto a = static_cast<int64_t>(random() % static_cast<unsigned>(shape[d] + 1));
    const auto b = static_cast<int64_t>(random() % static_cast<unsigned>(shape[d] + 1));
    if (random() % 3 != 0)
      slice = slice.narrowed(static_cast<int64_t>(d), Range{std::min(a, b), std::max(a, b)});
  }
  return slice;
}

std::set<std::pair<int64_t, int64_t>> indices(const TensorSlice& slice) {
  std::set<std::pair<int64_t, int64_t>> found;
  for (const Range& rows : slice.ranges(0))
    for (int64_t i = rows.begin; i < rows.end; ++i)
      for (const Range& columns : slice.ranges(1))
        for (int64_t j = columns.begin; j < columns.end; ++j) found.insert({i, j});
  return found;
}

}  // namespace

TEST_CASE("an inventory finds who holds each index that is needed", "[inventory]") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    Inventory inventory;
    std::vector<TensorSlice> held;
    const int holders = 1 + static_cast<int>(random() % 5);
    for (int h = 0; h < holders; ++h) {
      held.push_back(random_slice({4, 6}, random));
      inventory.add("w", kWeight, h, held.back());
    }
    const TensorSlice need = random_slice({4, 6}, random);
    std::set<std::pair<int64_t, int64_t>> covered;
    for (const Inventory::Piece& piece : inventory.find("w", need)) {
      for (const auto& index : indices(piece.slice)) {
        CHECK(covered.insert(index).second);  // pieces are disjoint
        for (int h = 0; h < holders; ++h)
          CHECK(indices(held[static_cast<size_t>(h)]).contains(index) ==
                std::binary_search(piece.holders.begin(), piece.holders.end(), h));
      }
    }
    CHECK(covered == indices(need));

    const int receiver = static_cast<int>(random() % static_cast<unsigned>(holders));
    const auto sources = inventory.sources("w", need, receiver);
    bool all_held = true;
    for (const auto& index : indices(need)) {
      bool any = false;
      for (const TensorSlice& slice : held) any = any || indices(slice).contains(index);
      all_held = all_held && any;
    }
    CHECK(sources.has_value() == all_held);
    if (!sources) continue;
    for (const Inventory::Source& source : *sources)
      for (const auto& index : indices(source.slice)) {
        CHECK(indices(held[static_cast<size_t>(source.holder)]).contains(index));
        if (indices(held[static_cast<size_t>(receiver)]).contains(index)) CHECK(source.holder == receiver);
      }
  }
}

TEST_CASE("receivers ask different holders", "[inventory]") {
  Inventory inventory;
  const TensorSlice whole = TensorSlice::whole({4, 6});
  for (const int holder : {1, 4}) inventory.add("w", kWeight, holder, whole);
  CHECK(inventory.sources("w", whole, 0)->at(0).holder == 1);
  CHECK(inventory.sources("w", whole, 2)->at(0).holder == 4);
  CHECK(inventory.sources("w", whole, 5)->at(0).holder == 1);
}

TEST_CASE("the newest version that is held whole counts", "[inventory]") {
  Inventory inventory;
  const TensorSlice whole = TensorSlice::whole({4, 6});
  const TensorSlice top = whole.narrowed(0, Range{0, 2}), bottom = whole.narrowed(0, Range{2, 4});
  inventory.add("w", kWeight, 0, whole, {7, 1});
  inventory.add("w", kWeight, 1, top, {8, 1});
  inventory.add("w", kWeight, 2, top, {8, 2});
  inventory.add("w", kWeight, 3, bottom, {8, 2});
  const std::vector<Inventory::Need> all{{"w", whole}}, part{{"w", top}}, other{{"v", whole}};
  CHECK(inventory.newest_with(all) == Version{8, 2});
  CHECK(inventory.newest_with(part) == Version{8, 2});
  CHECK_FALSE(inventory.newest_with(other).has_value());
  CHECK(inventory.versions() == std::vector<Version>{{8, 2}, {8, 1}, {7, 1}});
  CHECK_FALSE(inventory.sources("w", whole, 0, {8, 1}).has_value());
  CHECK_THROWS_AS(inventory.add("w", {{DType::f32, {4, 7}}, true}, 0, TensorSlice::whole({4, 7})), Error);
}

}  // namespace het
