// Snapshot files that are cut, damaged or made by strangers: a clear error, or the data that was written.
#include <catch2/catch.hpp>
#include <random>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "tests/fuzz/mutated.h"
#include "tests/fuzz/snapshot.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

SampleState small_state() {
  SampleState state(3, {{"m.a", {DType::f32, {30, 50}}},
                        {"mask", {DType::boolean, {50}}},
                        {"w.a", {DType::f32, {30, 50}}},
                        {"w.b", {DType::bf16, {9}}}});
  state.add("w.a", TensorSlice::whole({30, 50}).narrowed(0, Range{3, 30}));
  state.add("m.a", TensorSlice::whole({30, 50}));
  state.add("w.b", TensorSlice::whole({9}));
  state.add("mask", TensorSlice::whole({50}));
  return state;
}

// A file whose manifest was changed, with checksums that match: as a stranger would make it.
void put_forged(const Scratch& scratch, const SampleState& state,
                const std::function<void(SnapshotManifest&)>& change) {
  SnapshotManifest manifest = write_snapshot(scratch.path("forged"), state.manifest, state.parts);
  const int64_t data_end =
      round_up_to_page(manifest.units.back().offset + manifest.bytes_of(manifest.units.back()));
  change(manifest);
  const std::vector<std::byte> message = encode_manifest(manifest);
  const auto size = static_cast<int64_t>(message.size());
  const HeaderPage page = encode_header({data_end, size, crc32c(message.data(), size)});
  std::string content(reinterpret_cast<const char*>(page.data()), page.size());
  content +=
      read_file(scratch.path("forged")).substr(page.size(), static_cast<size_t>(data_end - kSnapshotPage));
  content.append(reinterpret_cast<const char*>(message.data()), message.size());
  content.resize(static_cast<size_t>(data_end + round_up_to_page(size)), '\0');
  scratch.put("forged", content);
}

std::string problem_of(const std::string& path) {
  try {
    SnapshotFile::open(path);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a snapshot cut at any length is refused", "[snapshot]") {
  const Scratch scratch;
  const SampleState state = small_state();
  write_snapshot(scratch.path("a"), state.manifest, state.parts);
  const std::string content = read_file(scratch.path("a"));
  const auto refused = [&](size_t length) {
    scratch.put("cut", content.substr(0, length));
    INFO(length);
    CHECK_FALSE(problem_of(scratch.path("cut")).empty());
  };
  for (size_t length = 0; length < content.size(); length += 511) refused(length);
  for (size_t page = 0; page < content.size(); page += 4096)
    for (const size_t length : {page - 1, page, page + 1})
      if (length < content.size()) refused(length);
  scratch.put("cut", content.substr(0, 5000));
  CHECK_THAT(problem_of(scratch.path("cut")),
             Contains("is truncated: it has 5000 bytes, its manifest would end at"));
  scratch.put("cut", std::string(content.size(), '\0'));
  CHECK_THAT(problem_of(scratch.path("cut")),
             Contains("is an unfinished snapshot: its header was never written"));
  scratch.put("cut", "{\"a\": 1}");
  CHECK_THAT(problem_of(scratch.path("cut")), Contains("is not a snapshot or is truncated: it has 8 bytes"));
  scratch.put("cut", std::string(9000, 'x'));
  CHECK_THAT(problem_of(scratch.path("cut")),
             Contains("is not a snapshot: it does not begin with \"hetrun snapshot\""));
  scratch.put("cut", content + "more");
  CHECK_THAT(problem_of(scratch.path("cut")), Contains("4 bytes follow its end"));
}

TEST_CASE("every flipped bit of a snapshot is found, or is in no one's data", "[snapshot]") {
  const Scratch scratch;
  const SampleState state = small_state();
  const SnapshotManifest manifest = write_snapshot(scratch.path("a"), state.manifest, state.parts);
  const std::string content = read_file(scratch.path("a"));
  const auto unused = [&](size_t at) {  // padding after the header's fields, units and the manifest
    const auto byte = static_cast<int64_t>(at);
    if (byte >= 48 && byte < kSnapshotPage) return true;
    int64_t end = 0;
    for (const SnapshotUnit& unit : manifest.units) {
      if (byte >= unit.offset && byte < unit.offset + manifest.bytes_of(unit)) return false;
      end = round_up_to_page(unit.offset + manifest.bytes_of(unit));
    }
    if (byte >= end) return byte >= end + static_cast<int64_t>(encode_manifest(manifest).size());
    return byte >= kSnapshotPage;
  };
  std::mt19937 random(9);
  int found = 0;
  for (int run = 0; run < 1500; ++run) {
    std::string damaged = content;
    const size_t at = run < 384 ? static_cast<size_t>(run) / 8 : random() % content.size();
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << (run % 8));
    scratch.put("flipped", damaged);
    INFO("byte " << at);
    try {
      const auto file = SnapshotFile::open(scratch.path("flipped"));
      const bool whole = file->verify().empty();
      CHECK(whole == unused(at));
      if (whole) CHECK(state.is_in(*file));
      found += !whole;
    } catch (const Error&) {
      CHECK_FALSE(unused(at));
      ++found;
    }
  }
  CHECK(found > 500);
}

TEST_CASE("a manifest that says what cannot be is refused, though its checksum matches", "[snapshot]") {
  const Scratch scratch;
  const SampleState state = small_state();
  struct Lie {
    const char* sentence;
    std::function<void(SnapshotManifest&)> change;
  };
  const Lie lies[] = {
      {"is of step -1", [](auto& m) { m.version.step = -1; }},
      {"has the cursor -5", [](auto& m) { m.cursor = -5; }},
      {"is of rank 4 of 4", [](auto& m) { m.rank = 4; }},
      {"is of rank 0 of -1", [](auto& m) { m.rank = 0, m.ranks = -1; }},
      {"has a history that does not ascend at generation 1", [](auto& m) { m.history[1].generation = 1; }},
      {"lists the tensors 'x' and 'mask' in this order", [](auto& m) { m.tensors[0].name = "x"; }},
      {"has a tensor without a name", [](auto& m) { m.tensors[0].name.clear(); }},
      {"gives 'm.a' the dtype 'none'", [](auto& m) { m.tensors[0].type.dtype = DType::none; }},
      {"has a part of 'w.a' with 2 dimensions of 1", [](auto& m) { m.tensors[2].type.shape = {1500}; }},
      {"has a part of 'w.a' with the range 3:30 in a dimension of 29",
       [](auto& m) {
         m.tensors[2].type.shape = {29, 50};
       }},
      {"tensor 'm.a' of the snapshot",
       [](auto& m) {
         m.tensors[0].type.shape = {int64_t{1} << 40, int64_t{1} << 40};
       }},
      {"has a part of tensor 7 of 4", [](auto& m) { m.units[0].tensor = 7; }},
      {"at byte 4097; a multiple of 4096 from 4096 on was expected",
       [](auto& m) { m.units[0].offset = 4097; }},
      {"at byte 0; a multiple of 4096", [](auto& m) { m.units[0].offset = 0; }},
      {"at byte 4096; a multiple of 4096 from 9496 on", [](auto& m) { m.units[1].offset = 4096; }},
      {"but its data ends at", [](auto& m) { m.units[3].offset = int64_t{1} << 62; }},
      {"but its data ends at",
       [](auto& m) {
         m.tensors[1].type.shape = {1 << 30};
         m.units[3].slice = TensorSlice::whole({1 << 30});
       }},
      {"has 2 checksums for a part of 'w.b' of 1 chunks", [](auto& m) { m.units[2].checksums.push_back(1); }},
  };
  for (const Lie& lie : lies) {
    put_forged(scratch, state, lie.change);
    CHECK_THAT(problem_of(scratch.path("forged")), Contains(lie.sentence));
  }
  put_forged(scratch, state, [](auto&) {});
  CHECK(state.is_in(*SnapshotFile::open(scratch.path("forged"))));
  SampleState wrong = state;
  wrong.parts[3].read = [](std::byte* to, int64_t, int64_t bytes) {
    std::memset(to, 2, static_cast<size_t>(bytes));
  };
  put_forged(scratch, wrong, [](auto&) {});
  CHECK_THROWS_WITH(SnapshotFile::open(scratch.path("forged"))->read(3),
                    Contains("'mask' has booleans other than 0 and 1"));
}

TEST_CASE("a changed manifest ends in an error or is one that holds what it promises", "[snapshot]") {
  const SampleState state = small_state();
  const std::vector<std::byte> message = encode_manifest(lay_out(state.manifest, state.parts));
  const std::string whole(reinterpret_cast<const char*>(message.data()), message.size());
  std::mt19937 random(12);
  const int accepted =
      fuzz::accepted(50'000, whole, random, {"\x00\x01\x02\x04\xff", 5}, fuzz::snapshot_manifest);
  CHECK(accepted > 100);  // names and numbers may be others
  CHECK(accepted < 40'000);
}
