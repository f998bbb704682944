// Which rows of the optimizer state each rank keeps.
#include "planner/lower/sharded_update.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "core/graph/graph.h"
#include "core/ops/op.h"

using namespace het;

namespace {

int draw(std::mt19937& random, int from, int to) { return std::uniform_int_distribution(from, to)(random); }

}  // namespace

TEST_CASE("tensors of a bucket are cut by rows where shares end", "[sharded optimizer]") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<Shape> shapes;
    int64_t total = 0, longest_row = 0;
    for (int t = draw(random, 1, 5); t > 0; --t) {
      Shape& shape = shapes.emplace_back();
      for (int d = draw(random, 1, 3); d > 0; --d) shape.push_back(draw(random, 1, 9));
      const int64_t elements = elements_of(shape);
      total += elements;
      longest_row = std::max(longest_row, elements / shape[static_cast<size_t>(row_dim(shape))]);
    }
    std::vector<int> ranks;
    Shares shares;
    for (int r = draw(random, 1, 4), next = 0; r > 0; --r) {
      ranks.push_back(next += draw(random, 1, 3));
      shares.push_back(draw(random, 0, 3));
    }
    shares[static_cast<size_t>(draw(random, 0, static_cast<int>(shares.size()) - 1))] = 1;
    const auto kept = cut_by_rows(shapes, ranks, shares);
    REQUIRE(kept.size() == shapes.size());
    std::map<int, int64_t> elements;
    int last = 0;
    for (size_t t = 0; t < shapes.size(); ++t) {
      const int64_t rows = shapes[t][static_cast<size_t>(row_dim(shapes[t]))];
      int64_t row = 0;
      for (const KeptRows& own : kept[t]) {
        CHECK(own.rows.begin == row);
        CHECK(own.rows.size() > 0);
        CHECK(own.rank >= last);  // so that what a rank keeps is one block
        row = own.rows.end;
        last = own.rank;
        elements[own.rank] += own.rows.size() * (elements_of(shapes[t]) / rows);
      }
      CHECK(row == rows);
    }
    const auto cuts = cut_points(total, shares);
    for (size_t r = 0; r < ranks.size(); ++r) {
      INFO("trial " << trial << ", rank " << ranks[r]);
      CHECK(std::abs(elements[ranks[r]] - (cuts[r + 1] - cuts[r])) <= longest_row);
      if (shares[r] == 0) CHECK(elements[ranks[r]] == 0);
    }
  }
}

TEST_CASE("of a parameter that stages cut differently each element of the state has one owner",
          "[sharded optimizer]") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const Shape whole{draw(random, 1, 2), draw(random, 1, 12), draw(random, 1, 8)};
    std::vector<HeldSlice> held;
    for (int stage = 0, stages = draw(random, 1, 4); stage < stages; ++stage) {
      const int parts = draw(random, 1, 3), dim = draw(random, -1, 2);
      const int64_t share = draw(random, 0, 3);
      std::vector<int64_t> cuts;
      if (dim >= 0) {
        Shares shares;
        for (int t = 0; t < parts; ++t) shares.push_back(draw(random, 1, 3));
        cuts = cut_points(whole[static_cast<size_t>(dim)], shares);
      }
      for (int t = 0; t < parts; ++t) {
        TensorSlice slice = TensorSlice::whole(whole);
        const auto part = static_cast<size_t>(t);
        if (dim >= 0) slice = slice.narrowed(dim, Range{cuts[part], cuts[part + 1]});
        held.push_back({static_cast<int>(held.size()), stage, slice, share});
      }
    }
    INFO("trial " << trial);
    const auto kept = keep_rows(held);
    if (!kept) {
      CHECK(std::any_of(held.begin(), held.end(), [](const HeldSlice& each) { return each.share == 0; }));
      continue;
    }
    const auto dim = static_cast<size_t>(row_dim(whole));
    std::vector<int> owners(static_cast<size_t>(elements_of(whole)));
    for (const HeldSlice& each : held) {
      const TensorSlice& own = kept->at(each.rank);
      CHECK(difference(own, each.slice).empty());
      if (each.share == 0) CHECK(own.is_empty());
      for (size_t d = 0; d < whole.size(); ++d)  // whole rows of what it has
        if (d != dim && !own.is_empty())
          CHECK(own.ranges(static_cast<int64_t>(d)) == each.slice.ranges(static_cast<int64_t>(d)));
      const Ranges rows = own.is_empty() ? Ranges{} : rows_within(own, each.slice);
      CHECK(size_of(rows) == (own.is_empty() ? 0 : own.shape()[dim]));
      each_run(own, TensorSlice::whole(whole), 1, [&](int64_t, int64_t at, int64_t count) {
        for (int64_t i = at; i < at + count; ++i) ++owners[static_cast<size_t>(i)];
      });
    }
    CHECK(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
  }
}

TEST_CASE("updates are made by rows where each element depends on its own alone", "[sharded optimizer]") {
  Graph graph;
  GraphBuilder builder(graph);
  const TensorType matrix{DType::f32, {4, 6}}, scalar{DType::f32, {}};
  const ValueId x = builder.input("x", matrix), lr = builder.input("lr", scalar, true);
  const auto parameter = [&](const std::string& name) { return builder.parameter(name, matrix, {}); };
  const ValueId plain = parameter("plain"), clipped = parameter("clipped"), sorted = parameter("sorted");
  std::vector<ValueId> gradients;
  for (const ValueId each : {plain, clipped, sorted}) gradients.push_back(builder.call("mul", {x, each}));
  builder.set_phase(Phase::update);
  const ValueId one = builder.buffer("one", scalar, {Initial::Kind::ones, 0});
  std::map<NodeId, std::set<ValueId>> behind;
  const auto update = [&](ValueId id, ValueId gradient, ValueId from) {
    const ValueId momentum = builder.buffer(graph.values[static_cast<size_t>(id)].name + ".m", matrix, {});
    builder.call_all(op_named("sgd"), {id, momentum, gradient, lr, one}, {{"momentum", 0.9}});
    behind[static_cast<NodeId>(graph.nodes.size()) - 1] = {from};
  };
  update(plain, gradients[0], gradients[0]);
  update(clipped, builder.call("tanh", {gradients[1]}), gradients[1]);
  update(sorted, builder.call("softmax", {gradients[2]}, {{"dim", int64_t{1}}}), gradients[2]);
  const auto found = row_updates(graph, {behind, [](ValueId, ValueId, size_t) { return false; }});
  REQUIRE(found.size() == 2);
  CHECK(found.at(gradients[0]).nodes.size() == 1);
  CHECK(found.at(gradients[0]).state.size() == 1);
  CHECK(found.at(gradients[1]).nodes.size() == 2);
  CHECK(found.count(gradients[2]) == 0);
}
