// A writer of snapshots that is killed, fails or loses its power at every system call: the previous or the
// new snapshot is there, whole.
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <random>

#include "core/base/error.h"
#include "core/io/file.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"
#include "tests/unit/snapshot/traced_process.h"

using namespace het;
using namespace het::testing;

namespace {

SampleState state_of(uint32_t step) {
  SampleState state(step, {{"m.a", {DType::f32, {900, 1000}}},
                           {"m.b", {DType::f32, {900, 1000}}},
                           {"w.a", {DType::f32, {900, 1000}}},
                           {"w.b", {DType::bf16, {9}}}});
  state.add_all();
  return state;
}

// The file that the writer has not given its name yet; empty: there is none.
std::string unnamed_file(const Scratch& scratch) {
  for (const auto& entry : std::filesystem::directory_iterator(scratch.folder()))
    if (entry.path().filename().string().find(".writing-") != std::string::npos) return entry.path().string();
  return {};
}

bool is_whole(const std::string& path, const SampleState& state) {
  const auto file = SnapshotFile::open(path);
  return file->verify().empty() && state.is_in(*file);
}

}  // namespace

TEST_CASE("a writer that is killed at any system call leaves the previous snapshot or the new one",
          "[snapshot]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  const SampleState old_state = state_of(1), new_state = state_of(2);
  int olds = 0, news = 0;
  for (int at = 0;; ++at) {
    const Scratch scratch;
    const std::string path = scratch.path("a");
    write_snapshot(path, old_state.manifest, old_state.parts);
    const TracedOutcome outcome =
        run_traced([&] { write_snapshot(path, new_state.manifest, new_state.parts); },
                   [&](int call, const std::string&) { return call == at ? kKill : 0; });
    INFO("killed before call " << at);
    const bool is_new = SnapshotFile::open(path)->manifest().version.step == 2;
    CHECK(is_whole(path, is_new ? new_state : old_state));
    (is_new ? news : olds) += 1;
    if (!outcome.killed) break;
    // What was left does not keep the next writer out.
    write_snapshot(path, new_state.manifest, new_state.parts);
    CHECK(is_whole(path, new_state));
  }
  CHECK(olds >= 8);  // create, allocate, three writes or more, flush, header, flush
  CHECK(news >= 2);  // before the folder is flushed, and whole
}

TEST_CASE("a writer whose system call fails reports it and leaves the previous snapshot, or the new one",
          "[snapshot]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  const SampleState old_state = state_of(1), new_state = state_of(2);
  for (const int error : {ENOSPC, EIO, EDQUOT})
    for (int at = 0;; ++at) {
      const Scratch scratch;
      const std::string path = scratch.path("a");
      write_snapshot(path, old_state.manifest, old_state.parts);
      std::string failed;
      const TracedOutcome outcome =
          run_traced([&] { write_snapshot(path, new_state.manifest, new_state.parts); },
                     [&](int call, const std::string& name) {
                       if (call != at) return 0;
                       failed = name;
                       return error;
                     });
      INFO("call " << at << ", " << failed << ", fails with " << error);
      const bool is_new = SnapshotFile::open(path)->manifest().version.step == 2;
      CHECK(is_whole(path, is_new ? new_state : old_state));
      CHECK(outcome.failed == !failed.empty());
      CHECK(scratch.files() == 1);
      if (failed.empty()) break;
    }
}

TEST_CASE("of a snapshot whose writer loses power, what the disk has is whole or is refused", "[snapshot]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  const SampleState state = state_of(2);
  const Scratch scratch;
  const std::string path = scratch.path("a");
  std::mt19937 random(4);
  std::string on_disk;  // as of the last flush
  bool flushing = false;
  int refused = 0, whole = 0;
  run_traced([&] { write_snapshot(path, state.manifest, state.parts); },
             [&](int, const std::string& name) {
               const std::string unnamed = unnamed_file(scratch);
               const std::string written = unnamed.empty() ? "" : read_file(unnamed);
               if (flushing) on_disk = written;
               flushing = name == "flush";
               // Of what was written since, the disk may have any pages.
               for (int run = 0; run < 6 && !written.empty(); ++run) {
                 std::string left = written;
                 on_disk.resize(written.size(), '\0');
                 for (size_t page = 0; page < left.size(); page += 4096)
                   if (run == 0 || (run == 1 && page > 0) || (run > 1 && random() % 2 != 0))
                     left.replace(page, 4096, on_disk, page, 4096);
                 scratch.put("left", left);
                 std::shared_ptr<const SnapshotFile> file;
                 try {
                   file = SnapshotFile::open(scratch.path("left"));
                   ++whole;
                 } catch (const Error&) {
                   ++refused;
                 }
                 if (file != nullptr) CHECK((file->verify().empty() && state.is_in(*file)));
               }
               std::filesystem::remove(scratch.path("left"));
               return 0;
             });
  CHECK(whole > 0);
  CHECK(refused > 0);
  CHECK(is_whole(path, state));
}
