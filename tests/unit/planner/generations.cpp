// A run outlives its cluster: generation after generation with other members and another plan, whose state
// is what the members bring. Ranks are threads of one process.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/comm/loopback.h"
#include "core/run/migration.h"
#include "core/run/settle.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/migrate.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/planner/forwarding_group.h"
#include "tests/unit/planner/generations_testing.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;
using planner::plan_migration;

namespace {

constexpr int kMembers = 9, kStepsOfGeneration = 2;

std::vector<Inventory::Need> whole_state(const Graph& graph) {
  std::vector<Inventory::Need> needs;
  for (const Value& value : graph.values)
    if (is_state(value)) needs.push_back({value.name, TensorSlice::whole(value.type.shape)});
  return needs;
}

// Bytes that a state needs for a layout and has not.
int64_t lacking_bytes(const StateStore& state, const std::vector<StatePart>& needs) {
  int64_t bytes = 0;
  for (const StatePart& need : needs) {
    std::vector<TensorSlice> held;
    for (const StatePart& part : parts_of(state))
      if (part.name == need.name) held.push_back(part.slice);
    for (const TensorSlice& slice : missing(need.slice, held))
      bytes += slice.elements() * bytes_of(need.tensor.type.dtype);
  }
  return bytes;
}

struct Member {
  std::shared_ptr<StateStore> state = reference_state(5);
  bool has_state() const { return !state->entries().empty(); }
};

// What the ranks of a group agree on before state moves.
struct Agreed {
  Settlement settled;
  std::vector<std::vector<StatePart>> needs;
};

Agreed agree(Communicator& group, const StateStore& state, const std::vector<StatePart>& own_needs,
             const Graph& graph) {
  Agreed agreed;
  std::vector<MemberState> members;
  for (const std::string& text :
       all_gather_text(group, to_text(member_state_of(state, nullptr)), "the state"))
    members.push_back(parse_member_state(text, "a rank"));
  for (const std::string& text : all_gather_text(group, to_text(own_needs), "the needs"))
    agreed.needs.push_back(parse_parts(text, "a rank"));
  agreed.settled = settle(members, whole_state(graph));
  return agreed;
}

int count_in(const std::string& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a run goes on in other plans with the state that its members bring", "[generations]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  constexpr int kGenerations = 20;
  std::mt19937 random(21);
  auto alone = reference_state(5);
  int step = 0;
  int64_t moved = 0;
  const int descriptors = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
  const int64_t live = live_buffer_bytes();
  std::vector<Member> members(kMembers);
  for (int generation = 1; generation <= kGenerations; ++generation) {
    Plan plan = random_plan(random, kLayersOfModel, kSizes.samples, true);
    while (static_cast<int>(devices_of(plan).size()) > kMembers)
      plan = random_plan(random, kLayersOfModel, kSizes.samples, true);
    const int ranks = static_cast<int>(devices_of(plan).size()), microbatches = microbatches_of(plan);
    INFO("generation " << generation << ": " << to_lua(plan));
    // Members in the plan, by rank; and those that only bring state.
    std::vector<int> order(kMembers);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int> roster(order.begin(), order.begin() + ranks);
    for (auto m = order.begin() + ranks; m != order.end(); ++m)
      if (members[static_cast<size_t>(*m)].has_state()) roster.push_back(*m);
    std::vector<int> plan_members(static_cast<size_t>(ranks));
    std::iota(plan_members.begin(), plan_members.end(), 0);
    std::shuffle(plan_members.begin(), plan_members.end(), random);

    std::vector<std::vector<double>> losses(roster.size());
    std::vector<int64_t> lacked(roster.size());
    int64_t planned_bytes = 0;
    on_ranks(make_loopback(static_cast<int>(roster.size())), [&](int r, const auto& fabric) {
      StateStore& state = *members[static_cast<size_t>(roster[static_cast<size_t>(r)])].state;
      const auto groups = std::make_shared<Groups>(fabric, "", nullptr, plan_members);
      const auto world = fabric->group("everyone", all_ranks(*fabric));
      std::optional<Program> program;
      if (groups->rank() >= 0) program = lower(graph, plan, groups->rank(), true);
      const auto needs = program ? needs_of(*program) : std::vector<StatePart>{};
      if (generation > 1) {
        lacked[static_cast<size_t>(r)] = lacking_bytes(state, needs);
        const Agreed agreed = agree(*world, state, needs, graph);
        if (!agreed.settled.missing.empty()) throw std::runtime_error(show(agreed.settled.missing));
        const MigrationPlan moves =
            plan_migration(agreed.settled.inventory, agreed.settled.version, agreed.needs, {20000, {}});
        migrate(*world, moves, needs, state);
        if (r == 0) planned_bytes = moved_bytes(moves);
        if (lacking_bytes(state, needs) != 0 || parts_of(state).size() != needs.size())
          throw std::runtime_error("the state is not what is needed");
      }
      if (!program) return;
      state.begin_generation(generation);
      auto shared = members[static_cast<size_t>(roster[static_cast<size_t>(r)])].state;
      Executor executor(*std::move(program), shared, groups);
      for (int s = 1; s <= kStepsOfGeneration; ++s)
        losses[static_cast<size_t>(r)].push_back(train_step(executor, step + s, microbatches));
      if (state.version() != Version{step + kStepsOfGeneration, generation})
        throw std::runtime_error("the state is of another version");
    });
    CHECK(planned_bytes == std::accumulate(lacked.begin(), lacked.end(), int64_t{0}));
    moved += planned_bytes;

    Executor reference(lower_single(graph, microbatches), alone);
    for (int s = 0; s < kStepsOfGeneration; ++s) {
      const double loss = train_step(reference, step + 1 + s, microbatches);
      for (int r = 0; r < ranks; ++r)
        CHECK(losses[static_cast<size_t>(r)][static_cast<size_t>(s)] == Approx(loss).epsilon(1e-10));
    }
    step += kStepsOfGeneration;
  }
  CHECK(moved > 0);
  CHECK(count_in("/proc/self/fd") == descriptors);
  CHECK(count_in("/proc/self/task") == threads);
  members.clear();
  alone.reset();
  CHECK(live_buffer_bytes() == live);
}

namespace {

// Elements that tell their tensor and where they are in it. One thread.
const Tensor& known_part(const StatePart& part) {
  static std::map<std::string, Tensor> known;
  Tensor& tensor = known[part.name + to_string(part.slice)];
  if (tensor.present()) return tensor;
  Tensor whole(part.tensor.type);
  const double name = static_cast<double>(hash_of(part.name) % 1000);
  for (int64_t i = 0; i < whole.elements(); ++i) whole.set(i, 1000.0 * static_cast<double>(i) + name);
  return tensor = take(whole, part.slice);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0;
}

std::vector<std::vector<StatePart>> needs_of_plan(const Graph& graph, const Plan& plan) {
  std::vector<std::vector<StatePart>> needs;
  for (int r = 0; r < static_cast<int>(devices_of(plan).size()); ++r)
    needs.push_back(needs_of(lower(graph, plan, r, true)));
  return needs;
}

}  // namespace

TEST_CASE("a rank lost while state moves leaves all of it whole, in the old layout or the new",
          "[generations]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  std::mt19937 random(5);
  const Version version{4, 2};
  int losses = 0, spares = 0, only_beside = 0;
  std::atomic<int64_t> sent_by_lanes = 0;
  for (int pair = 0; pair < 8; ++pair) {
    const Plan from = random_plan(random, kLayersOfModel, kSizes.samples, true),
               to = random_plan(random, kLayersOfModel, kSizes.samples, true);
    INFO(to_lua(from) << " to " << to_lua(to));
    auto old_parts = needs_of_plan(graph, from), needs = needs_of_plan(graph, to);
    const size_t ranks = std::max(old_parts.size(), needs.size());
    old_parts.resize(ranks);
    needs.resize(ranks);
    Inventory inventory;
    for (size_t r = 0; r < ranks; ++r)
      for (const StatePart& part : old_parts[r])
        inventory.add(part.name, part.tensor, static_cast<int>(r), part.slice, version);
    const MigrationPlan moves = plan_migration(inventory, version, needs, {3000, {}});
    if (moves.rounds.empty()) continue;
    const int victim = static_cast<int>(random() % ranks);
    bool lost = true;
    for (int last = 0; lost; last += 1 + last / 8) {
      INFO("rank " << victim << " of " << ranks << " is lost at its operation " << last);
      std::vector<Member> members(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        members[r].state->set_version(version);
        for (const StatePart& part : old_parts[r])
          members[r].state->install(part.name, part.slice, part.tensor.trained, known_part(part));
      }
      lost = false;
      auto fabrics = make_loopback(static_cast<int>(ranks));
      std::vector<std::thread> threads;
      for (size_t r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          try {
            const auto world = fabrics[r]->group("everyone", all_ranks(*fabrics[r]));
            DyingGroup group(*world, *fabrics[r], static_cast<int>(r) == victim ? last : -1);
            MigrationSetting setting;
            std::vector<std::shared_ptr<Communicator>> more;
            for (int lane = 0; lane < pair % 3; ++lane) {
              more.push_back(
                  fabrics[r]->group(fmt::format("everyone, lane {}", lane), all_ranks(*fabrics[r])));
              setting.lanes.push_back(more.back().get());
            }
            migrate(group, moves, needs[r], *members[r].state, setting);
            for (const auto& lane : more) sent_by_lanes += lane->bytes_sent();
          } catch (const Error& error) {
            if (static_cast<int>(r) == victim) lost = true;
            fabrics[r]->abort(error.what());
          }
        });
      for (std::thread& thread : threads) thread.join();
      losses += lost ? 1 : 0;

      Inventory left;
      for (size_t r = 0; r < ranks; ++r) {
        const StateStore& state = *members[r].state;
        CHECK(state.version() == version);
        spares += static_cast<int>(state.spares().size());
        for (const StatePart& part : parts_of(state))
          left.add(part.name, part.tensor, static_cast<int>(r), part.slice, version);
        for (const auto& [name, entry] : state.entries()) {
          const StatePart part{name, inventory.tensors().at(name), slice_of(entry)};
          CHECK(same_bytes(state.read(name), known_part(part)));
        }
        for (const StateStore::Spare& spare : state.spares()) {
          const StatePart part{spare.name, inventory.tensors().at(spare.name), spare.slice};
          CHECK(same_bytes(spare.part, known_part(part)));
        }
        if (!lost) CHECK(lacking_bytes(state, needs[r]) == 0);
      }
      CHECK(left.newest_with(whole_state(graph)) == version);
      if (!lost) continue;

      // The next generation reaches what this one wanted, whatever of it has come already.
      const MigrationPlan rest = plan_migration(left, version, needs, {3000, {}});
      for (size_t r = 0; r < ranks; ++r)
        for (const StateStore::Spare& spare : members[r].state->spares())
          only_beside += members[r].state->has(spare.name) ? 0 : 1;
      const auto next = make_loopback(static_cast<int>(ranks));
      threads.clear();
      for (size_t r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          const auto world = next[r]->group("everyone", all_ranks(*next[r]));
          migrate(*world, rest, needs[r], *members[r].state, {});
        });
      for (std::thread& thread : threads) thread.join();
      for (size_t r = 0; r < ranks; ++r)
        for (const StatePart& need : needs[r]) {
          REQUIRE(members[r].state->has(need.name));
          CHECK(same_bytes(members[r].state->read(need.name), known_part(need)));
        }
    }
  }
  CHECK(losses >= 100);
  CHECK(only_beside > 0);
  CHECK(spares > 0);
  CHECK(sent_by_lanes > 0);
}

TEST_CASE("state comes from the holder with the least to do, and state without a holder is an error",
          "[generations]") {
  const TensorType type{DType::f32, {8, 4}};
  const TensorSlice whole = TensorSlice::whole(type.shape);
  const auto rows = [&](int64_t begin, int64_t end) { return whole.narrowed(0, Range{begin, end}); };
  Inventory inventory;
  for (const int holder : {0, 1}) inventory.add("w", {type, true}, holder, whole);
  const std::vector<std::vector<StatePart>> needs{{{"w", {type, true}, whole}},
                                                  {{"w", {type, true}, rows(0, 4)}},
                                                  {{"w", {type, true}, rows(0, 4)}},
                                                  {{"w", {type, true}, rows(4, 8)}}};
  const auto senders = [&](const planner::MigrationOptions& options) {
    std::map<int, int> from;  // by receiver
    for (const auto& round : plan_migration(inventory, {}, needs, options).rounds)
      for (const SliceMove& move : round.moves) from.emplace(move.to, move.from);
    return from;
  };
  // Two receivers, two holders: one each. Rank 1 keeps what it has.
  const auto even = senders({});
  REQUIRE(even.size() == 2);
  CHECK(even.at(2) != even.at(3));
  // Everything that rank 1 sends takes ten times as long.
  const auto slow = senders({1 << 20, {{}, {1e9, 1e8, 1e9, 1e9}}});
  CHECK(slow == std::map<int, int>{{2, 0}, {3, 0}});
  // Where nothing is known of one, it counts as 1 GB/s.
  CHECK(senders({1 << 20, {{}, {1e9, 0, 1e9, 1e9}}}) == even);
  CHECK(senders({1 << 20, {{}, {1e9, 0, 4e9, 4e9}}}) == even);
  // Ranks 1 and 2 are on one host, whose memory is faster than any network.
  CHECK(senders({1 << 20, {{0, 1, 1, 2}, {}}}).at(2) == 1);

  // Ranks 0 and 1 share a host's port; rank 2 has one alone.
  Inventory shared;
  for (const int holder : {0, 1, 2}) shared.add("w", {type, true}, holder, whole);
  const std::vector<StatePart> all{{"w", {type, true}, whole}};
  const std::vector<std::vector<StatePart>> halves{
      all, all, all, {{"w", {type, true}, rows(0, 4)}}, {{"w", {type, true}, rows(4, 8)}}};
  std::set<int> sending;
  for (const auto& round : plan_migration(shared, {}, halves, {1 << 20, {{0, 0, 1, 2, 3}, {}}}).rounds)
    for (const SliceMove& move : round.moves) sending.insert(move.from == 1 ? 0 : move.from);
  CHECK(sending == std::set<int>{0, 2});

  // Ranks 0 and 1 have v; rank 1 receives all of w meanwhile, so rank 0 sends both parts of v.
  Inventory busy;
  for (const int holder : {0, 1}) busy.add("v", {type, true}, holder, whole);
  busy.add("w", {type, true}, 3, whole);
  const std::vector<std::vector<StatePart>> wanted{
      {{"v", {type, true}, whole}},
      {{"v", {type, true}, whole}, {"w", {type, true}, whole}},
      {{"v", {type, true}, rows(0, 4)}},
      {{"v", {type, true}, rows(4, 8)}, {"w", {type, true}, whole}}};
  for (const auto& round : plan_migration(busy, {}, wanted).rounds)
    for (const SliceMove& move : round.moves) CHECK(move.from == (move.tensor == "v" ? 0 : 3));

  Inventory half;
  half.add("w", {type, true}, 0, rows(0, 4));
  CHECK_THROWS_WITH(plan_migration(half, {}, needs), Catch::Contains("no member of the run has w [4:8, :]"));
}

TEST_CASE("members agree on the newest version that they can go on from", "[generations]") {
  const TensorType type{DType::f32, {4}};
  const TensorSlice whole = TensorSlice::whole(type.shape);
  const auto rows = [&](int64_t begin, int64_t end) { return whole.narrowed(0, Range{begin, end}); };
  const auto member = [&](Version version, const TensorSlice& slice) {
    MemberState member;
    member.version = version;
    member.parts = {{"w", {type, true}, slice}};
    return member;
  };
  const std::vector<Inventory::Need> needs{{"w", whole}};
  const MemberState joiner;

  // One has the step, the other one does not, and neither can make it: what both have counts.
  std::vector<MemberState> members{member({6, 1}, rows(0, 2)), member({5, 1}, whole), joiner};
  Settlement settled = settle(members, needs);
  CHECK(settled.version == Version{5, 1});
  CHECK(settled.finish.empty());
  CHECK(settled.missing.empty());
  // It can, by the numbers of the first.
  members[0].decision = StepDecision{6, Tensor::of<float>({1, 2}, {2})};
  members[1].after_step = std::vector<StatePart>{{"w", {type, true}, rows(2, 4)}};
  settled = settle(members, needs);
  CHECK(settled.version == Version{6, 1});
  CHECK(settled.finish == std::vector<int>{1});
  REQUIRE(settled.decision);
  CHECK(settled.decision->numbers.at(1) == 2);
  // Not by those of the step before.
  members[0].decision->step = 5;
  CHECK(settle(members, needs).version == Version{5, 1});

  members = {member({6, 1}, rows(0, 3)), joiner};
  settled = settle(members, needs);
  CHECK(settled.version == Version{6, 1});
  CHECK(show(settled.missing) == "w [3:4]");
  members = {member({6, 1}, whole), member({4, 1}, whole)};
  CHECK_THROWS_WITH(settle(members, needs), Catch::Contains("after step 4, another rank that after step 6"));
}

TEST_CASE("what a member says of its state is checked", "[generations]") {
  MemberState member;
  member.version = Version{3, 1};
  const TensorType type{DType::bf16, {4, 6}};
  const TensorSlice tile = TensorSlice::whole(type.shape).narrowed(1, Ranges{{0, 2}, {4, 6}});
  member.parts = {{"a \"name\"", {type, true}, tile}};
  member.decision = StepDecision{3, Tensor::of<float>({1, std::numeric_limits<float>::quiet_NaN()}, {2})};
  member.after_step = member.parts;
  const std::string text = to_text(member);
  const MemberState read = parse_member_state(text, "rank 3");
  CHECK(read.version == member.version);
  CHECK(read.parts == member.parts);
  CHECK(read.after_step == member.after_step);
  REQUIRE(read.decision);
  CHECK(std::isnan(read.decision->numbers.at(1)));
  for (size_t cut = 0; cut < text.size(); ++cut)
    CHECK_THROWS_AS(parse_member_state(text.substr(0, cut), "rank 3"), Error);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return other;
  };
  CHECK_THROWS_WITH(parse_member_state(changed("[:, 0:2+4:6]", "[:, 0:2+4:7]"), "rank 3"),
                    Catch::Contains("rank 3"));
  CHECK_THROWS_WITH(parse_member_state(changed("bf16", "b16"), "rank 3"), Catch::Contains("rank 3"));
  CHECK_THROWS_WITH(parse_member_state(changed("[4,6]", "[4,-6]"), "rank 3"), Catch::Contains("rank 3"));
  CHECK_THROWS_WITH(parse_member_state(changed("[2]", "[3]"), "rank 3"), Catch::Contains("rank 3"));
}
