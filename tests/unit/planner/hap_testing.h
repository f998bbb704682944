// Random training graphs on small clusters of unlike devices, for tests of what synthesises their programs.
#pragma once

#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/ops/op.h"
#include "planner/hap/hap.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/planner/distributed.h"
#include "tests/unit/planner/testing.h"

namespace het::testing::sharded {

using namespace het::planner;
using namespace het::planner::hap;
using namespace het::testing::distributed;

// `fast` devices and as many slow ones, in hosts of two.
inline Cluster small_cluster(int devices, double bytes_per_second, bool mesh = true) {
  Cluster cluster;
  cluster.types = {plain_type("fast", 3e-3, 16), plain_type("slow", 1e-3, 16)};
  for (DeviceType& type : cluster.types) {
    type.memory_bytes_per_second = 1e10;
    type.inside = {2e-6, 4 * bytes_per_second};
  }
  for (int d = 0; d < devices; d += 2)
    cluster.nodes.push_back(plain_machine(std::string(1, static_cast<char>('a' + d)),
                                          d < devices / 2 ? "fast" : "slow", std::min(2, devices - d)));
  cluster.between = {5e-6, bytes_per_second};
  cluster.mesh = mesh;
  return cluster;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : key_(philox_key(seed, hash_of("hap"))) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(philox(key_, next_++)[0] % static_cast<uint64_t>(n));
  }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(std::ssize(list)))];
  }

 private:
  PhiloxKey key_;
  uint64_t next_ = 0;
};

// An embedding, some operators, and a classifier; trained by AdamW. `adapted`: some parameters are used more
// than once, and some are not trained.
inline Graph random_model(uint64_t seed, int operators, bool adapted = false) {
  Draw draw(seed);
  Graph graph;
  GraphBuilder b(graph);
  std::vector<ValueId> weights, trained;
  const auto weight = [&](Shape shape, double scale = 0.3) {
    for (const ValueId known : weights)
      if (adapted && graph.type(known).shape == shape && draw.below(2) == 0) return known;
    weights.push_back(b.parameter(fmt::format("w{}", graph.values.size()), {DType::f64, std::move(shape)},
                                  {Initial::Kind::normal, scale}));
    if (!adapted || draw.below(2) == 0) trained.push_back(weights.back());
    return weights.back();
  };
  const ValueId tokens = b.input("tokens", {DType::i32, {kSamples, kContext}});
  const ValueId labels = b.input("labels", {DType::i32, {kSamples, kContext}});
  const ValueId scale = b.input("scale", {DType::f64, {1}}, true);
  b.input("counter", {DType::i64, {2}});
  b.input("order", {DType::i32, {kContext}}, true);
  b.begin_layer("all");
  std::vector<ValueId> made{b.call("embedding", {tokens, weight({kVocabulary, 8})})};
  const auto width = [&](ValueId id) { return graph.type(id).shape.back(); };
  for (int i = 0; i < operators; ++i) {
    const ValueId x = made.back();
    const int64_t in = width(x);
    ValueId y = kAbsent;
    switch (draw.below(10)) {
      case 0:
      case 1:
      case 2: {
        const int64_t out = draw.of(std::vector<int64_t>{6, 8, 12});
        y = draw.below(2) == 0 ? b.call("linear", {x, weight({out, in})})
                               : b.call("linear", {x, weight({out, in}), weight({out})});
        break;
      }
      case 3: y = b.call(draw.of(std::vector<std::string>{"gelu", "silu", "tanh"}), {x}); break;
      case 4: y = b.call("layer_norm", {x, weight({in}), weight({in})}); break;
      case 5: y = b.call("rms_norm", {x, weight({in})}); break;
      case 6: y = b.call("matmul", {x, weight({in, 8})}); break;
      case 7: y = b.call("mul", {x, weight({in})}); break;
      case 8: {  // tokens as channels of images; a norm would leave a bias of these no gradient
        y = b.call("reshape", {x}, {{"shape", Shape{kSamples, kContext, in / 2, 2}}});
        y = b.call("conv2d", {y, weight({kContext, kContext, 3, 3})}, {{"padding", int64_t{1}}});
        y = b.call("reshape", {y}, {{"shape", Shape{kSamples, kContext, in}}});
        break;
      }
      default: {
        std::vector<ValueId> alike;
        for (const ValueId id : made)
          if (width(id) == in) alike.push_back(id);
        y = b.call(draw.of(std::vector<std::string>{"add", "mul"}), {x, draw.of(alike)});
      }
    }
    made.push_back(y);
  }
  const ValueId last = made.back();
  b.output("loss", b.call("linear_cross_entropy",
                          {last, weight({kVocabulary, width(last)}), kAbsent, labels, scale}));
  if (trained.empty()) trained.push_back(weights.back());
  train_by_adamw(b, graph.outputs[0].value, 1e-4, trained);
  return graph;
}

// The program in which nodes run so, and state lies as its updates need it; nullopt: there is none.
inline std::optional<ShardingProgram> program_of(ShardingCosts& costs, const Shares& shares,
                                                 const std::vector<int>& ways) {
  const Graph& graph = costs.table().graph();
  SearchResult as;
  as.ways = ways;
  as.state.assign(graph.values.size(), kReplicated);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (size_t i = 0; i < graph.nodes[n].inputs.size(); ++i)
      if (graph.nodes[n].inputs[i] != kAbsent && updates(graph.nodes[n], i))
        as.state[static_cast<size_t>(graph.nodes[n].inputs[i])] =
            costs.way(static_cast<NodeId>(n), ways[n]).inputs[i];
  try {
    return propagate(costs.table(), shares, hints_of(costs, shares, as));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return std::nullopt;
  }
}

// What a search by prices of memory counts beside what is converted: of all values but those that are only
// ever whole.
inline Ticks held_by(ShardingCosts& costs, const ShardingProgram& program) {
  const Graph& graph = costs.table().graph();
  std::set<ValueId> converted;
  for (const Conversion& conversion : program.conversions) converted.insert(conversion.value);
  Ticks all = 0;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const NodeId producer = graph.values[i].producer;
    if (graph.values[i].role == Role::input || converted.count(static_cast<ValueId>(i)) != 0 ||
        (producer >= 0 && (graph.nodes[static_cast<size_t>(producer)].op->any_placement ||
                           costs.table().shardings(producer).empty())))
      continue;
    all += costs.held(static_cast<ValueId>(i), program.values[i], program.shares);
  }
  return all;
}

}  // namespace het::testing::sharded
