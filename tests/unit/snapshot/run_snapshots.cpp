// Which parts of a run's state go to snapshots in memory, and how much of that they may take.
#include "snapshot/run_snapshots.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "core/io/file.h"
#include "snapshot/snapshot.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;

namespace {

constexpr int64_t kElements = 1 << 18, kBytes = 4 * kElements;  // of each tensor

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
      peers.push_back({"", "host " + std::to_string(peers.size()), "", "", free_bytes});
    }
  }
};

std::shared_ptr<RunSnapshots> snapshots_in(const Scratch& scratch, int64_t memory_bytes) {
  RunSnapshots::Options options;
  options.run = "run";
  options.memory_folder = scratch.path("memory");
  options.memory_bytes = memory_bytes;
  return std::make_shared<RunSnapshots>(options);
}

}  // namespace

TEST_CASE("two versions of each rank's parts have to fit in its share of memory", "[snapshot]") {
  const Scratch scratch;
  const auto snapshots = snapshots_in(scratch, 4 * kBytes);
  Ranks ranks({{"a", "b"}, {"c"}}, 4 * kBytes);
  snapshots->follow(ranks.layout, 0, ranks.peers, "");
  CHECK(snapshots->is_scarce());
  CHECK(snapshots->memory().limit_bytes == 4 * kBytes);
  CHECK(snapshots->memory().own_bytes == 4 * kBytes);
  CHECK(snapshots->memory().short_rank == -1);

  // One rank without room, and none takes any: also those that have it.
  ranks.peers[1].free_bytes = 2 * kBytes - 1;
  snapshots->follow(ranks.layout, 0, ranks.peers, "");
  CHECK_FALSE(snapshots->is_scarce());
  CHECK(snapshots->memory().short_rank == 1);

  // What others have, too, needs no room.
  Ranks replicas({{"a"}, {"a"}}, 1);
  snapshots->follow(replicas.layout, 0, replicas.peers, "");
  CHECK_FALSE(snapshots->is_scarce());
  CHECK(snapshots->memory().short_rank == -1);
  CHECK(snapshots->memory().own_bytes == 0);
}

TEST_CASE("what is in one zone of several is scarce, on however many hosts it is", "[snapshot]") {
  const Scratch scratch;
  const auto snapshots = snapshots_in(scratch, 0);
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

TEST_CASE("what killed processes were writing in memory goes when a later snapshot is whole", "[snapshot]") {
  const Scratch scratch;
  const auto snapshots = snapshots_in(scratch, 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const std::string folder = scratch.path("memory/replicas/0123456789abcdef");
  make_folder(folder);
  const std::string alive = unfinished_name(folder + "/" + to_string(SnapshotName{{7, 1}, 1, 2})),
                    dead = alive.substr(0, alive.rfind('-') + 1) + std::to_string(child);
  for (const std::string& path : {alive, dead}) write_file(path, "x");
  snapshots->keep({8, 1});
  snapshots->remove_older();
  CHECK(kind_of(alive) == FileKind::file);
  CHECK(kind_of(dead) == FileKind::none);
}
