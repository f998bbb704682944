// A process that fetches a snapshot and is killed, or whose disk fails, at every system call: the previous or
// the new file is there, whole.
#include <catch2/catch.hpp>
#include <cerrno>

#include "core/io/file.h"
#include "tests/unit/snapshot/exchange_testing.h"
#include "tests/unit/snapshot/traced_process.h"

using namespace het;
using namespace het::testing;

TEST_CASE("a fetch that is killed, or fails, at any system call leaves the previous file or the new one",
          "[exchange]") {
  if (!can_trace()) {
    WARN("skipped: processes cannot be traced here");
    return;
  }
  const Scratch scratch;
  const std::string there = folder_in(scratch, "there"), old_folder = folder_in(scratch, "old");
  const auto state_of = [](uint32_t step) {
    SampleState state(step, {{"m", {DType::f32, {900, 1000}}}, {"w", {DType::f32, {1800, 1000}}}});
    // Half of it is the same at all steps.
    std::memset(state.whole.at("w").bytes(), 7, kSnapshotChunk);
    state.add_all();
    return state;
  };
  const std::string old_file = write_sample(there, state_of(1)), file = write_sample(there, state_of(2));
  const auto server = SnapshotServer::start(server_options({there}));
  PeerSnapshots(identity_of()).fetch(server->endpoint(), old_file, old_folder + "/" + old_file);
  const std::string old_content = read_file(there + "/" + old_file), content = read_file(there + "/" + file);
  FetchOptions options;
  options.previous = old_folder + "/" + old_file;

  for (const int fault : {kKill, ENOSPC, EIO}) {
    int olds = 0, news = 0;
    for (int at = 0;; ++at) {
      const Scratch own;
      const std::string into = own.put("into", old_content);
      bool reached = false;
      const TracedOutcome outcome = run_traced(
          [&] {
            const SnapshotTransfer transfer =
                PeerSnapshots(identity_of()).fetch(server->endpoint(), file, into, options);
            HET_REQUIRE(transfer.copied == kSnapshotChunk, transfer.copied);
          },
          [&](int call, const std::string&) {
            if (call != at) return 0;
            reached = true;
            return fault;
          });
      INFO((fault == kKill ? "killed before" : "failed at") << " call " << at);
      const std::string found = read_file(into);
      const bool is_new = found == content;
      if (!is_new) CHECK(found == old_content);
      (is_new ? news : olds) += 1;
      CHECK(outcome.killed == (reached && fault == kKill));
      CHECK(outcome.failed == (reached && fault != kKill));
      if (fault != kKill) CHECK(own.files() == 1);
      if (!reached) break;
    }
    CHECK(olds >= 8);  // create, allocate, chunks, manifest, flush, header, flush, rename
    CHECK(news >= 2);  // before the folder is flushed, and whole
  }
}
