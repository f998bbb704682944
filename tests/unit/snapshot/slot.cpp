#include "snapshot/slot.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include <sys/resource.h>
#include <sys/stat.h>

#include "snapshot/snapshot.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;

namespace {

SampleState sample(uint32_t seed, int64_t rows) {
  SampleState state(
      seed, {{"w", {DType::f32, {rows, 7}}}, {"m", {DType::bf16, {5}}}, {"empty", {DType::f32, {0, 3}}}});
  state.add_all();
  return state;
}

ino_t inode(const std::string& path) {
  struct stat found {};
  stat(path.c_str(), &found);
  return found.st_ino;
}

}  // namespace

TEST_CASE("a slot is written again in place, and each time it is a snapshot like any other",
          "[snapshot slot]") {
  const Scratch scratch;
  SnapshotSlot slot(scratch.folder(), "slot-1");
  ino_t first = 0;
  for (const auto& [seed, rows] :
       {std::pair(1U, 300), std::pair(2U, 300), std::pair(3U, 5000), std::pair(4U, 20)}) {
    INFO("step " << seed);
    const SampleState state = sample(seed, rows);
    slot.write(state.manifest, state.parts);
    CHECK(scratch.files() == 1);  // the one before is gone
    CHECK(slot.path() == snapshot_path(Path(scratch.folder()), state.manifest).text);
    const auto file = SnapshotFile::open(slot.path());
    CHECK(state.is_in(*file));
    CHECK(file->verify().empty());
    if (first == 0) first = inode(slot.path());
    CHECK(inode(slot.path()) == first);
  }
  slot.remove();
  CHECK(scratch.files() == 0);
}

TEST_CASE("a slot whose file was removed by another process makes a new one", "[snapshot slot]") {
  const Scratch scratch;
  SnapshotSlot slot(scratch.folder(), "slot-1");
  for (const uint32_t seed : {1U, 2U}) {
    const SampleState state = sample(seed, 100);
    slot.write(state.manifest, state.parts);
    CHECK(state.is_in(*SnapshotFile::open(slot.path())));
    std::filesystem::remove(slot.path());
  }
}

TEST_CASE("the snapshot in a slot outlives the slot", "[snapshot slot]") {
  const Scratch scratch;
  const SampleState state = sample(7, 100);
  std::string path;
  {
    SnapshotSlot slot(scratch.folder(), "slot-1");
    slot.write(state.manifest, state.parts);
    path = slot.path();
  }
  CHECK(state.is_in(*SnapshotFile::open(path)));
}

TEST_CASE("a slot without room is an error and leaves no snapshot", "[snapshot slot]") {
  const Scratch scratch;
  SnapshotSlot slot(scratch.folder(), "slot-1");
  const SampleState state = sample(1, 100000);
  rlimit before{}, small{};
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 1 << 20;
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { slot.write(state.manifest, state.parts); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  CHECK_THAT(error, Catch::StartsWith("environment: no room for a snapshot of"));
  CHECK(list_snapshots(Path(scratch.folder())).empty());
  slot.write(state.manifest, state.parts);  // once there is room
  CHECK(state.is_in(*SnapshotFile::open(slot.path())));
}
