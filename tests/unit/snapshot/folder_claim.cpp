// One run at a time has its snapshots in a folder: FolderClaim, between processes.
#include "snapshot/folder_claim.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;

namespace {

// Whether another process may claim the folder for a run.
bool another_may(const std::string& folder, int64_t run) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      const FolderClaim claim(folder, "field", run);
      _exit(0);
    } catch (const Error& error) {
      _exit(error.kind() == ErrorKind::usage ? 1 : 2);
    }
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("a folder is one run's while any process of it has a claim", "[snapshot folder]") {
  const Scratch scratch;
  const std::string place = scratch.folder() + "/not/there yet";
  std::optional<FolderClaim> first(std::in_place, place, "field", 7);
  REQUIRE(another_may(place, 7));
  REQUIRE_FALSE(another_may(place, 8));
  const FolderClaim again(place, "field", 9);  // another run of this process shares its lock
  first.reset();
  REQUIRE_FALSE(another_may(place, 9));
}

TEST_CASE("a folder is free when its run has let it go, or its processes have ended", "[snapshot folder]") {
  const Scratch scratch;
  { const FolderClaim first(scratch.folder(), "field", 7); }
  REQUIRE(another_may(scratch.folder(), 8));
  REQUIRE(another_may(scratch.folder(), 9));
}

TEST_CASE("a file that no run wrote keeps none out, and is replaced", "[snapshot folder]") {
  const Scratch scratch;
  std::ofstream(scratch.folder() + "/run.lock") << "not written by a run";
  const FolderClaim claim(scratch.folder(), "field", 7);
  REQUIRE_FALSE(another_may(scratch.folder(), 8));
}

TEST_CASE("a claim whose folder was removed is taken again, unless another run has it", "[snapshot folder]") {
  const Scratch scratch;
  const std::string place = scratch.folder() + "/place";
  FolderClaim claim(place, "field", 7);
  claim.renew();
  REQUIRE_FALSE(another_may(place, 8));
  std::filesystem::remove_all(place);
  REQUIRE(another_may(place, 8));
  claim.renew();
  REQUIRE_FALSE(another_may(place, 8));
  std::filesystem::remove_all(place);
  int said[2], done[2];
  REQUIRE(pipe(said) == 0);
  REQUIRE(pipe(done) == 0);
  const pid_t child = fork();
  char byte = 0;
  if (child == 0) {
    const FolderClaim other(place, "field", 8);
    _exit(write(said[1], "x", 1) == 1 && read(done[0], &byte, 1) == 1 ? 0 : 1);
  }
  REQUIRE(read(said[0], &byte, 1) == 1);
  try {
    claim.renew();
    FAIL("two runs have the folder");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::environment);
    REQUIRE(error.sentence().find("is in use: process " + std::to_string(child)) != std::string::npos);
  }
  REQUIRE(write(done[1], "x", 1) == 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  claim.renew();
  REQUIRE_FALSE(another_may(place, 8));
}
