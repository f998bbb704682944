// The synthesiser's problem as an assignment problem: its optimum by two other solvers, and what it bounds.
#include <catch2/catch.hpp>

#include "planner/assignment/linear.h"
#include "planner/assignment/solve.h"
#include "planner/hap/assignment.h"
#include "planner/hap/check.h"
#include "planner/hap/ratios.h"
#include "tests/unit/planner/hap_testing.h"

using namespace het;
using namespace het::testing;
using namespace het::testing::sharded;
using namespace het::planner;
using namespace het::planner::hap;

TEST_CASE("the assignment problem of a graph has the optimum that the search finds", "[hap]") {
  const int trials = trials_or(300);
  int sharded = 0, linear = 0, found_by_few = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 6151 + 5);
    const bool adapted = trial % 3 == 2;
    const Graph graph = random_model(seed + 5000, static_cast<int>(draw.below(7)), adapted);
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 6 + static_cast<double>(draw.below(40)) / 10);
    const DeviceGroup group(small_cluster(2 + static_cast<int>(draw.below(3)), bandwidth, draw.below(2) == 0),
                            Precision::f32);
    const bool priced = trial % 2 == 1;  // memory, too
    ShardingCosts costs(table, group, static_cast<int>(1 + draw.below(3)), priced);
    std::vector<double> prices;
    for (int kind = 0; priced && kind < group.kinds(); ++kind)
      prices.push_back(static_cast<double>(draw.below(4)) *
                       std::pow(10.0, static_cast<double>(draw.below(5))));
    costs.set_memory_prices(prices);
    MaybeShares shares = proportional_shares(group);
    for (int64_t& share : *shares) share = 1 + draw.below(3);
    if (trial % 5 == 4) shares.reset();  // what any shares cost at least
    SearchOptions options;
    if (trial % 7 == 6)  // state that can be cut along its rows is
      options.allows_state = [&](ValueId id, PlacementId lies) {
        const auto& placements = table.placements(id);
        if (lies != kReplicated) return placements[lies].dim == 0;
        for (size_t p = kPartial + 1; p < placements.size(); ++p)
          if (placements[p].dim == 0 && costs.fills(id, static_cast<PlacementId>(p), shares)) return false;
        return true;
      };
    INFO("seed " << seed);
    const SearchResult found = search(costs, shares, options);
    REQUIRE(found.found);
    REQUIRE(found.bound == found.cost);
    const AssignmentView view = as_assignment(costs, shares, options);
    CHECK(view.exact);
    const assignment::AssignmentResult best = assignment::solve(view.problem);
    REQUIRE(best.optimal);
    REQUIRE(best.feasible);
    CHECK(best.bound == found.cost);
    CHECK(best.cost == found.cost);
    // The least that any shares cost may be of no program. And program_of() has parameters that are not
    // trained whole, which with prices of memory may cost more.
    const std::vector<int> ways = view.ways_of(best.choice, graph.nodes.size());
    if (shares && !options.allows_state && !(adapted && priced)) {
      const auto program = program_of(costs, *shares, ways);
      REQUIRE(program);
      CHECK(costs.program(*program) + held_by(costs, *program) == found.cost);
      sharded += program->conversions.empty() ? 0 : 1;
    }
    // Where the search may look at no states it keeps few of them, and proves the optimum otherwise.
    ShardingCosts wide = costs;
    SearchOptions few = options;
    few.most_looked_at = 0;
    const SearchResult near = search(wide, shares, few);
    CHECK(wide.is_wide());
    REQUIRE(near.found);
    CHECK(near.cost >= found.cost);
    CHECK(near.bound <= found.cost);
    found_by_few += near.cost == found.cost ? 1 : 0;
    const SearchResult proven = search_assignment(wide, shares, options);
    CHECK(proven.cost <= found.cost + found.cost / 1'000'000);
    CHECK(proven.cost >= found.cost);
    CHECK(proven.bound <= found.cost);
    CHECK(proven.bound >= found.cost - found.cost / 1'000'000);
    size_t strategies = 0;
    for (const assignment::AssignmentNode& node : view.problem.nodes) strategies += node.costs.size();
    constexpr size_t kFew = 200;
    if (strategies > kFew) continue;
    const auto relaxed = assignment::linear_program_of(view.problem, true),
               whole = assignment::linear_program_of(view.problem);
    const auto cost = static_cast<double>(found.cost);
    CHECK(solve(relaxed.program).objective * relaxed.unit <= cost * (1 + 1e-9));
    const LinearSolution by_glpk = solve(whole.program);
    REQUIRE(by_glpk.optimal);
    CHECK(by_glpk.objective * whole.unit == Approx(cost).epsilon(1e-9));
    CHECK(evaluate(view.problem, whole.choice_of(by_glpk)).cost == found.cost);
    ++linear;
  }
  CHECK(found_by_few > trials / 2);
  CHECK(sharded > trials / 4);
  CHECK(linear > trials / 10);
}

TEST_CASE("a check proves the cheapest program and refutes a dearer one", "[hap]") {
  int dearer = 0;
  const int trials = trials_or(40);
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 7919 + 3);
    const Graph graph = random_model(seed + 9000, static_cast<int>(draw.below(5)));
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 6 + static_cast<double>(draw.below(40)) / 10);
    const int devices = trial % 2 == 0 ? 4 : 2;  // two have a sample each: data parallelism is dearer
    const DeviceGroup group(small_cluster(devices, bandwidth, draw.below(2) == 0), Precision::f32);
    const Request request{&table, &group};
    INFO("seed " << seed);
    const Answer answer = synthesise(request);
    REQUIRE(answer.best.found());
    const Check proof = check(request, answer.best);
    CHECK(proof.checked == answer.best.cost);
    CHECK(proof.bound == answer.best.cost);
    CHECK(proof.is_exact());
    REQUIRE(proof.linear_bound > 0);
    CHECK(proof.linear_bound <= proof.bound);
    std::string problem;
    const Synthesised even = baseline(request, Baseline::even_data, problem);
    if (!even.found()) continue;
    CheckOptions without_linear;
    without_linear.most_linear_entries = 0;
    const Check other = check(request, even, without_linear);
    CHECK(other.linear_bound == 0);
    CHECK(other.checked == even.cost);
    CHECK(other.bound <= even.cost);
    dearer += other.bound < even.cost ? 1 : 0;
  }
  CHECK(dearer > trials / 4);
}
