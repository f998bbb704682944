// Snapshots in stores: sent there, read by range, and collected when they are no longer needed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "core/io/file.h"
#include "snapshot/collect.h"
#include "snapshot/upload.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/s3_server.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

const Shape kShape{12, 10};
constexpr int kRanks = 3;

SampleState state_of(int64_t step, int rank, int64_t generation = 2) {
  SampleState state(static_cast<uint32_t>(step),
                    {{"m.a", {DType::f32, kShape}}, {"w.a", {DType::bf16, kShape}}});
  state.manifest.version.generation = generation;
  state.manifest.history = {{1, 0}, {2, 5}};
  if (generation > 2) state.manifest.history.push_back({generation, step});
  state.manifest.rank = rank;
  state.manifest.ranks = kRanks;
  state.add("w.a", TensorSlice::whole(kShape).narrowed(0, share_of(12, kRanks, rank)));
  state.add("m.a", TensorSlice::whole(kShape).narrowed(1, share_of(10, kRanks, rank)));
  return state;
}

// The files of the ranks named, in a folder.
std::vector<Path> write(const std::string& folder, int64_t step, std::vector<int> ranks = {0, 1, 2},
                        int64_t generation = 2) {
  std::vector<Path> paths;
  for (const int rank : ranks) {
    const SampleState state = state_of(step, rank, generation);
    paths.push_back(snapshot_path(folder, state.manifest));
    write_snapshot(paths.back(), state.manifest, state.parts);
  }
  return paths;
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::equal(a.bytes(), a.bytes() + a.type().bytes(), b.bytes());
}

std::vector<int64_t> steps_in(ObjectStore& store) {
  std::vector<int64_t> steps;
  for (const ListedSnapshot& listed : list_snapshots(store)) steps.push_back(listed.version.step);
  return steps;
}

}  // namespace

TEST_CASE("a snapshot in a store is read as one in a folder", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  for (const std::string& url : {std::string("s3://bucket/run"), scratch.path("store")}) {
    INFO(url);
    const std::shared_ptr<ObjectStore> store = open_store(url, server.access());
    CHECK_THAT(error_of([&] { open_snapshot(store); }), Contains("usage: '" + url + "' holds no snapshot"));
    for (const int64_t step : {8, 9})
      for (const UploadedFile& file : upload(*store, write(scratch.folder(), step)))
        CHECK_FALSE(file.was_there);
    upload(*store, write(scratch.folder(), 10, {0, 2}));
    CHECK(steps_in(*store) == std::vector<int64_t>{10, 9, 8});
    std::vector<std::string> passed_over;
    const Snapshot newest = open_snapshot(store, {}, &passed_over);
    CHECK(newest.manifest().version.step == 9);
    REQUIRE(passed_over.size() == 1);
    CHECK_THAT(passed_over[0], Contains("step 10 is not complete: no file has m.a [:, 4:7]"));
    CHECK_THAT(error_of([&] { open_snapshot(store, 11); }),
               Contains("no snapshot of step 11; it has steps 8, 9, 10"));
    const Snapshot snapshot = open_snapshot(store, 8);
    const SampleState state = state_of(8, 0);
    std::mt19937 random(2);
    for (int run = 0; run < 30; ++run) {
      TensorSlice slice = TensorSlice::whole(kShape);
      for (int64_t d = 0; d < 2; ++d) {
        const auto begin = static_cast<int64_t>(random() % 9);
        slice = slice.narrowed(d, Ranges{{begin, begin + 1 + static_cast<int64_t>(random() % 2)}});
      }
      for (const std::string name : {"w.a", "m.a"})
        CHECK(equal(snapshot.read(name, slice), take(state.whole.at(name), slice)));
    }
    CHECK(equal(snapshot.read("w.a", TensorSlice::whole(kShape)), state.whole.at("w.a")));
    for (const auto& file : snapshot.files()) CHECK(file->verify().empty());
  }
}

TEST_CASE("of a snapshot in a bucket only the chunks that are needed are fetched", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  SampleState state(4, {{"w.a", {DType::f32, {64, 128, 1024}}}, {"w.b", {DType::boolean, {4 << 20}}}});
  state.add_all();  // 32 MiB in 8 chunks, and 4 MiB in one
  const Path path = snapshot_path(scratch.folder(), state.manifest);
  write_snapshot(path, state.manifest, state.parts);
  StoreAccess access = server.access();
  access.part_bytes = 1 << 20;
  const std::shared_ptr<ObjectStore> store = open_store("s3://bucket", access);
  upload(*store, {path});
  const Snapshot snapshot = open_files(store, {snapshot_name(state.manifest)});
  const auto fetched = [&](const TensorSlice& slice) {
    const int64_t before = server.bytes_served();
    CHECK(equal(snapshot.read("w.a", slice), take(state.whole.at("w.a"), slice)));
    return (server.bytes_served() - before) / kSnapshotChunk;
  };
  const TensorSlice whole = TensorSlice::whole({64, 128, 1024});
  CHECK(server.bytes_served() < 2 * kSnapshotChunk);
  CHECK(fetched(whole) == 8);
  CHECK(fetched(whole.narrowed(0, Ranges{{9, 10}})) == 1);
  CHECK(fetched(whole.narrowed(0, Ranges{{7, 10}, {63, 64}})) == 3);
  CHECK(fetched(whole.narrowed(1, Ranges{{3, 5}})) == 8);
  // Bad bytes from the server are found, wherever they are.
  std::string content = read_file(path);
  content[4096 + (13 << 20)] ^= 1;
  server.put(snapshot_name(state.manifest), content);
  CHECK(fetched(whole.narrowed(0, Ranges{{0, 24}})) == 3);
  for (const TensorSlice& slice :
       {whole, whole.narrowed(0, Ranges{{24, 25}}), whole.narrowed(2, Ranges{{0, 1}})})
    CHECK_THAT(error_of([&] { snapshot.read("w.a", slice); }),
               Contains("usage: 's3://bucket/step-4-") && Contains("is damaged: chunk 4 of 8 of 'w.a'"));
  CHECK(snapshot.files()[0]->verify().size() == 1);
}

TEST_CASE("objects that are no snapshots, damaged or gone are named", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  const std::shared_ptr<ObjectStore> store = open_store("s3://bucket", server.access());
  const std::vector<Path> paths = write(scratch.folder(), 8);
  upload(*store, paths);
  const std::string key = list_snapshots(*store)[0].files[1], content = read_file(paths[1]);
  const auto said = [&](const std::string& damaged) {
    server.put(key, damaged);
    return error_of([&] { open_snapshot(store, 8); });
  };
  CHECK_THAT(said(""), Contains("usage: 's3://bucket/" + key + "' is not a snapshot or is truncated"));
  CHECK_THAT(said(content.substr(0, content.size() - 4096)), Contains("is truncated: it has"));
  CHECK_THAT(said(content + "more"), Contains("4 bytes follow its end"));
  std::string flipped = content;
  flipped[content.size() - 4090] ^= 1;
  CHECK_THAT(said(flipped), Contains("the manifest does not match its checksum"));
  store->remove(key);
  CHECK_THAT(error_of([&] { open_files(store, {key}); }),
             Contains("usage: there is no object 's3://bucket/" + key));
  // A server that fails says nothing about what is whole.
  server.fault = [](const S3Request& request) {
    return request.key().empty() ? S3Fault{} : S3Fault{.status = 503, .code = "SlowDown"};
  };
  CHECK_THAT(error_of([&] { open_snapshot(store); }),
             Contains("peer: HEAD of s3://bucket/step-8-") && Contains("status 503"));
}

TEST_CASE("a file that the store has is not sent again, and a damaged one not at all", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  const std::shared_ptr<ObjectStore> store = open_store("s3://bucket", server.access());
  const std::vector<Path> paths = write(scratch.folder(), 8);
  int64_t done = 0, bytes = 0;
  TransferOptions options;
  options.progress = [&](int64_t now) { done = now; };
  for (const Path& path : paths) bytes += static_cast<int64_t>(read_file(path).size());
  upload(*store, {paths[0], paths[1]});
  const size_t puts = server.count("PUT");
  const auto uploaded = upload(*store, paths, options);
  CHECK((uploaded[0].was_there && uploaded[1].was_there && !uploaded[2].was_there));
  CHECK(server.count("PUT") == puts + 1);
  CHECK(done == bytes);
  std::string content = read_file(paths[2]);
  content[4096] ^= 1;
  scratch.put("damaged", content);
  CHECK_THAT(error_of([&] { upload(*store, {scratch.path("damaged")}); }),
             Contains("is damaged: chunk 1 of 1"));
  CHECK(server.count("PUT") == puts + 1);
  write(scratch.folder(), 8, {0}, 2);
  server.put(list_snapshots(*store)[0].files[0], std::string(read_file(paths[0]).size(), '\0'));
  CHECK_FALSE(upload(*store, {paths[0]})[0].was_there);
  CHECK(open_snapshot(store).manifest().version.step == 8);
}

TEST_CASE("the latest whole versions of a history are kept, whatever the others are", "[snapshot][store]") {
  const auto seen = [](int64_t step, int64_t generation, bool whole, std::string run = "r") {
    return SeenVersion{{step, generation}, whole, std::move(run), {{1, 0}, {2, 61}}};
  };
  using Versions = std::vector<Version>;
  CHECK(unneeded({}, 1).empty());
  CHECK(unneeded({seen(9, 1, false), seen(8, 1, false)}, 1).empty());
  CHECK(unneeded({seen(9, 1, false), seen(8, 1, true)}, 1).empty());
  CHECK(unneeded({seen(9, 1, true), seen(8, 1, true), seen(7, 1, false), seen(6, 1, true)}, 2) ==
        Versions{{7, 1}, {6, 1}});
  // Steps 61 to 100 of generation 1 were trained again by generation 2.
  CHECK(unneeded({seen(100, 1, true), seen(62, 2, false), seen(50, 1, true)}, 2).empty());
  CHECK(unneeded({seen(100, 1, true), seen(62, 2, true), seen(60, 1, true), seen(50, 1, true)}, 2) ==
        Versions{{100, 1}, {50, 1}});
  CHECK(unneeded({seen(9, 1, true), seen(8, 1, true, "other"), seen(7, 1, false, "")}, 1) ==
        Versions{{7, 1}});
  // run:restore began anew after step 45: what was before it is kept as any other.
  SeenVersion anew = seen(50, 4, true);
  anew.history = {{4, 45, 0}};
  CHECK(unneeded({anew, seen(40, 2, true), seen(30, 1, true)}, 2) == Versions{{30, 1}});
  CHECK(unneeded({anew, seen(40, 2, true), seen(30, 1, true)}, 3).empty());
  CHECK_THAT(error_of([&] { unneeded({seen(1, 1, true)}, 0); }),
             Contains("usage: of snapshots at least 1 is kept"));
}

TEST_CASE("however a listing looks, what is kept is whole and what is later stays", "[snapshot][store]") {
  std::mt19937 random(11);
  for (int run = 0; run < 5000; ++run) {
    INFO("run " << run);
    // A history with rollbacks: each generation begins at or before the step that the last one reached.
    decltype(SnapshotManifest::history) history;
    std::vector<SeenVersion> seen;
    int64_t step = 0;
    const auto generations = static_cast<int64_t>(1 + random() % 4);
    for (int64_t generation = 1; generation <= generations; ++generation) {
      const int64_t begin = std::max<int64_t>(step - static_cast<int64_t>(random() % 6), 0);
      std::erase_if(history, [&](const auto& era) { return era.first_step >= begin; });
      history.push_back({generation, begin});
      step = begin;
      for (unsigned i = 0; i < random() % 5; ++i) {
        seen.push_back({{step, generation}, random() % 2 == 0, random() % 8 == 0 ? "other" : "run", history});
        step += 1 + random() % 2;
      }
    }
    std::shuffle(seen.begin(), seen.end(), random);
    const int keep = static_cast<int>(1 + random() % 3);
    const std::vector<Version> removed = unneeded(seen, keep);
    const auto later = [](const SeenVersion& a, const SeenVersion& b) {
      return std::pair(a.version.generation, a.version.step) <
             std::pair(b.version.generation, b.version.step);
    };
    const SeenVersion* latest = nullptr;
    for (const SeenVersion& each : seen)
      if (each.whole && (latest == nullptr || later(*latest, each))) latest = &each;
    int kept = 0, could_be_kept = 0;
    for (const SeenVersion& each : seen) {
      const bool gone = std::find(removed.begin(), removed.end(), each.version) != removed.end();
      if (latest == nullptr || &each == latest || later(*latest, each) || each.run != latest->run) {
        CHECK_FALSE(gone);
        continue;
      }
      int64_t generation = 0;  // that decided the step, on the latest version's history
      for (const auto& era : latest->history)
        if (era.first_step <= each.version.step) generation = era.generation;
      const bool of_use = each.whole && each.version.step < latest->version.step &&
                          (generation == each.version.generation || each.version.step == 0);
      if (!of_use) CHECK(gone);
      could_be_kept += of_use ? 1 : 0;
      kept += gone ? 0 : 1;
      if (of_use && !gone)  // none that is newer was given up for it
        for (const SeenVersion& other : seen)
          if (std::find(removed.begin(), removed.end(), other.version) != removed.end() && other.whole &&
              other.version.step > each.version.step && other.version.step < latest->version.step) {
            int64_t decided = 0;
            for (const auto& era : latest->history)
              if (era.first_step <= other.version.step) decided = era.generation;
            CHECK(decided != other.version.generation);
          }
    }
    if (latest != nullptr) CHECK(kept == std::min(keep - 1, could_be_kept));
  }
}

TEST_CASE("snapshots that are not needed are collected from folders and buckets", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  for (const std::string& url : {std::string("s3://bucket/run"), scratch.path("store")}) {
    INFO(url);
    const std::shared_ptr<ObjectStore> store = open_store(url, server.access());
    CHECK(collect(store).removed.empty());
    upload(*store, write(scratch.folder(), 5, {0, 1}));
    CHECK(collect(store).removed.empty());
    for (const int64_t step : {6, 7, 9, 10}) upload(*store, write(scratch.folder(), step));
    upload(*store, write(scratch.folder(), 8, {0, 1}));
    upload(*store, write(scratch.folder(), 11, {2}));
    scratch.put("notes", "no snapshot");
    store->put("notes", scratch.path("notes"));
    const Collected collected = collect(store, {.keep = 2, .in_use = {{7, 2}}});
    CHECK(collected.removed == std::vector<Version>{{8, 2}, {6, 2}, {5, 2}});
    CHECK(steps_in(*store) == std::vector<int64_t>{11, 10, 9, 7});
    CHECK(open_snapshot(store).manifest().version.step == 10);
    CHECK(store->list().size() == 11);
    // Generation 3 goes on from step 9, and decides step 10 again.
    upload(*store, write(scratch.folder(), 10, {0, 1, 2}, 3));
    CHECK(collect(store, {.keep = 2}).removed == std::vector<Version>{{11, 2}, {10, 2}, {7, 2}});
    CHECK(steps_in(*store) == std::vector<int64_t>{10, 9});
    CHECK(collect(store, {.keep = 1}).removed == std::vector<Version>{{9, 2}});
    CHECK(open_snapshot(store).manifest().version == Version{10, 3});
    CHECK(collect(store, {.keep = 1}).removed.empty());
  }
  scratch.put("store/step-1.dead", "whole");
  CHECK(collect(open_store(scratch.path("store"))).unfinished == std::vector<std::string>{"step-1.dead"});
}

TEST_CASE("nothing is collected while files cannot be read", "[snapshot][store]") {
  const Scratch scratch;
  S3Server server;
  const std::shared_ptr<ObjectStore> store = open_store("s3://bucket", server.access());
  for (const int64_t step : {6, 7, 8}) upload(*store, write(scratch.folder(), step));
  const size_t objects = server.objects().size();
  for (const int status : {403, 503}) {
    server.fault = [status](const S3Request& request) {
      return request.key().starts_with("step-8-") ? S3Fault{.status = status, .code = "AccessDenied"}
                                                  : S3Fault{};
    };
    CHECK_THROWS(collect(store, {.keep = 1}));
    CHECK(server.objects().size() == objects);
  }
  server.fault = nullptr;
  CHECK(collect(store, {.keep = 1}).removed == std::vector<Version>{{7, 2}, {6, 2}});
}
