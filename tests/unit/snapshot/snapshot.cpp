// Snapshot files: what is written is read, whole and by slices, mapped or not.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/io/file.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

// Uneven parts in several segments, a scalar, an empty tensor, parts of no elements, parts above a chunk.
SampleState large_state() {
  SampleState state(7, {{"empty", {DType::f32, {0, 4}}},
                        {"m.large", {DType::f32, {1200, 1000}}},
                        {"mask", {DType::boolean, {77}}},
                        {"scalar", {DType::f64, {}}},
                        {"w.half", {DType::bf16, {64, 96}}},
                        {"w.large", {DType::f32, {1200, 1000}}},
                        {"w.unheld", {DType::f32, {8}}}});
  const TensorSlice half = TensorSlice::whole({64, 96});
  const TensorSlice large = TensorSlice::whole({1200, 1000});
  state.add("w.large", large);
  state.add("m.large", large.narrowed(0, Ranges{{0, 400}, {600, 1200}}).narrowed(1, Range{3, 999}));
  state.add("empty", TensorSlice::whole({0, 4}));
  state.add("scalar", TensorSlice::whole({}));
  state.add("w.half", half.narrowed(0, Ranges{{0, 5}, {9, 10}}));
  state.add("w.half", half.narrowed(0, Range{20, 64}).narrowed(1, Range{1, 96}));
  state.add("w.half", half.narrowed(1, Ranges{}));
  state.add("mask", TensorSlice::whole({77}));
  return state;
}

}  // namespace

TEST_CASE("a snapshot is read as it was written, mapped or not", "[snapshot]") {
  const Scratch scratch;
  const SampleState state = large_state();
  const SnapshotManifest written = write_snapshot(scratch.path("a"), state.manifest, state.parts);
  for (const SnapshotAccess access : {SnapshotAccess::mapped, SnapshotAccess::read}) {
    const auto file = SnapshotFile::open(scratch.path("a"), access);
    CHECK(file->manifest() == written);
    CHECK(file->manifest().tensors == state.manifest.tensors);
    CHECK(file->manifest().history == state.manifest.history);
    CHECK(file->manifest().about == state.manifest.about);
    CHECK(state.is_in(*file));
    CHECK(file->verify().empty());
  }
  CHECK(scratch.files() == 1);
}

TEST_CASE("any slice of a unit is read, and only its chunks are", "[snapshot]") {
  const Scratch scratch;
  SampleState state = large_state();
  write_snapshot(scratch.path("a"), state.manifest, state.parts);
  std::mt19937 random(3);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random()) % bound; };
  for (const SnapshotAccess access : {SnapshotAccess::mapped, SnapshotAccess::read}) {
    const auto file = SnapshotFile::open(scratch.path("a"), access);
    for (int run = 0; run < 60; ++run) {
      const size_t index = random() % file->manifest().units.size();
      const SnapshotUnit& unit = file->manifest().units[index];
      TensorSlice slice = unit.slice;
      for (size_t d = 0; d < slice.whole_shape().size(); ++d) {
        const int64_t size = slice.whole_shape()[d], begin = below(size + 1);
        slice = slice.narrowed(static_cast<int64_t>(d), Range{begin, begin + below(size - begin + 1)});
      }
      INFO(state.parts[index].tensor << " " << to_string(slice));
      const Tensor found = file->read(index, slice),
                   wanted = take(state.whole.at(state.parts[index].tensor), slice);
      REQUIRE(found.type() == wanted.type());
      CHECK(std::equal(found.bytes(), found.bytes() + found.type().bytes(), wanted.bytes()));
    }
  }
  // The first chunk of w.large has the rows below 1048; damage in the second one does not matter to them.
  std::string content = read_file(scratch.path("a"));
  content[static_cast<size_t>(kSnapshotPage + kSnapshotChunk + 17)] ^= 1;
  scratch.put("a", content);
  const auto file = SnapshotFile::open(scratch.path("a"), SnapshotAccess::read);
  const TensorSlice rows = TensorSlice::whole({1200, 1000}).narrowed(0, Range{0, 1048});
  CHECK(file->read(0, rows).elements() == rows.elements());
  CHECK_THROWS_WITH(file->read(0),
                    Contains("chunk 2 of 2 of 'w.large' [:, :], at byte 4198400, does not match"));
}

TEST_CASE("a unit of a mapped file is not copied, and writing to it leaves the file as it is", "[snapshot]") {
  const Scratch scratch;
  const SampleState state = large_state();
  write_snapshot(scratch.path("a"), state.manifest, state.parts);
  Tensor tensor;
  const int64_t before = live_buffer_bytes();
  {
    const auto file = SnapshotFile::open(scratch.path("a"), SnapshotAccess::mapped);
    tensor = file->read(0);
  }
  CHECK(live_buffer_bytes() == before);
  CHECK(reinterpret_cast<uintptr_t>(tensor.bytes()) % 4096 == 0);
  tensor.bytes()[0] ^= std::byte{1};
  CHECK(state.is_in(*SnapshotFile::open(scratch.path("a"))));
}

TEST_CASE("a snapshot without units, and one of a state without tensors", "[snapshot]") {
  const Scratch scratch;
  const SampleState some(1, {{"w", {DType::f32, {3}}}}), none(2, {});
  for (const SampleState& state : {some, none}) {
    write_snapshot(scratch.path("a"), state.manifest, {});
    const auto file = SnapshotFile::open(scratch.path("a"));
    CHECK(file->manifest().tensors == state.manifest.tensors);
    CHECK(file->manifest().units.empty());
    CHECK(file->verify().empty());
  }
}

TEST_CASE("what cannot be read of a part ends the writing, and the previous file stays", "[snapshot]") {
  const Scratch scratch;
  SampleState state = large_state();
  write_snapshot(scratch.path("a"), state.manifest, state.parts);
  const std::string before = read_file(scratch.path("a"));
  state.manifest.cursor = 1;
  state.parts[1].read = [](std::byte*, int64_t, int64_t) { fail_environment("the device is lost"); };
  CHECK_THROWS_WITH(write_snapshot(scratch.path("a"), state.manifest, state.parts), "the device is lost");
  CHECK(read_file(scratch.path("a")) == before);
  CHECK(scratch.files() == 1);
}
