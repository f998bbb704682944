#include "core/io/files.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/io/file.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

using Open = int (*)(int, const std::string&, int, unsigned);

// Links of all kinds in a folder, and a file beside it.
struct Furnished {
  Furnished() {
    fs::create_directories(scratch.path("inside/deep"));
    scratch.put("inside/file", "in");
    scratch.put("inside/deep/file", "deep");
    scratch.put("outside", "out");
    fs::create_symlink("file", scratch.path("inside/link"));
    fs::create_symlink("../outside", scratch.path("inside/out"));
    fs::create_symlink("deep", scratch.path("inside/folder"));
    fs::create_symlink("nowhere", scratch.path("inside/dangling"));
    folder = Descriptor(::open(scratch.path("inside").c_str(), O_PATH | O_DIRECTORY));
  }
  Scratch scratch;
  Descriptor folder;
};

}  // namespace

TEST_CASE("what is opened beneath a folder lies in it, and no link is followed") {
  const Furnished given;
  for (const Open open : {Open{&open_beneath}, Open{&open_by_components}}) {
    const auto opened = [&](const std::string& name, int flags = O_RDONLY) {
      return Descriptor(open(given.folder.number(), name, flags, 0600)).number();
    };
    CHECK(opened("file") >= 0);
    CHECK(opened("deep/file") >= 0);
    CHECK(opened("") >= 0);
    const bool knows = open != Open{&open_by_components};  // that this stays inside
    CHECK((opened("deep/../file") >= 0) == knows);
    CHECK(opened("nothing") == -ENOENT);
    for (const char* name :
         {"link", "out", "folder/file", "dangling", "../outside", "/etc/passwd", "deep/../../outside"}) {
      INFO(name);
      CHECK(opened(name) < 0);
      CHECK(opened(name, O_PATH) < 0);
      CHECK(opened(name, O_WRONLY | O_CREAT | O_TRUNC) < 0);
    }
    CHECK(opened("link") == -ELOOP);
    CHECK(opened("folder/file") == -ELOOP);
    CHECK_FALSE(fs::exists(given.scratch.path("inside/nowhere")));
    CHECK(opened("made", O_WRONLY | O_CREAT | O_EXCL) >= 0);
    fs::remove(given.scratch.path("inside/made"));
  }
  CHECK(read_file(given.scratch.path("outside")) == "out");
}

TEST_CASE("a folder is listed by name, with links as links") {
  const Furnished given;
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(given.scratch.path("inside"))) {
    names.push_back(entry.name);
    if (entry.name == "link" || entry.name == "folder") CHECK(entry.kind == FileKind::link);
    if (entry.name == "deep") CHECK(entry.kind == FileKind::folder);
    if (entry.name == "file") CHECK(entry.bytes == 2);
  }
  CHECK(names == std::vector<std::string>{"dangling", "deep", "file", "folder", "link", "out"});
  CHECK_THROWS_WITH(list_folder(given.scratch.path("outside")), Contains("cannot read the folder"));
}

TEST_CASE("of a mapped file what is handed out may be written, and the file stays as it is") {
  const Scratch scratch;
  const std::string path = scratch.put("file", std::string(20'000, 'a'));
  const MappedFile mapped(path);
  mapped.make_writable(5'000, 9'000);
  auto* bytes = const_cast<std::byte*>(mapped.data());
  bytes[5'000] = std::byte{'b'};
  bytes[13'999] = std::byte{'b'};
  CHECK(mapped.text()[13'999] == 'b');
  CHECK(read_file(path) == std::string(20'000, 'a'));
}
