// A process that takes snapshots in memory, on a disk and into a store, and is killed at every system call
// that changes a file, or at every instruction that changes a slot: the previous or the new version is there,
// whole.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/descriptor.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "kernels/reference/device.h"
#include "snapshot/run_snapshots.h"
#include "snapshot/slot.h"
#include "snapshot/snapshot.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"
#include "tests/unit/snapshot/traced_process.h"

using namespace het;
using namespace het::testing;

namespace {

const TensorType kType{DType::f32, {30, 7}};
const std::vector<std::string> kNames{"m.a", "w.a"};

// Of a tensor after a step.
Tensor value(const std::string& name, int64_t step) {
  Tensor tensor(kType);
  auto* const data = reinterpret_cast<float*>(tensor.bytes());
  for (int64_t i = 0; i < elements_of(kType.shape); ++i)
    data[i] = static_cast<float>(1000 * step + i) + (name[0] == 'w' ? 0.5F : 0.25F);
  return tensor;
}

// A run of one rank with all its places in a folder.
class OneRank {
 public:
  explicit OneRank(const Scratch& scratch) : state_(make_reference_device(), 1) {
    RunSnapshots::Options options;
    options.run = "run";
    options.memory_folder = scratch.path("memory");
    options.disk_folder = Path(scratch.path("disk"));
    options.store = open_store("file://" + scratch.path("store"));
    snapshots_ = std::make_shared<RunSnapshots>(options);
    StateLayout layout;
    layout.parts.emplace_back();
    for (const std::string& name : kNames) {
      const Inventory::Tensor tensor{kType, name[0] == 'w'};
      layout.tensors.emplace(name, tensor);
      layout.parts[0].push_back({name, tensor, TensorSlice::whole(kType.shape)});
    }
    snapshots_->follow(layout, 0, {ReplicaPeer{"", "here", "", "", 0}}, "");
  }

  void take_after(int64_t step) {
    for (const std::string& name : kNames)
      state_.install(name, std::nullopt, name[0] == 'w', value(name, step));
    state_.set_version({step, 1});
    state_.set_history({{1, 1}});
    const RunSnapshots::Taken taken = snapshots_->take(state_, true, true, {12 * step, 7, "{}"});
    taken.memory->wait();
    taken.disk->wait();
    snapshots_->keep({step, 1});
    snapshots_->remove_older();
  }

 private:
  StateStore state_;
  std::shared_ptr<RunSnapshots> snapshots_;
};

// The step of the newest whole snapshot; it holds what it should.
int64_t newest_in(const Snapshot& snapshot) {
  const int64_t step = snapshot.manifest().version.step;
  CHECK(snapshot.manifest().cursor == 12 * step);
  for (const std::string& name : kNames) {
    const Tensor found = snapshot.read(name, TensorSlice::whole(kType.shape)), wanted = value(name, step);
    CHECK(std::memcmp(found.bytes(), wanted.bytes(), static_cast<size_t>(kType.bytes())) == 0);
  }
  return step;
}

// A number that a process and the one that it was forked from share.
class SharedNumber {
 public:
  SharedNumber()
      : number_(static_cast<volatile int64_t*>(
            mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedNumber() { munmap(const_cast<int64_t*>(number_), sizeof(int64_t)); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  void set(int64_t to) { *number_ = to; }
  int64_t get() const { return *number_; }

 private:
  volatile int64_t* const number_;
};

}  // namespace

TEST_CASE(
    "a process killed at any call that changes a file leaves the previous version or the new one everywhere",
    "[snapshot killed]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  int kills = 0, previous = 0, next = 0;
  std::map<std::string, int> calls;
  for (int at = 0;; ++at) {
    const Scratch scratch;
    OneRank(scratch).take_after(1);  // by a process that is gone
    SharedNumber kept;
    kept.set(1);
    const TracedOutcome outcome = run_traced(
        [&] {
          OneRank rank(scratch);
          for (int64_t step = 2; step <= 4; ++step) {  // the third is written where the first was
            rank.take_after(step);
            kept.set(step);
          }
        },
        [&](int call, const std::string& name) {
          if (call == at) ++calls[name];
          return call == at ? kKill : 0;
        });
    INFO("killed before call " << at << ", after step " << kept.get() << " was kept");
    REQUIRE_FALSE(outcome.failed);
    const int64_t in_memory =
                      newest_in(open_snapshot(Path(RunSnapshots::scarce_folder(scratch.path("memory"))))),
                  on_disk = newest_in(open_snapshot(Path(scratch.path("disk")))),
                  in_store = newest_in(open_snapshot(open_store("file://" + scratch.path("store"))));
    for (const int64_t step : {in_memory, on_disk, in_store}) {
      CHECK((step == kept.get() || step == kept.get() + 1));
      (step == kept.get() ? previous : next) += 1;
    }
    if (!outcome.killed) break;
    ++kills;
    OneRank(scratch).take_after(9);  // what was left keeps nothing out
    CHECK(newest_in(open_snapshot(Path(RunSnapshots::scarce_folder(scratch.path("memory"))))) == 9);
    CHECK(newest_in(open_snapshot(Path(scratch.path("disk")))) == 9);
    CHECK(newest_in(open_snapshot(open_store("file://" + scratch.path("store")))) == 9);
  }
  CHECK(kills >= 60);
  CHECK(previous > kills);
  CHECK(next > 10);
  for (const std::string name : {"create", "allocate", "map", "write", "flush", "rename", "remove"}) {
    INFO(name);
    CHECK(calls[name] > 0);
  }
}

TEST_CASE("a process killed while it copies the state into a slot leaves the version in the other slot",
          "[snapshot killed]") {
  const auto state_after = [](uint32_t step) {
    SampleState state(
        step, {{"m.a", {DType::f32, {3, 1 << 20}}}, {"w.a", {DType::bf16, {9}}}});  // 12 MiB: 3 chunks
    state.add_all();
    return state;
  };
  const SampleState older = state_after(1), previous = state_after(2), next = state_after(3);
  for (int at = 0; at < 4; ++at) {  // pieces that are copied
    const Scratch scratch;
    const pid_t child = fork();
    if (child == 0) {
      SnapshotSlot one(scratch.folder(), "slot-1"), other(scratch.folder(), "slot-2");
      one.write(older.manifest, older.parts);
      other.write(previous.manifest, previous.parts);
      std::vector<SnapshotPart> parts = next.parts;
      int pieces = 0;
      for (SnapshotPart& part : parts)
        part.read = [&, read = part.read](std::byte* to, int64_t begin, int64_t bytes) {
          read(to, begin, bytes / 2);
          if (pieces++ == at) raise(SIGKILL);
          read(to + bytes / 2, begin + bytes / 2, bytes - bytes / 2);
        };
      one.write(next.manifest, parts);
      _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    INFO("killed in piece " << at);
    REQUIRE(WIFSIGNALED(status));
    const Snapshot found = open_snapshot(Path(scratch.folder()));
    CHECK(found.manifest().version.step == 2);
    CHECK(previous.is_in(*found.files()[0]));
  }
}

TEST_CASE(
    "a process killed at any instruction that changes a slot leaves the previous version or the new one",
    "[snapshot killed]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  const auto state_after = [](uint32_t step) {
    SampleState state(step, {{"m.a", {DType::f32, {3, 7}}}, {"w.a", {DType::bf16, {9}}}});
    state.add_all();
    return state;
  };
  const SampleState older = state_after(1), previous = state_after(2), next = state_after(3);
  const Scratch scratch;
  const auto write = [&] {
    SnapshotSlot one(scratch.folder(), "slot-1"), other(scratch.folder(), "slot-2");
    one.write(older.manifest, older.parts);
    other.write(previous.manifest, previous.parts);
    raise(SIGSTOP);
    one.write(next.manifest, next.parts);
  };
  Descriptor slot;  // that changes, whatever its name
  std::string before;
  int changes = 0, previous_found = 0, next_found = 0;
  const auto look = [&] {
    if (!slot) {
      const Path path = snapshot_path(Path(scratch.folder()), older.manifest);
      slot = Descriptor(::open(path.text.c_str(), O_RDONLY | O_CLOEXEC));
      REQUIRE(slot);
    }
    std::string now(1 << 16, '\0');
    const ssize_t bytes = pread(slot.number(), now.data(), now.size(), 0);
    REQUIRE(bytes > 0);
    now.resize(static_cast<size_t>(bytes));
    if (now == before) return;
    before = std::move(now);
    ++changes;
    const Snapshot found = open_snapshot(Path(scratch.folder()));
    const bool is_next = found.manifest().version.step == 3;
    (is_next ? next_found : previous_found) += 1;
    const bool whole =
        (is_next ? next : previous).is_in(*found.files()[0]) && found.files()[0]->verify().empty();
    if (!whole) FAIL_CHECK("change " << changes << " leaves a snapshot that is not whole");
  };
  run_stepped(write, look);
  CHECK(changes >= 10);
  CHECK(previous_found >= 10);
  CHECK(open_snapshot(Path(scratch.folder())).manifest().version.step == 3);
}
