// Up to m - 1 of the members of a run are lost at once, whichever they are: with m copies of each part of the
// state nothing is missing, and no step is repeated. Placement, who writes what, and the recovery's choice
// together, over all subsets of members.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/run/state_layout.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/recovery.h"
#include "snapshot/replica_placement.h"
#include "tests/unit/planner/generations_testing.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;

namespace {

constexpr int kMembers = 6;
constexpr Version kCurrent{7, 2}, kEarlier{6, 2};

// What a run of a plan with six devices has, and who keeps copies of what too few hosts have.
struct RunOfSix {
  StateLayout layout;
  std::vector<std::string> hosts;                 // of each member
  std::vector<std::vector<WrittenPart>> written;  // by member, in its host's memory
  std::vector<std::vector<int>> keepers;          // of each member's snapshots
  int copies = 2;

  RunOfSix(const Graph& graph, const Plan& plan, int wanted_copies, std::mt19937& random)
      : copies(wanted_copies) {
    std::vector<ReplicaMember> members;
    for (int r = 0; r < kMembers; ++r) {
      layout.parts.push_back(needs_of(lower(graph, plan, r, true)));
      for (const StatePart& part : layout.parts.back()) layout.tensors.emplace(part.name, part.tensor);
      hosts.push_back(fmt::format("host-{}", r));
      members.push_back({fmt::format("member-{}", random()), hosts.back(), "zone", int64_t{1} << 30});
    }
    written = assign_writers_of_hosts(layout, hosts);
    keepers = place_replicas(members, copies - 1);
  }

  bool is_scarce() const {
    for (const auto& parts : written)
      for (const WrittenPart& each : parts)
        if (each.hosts < copies) return true;
    return false;
  }

  // What those outside of `lost` have between them: the state on their devices, and snapshots of `snapshots`
  // in their memory, their parts and copies of others'.
  RecoveryPlan recover(unsigned lost, const std::vector<std::vector<StatePart>>& needs,
                       Version snapshots) const {
    std::vector<StateSource> sources;
    Inventory inventory;
    std::vector<int> rank_of(kMembers, -1);
    for (int r = 0, next = 0; r < kMembers; ++r)
      if ((lost >> r & 1U) == 0) rank_of[static_cast<size_t>(r)] = next++;
    const auto add_written = [&](int of, bool all) {
      for (const WrittenPart& each : written[static_cast<size_t>(of)])
        if (all || each.hosts < copies)
          inventory.add(each.part.name, each.part.tensor, static_cast<int>(sources.size()), each.part.slice,
                        snapshots);
    };
    for (int r = 0; r < kMembers; ++r) {
      const int member = rank_of[static_cast<size_t>(r)];
      if (member < 0) continue;
      for (const StatePart& part : layout.parts[static_cast<size_t>(r)])
        inventory.add(part.name, part.tensor, static_cast<int>(sources.size()), part.slice, kCurrent);
      sources.push_back({member, Tier::live, 0});
      add_written(r, true);
      for (int of = 0; of < kMembers; ++of) {
        const auto& kept_by = keepers[static_cast<size_t>(of)];
        if (std::find(kept_by.begin(), kept_by.end(), r) != kept_by.end()) add_written(of, false);
      }
      sources.push_back({member, Tier::memory, 0});
    }
    planner::RecoveryOptions options;
    options.newest_step = kCurrent.step;
    options.step_seconds = 1;
    return planner::plan_recovery(sources, inventory, needs, options);
  }
};

Plan plan_of(std::mt19937& random, int devices) {
  for (;;) {
    const Plan plan = random_plan(random, kLayersOfModel, kSizes.samples, true);
    if (devices_in(plan) == devices) return plan;
  }
}

// What ranks need under plans that may follow, by their number.
class NextPlans {
 public:
  NextPlans(const Graph& graph, std::mt19937& random) : random_(random) {
    for (int members = kMembers - 2; members < kMembers; ++members)
      for (int i = 0; i < 3; ++i) {
        const Plan plan = plan_of(random, members);
        auto& needs = needs_[members].emplace_back();
        for (int r = 0; r < members; ++r) needs.push_back(needs_of(lower(graph, plan, r, true)));
      }
  }
  const std::vector<std::vector<StatePart>>& draw(int members) {
    const auto& all = needs_.at(members);
    return all[random_() % all.size()];
  }

 private:
  std::mt19937& random_;
  std::map<int, std::vector<std::vector<std::vector<StatePart>>>> needs_;
};

}  // namespace

TEST_CASE("with m copies any m - 1 of six members are lost and no step is repeated", "[redundancy]") {
  const Graph graph = trained_gpt(kSizes, DType::f32);
  std::mt19937 random(43);
  NextPlans next(graph, random);
  int subsets = 0, read_from_memory = 0;
  for (const int copies : {2, 3})
    for (int run = 0; run < 6; ++run) {
      const Plan plan = plan_of(random, kMembers);
      const RunOfSix before(graph, plan, copies, random);
      INFO(copies << " copies: " << to_lua(plan));
      for (unsigned lost = 1; lost < 1U << kMembers; ++lost) {
        const int count = std::popcount(lost);
        if (count >= copies) continue;
        INFO("lost " << lost);
        const auto& needs = next.draw(kMembers - count);
        const RecoveryPlan found = before.recover(lost, needs, kCurrent);
        CHECK(found.moves.version == kCurrent);
        CHECK(found.steps_repeated == 0);
        ++subsets;
        const auto memory = found.bytes.find(Tier::memory);
        read_from_memory += memory != found.bytes.end() && memory->second > 0 ? 1 : 0;
      }
    }
  CHECK(subsets == 6 * (6 + 6 + 15));
  CHECK(read_from_memory > 20);
}

TEST_CASE("a copy that is a step behind costs that step, and no copy at all is refused by name",
          "[redundancy]") {
  const Graph graph = trained_gpt(kSizes, DType::f32);
  std::mt19937 random(44);
  NextPlans next(graph, random);
  int refused = 0, behind = 0;
  for (int run = 0; run < 5; ++run) {
    Plan plan = plan_of(random, kMembers);
    plan.sharded_optimizer = true;
    const RunOfSix two(graph, plan, 2, random);
    if (!two.is_scarce()) continue;
    INFO(to_lua(plan));
    // With one copy, on the member itself, it takes what only it had with it.
    RunOfSix one = two;
    one.keepers.assign(kMembers, {});
    for (int r = 0; r < kMembers; ++r) {
      const unsigned lost = 1U << r;
      const auto& needs = next.draw(kMembers - 1);
      const bool scarce =
          std::any_of(two.written[static_cast<size_t>(r)].begin(), two.written[static_cast<size_t>(r)].end(),
                      [](const WrittenPart& each) { return each.hosts < 2; });
      if (!scarce) {
        CHECK(one.recover(lost, needs, kCurrent).steps_repeated == 0);
        continue;
      }
      CHECK(two.recover(lost, needs, kEarlier).steps_repeated == 1);
      ++behind;
      try {
        one.recover(lost, needs, kCurrent);
        FAIL_CHECK("what only member " << r << " had came from nowhere");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::environment);
        ++refused;
      }
    }
  }
  CHECK(refused > 10);
  CHECK(behind == refused);
}
