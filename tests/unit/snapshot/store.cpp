// What every object store does: a folder, and a bucket of an imitated server.
#include "snapshot/store/store.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/io/file.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/s3_server.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

std::string content_of(uint32_t seed, size_t bytes) {
  std::mt19937 random(seed);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

std::string range_of(ObjectStore& store, const std::string& key, int64_t offset, size_t bytes,
                     const TransferOptions& options = {}) {
  std::string into(bytes, '\0');
  store.get_range(key, offset, std::as_writable_bytes(std::span(into)), options);
  return into;
}

void check_store(ObjectStore& store, const Scratch& scratch) {
  CHECK(store.list().empty());
  CHECK_FALSE(store.size("a"));
  std::map<std::string, std::string> wanted;
  for (const size_t bytes : {0, 1, 4096, 65'535, 65'536, 65'537, 300'000, 1'000'000}) {
    const std::string key = fmt::format("run 1/{}+x=y.z~&<ä>/o", bytes), content = content_of(5, bytes);
    wanted[key] = content;
    int64_t done = 0;
    TransferOptions options;
    options.progress = [&](int64_t now) { done = now; };
    CHECK(store.put(key, scratch.put("file", content), false, options));
    if (bytes > 0) CHECK(done == static_cast<int64_t>(bytes));
    CHECK(store.size(key) == static_cast<int64_t>(bytes));
    CHECK(range_of(store, key, 0, bytes) == content);
    if (bytes > 4096) CHECK(range_of(store, key, 4001, bytes - 4003) == content.substr(4001, bytes - 4003));
    if (bytes > 0)
      CHECK_THAT(error_of([&] { range_of(store, key, static_cast<int64_t>(bytes / 2 + 1), bytes); }),
                 Contains("usage: '") && Contains("is truncated: it"));
  }
  std::vector<std::string> keys;
  for (const StoredObject& object : store.list()) {
    keys.push_back(object.key);
    REQUIRE(wanted.count(object.key) == 1);
    CHECK(object.bytes == static_cast<int64_t>(wanted[object.key].size()));
    CHECK(object.modified > 1'600'000'000);
  }
  CHECK(keys.size() == wanted.size());
  CHECK(std::is_sorted(keys.begin(), keys.end()));
  CHECK(store.list("run 1/65").size() == 3);
  CHECK(store.list("run 2").empty());

  const std::string key = wanted.rbegin()->first, replaced = content_of(6, 70'000);
  CHECK_FALSE(store.put(key, scratch.put("file", replaced), true));
  CHECK(range_of(store, key, 0, wanted[key].size()) == wanted[key]);
  CHECK(store.put(key, scratch.put("file", replaced)));
  CHECK(range_of(store, key, 0, replaced.size()) == replaced);
  CHECK(store.put("new", scratch.put("file", replaced), true));
  store.remove("new");
  store.remove("new");
  CHECK_FALSE(store.size("new"));
  CHECK_THAT(error_of([&] { range_of(store, "new", 0, 4); }), Contains("usage: there is no "));
  CHECK(store.list().size() == wanted.size());
  for (const char* wrong : {"", "/a", "a/", "a//b", "a/../b", ".", "..", "a\nb", "a\x1b"})
    CHECK_THAT(error_of([&] { store.size(wrong); }), Contains("usage: '") && Contains("cannot be the key"));
  CHECK_THAT(error_of([&] { store.put("b", scratch.path("none")); }), Contains("usage: there is no file"));
  CHECK_FALSE(store.size("b"));
}

}  // namespace

TEST_CASE("a folder is a store", "[store]") {
  const Scratch scratch;
  for (const std::string& url : {scratch.path("a/b"), "file://" + scratch.path("c/d/")}) {
    const auto store = open_store(url);
    check_store(*store, scratch);
    CHECK(store->remove_unfinished(std::chrono::seconds(0)).empty());
  }
}

TEST_CASE("a bucket is a store", "[store]") {
  const Scratch scratch;
  S3Server server;
  server.page = 3;
  for (const std::string prefix : {"", "/runs/a b"}) {
    const auto store = open_store("s3://bucket" + prefix, server.access());
    check_store(*store, scratch);
    for (const StoredObject& object : store->list()) store->remove(object.key);
    CHECK(store->list().empty());
    CHECK(server.uploads() == 0);
    server.put("runs/a", "beside the next prefix");
  }
}

TEST_CASE("URLs that name no store are refused", "[store]") {
  const S3Server server;
  const auto said = [&](const std::string& url) {
    return error_of([&] { open_store(url, server.access()); });
  };
  CHECK_THAT(said(""), Contains("usage: an empty path names no store"));
  CHECK_THAT(said("file://folder"), Contains("usage: 'file://folder' names no folder"));
  CHECK_THAT(said("gs://bucket"), Contains("usage: 'gs://bucket' is no store"));
  CHECK_THAT(said("s3://"), Contains("usage: 's3://' names no bucket"));
  CHECK_THAT(said("s3://a b/c"), Contains("usage: 's3://a b/c' names no bucket"));
  CHECK_THAT(said("s3://bucket/a//b"), Contains("usage: 'a//b' cannot be the key"));
}

TEST_CASE("a folder shows no file that is being written or removed, and gives them up", "[store]") {
  const Scratch scratch;
  const auto store = open_store(scratch.path("store"));
  scratch.put("store/a", "whole");
  scratch.put("store/b/c.writing-00c0ffee-123", "half");
  scratch.put("store/d.dead", "whole");
  std::filesystem::create_symlink(scratch.put("outside/e", "not ours"), scratch.path("store/link"));
  std::filesystem::create_directory_symlink(scratch.path("outside"), scratch.path("store/folder"));
  REQUIRE(store->list().size() == 1);
  CHECK(store->list()[0].key == "a");
  scratch.put("store/a.writing-down", "whole");
  scratch.put("store/z/e.dead", "whole");
  CHECK(store->remove_unfinished(std::chrono::hours(1), "z/") == std::vector<std::string>{"z/e.dead"});
  CHECK(store->remove_unfinished(std::chrono::hours(1)) == std::vector<std::string>{"d.dead"});
  CHECK(store->remove_unfinished(std::chrono::seconds(-10)) ==
        std::vector<std::string>{"b/c.writing-00c0ffee-123"});
  CHECK(read_file(scratch.path("store/a")) == "whole");
  CHECK(read_file(scratch.path("outside/e")) == "not ours");
  CHECK_THAT(error_of([&] { store->put("f.dead", scratch.path("store/a")); }),
             Contains("cannot be the key of an object in a folder"));
}

TEST_CASE("a transfer that is cancelled ends, and leaves nothing", "[store]") {
  const Scratch scratch;
  S3Server server;
  const std::string file = scratch.put("file", content_of(1, 9 << 20));
  for (const std::string& url : {scratch.path("store"), std::string("s3://bucket")}) {
    INFO(url);
    const auto store = open_store(url, server.access());
    std::stop_source stop;
    TransferOptions options;
    options.cancelled = stop.get_token();
    options.progress = [&](int64_t bytes) {
      if (bytes > 1 << 20) stop.request_stop();
    };
    CHECK_THAT(error_of([&] { store->put("a", file, false, options); }),
               Contains("peer: ") && Contains("was cancelled"));
    CHECK_FALSE(store->size("a"));
    CHECK(server.uploads() == 0);
    CHECK(store->put("a", file));
    CHECK_THAT(error_of([&] { range_of(*store, "a", 0, 9 << 20, options); }), Contains("was cancelled"));
  }
  CHECK(std::distance(std::filesystem::recursive_directory_iterator(scratch.path("store")), {}) == 1);
}
