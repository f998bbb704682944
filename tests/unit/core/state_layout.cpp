#include "core/run/state_layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/plan/inventory.h"

using namespace het;

namespace {

TensorSlice random_slice(std::mt19937& random, const Shape& shape) {
  const TensorSlice whole = TensorSlice::whole(shape);
  if (shape.empty() || random() % 3 == 0) return whole;
  const auto dim = static_cast<int64_t>(random() % shape.size());
  const int64_t size = shape[static_cast<size_t>(dim)];
  const int64_t begin = static_cast<int64_t>(random() % static_cast<unsigned>(size));
  const int64_t end = begin + 1 + static_cast<int64_t>(random() % static_cast<unsigned>(size - begin));
  return whole.narrowed(dim, {{begin, end}});
}

StateLayout random_layout(std::mt19937& random, int ranks) {
  StateLayout layout;
  layout.parts.resize(static_cast<size_t>(ranks));
  for (int t = 0; t < 6; ++t) {
    const std::string name = "t" + std::to_string(t);
    const Inventory::Tensor tensor{{DType::f32, {4 + t, 3}}, t % 2 == 0};
    for (auto& parts : layout.parts)
      if (random() % 4 != 0) parts.push_back({name, tensor, random_slice(random, tensor.type.shape)});
  }
  for (const auto& parts : layout.parts)
    for (const StatePart& part : parts) layout.tensors.emplace(part.name, part.tensor);
  return layout;
}

// How often each element of a tensor is in the parts that `counts(rank)` allows.
template <typename Written, typename Counts>
std::vector<int> times(const std::vector<Written>& by_rank, const std::string& name, const Shape& shape,
                       const Counts& counts) {
  std::vector<int> times(static_cast<size_t>(elements_of(shape)));
  for (size_t rank = 0; rank < by_rank.size(); ++rank)
    for (const auto& each : by_rank[rank]) {
      const StatePart& part = [&]() -> const StatePart& {
        if constexpr (requires { each.part; })
          return each.part;
        else
          return each;
      }();
      if (part.name != name || !counts(rank)) continue;
      each_run(part.slice, TensorSlice::whole(shape), 1, [&](int64_t, int64_t to, int64_t count) {
        for (int64_t i = 0; i < count; ++i) ++times[static_cast<size_t>(to + i)];
      });
    }
  return times;
}

}  // namespace

TEST_CASE("every element of the state is written once, by a rank that has it", "[state layout]") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const StateLayout layout = random_layout(random, ranks);
    std::vector<std::string> hosts;
    for (int r = 0; r < ranks; ++r) hosts.push_back("host " + std::to_string(random() % 3));
    std::vector<std::string> zones;
    for (const std::string& host : hosts) zones.push_back(host == "host 2" ? "b" : "a");
    const auto once = assign_writers(layout, hosts), by_host = assign_writers_of_hosts(layout, hosts, zones);
    for (const auto& [name, tensor] : layout.tensors) {
      const Shape& shape = tensor.type.shape;
      const auto any = [](size_t) { return true; };
      const auto held = times(layout.parts, name, shape, any), written = times(once, name, shape, any);
      for (size_t i = 0; i < held.size(); ++i) CHECK(written[i] == (held[i] > 0 ? 1 : 0));
      for (const std::string& host : std::set<std::string>(hosts.begin(), hosts.end())) {
        const auto here = [&](size_t rank) { return hosts[rank] == host; };
        const auto held_here = times(layout.parts, name, shape, here);
        const auto written_here = times(by_host, name, shape, here);
        for (size_t i = 0; i < held_here.size(); ++i) CHECK(written_here[i] == (held_here[i] > 0 ? 1 : 0));
      }
    }
    for (const auto* written : {&once, &by_host})
      for (size_t r = 0; r < written->size(); ++r)
        for (const WrittenPart& each : (*written)[r]) {
          std::set<std::string> having, in;  // hosts of ranks that have all of it, and their zones
          for (size_t other = 0; other < layout.parts.size(); ++other)
            for (const StatePart& part : layout.parts[other])
              if (part.name == each.part.name &&
                  shared_elements(part.slice, each.part.slice) == each.part.slice.elements())
                having.insert(hosts[other]), in.insert(zones[other]);
          CHECK(each.hosts == static_cast<int>(having.size()));
          CHECK(each.zones == (written == &by_host ? static_cast<int>(in.size()) : 1));
          CHECK(having.count(hosts[r]) == 1);
        }
  }
}

TEST_CASE("replicas share the writing evenly", "[state layout]") {
  StateLayout layout;
  layout.parts.resize(4);
  for (int t = 0; t < 40; ++t)
    for (auto& parts : layout.parts) {
      const Shape shape{16};
      parts.push_back({"t" + std::to_string(t), {{DType::f32, shape}, true}, TensorSlice::whole(shape)});
    }
  for (const StatePart& part : layout.parts[0]) layout.tensors.emplace(part.name, part.tensor);
  for (const auto& written : assign_writers(layout, std::vector<std::string>(4, "here")))
    CHECK(written.size() == 10);
}
