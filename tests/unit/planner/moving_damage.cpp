// Parts of the state that are damaged where they are read, or on their way, while others are already moving;
// and ranks that are lost meanwhile. Ranks are threads of one process.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/comm/loopback.h"
#include "core/run/restore.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/migrate.h"
#include "planner/migrate/recovery.h"
#include "tests/unit/planner/forwarding_group.h"
#include "tests/unit/planner/generations_testing.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;

namespace {

constexpr int64_t kRoundBytes = 3000;  // so that plans have many rounds
constexpr Version kLive{10, 3}, kNear{8, 3}, kFar{5, 2};
const History kHistory{{2, 0}, {3, 6}};

// Elements that say which tensor and version they are of, and where they are in it.
Tensor known_part(const StatePart& part, Version version) {
  Tensor whole(part.tensor.type);
  const double name = static_cast<double>(hash_of(part.name) % 1000);
  for (int64_t i = 0; i < whole.elements(); ++i)
    whole.set(i, 1000.0 * static_cast<double>(i) + name + static_cast<double>(version.step) / 16);
  return take(whole, part.slice);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0;
}

// Whether all that a state has is of its version.
bool is_known(const StateStore& state) {
  for (const auto& [name, entry] : state.entries()) {
    const StatePart part{
        name, {{entry.type.dtype, slice_of(entry).whole_shape()}, entry.trained}, slice_of(entry)};
    if (!same_bytes(state.read(name), known_part(part, state.version()))) return false;
  }
  for (const StateStore::Spare& spare : state.spares()) {
    const StatePart part{
        spare.name, {{spare.part.dtype(), spare.slice.whole_shape()}, spare.trained}, spare.slice};
    if (!same_bytes(spare.part, known_part(part, state.version()))) return false;
  }
  return true;
}

// Tiers in memory. Read number `damaged` finds its version damaged, which is left out from then on.
class KnownTiers final : public TierReader {
 public:
  std::vector<TierState> held;
  int damaged = -1;
  int lists = 0;
  bool all_kept = true;
  std::function<bool()> is_kept;  // asked whenever members choose

  std::vector<TierState> states(bool) override {
    ++lists;
    all_kept = all_kept && (!is_kept || is_kept());
    return held;
  }
  void follow(const History&) override {}
  Tensor read(Tier tier, Version version, const std::string& tensor, const TensorSlice& slice) override {
    const bool fails = reads_++ == damaged;
    const auto state = std::find_if(held.begin(), held.end(), [&](const TierState& each) {
      return each.tier == tier && each.version == version;
    });
    if (state == held.end()) fail_usage("the tier has nothing of step {}", version.step);
    if (fails) {
      held.erase(state);
      fail_usage("'{}' of step {} is damaged", tensor, version.step);
    }
    for (const StatePart& part : state->parts)
      if (part.name == tensor && shared_elements(part.slice, slice) == slice.elements())
        return known_part({tensor, part.tensor, slice}, version);
    fail_usage("the tier has no '{}' {}", tensor, to_string(slice));
  }

 private:
  std::atomic<int> reads_ = 0;
};

TierState tier_state(Tier tier, Version version, std::vector<StatePart> parts) {
  return {tier, version, up_to(kHistory, version), std::move(parts), "{}", 0};
}

// A group in which one byte of the receive number `number` is changed on its way.
class NoisyGroup final : public ForwardingGroup {
 public:
  NoisyGroup(Communicator& group, int number) : ForwardingGroup(group), left_(number) {}

  bool has_changed() const { return left_ < 0; }

 private:
  void after_wait(const CollectiveRequest& asked, std::byte* out) override {
    if (asked.kind == CollectiveKind::receive && asked.counts[0] > 0 && left_-- == 0) out[0] ^= std::byte{16};
  }

  int left_;
};

struct Member {
  std::shared_ptr<StateStore> state = reference_state(5);
  KnownTiers tiers;
};

std::vector<std::vector<StatePart>> needs_of_plan(const Graph& graph, const Plan& plan, size_t ranks) {
  std::vector<std::vector<StatePart>> needs;
  for (int r = 0; r < static_cast<int>(devices_of(plan).size()); ++r)
    needs.push_back(needs_of(lower(graph, plan, r, true)));
  needs.resize(std::max(ranks, needs.size()));
  return needs;
}

void give(StateStore& state, Version version, const std::vector<StatePart>& parts) {
  state.set_version(version);
  state.set_history(up_to(kHistory, version));
  for (const StatePart& part : parts)
    state.install(part.name, part.slice.is_whole() ? std::nullopt : std::optional(part.slice),
                  part.tensor.trained, known_part(part, version));
}

RestoreOptions options_of(Member& member, int rank) {
  RestoreOptions options;
  options.plan_moves = planner::plan_moves({kRoundBytes, {}});
  planner::RecoveryOptions recovery;
  recovery.round_bytes = kRoundBytes;
  options.plan_recovery = planner::recovery_planner(recovery);
  options.generation = 4;
  options.tiers = &member.tiers;
  options.step_seconds = 1;
  options.host = std::to_string(rank);
  return options;
}

}  // namespace

// Members lack what a lost one had live; a newer snapshot in memory is whole and turns out to be damaged when
// much of it has come, an older one on disk is sound.
TEST_CASE("a snapshot that is found damaged in the middle of a move gives way to another one",
          "[moving damage]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  std::mt19937 random(31);
  int in_the_middle = 0, older = 0, same = 0;
  for (int run = 0; run < 40; ++run) {
    const Plan from = random_plan(random, kLayersOfModel, kSizes.samples, true),
               to = random_plan(random, kLayersOfModel, kSizes.samples, true);
    INFO("run " << run << ": " << to_lua(from) << " to " << to_lua(to));
    auto old_parts = needs_of_plan(graph, from, 0), needs = needs_of_plan(graph, to, old_parts.size());
    const size_t ranks = needs.size();
    old_parts.resize(ranks);
    // Every second time a second member has the same in memory: that is as good, and of the same step.
    const bool has_copy = run % 2 == 0 && ranks > 1;
    std::vector<Member> members(ranks);
    const size_t lost = random() % ranks;
    const auto victim = static_cast<size_t>(random() % ranks);
    std::vector<int> damages(ranks, 0);
    for (size_t r = 0; r < ranks; ++r) {
      Member& member = members[r];
      if (r != lost && !old_parts[r].empty()) give(*member.state, kLive, old_parts[r]);
      member.tiers.held.push_back(tier_state(Tier::disk, kFar, old_parts[r]));
      member.tiers.held.push_back(tier_state(Tier::memory, kNear, old_parts[r]));
      if (has_copy)
        for (const StatePart& part : old_parts[(r + 1) % ranks]) {
          auto& parts = member.tiers.held.back().parts;
          const auto has_it = [&](const StatePart& each) {
            return each.name == part.name && shared_elements(each.slice, part.slice) > 0;
          };
          if (std::none_of(parts.begin(), parts.end(), has_it)) parts.push_back(part);
        }
      std::erase_if(member.tiers.held, [](const TierState& state) { return state.parts.empty(); });
      const auto before = parts_of(*member.state);
      const Version version = member.state->version();
      // Each time that members choose, they still have what they had.
      member.tiers.is_kept = [&member, before, version] {
        return parts_of(*member.state) == before && (before.empty() || member.state->version() == version) &&
               is_known(*member.state);
      };
    }
    members[victim].tiers.damaged = static_cast<int>(random() % 12);
    std::vector<std::optional<Restored>> restored(ranks);
    on_ranks(make_loopback(static_cast<int>(ranks)), [&](int r, const auto& fabric) {
      const auto at = static_cast<size_t>(r);
      const auto world = fabric->group("everyone", all_ranks(*fabric));
      restored[at] = restore(*world, *members[at].state, nullptr, needs[at], options_of(members[at], r));
    });
    for (size_t r = 0; r < ranks; ++r) {
      INFO("rank " << r);
      REQUIRE(restored[r]);
      CHECK(restored[r]->version == restored[0]->version);
      CHECK(restored[r]->damaged == restored[0]->damaged);
      CHECK(members[r].state->version() == restored[r]->version);
      CHECK(members[r].state->history() == up_to(kHistory, restored[r]->version));
      CHECK(members[r].state->spares().empty());
      CHECK(members[r].tiers.all_kept);
      for (const StatePart& need : needs[r]) {
        REQUIRE(members[r].state->has(need.name));
        CHECK(same_bytes(members[r].state->read(need.name), known_part(need, restored[r]->version)));
      }
    }
    if (restored[0]->damaged.empty()) continue;
    ++in_the_middle;
    // The older one repeats 5 s of steps: then stores are asked, too.
    CHECK(members[victim].tiers.lists == (restored[0]->version == kFar ? 3 : 2));
    (restored[0]->version == kFar ? older : same) += 1;
  }
  CHECK(in_the_middle >= 15);
  CHECK(older >= 5);
  CHECK(same >= 5);
}

TEST_CASE("what comes other than it was sent is no rank's state", "[moving damage]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  std::mt19937 random(32);
  int changed = 0;
  for (int run = 0; run < 40; ++run) {
    const Plan from = random_plan(random, kLayersOfModel, kSizes.samples, true),
               to = random_plan(random, kLayersOfModel, kSizes.samples, true);
    INFO("run " << run << ": " << to_lua(from) << " to " << to_lua(to));
    auto old_parts = needs_of_plan(graph, from, 0), needs = needs_of_plan(graph, to, old_parts.size());
    const size_t ranks = needs.size();
    old_parts.resize(ranks);
    Inventory inventory;
    for (size_t r = 0; r < ranks; ++r)
      for (const StatePart& part : old_parts[r])
        inventory.add(part.name, part.tensor, static_cast<int>(r), part.slice, kLive);
    const MigrationPlan moves = planner::plan_migration(inventory, kLive, needs, {kRoundBytes, {}});
    const auto victim = static_cast<size_t>(random() % ranks);
    const int number = static_cast<int>(random() % 8);
    std::vector<Member> members(ranks);
    std::vector<MigrationResult> results(ranks);
    std::atomic<bool> has_changed = false;
    for (size_t r = 0; r < ranks; ++r) give(*members[r].state, kLive, old_parts[r]);
    on_ranks(make_loopback(static_cast<int>(ranks)), [&](int r, const auto& fabric) {
      const auto at = static_cast<size_t>(r);
      const auto world = fabric->group("everyone", all_ranks(*fabric));
      NoisyGroup group(*world, at == victim ? number : 1 << 30);
      results[at] = migrate(group, moves, needs[at], *members[at].state);
      if (group.has_changed()) has_changed = true;
    });
    changed += has_changed ? 1 : 0;
    Inventory left;
    for (size_t r = 0; r < ranks; ++r) {
      INFO("rank " << r);
      CHECK(results[r].whole == !has_changed);
      CHECK(results[r].damage.empty() == !(has_changed && r == victim));
      CHECK(is_known(*members[r].state));
      for (const StatePart& part : parts_of(*members[r].state))
        left.add(part.name, part.tensor, static_cast<int>(r), part.slice, kLive);
    }
    for (const auto& [name, tensor] : inventory.tensors()) {
      std::vector<TensorSlice> held;
      for (int r = 0; r < static_cast<int>(ranks); ++r)
        for (const TensorSlice& slice : left.held_by(r, name, kLive)) held.push_back(slice);
      CHECK(missing(TensorSlice::whole(tensor.type.shape), held).empty());
    }
  }
  CHECK(changed >= 20);
}

// Members without live state take it from snapshots; one is lost at each operation of it. The others go on
// with what has come, and with the snapshots.
TEST_CASE("a rank lost while snapshots are read leaves the others what they need", "[moving damage]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  std::mt19937 random(33);
  int losses = 0, beside = 0;
  for (int run = 0; run < 8; ++run) {
    const Plan from = random_plan(random, kLayersOfModel, kSizes.samples, true),
               to = random_plan(random, kLayersOfModel, kSizes.samples, true);
    INFO("run " << run << ": " << to_lua(from) << " to " << to_lua(to));
    auto old_parts = needs_of_plan(graph, from, 0), needs = needs_of_plan(graph, to, old_parts.size());
    const size_t ranks = needs.size(), victim = random() % ranks;
    old_parts.resize(ranks);
    bool lost = true;
    for (int last = 0; lost; last += 1 + last / 8) {
      INFO("rank " << victim << " of " << ranks << " is lost at its operation " << last);
      std::vector<Member> members(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        // Every second time all but one have a newer live state, which counts until all of the other has
        // come.
        if (run % 2 == 1 && r > 0 && !old_parts[r].empty()) give(*members[r].state, kLive, old_parts[r]);
        if (!old_parts[r].empty())
          members[r].tiers.held.push_back(tier_state(Tier::memory, kNear, old_parts[r]));
      }
      lost = false;
      on_ranks(make_loopback(static_cast<int>(ranks)), [&](int r, const auto& fabric) {
        const auto at = static_cast<size_t>(r);
        const auto world = fabric->group("everyone", all_ranks(*fabric));
        DyingGroup group(*world, *fabric, at == victim ? last : -1);
        try {
          restore(group, *members[at].state, nullptr, needs[at], options_of(members[at], r));
        } catch (const Error& error) {
          if (at == victim) lost = true;
          fabric->abort(error.what());
        }
      });
      if (!lost) break;
      ++losses;
      for (size_t r = 0; r < ranks; ++r)
        for (const StateStore::Spare& spare : members[r].state->spares())
          beside += members[r].state->has(spare.name) ? 0 : 1;
      members[victim].state = reference_state(5);  // another process; its machine's memory is there
      std::vector<std::optional<Restored>> restored(ranks);
      on_ranks(make_loopback(static_cast<int>(ranks)), [&](int r, const auto& fabric) {
        const auto at = static_cast<size_t>(r);
        const auto world = fabric->group("everyone", all_ranks(*fabric));
        RestoreOptions options = options_of(members[at], r);
        options.generation = 5;
        restored[at] = restore(*world, *members[at].state, nullptr, needs[at], options);
      });
      for (size_t r = 0; r < ranks; ++r) {
        REQUIRE(restored[r]);
        CHECK(restored[r]->version == restored[0]->version);
        for (const StatePart& need : needs[r]) {
          REQUIRE(members[r].state->has(need.name));
          CHECK(same_bytes(members[r].state->read(need.name), known_part(need, restored[r]->version)));
        }
      }
    }
  }
  CHECK(losses >= 100);
  CHECK(beside > 0);
}
