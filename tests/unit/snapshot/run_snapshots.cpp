// Which parts of a run's state go to snapshots in memory.
#include "snapshot/run_snapshots.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;

namespace {

constexpr int64_t kElements = 1 << 18;  // of each tensor

// Ranks on separate hosts, each with the tensors that are named.
struct Ranks {
  StateLayout layout;
  std::vector<ReplicaPeer> peers;

  explicit Ranks(const std::vector<std::vector<std::string>>& tensors,
                 int64_t free_bytes = int64_t{1} << 40) {
    const Inventory::Tensor tensor{{DType::f32, {kElements}}, true};
    for (const auto& names : tensors) {
      layout.parts.emplace_back();
      for (const std::string& name : names) {
        layout.tensors.emplace(name, tensor);
        layout.parts.back().push_back({name, tensor, TensorSlice::whole(tensor.type.shape)});
      }
      peers.push_back({"", "host " + std::to_string(peers.size()), "", "", int64_t{1} << 40});
    }
  }
};

std::shared_ptr<RunSnapshots> snapshots_in(const Scratch& scratch) {
  RunSnapshots::Options options;
  options.run = "run";
  options.memory_folder = scratch.path("memory");
  return std::make_shared<RunSnapshots>(options);
}

}  // namespace

TEST_CASE("what is in one zone of several is scarce, on however many hosts it is", "[snapshot]") {
  const Scratch scratch;
  const auto snapshots = snapshots_in(scratch);
  Ranks ranks({{"a"}, {"a"}, {}});
  snapshots->follow(ranks.layout, 0, ranks.peers, "");
  CHECK_FALSE(snapshots->is_scarce());
  for (size_t r = 0; r < 3; ++r) ranks.peers[r].zone = r < 2 ? "east" : "west";
  snapshots->follow(ranks.layout, 0, ranks.peers, "");
  CHECK(snapshots->is_scarce());
  ranks.peers[1].zone = "west";
  snapshots->follow(ranks.layout, 0, ranks.peers, "");
  CHECK_FALSE(snapshots->is_scarce());
}
