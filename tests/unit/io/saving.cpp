#include "core/io/saving.h"

#include <catch2/catch.hpp>

#include "core/io/file.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

SavedFile file_of(const std::string& path, const std::string& content) {
  return {path, [=] { write_file(path, content, true); }};
}

}  // namespace

TEST_CASE("files that are saved together are replaced together") {
  const Scratch scratch;
  const std::string a = scratch.put("a", "old a"), b = scratch.path("b");
  std::atomic<bool> go_on{false};
  Saving saving({file_of(a, "new a"), {b, [&] {
                                         go_on.wait(false);
                                         write_file(b, "new b", true);
                                       }}});
  CHECK_FALSE(saving.done());
  CHECK(read_file(a) == "old a");  // until all of them are on the disk
  go_on = true;
  go_on.notify_all();
  saving.wait();
  CHECK(saving.done());
  CHECK(read_file(a) == "new a");
  CHECK(read_file(b) == "new b");
  CHECK(scratch.files() == 2);
}

TEST_CASE("if one of several files cannot be written none is replaced, and wait() throws") {
  const Scratch scratch;
  const std::string a = scratch.put("a", "old a"), b = scratch.path("nowhere/b");
  Saving saving({file_of(a, "new a"), file_of(b, "new b")});
  CHECK_THAT(error_of([&] { saving.wait(); }), Contains("nowhere' does not exist"));
  CHECK(saving.done());
  CHECK(error_of([&] { saving.wait(); }) == "none");
  CHECK(read_file(a) == "old a");
  CHECK(scratch.files() == 1);
  { const Saving forgotten({file_of(a, "newer a")}); }  // is written to its end
  CHECK(read_file(a) == "newer a");
}
