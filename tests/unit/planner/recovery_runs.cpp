// What only lost members had comes back from the snapshots that they left in memory: plan after plan, while
// members die. Ranks are threads of one process; a member's death takes the state of its device, not its
// snapshots.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "core/run/restore.h"
#include "core/run/state_layout.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/migrate.h"
#include "planner/migrate/recovery.h"
#include "snapshot/run_snapshots.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/planner/generations_testing.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;

namespace {

constexpr int kMostMembers = 6;

using Copies = std::map<std::string, Tensor>;

Copies copies_of(const StateStore& state) {
  Copies copies;
  for (const auto& [name, entry] : state.entries()) copies.emplace(name, state.read(name));
  return copies;
}

struct Member {
  std::shared_ptr<StateStore> state = reference_state(5);
  std::shared_ptr<RunSnapshots> snapshots;
};

RestoreOptions options_of(Member& member, int64_t generation, int number) {
  RestoreOptions options;
  options.plan_moves = planner::plan_moves();
  options.plan_recovery = planner::recovery_planner();
  options.generation = generation;
  options.tiers = member.snapshots == nullptr ? nullptr : &member.snapshots->tiers();
  options.step_seconds = 1;
  options.host = std::to_string(number);
  return options;
}

// The state as one device has it after each step.
class OneDevice {
 public:
  explicit OneDevice(const Graph& graph) : graph_(graph) {}

  // The loss of a step after the state of the one before it.
  double train(int step, int microbatches) {
    Executor executor(lower_single(graph_, microbatches), state_);
    if (step == 1) after_[0] = copies_of(*state_);
    for (const auto& [name, tensor] : after_.at(step - 1)) state_->write(name, tensor);
    const double loss = train_step(executor, step, microbatches);
    after_[step] = copies_of(*state_);
    return loss;
  }

 private:
  const Graph& graph_;
  std::shared_ptr<StateStore> state_ = reference_state(5);
  std::map<int, Copies> after_;
};

}  // namespace

TEST_CASE("state that only lost members had comes back from snapshots in memory", "[recovery runs]") {
  const Graph graph = trained_gpt(kSizes, DType::f64);
  std::mt19937 random(20);
  int from_live = 0, from_snapshots = 0;
  for (int run = 0; run < 6; ++run) {
    const Scratch scratch;
    OneDevice alone(graph);
    std::vector<Member> members(kMostMembers);
    int64_t step = 0;  // that the run has come to
    std::optional<int64_t> kept;
    for (int generation = 1; generation <= 6; ++generation) {
      Plan plan = random_plan(random, kLayersOfModel, kSizes.samples, true);
      while (static_cast<int>(devices_of(plan).size()) > kMostMembers)
        plan = random_plan(random, kLayersOfModel, kSizes.samples, true);
      const int ranks = static_cast<int>(devices_of(plan).size()), microbatches = microbatches_of(plan);
      INFO("run " << run << ", generation " << generation << ": " << to_lua(plan));
      const int steps = static_cast<int>(random() % 4), taken_after = static_cast<int>(random() % 2);
      std::vector<int64_t> began(kMostMembers, -1), snapshots(kMostMembers, -1);
      std::vector<std::vector<double>> losses(kMostMembers);
      std::vector<char> recovered(kMostMembers, 0);
      // Members beyond the plan only bring what they have.
      on_ranks(make_loopback(kMostMembers), [&](int r, const auto& fabric) {
        const auto at = static_cast<size_t>(r);
        Member& member = members[at];
        if (member.snapshots == nullptr) {
          RunSnapshots::Options options;
          options.run = "run";
          options.memory_folder = scratch.path("memory");
          member.snapshots = std::make_shared<RunSnapshots>(options);
        }
        std::vector<int> in_plan(static_cast<size_t>(ranks));
        std::iota(in_plan.begin(), in_plan.end(), 0);
        const auto groups = std::make_shared<Groups>(fabric, "", nullptr, in_plan);
        const auto world = fabric->group("everyone", all_ranks(*fabric));
        std::optional<Program> program;
        if (groups->rank() >= 0) program = lower(graph, plan, groups->rank(), true);
        const auto needs = program ? needs_of(*program) : std::vector<StatePart>{};
        const auto restored =
            restore(*world, *member.state, nullptr, needs, options_of(member, generation, r));
        began[at] = restored ? restored->version.step : 0;
        recovered[at] = restored && restored->recovery;
        if (recovered[at]) member.snapshots->keep(restored->version);
        if (!restored) member.state->begin_generation(generation);
        const StateLayout layout = layout_of(world.get(), needs);
        member.snapshots->follow(layout, r, std::vector<ReplicaPeer>(kMostMembers, {"", "here", "", "", 0}),
                                 to_lua(plan));
        const int taking = std::min(steps, 1 + taken_after);
        std::optional<Executor> executor;
        if (program) executor.emplace(*std::move(program), member.state, groups);
        for (int s = 0; s <= steps; ++s) {
          if (executor && s > 0)
            losses[at].push_back(train_step(*executor, static_cast<int>(began[at]) + s, microbatches));
          if (s != taking || s == 0) continue;
          // Those without a part of the plan have nothing to write.
          const auto task = member.snapshots->take(*member.state, true, false, {}).memory;
          task->wait();
          snapshots[at] = began[at] + s;
          CollectiveRequest barrier;
          run_once(*world, barrier, nullptr, nullptr);
          member.snapshots->keep(task->version());
          member.snapshots->remove_older();
        }
      });
      for (int r = 0; r < kMostMembers; ++r) {
        INFO("rank " << r);
        CHECK(began[static_cast<size_t>(r)] == began[0]);
        CHECK(recovered[static_cast<size_t>(r)] == recovered[0]);
      }
      if (generation > 1) (recovered[0] ? from_snapshots : from_live) += 1;
      // All of it is of a step that was decided, and no older than the last whole snapshot.
      CHECK(began[0] <= step);
      if (kept) CHECK(began[0] >= *kept);
      if (!recovered[0] && generation > 1) CHECK(began[0] == step);
      for (int s = 1; s <= steps; ++s) {
        const double loss = alone.train(static_cast<int>(began[0]) + s, microbatches);
        for (int r = 0; r < ranks; ++r)
          CHECK(losses[static_cast<size_t>(r)][static_cast<size_t>(s - 1)] == Approx(loss).epsilon(1e-10));
      }
      step = began[0] + steps;
      if (snapshots[0] > 0) kept = snapshots[0];
      // Some members die, and come again without their state.
      if (!kept) continue;
      const unsigned dead = random() % (1U << kMostMembers);
      for (int r = 0; r < kMostMembers; ++r)
        if ((dead >> r & 1U) != 0) members[static_cast<size_t>(r)] = Member{};
    }
  }
  CHECK(from_live >= 3);
  CHECK(from_snapshots >= 10);
}
