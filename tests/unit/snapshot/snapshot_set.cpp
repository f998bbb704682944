// Snapshots of several files: what they have together, and which one of a folder is opened.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "core/base/error.h"
#include "core/io/file.h"
#include "snapshot/snapshot.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

const Shape kShape{12, 10};

// Rank `rank` of `ranks` has a share of the rows, and of the columns of the other tensor.
void write_rank(const Scratch& scratch, uint32_t step, int rank, int ranks) {
  SampleState state(step, {{"m.a", {DType::f32, kShape}}, {"w.a", {DType::bf16, kShape}}});
  state.manifest.rank = rank;
  state.manifest.ranks = ranks;
  state.add("w.a", TensorSlice::whole(kShape).narrowed(0, share_of(12, ranks, rank)));
  state.add("m.a", TensorSlice::whole(kShape).narrowed(1, share_of(10, ranks, rank)));
  write_snapshot(snapshot_path(scratch.folder(), state.manifest), state.manifest, state.parts);
}

std::string path_of(const Scratch& scratch, int step, int rank) {
  return scratch.path(fmt::format("step-{}-generation-2-rank-{}-of-3.snapshot", step, rank));
}

void damage(const std::string& path, size_t at) {
  std::string content = read_file(path);
  content[at] = static_cast<char>(content[at] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::equal(a.bytes(), a.bytes() + a.type().bytes(), b.bytes());
}

}  // namespace

TEST_CASE("any slice is read from the files of several ranks", "[snapshot]") {
  const Scratch scratch;
  for (int rank = 0; rank < 3; ++rank) write_rank(scratch, 8, rank, 3);
  const SampleState state(8, {{"m.a", {DType::f32, kShape}}, {"w.a", {DType::bf16, kShape}}});
  const Snapshot snapshot = open_snapshot(scratch.folder());
  CHECK(snapshot.files().size() == 3);
  CHECK(snapshot.missing().empty());
  std::mt19937 random(2);
  for (int run = 0; run < 200; ++run) {
    TensorSlice slice = TensorSlice::whole(kShape);
    for (int64_t d = 0; d < 2; ++d) {
      const int64_t begin = static_cast<int64_t>(random() % 10),
                    middle = begin + static_cast<int64_t>(random() % 4);
      slice = slice.narrowed(d, Ranges{{begin, middle}, {middle + 1, kShape[static_cast<size_t>(d)]}});
    }
    for (const std::string name : {"w.a", "m.a"}) {
      INFO(name << to_string(slice));
      CHECK(equal(snapshot.read(name, slice), take(state.whole.at(name), slice)));
    }
  }
  CHECK_THROWS_WITH(snapshot.read("w.b", TensorSlice::whole(kShape)),
                    "the snapshot has no tensor 'w.b'; did you mean 'w.a'?");
  CHECK_THROWS_WITH(snapshot.read("w.a", TensorSlice::whole({3})),
                    Contains("is not one of 'w.a', which is bf16[12, 10]"));
}

TEST_CASE("a snapshot without one of its files says what is missing", "[snapshot]") {
  const Scratch scratch;
  for (const int rank : {0, 2}) write_rank(scratch, 8, rank, 3);
  const Snapshot snapshot = open_snapshot(scratch.folder(), 8);
  const auto missing = snapshot.missing();
  REQUIRE(missing.size() == 2);
  CHECK(missing[0].name + to_string(missing[0].slice) == "m.a[:, 4:7]");
  CHECK(missing[1].name + to_string(missing[1].slice) == "w.a[4:8, :]");
  CHECK_THROWS_WITH(snapshot.read("w.a", TensorSlice::whole(kShape)),
                    "the snapshot of step 8 lacks w.a [4:8, :]: no file has it");
  CHECK_THROWS_WITH(
      open_snapshot(scratch.folder()),
      Contains(
          "holds no complete snapshot: the snapshot of step 8 is not complete: no file has m.a [:, 4:7], nor "
          "1 other slices"));
}

TEST_CASE("of a folder the newest whole snapshot is opened, and newer ones are named", "[snapshot]") {
  const Scratch scratch;
  for (const uint32_t step : {9U, 10U, 100U, 101U})
    for (int rank = 0; rank < 3; ++rank) write_rank(scratch, step, rank, 3);
  for (const char* name :
       {"step-x-generation-1-rank-0-of-1.snapshot", "step-200-generation-1-rank-0.snapshot",
        "step-200-generation-1-rank-0-of-1.snapshot.next", "step-200-generation--1-rank-0-of-1.snapshot"})
    scratch.put(name, "no snapshot");
  scratch.put("notes.txt", "no snapshot");
  std::vector<int64_t> steps;
  for (const ListedSnapshot& listed : list_snapshots(scratch.folder())) steps.push_back(listed.version.step);
  CHECK(steps == std::vector<int64_t>{101, 100, 10, 9});
  CHECK(open_snapshot(scratch.folder()).manifest().version.step == 101);
  std::filesystem::remove(path_of(scratch, 101, 1));
  damage(path_of(scratch, 100, 2), 20);
  std::vector<std::string> passed_over;
  CHECK(open_snapshot(scratch.folder(), {}, &passed_over).manifest().version.step == 10);
  REQUIRE(passed_over.size() == 2);
  CHECK_THAT(passed_over[0], Contains("step 101 is not complete: no file has m.a [:, 4:7]"));
  CHECK_THAT(passed_over[1],
             Contains("step 100 is not complete: '") && Contains("the header does not match"));
  CHECK_THROWS_WITH(open_snapshot(scratch.folder(), 100), Contains("the header does not match"));
  CHECK_THROWS_WITH(open_snapshot(scratch.folder(), 11),
                    Contains("no snapshot of step 11; it has steps 9, 10, 100, 101"));
}

TEST_CASE("the folder of a saved model has one snapshot, unless it holds others", "[snapshot]") {
  const Scratch scratch;
  SampleState state(7, {{"w.a", {DType::f32, kShape}}});
  state.add("w.a", TensorSlice::whole(kShape));
  const Path path(scratch.path(kSavedSnapshot));
  write_snapshot(path, state.manifest, state.parts, true);
  CHECK_THROWS_WITH(open_snapshot(scratch.folder()), Contains("holds no snapshot"));  // still staged
  CHECK(list_place(Path(scratch.folder())).empty());
  commit_staged(path);
  const auto listed = list_place(Path(scratch.folder()));
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].version.step == 7);
  CHECK(
      equal(open_snapshot(scratch.folder()).read("w.a", TensorSlice::whole(kShape)), state.whole.at("w.a")));
  CHECK_THROWS_WITH(open_snapshot(scratch.folder(), 8), Contains("no snapshot of step 8; it has steps 7"));
  CHECK(list_snapshots(Path(scratch.folder())).empty());  // none that a run removes
  write_rank(scratch, 3, 0, 1);
  CHECK(open_snapshot(scratch.folder()).manifest().version.step == 3);
  std::filesystem::remove(snapshot_path(scratch.folder(), open_snapshot(scratch.folder()).manifest()).text);
  damage(path.text, 20);
  CHECK_THROWS_WITH(open_snapshot(scratch.folder()), Contains("the header does not match"));
}

TEST_CASE("files of two snapshots are not taken for one", "[snapshot]") {
  const Scratch scratch;
  write_rank(scratch, 8, 0, 3);
  write_rank(scratch, 9, 1, 3);
  std::filesystem::rename(path_of(scratch, 9, 1), path_of(scratch, 8, 1));
  CHECK_THROWS_WITH(open_snapshot(scratch.folder(), 8),
                    Contains("are not of one snapshot: they are after step 8, and after step 9"));
  scratch.put("empty/notes", "");
  CHECK_THROWS_WITH(open_snapshot(scratch.path("empty")), Contains("holds no snapshot"));
  CHECK_THROWS_WITH(open_snapshot(scratch.path("none")), Contains("there is no file or folder"));
}

TEST_CASE("the name of a snapshot's file is read only as it is written", "[snapshot]") {
  const std::string good = "step-12-generation-3-rank-0-of-4.snapshot";
  const auto name = parse_snapshot_name(good);
  REQUIRE(name);
  CHECK(*name == SnapshotName{{12, 3}, 0, 4});
  CHECK(to_string(*name) == good);
  for (const char* bad :
       {"", "step-12-generation-3-rank-4-of-4.snapshot", "step-012-generation-3-rank-0-of-4.snapshot",
        "step-12-generation-3-rank-0-of-4.snapshot ", "../step-12-generation-3-rank-0-of-4.snapshot",
        "step--1-generation-3-rank-0-of-4.snapshot", "step-12-generation-3-rank-0-of-0.snapshot",
        "step-99999999999999999999-generation-3-rank-0-of-4.snapshot", "step-12-generation-3-rank-0-of-4"})
    CHECK_FALSE(parse_snapshot_name(bad));
  CHECK_FALSE(parse_snapshot_name(std::string_view("step-12-generation-3-rank-0-of-4.snapshot\0", 42)));
}
