#include "core/io/file.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

TEST_CASE("a file is read whole, and mapped with the same bytes") {
  const Scratch scratch;
  std::string content(100000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  const std::string path = scratch.put("bytes", content);
  CHECK(read_file(path) == content);
  const MappedFile mapped(path);
  CHECK(mapped.text() == content);
  const MappedFile empty(scratch.put("empty", ""));
  CHECK(empty.bytes() == 0);
  CHECK(read_file("/proc/self/cmdline").size() > 0);  // says it has 0 bytes
}

TEST_CASE("what cannot be read is named, and so is the folder that is missing") {
  const Scratch scratch;
  CHECK_THAT(error_of([&] { read_file(scratch.path("absent")); }),
             StartsWith("usage: there is no file '" + scratch.path("absent") + "'"));
  CHECK_THAT(error_of([&] { read_file(scratch.path("no/such")); }),
             Contains("the folder '" + scratch.path("no") + "' does not exist"));
  CHECK_THAT(error_of([&] { read_file(scratch.folder()); }), Contains("is a folder"));
  CHECK_THAT(error_of([&] { MappedFile mapped(scratch.folder()); }), Contains("is a folder"));
  CHECK_THAT(error_of([&] { MappedFile mapped("/dev/zero"); }), Contains("not a regular file"));
}

TEST_CASE("a file is replaced only when the new one is whole") {
  const Scratch scratch;
  const std::string path = scratch.put("model", "old");
  {
    AtomicFile file(path);
    file.write("new");
    CHECK(read_file(path) == "old");
  }
  CHECK(read_file(path) == "old");
  CHECK(scratch.files() == 1);  // the temporary file is gone
  write_file(path, "new");
  CHECK(read_file(path) == "new");
  CHECK(scratch.files() == 1);
}

TEST_CASE("a replaced file leaves an older mapping as it was") {
  const Scratch scratch;
  const std::string path = scratch.put("model", "old content");
  const MappedFile mapped(path);
  write_file(path, "new");
  CHECK(mapped.text() == "old content");
}

TEST_CASE("writing through a link replaces what it leads to and keeps the link") {
  const Scratch scratch;
  const std::string target = scratch.put("target", "old"), link = scratch.path("link");
  REQUIRE(symlink(target.c_str(), link.c_str()) == 0);
  write_file(link, "new");
  CHECK(read_file(target) == "new");
  struct stat state {};
  REQUIRE(lstat(link.c_str(), &state) == 0);
  CHECK(S_ISLNK(state.st_mode));
}

TEST_CASE("what processes that have ended were writing is removed, what others write is not") {
  const Scratch scratch;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const std::string alive = scratch.path(unfinished_name("model")),
                    of_host = alive.substr(0, alive.rfind('-') + 1), dead = of_host + std::to_string(child),
                    elsewhere = scratch.path("model.writing-00c0ffee-" + std::to_string(child)),
                    other = scratch.path("notes.writing-up");
  for (const std::string& path : {dead, alive, elsewhere, other}) write_file(path, "x");
  remove_unfinished(scratch.path("nowhere"));
  remove_unfinished(scratch.folder());
  CHECK(kind_of(dead) == FileKind::none);
  CHECK(kind_of(alive) == FileKind::file);
  CHECK(kind_of(elsewhere) == FileKind::file);  // of another host, on a shared disk
  CHECK(kind_of(other) == FileKind::file);
}

TEST_CASE("the names of files that are written first lead back to those that they become") {
  CHECK(name_of_unfinished(unfinished_name("a/model.b")) == "a/model.b");
  CHECK(name_of_unfinished("a/model.writing-7") == "a/model");
  for (const char* name : {"a", "a.writing-", "a.writing-00c0ffee", "a.writing-00c0ffee-",
                           "a.writing-00c0ffee-1x", "a.writing-00C0FFEE-1", "a.writing-00c0ffee1"})
    CHECK_FALSE(name_of_unfinished(name));
  CHECK(name_of_staged(staged_path("a/model").text) == "a/model");
  CHECK_FALSE(name_of_staged("a/model"));
}

TEST_CASE("a staged file stands beside the old one until it is put in its place") {
  const Scratch scratch;
  const std::string path = scratch.put("model", "old");
  write_file(path, "new", true);
  CHECK(read_file(path) == "old");
  CHECK(read_file(staged_path(path)) == "new");
  drop_staged(path);
  drop_staged(path);
  CHECK(scratch.files() == 1);
  write_file(path, "newer", true);
  commit_staged(path);
  CHECK(read_file(path) == "newer");
  CHECK(scratch.files() == 1);
  CHECK_THAT(error_of([&] { commit_staged(path); }), StartsWith("environment: cannot put "));
}

TEST_CASE("folders, devices and missing folders are not written to") {
  const Scratch scratch;
  CHECK_THAT(error_of([&] { write_file(scratch.folder(), "x"); }),
             StartsWith("usage: ") && Contains("it is a folder"));
  CHECK_THAT(error_of([&] { write_file("/dev/full", "x"); }),
             StartsWith("usage: ") && Contains("not a regular file"));
  CHECK_THAT(error_of([&] { write_file(scratch.path("no/model"), "x"); }),
             StartsWith("usage: ") && Contains("the folder '" + scratch.path("no") + "' does not exist"));
  CHECK(error_of([&] { write_file("/proc/model", "x"); }) ==
        "usage: cannot write '/proc/model': no file can be made in the folder '/proc'");
}

TEST_CASE("a file that may not grow any more is an error of the machine, and the previous file stays") {
  const Scratch scratch;
  const std::string path = scratch.put("model", "old");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string error = error_of([&] { write_file(path, std::string(10000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(error, StartsWith("environment: ") && Contains("past the size allowed") &&
                        Contains("previous file is kept"));
  CHECK(read_file(path) == "old");
  CHECK(scratch.files() == 1);
}

// In a mount namespace that only this thread sees. Needs the right to mount, which containers often lack.
TEST_CASE("a disk that fills is an error of the machine, and the previous file stays") {
  const Scratch scratch;
  bool mounted = false;
  std::string error, content;
  size_t files = 0;
  std::thread([&] {
    mounted = unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              mount("tmpfs", scratch.folder().c_str(), "tmpfs", 0, "size=64k") == 0;
    if (!mounted) return;
    const std::string path = scratch.put("model", "old");
    error = error_of([&] { write_file(path, std::string(200000, 'x')); });
    content = read_file(path);
    files = scratch.files();
    umount(scratch.folder().c_str());
  }).join();
  if (!mounted) {
    WARN("this account may not mount a small disk; the limit on file sizes stands in for it");
    return;
  }
  CHECK_THAT(error, StartsWith("environment: writing '" + scratch.path("model") + "' failed after") &&
                        Contains("the disk is full; the previous file is kept"));
  CHECK(content == "old");
  CHECK(files == 1);
}
