// What members read of snapshot files in their folders, as tiers of a run's state.
#include "snapshot/tiers.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/elapsed.h"
#include "core/io/file.h"
#include "core/run/restore.h"
#include "planner/migrate/migrate.h"
#include "planner/migrate/recovery.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/planner/generations_testing.h"
#include "tests/unit/snapshot/snapshot_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Matchers::Contains;

namespace {

const TensorType kType{DType::f32, {6}};

// What each of two ranks restores from places of its own.
struct Restoring {
  std::vector<std::shared_ptr<StateStore>> states;
  std::vector<std::optional<Restored>> restored{2};
  std::vector<std::string> warnings[2];

  explicit Restoring(const std::function<std::vector<SnapshotTiers::Place>(int rank)>& places) {
    for (int r = 0; r < 2; ++r) states.push_back(std::make_shared<StateStore>(make_reference_device(), 0));
    on_ranks(make_loopback(2), [&](int r, const auto& fabric) {
      const auto world = fabric->group("everyone", all_ranks(*fabric));
      const auto at = static_cast<size_t>(r);
      SnapshotTiers tiers(places(r));
      RestoreOptions options;
      options.plan_moves = planner::plan_moves({});
      options.plan_recovery = planner::recovery_planner({});
      options.generation = 2;
      options.tiers = &tiers;
      options.host = std::to_string(r);
      restored[at] = restore(*world, *states[at], nullptr,
                             {{"w", {kType, true}, TensorSlice::whole(kType.shape)}}, options);
      warnings[r] = tiers.take_warnings();
    });
  }
  // The version that both have, with all elements of this value.
  void expect(Version version, double value) const {
    for (size_t r = 0; r < 2; ++r) {
      REQUIRE(restored[r]);
      CHECK(restored[r]->version == version);
      const Tensor w = states[r]->read("w");
      for (int64_t i = 0; i < 6; ++i) CHECK(w.at(i) == value);
    }
  }
};

// The file of one rank of two: its half of `w`, whose elements are `value`.
void write_half(const std::string& folder, Version version, const History& history, int rank, double value) {
  SampleState state(1, {{"w", kType}});
  state.manifest.version = version;
  state.manifest.history = history;
  state.manifest.rank = rank;
  state.manifest.ranks = 2;
  for (int64_t i = 0; i < 6; ++i) state.whole.at("w").set(i, value);
  state.add("w", parse_slice(kType.shape, rank == 0 ? "[0:3]" : "[3:6]"));
  make_folder(Path(folder));
  write_snapshot(snapshot_path(Path(folder), state.manifest), state.manifest, state.parts);
}

}  // namespace

TEST_CASE("parts of two runs of one name and step are never joined", "[snapshot]") {
  const Scratch scratch;
  const History own{{1, 1, 77}}, other{{1, 1, 78}};
  const std::string folders[] = {scratch.path("a"), scratch.path("b")};
  write_half(folders[0], {5, 1}, own, 0, 5);
  write_half(folders[0], {3, 1}, own, 0, 3);
  write_half(folders[1], {5, 1}, other, 1, 50);
  write_half(folders[1], {3, 1}, own, 1, 3);
  const Restoring both([&](int r) {
    return std::vector<SnapshotTiers::Place>{{Tier::disk, Path(folders[r]), nullptr}};
  });
  both.expect({3, 1}, 3);
  for (const auto& state : both.states) CHECK(state->history() == own);
}

TEST_CASE("the newest whole snapshot of all places is restored, the store's among them", "[snapshot]") {
  const Scratch scratch;
  const History own{{1, 1, 77}};
  for (int r = 0; r < 2; ++r) {
    write_half(scratch.path("disk"), {3, 1}, own, r, 3);
    write_half(scratch.path("store"), {4, 1}, own, r, 4);
    write_half(scratch.path("store"), {5, 1}, own, r, 5);
  }
  const auto places = [&](int) {
    return std::vector<SnapshotTiers::Place>{{Tier::disk, Path(scratch.path("disk")), nullptr},
                                             {Tier::store, {}, open_store(scratch.path("store"))}};
  };
  Restoring(places).expect({5, 1}, 5);

  // One object of it is damaged: the one before it, and it is said once.
  const std::string damaged = scratch.path("store/step-5-generation-1-rank-1-of-2.snapshot");
  std::string content = read_file(damaged);
  const float five = 5;
  const size_t at = content.find(std::string_view(reinterpret_cast<const char*>(&five), sizeof five));
  REQUIRE(at != content.npos);
  content[at] ^= 1;
  write_file(damaged, content);
  const Restoring again(places);
  again.expect({4, 1}, 4);
  REQUIRE(again.restored[0]->damaged.size() == 1);
  CHECK_THAT(again.restored[0]->damaged[0], Contains(damaged));
}

TEST_CASE("what another run left on a machine that joins is not the run", "[snapshot]") {
  const Scratch scratch;
  const History own{{0, 1, 77}}, other{{0, 1, 78}, {1, 400, 79}};
  const std::string folders[] = {scratch.path("a"), scratch.path("b")};
  for (int r = 0; r < 2; ++r) {
    write_half(folders[r], {120, 0}, own, r, 12);
    write_half(folders[1], {923, 1}, other, r, 92);
  }
  const auto before = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& entry : std::filesystem::directory_iterator(folders[1]))
    if (entry.path().filename().string().starts_with("step-923"))
      std::filesystem::last_write_time(entry.path(), before);
  const Restoring both([&](int r) {
    return std::vector<SnapshotTiers::Place>{{Tier::disk, Path(folders[r]), nullptr}};
  });
  both.expect({120, 0}, 12);
  REQUIRE(both.restored[0]->other_runs.size() == 1);
  CHECK(both.restored[0]->other_runs[0] ==
        "the disk of rank 1 holds snapshots of another run, up to step 923: they are left out");
}

TEST_CASE("a tier is as fast as it was written, until enough of it was read", "[snapshot]") {
  const Scratch scratch;
  const std::string folder = scratch.path("kept");
  const TensorType type{DType::f32, {1 << 19}};  // 2 MiB
  SampleState state(1, {{"w", type}});
  state.manifest.version = {5, 1};
  state.manifest.history = {{1, 1, 77}};
  state.add("w", TensorSlice::whole(type.shape));
  make_folder(Path(folder));
  write_snapshot(snapshot_path(Path(folder), state.manifest), state.manifest, state.parts);
  SnapshotTiers tiers({{Tier::disk, Path(folder), nullptr}});
  const auto rate = [&] { return tiers.states(false).at(0).bytes_per_second; };
  CHECK(rate() == 0);  // not known
  const auto write = [&](int64_t bytes) {
    RateMeter::Transfer writing(tiers.written(Tier::disk));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    writing.arrived(bytes);
  };
  write(1 << 10);
  CHECK(rate() == 0);  // too little to tell
  write(1 << 20);
  const double written = rate();
  CHECK(written > 0);
  CHECK(written <= (1 << 20) / 0.02);
  tiers.follow(state.manifest.history);
  tiers.read(Tier::disk, {5, 1}, "w", TensorSlice::whole(type.shape));
  const double read = rate();
  CHECK(read > 0);
  CHECK(read != written);
  tiers.read(Tier::disk, {5, 1}, "w", parse_slice(type.shape, "[0:4]"));
  CHECK(rate() == read);  // too little to change it
}

TEST_CASE("transfers at the same time count together", "[snapshot]") {
  RateMeter meter;
  const auto begun = std::chrono::steady_clock::now();
  {
    RateMeter::Transfer first(meter), second(meter);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    first.arrived(1 << 20);
    second.arrived(1 << 20);
    CHECK(meter.bytes_per_second() == 0);  // they are under way
  }
  const double rate = meter.bytes_per_second();
  CHECK(rate >= (2 << 20) / seconds_since(begun));
  CHECK(rate <= (2 << 20) / 0.02);
}

TEST_CASE("of two runs' files in one folder those of the run that is followed are read", "[snapshot]") {
  const Scratch scratch;
  const History own{{1, 1, 77}}, other{{1, 1, 78}};
  const std::string folder = scratch.path("both");
  write_half(folder, {5, 1}, other, 0, 50);
  write_half(folder, {5, 1}, own, 1, 5);
  SnapshotTiers tiers({{Tier::disk, Path(folder), nullptr}});
  const auto states = tiers.states(false);
  REQUIRE(states.size() == 2);
  CHECK(states[0].history != states[1].history);
  CHECK(tiers.take_warnings().empty());
  for (const auto& [history, slice, value] :
       {std::tuple(own, "[3:6]", 5.0), std::tuple(other, "[0:3]", 50.0)}) {
    tiers.follow(history);
    CHECK(tiers.read(Tier::disk, {5, 1}, "w", parse_slice(kType.shape, slice)).at(0) == value);
  }
  tiers.follow(own);
  CHECK_THROWS(tiers.read(Tier::disk, {5, 1}, "w", parse_slice(kType.shape, "[0:3]")));
}
