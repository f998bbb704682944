// The solver of assignment problems against brute force, its reader, and what it refuses.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "planner/assignment/dual.h"
#include "planner/assignment/linear.h"
#include "planner/assignment/presolve.h"
#include "planner/assignment/search.h"
#include "planner/assignment/solve.h"
#include "tests/fuzz/instance.h"
#include "tests/fuzz/mutated.h"

using namespace het;
using namespace het::planner::assignment;

namespace {

constexpr const char* kExample = R"({"problem": {"name": "example", "nodes": {
  "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
  "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
  "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]]},
 "edges": {"nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
  "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]]},
 "usage_limit": 50}, "solution": [0, 0, 2, 1, 0]})";

// Small enough for brute force; with limits, edges of up to three nodes, forbidden costs and edges that tie
// nodes.
AssignmentProblem random_problem(std::mt19937& random, int most_nodes, bool negative) {
  AssignmentProblem problem;
  const auto draw = [&](int below) { return static_cast<int64_t>(random() % static_cast<uint32_t>(below)); };
  const auto cost = [&]() -> int64_t {
    return draw(12) == 0 ? kForbiddenCost : draw(100) - (negative ? 50 : 0);
  };
  const int64_t count = 1 + draw(most_nodes);
  for (int64_t i = 0; i < count; ++i) {
    AssignmentNode node;
    node.begin = draw(8);
    node.end = node.begin + draw(6);
    for (int64_t s = 1 + draw(4); s > 0; --s) {
      node.costs.push_back(draw(20) == 0 ? cost() : draw(50));
      node.usages.push_back(draw(20));
    }
    problem.nodes.push_back(std::move(node));
  }
  for (int64_t e = draw(static_cast<int>(2 * count + 1)); e > 0; --e) {
    AssignmentEdge edge;
    size_t combinations = 1;
    for (int64_t k = draw(10) == 0 ? draw(4) : 2; k > 0; --k) {
      edge.nodes.push_back(static_cast<int>(draw(static_cast<int>(count))));
      combinations *= problem.nodes[static_cast<size_t>(edge.nodes.back())].costs.size();
    }
    const bool ties = draw(4) == 0;
    for (size_t c = 0; c < combinations; ++c)
      edge.costs.push_back(ties && draw(2) == 0 ? kForbiddenCost : cost());
    problem.edges.push_back(std::move(edge));
  }
  if (draw(5) != 0) problem.usage_limit = draw(static_cast<int>(10 * count + 10));
  return problem;
}

// The least cost of all choices; none is feasible: nothing.
std::optional<WideCost> brute_force(const AssignmentProblem& problem) {
  std::optional<WideCost> best;
  std::vector<int> choice(problem.nodes.size(), 0);
  for (size_t i = 0; i < choice.size();) {
    const Evaluation found = evaluate(problem, choice);
    if (found.feasible && (!best || found.cost < *best)) best = found.cost;
    for (i = 0; i < choice.size(); ++i) {
      if (++choice[i] < std::ssize(problem.nodes[i].costs)) break;
      choice[i] = 0;
    }
  }
  return best;
}

std::string refusal(const std::string& text) {
  try {
    parse_instance(text, "instance.json");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = kExample;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// A chain with chords, too large for brute force: variables of 2 to 6 strategies under a tight limit.
AssignmentProblem chain(int count, uint32_t seed) {
  std::mt19937 random(seed);
  AssignmentProblem problem;
  int64_t least = 0, most = 0;
  for (int i = 0; i < count; ++i) {
    AssignmentNode node;
    node.begin = i;
    node.end = i + 4;
    const uint32_t strategies = 2 + random() % 5;
    for (uint32_t s = 0; s < strategies; ++s) {
      node.costs.push_back(1000 * s + random() % 500);
      node.usages.push_back(100 * (strategies - s) + random() % 30);
    }
    least += node.usages.back();
    most += node.usages.front();
    problem.nodes.push_back(std::move(node));
  }
  problem.usage_limit = 4 * (least + (most - least) / 3) / count;
  for (int i = 0; i < count; ++i)
    for (const int step : {1, 3, 7}) {
      if (i + step >= count) continue;
      AssignmentEdge edge{{i, i + step}, {}};
      const size_t combinations = problem.nodes[static_cast<size_t>(i)].costs.size() *
                                  problem.nodes[static_cast<size_t>(i + step)].costs.size();
      for (size_t c = 0; c < combinations; ++c) edge.costs.push_back(random() % 2000);
      problem.edges.push_back(std::move(edge));
    }
  return problem;
}

// The optimum of a chain: an edge and the usage of a time reach over 7 nodes at most, so the last 7 choices
// are a state.
int64_t chain_optimum(const AssignmentProblem& problem) {
  const int count = static_cast<int>(problem.nodes.size());
  constexpr int kReach = 7;
  constexpr int64_t kNone = int64_t{1} << 60;
  const auto size = [&](int node) {
    return node < 0 ? size_t{1} : problem.nodes[static_cast<size_t>(node)].costs.size();
  };
  std::vector<std::vector<const AssignmentEdge*>> into(problem.nodes.size());
  for (const AssignmentEdge& edge : problem.edges) into[static_cast<size_t>(edge.nodes[1])].push_back(&edge);
  std::vector<int64_t> least{0};  // by the choices of the last 7 nodes, the latest varies fastest
  for (int i = 0; i < count; ++i) {
    const AssignmentNode& node = problem.nodes[static_cast<size_t>(i)];
    const size_t recent = least.size() / size(i - kReach);
    std::vector<int64_t> next(recent * size(i), kNone);
    for (size_t state = 0; state < least.size(); ++state) {
      if (least[state] == kNone) continue;
      size_t choice[kReach], rest = state;
      for (int k = kReach; k-- > 0;) {
        choice[k] = rest % size(i - kReach + k);
        rest /= size(i - kReach + k);
      }
      for (size_t s = 0; s < size(i); ++s) {
        int64_t cost = least[state] + node.costs[s], usage = node.usages[s];
        for (const AssignmentEdge* edge : into[static_cast<size_t>(i)])
          cost += edge->costs[choice[kReach - (i - edge->nodes[0])] * size(i) + s];
        for (int k = 1; k <= 3 && i - k >= 0; ++k)
          usage += problem.nodes[static_cast<size_t>(i - k)].usages[choice[kReach - k]];
        int64_t& entry = next[state % recent * size(i) + s];
        if (usage <= *problem.usage_limit) entry = std::min(entry, cost);
      }
    }
    least = std::move(next);
  }
  return *std::min_element(least.begin(), least.end());
}

}  // namespace

TEST_CASE("the contest's example costs what its text says, and is solved to the optimum") {
  const AssignmentProblem problem = parse_instance(kExample, "example.json");
  CHECK(problem.name == "example");
  CHECK(evaluate(problem, {0, 1, 2, 0, 0}).cost == 495);
  CHECK(evaluate(problem, {0, 1, 2, 0, 0}).feasible);
  CHECK_FALSE(evaluate(problem, {0, 0, 1, 1, 0}).feasible);
  CHECK(evaluate(problem, {0, 0, 1, 1, 0}).cost == 415);
  CHECK(evaluate(problem, {0, 0, 1, 1, 0}).peak_usage == 55);
  CHECK(evaluate(problem, {0, 0, 1, 1, 0}).peak_time == 50);
  const AssignmentResult result = solve(problem);
  CHECK(result.optimal);
  CHECK(result.choice == std::vector<int>{0, 0, 2, 1, 0});
  CHECK(to_text(result.cost) == "445");
  CHECK(to_text(result.bound) == "445");
  CHECK(result.peak_usage == 50);
}

TEST_CASE("the cost of small random problems is the optimum, and the bound is never above it") {
  int feasible = 0, forbidden = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const AssignmentProblem problem = random_problem(random, 8, seed % 3 == 0);
    const std::optional<WideCost> best = brute_force(problem);
    SolveOptions options;
    options.seed = seed;
    const AssignmentResult result = solve(problem, options);
    INFO("seed " << seed << ", " << result.why_not);
    REQUIRE(result.feasible == best.has_value());
    REQUIRE(result.optimal);
    if (!best) {
      CHECK_FALSE(result.why_not.empty());
      continue;
    }
    ++feasible;
    forbidden += *best >= kForbiddenCost ? 1 : 0;
    CHECK(to_text(result.cost) == to_text(*best));
    CHECK(evaluate(problem, result.choice).cost == *best);
    CHECK(evaluate(problem, result.choice).feasible);
    REQUIRE(result.has_bound);
    CHECK(result.bound <= *best);
  }
  CHECK(feasible > 300);
  CHECK(forbidden > 50);
}

TEST_CASE("an optimum is proven to the last unit where some costs have ten digits more than others") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    AssignmentProblem problem = random_problem(random, 6, false);
    const auto enlarge = [&](std::vector<int64_t>& costs) {
      for (int64_t& cost : costs)
        if (cost < kForbiddenCost && random() % 3 == 0) cost += int64_t{10'000'000} * (random() % 100'000);
    };
    for (AssignmentNode& node : problem.nodes) enlarge(node.costs);
    for (AssignmentEdge& edge : problem.edges) enlarge(edge.costs);
    const std::optional<WideCost> best = brute_force(problem);
    const AssignmentResult result = solve(problem);
    INFO("seed " << seed);
    REQUIRE(result.feasible == best.has_value());
    if (!best) continue;
    CHECK(to_text(result.cost) == to_text(*best));
    CHECK(result.bound <= *best);
    CHECK((result.not_allowed > 0) == (*best >= kForbiddenCost));
  }
}

TEST_CASE("the 0/1 program of a small problem has its optimum, and the relaxation is not above it") {
  int feasible = 0, infeasible = 0;
  for (uint32_t seed = 2000; seed < 2200; ++seed) {
    std::mt19937 random(seed);
    const AssignmentProblem problem = random_problem(random, 5, seed % 3 == 0);
    const std::optional<WideCost> best = brute_force(problem);
    const LinearAssignment linear = linear_program_of(problem);
    const het::planner::LinearSolution found = het::planner::solve(linear.program);
    INFO("seed " << seed);
    REQUIRE(found.feasible == (best && *best < kForbiddenCost / 2));
    if (!found.feasible) {
      ++infeasible;
      continue;
    }
    ++feasible;
    REQUIRE(found.optimal);
    CHECK(found.objective * linear.unit == Approx(static_cast<double>(*best)).margin(1e-6));
    CHECK(evaluate(problem, linear.choice_of(found)).cost == *best);
    CHECK(evaluate(problem, linear.choice_of(found)).feasible);
    const LinearAssignment relaxed = linear_program_of(problem, true);
    CHECK(het::planner::solve(relaxed.program).objective * relaxed.unit <= static_cast<double>(*best) + 1e-6);
  }
  CHECK(feasible > 80);
  CHECK(infeasible > 20);
}

TEST_CASE("presolve keeps the optimum: the best choice of what is left is the best of the whole") {
  for (uint32_t seed = 1000; seed < 1200; ++seed) {
    std::mt19937 random(seed);
    AssignmentProblem problem = random_problem(random, 7, false);
    const std::optional<WideCost> best = brute_force(problem);
    INFO("seed " << seed);
    const Clock clock(3600, {});
    const Reduction reduction(build_network(problem, Forbidden::count), clock);
    REQUIRE(reduction.infeasible() == !best.has_value());
    if (!best) continue;
    // The choices of the reduced network by brute force.
    const Network& network = reduction.network();
    std::optional<WideCost> found;
    std::vector<int> choice(network.variables.size(), 0);
    for (bool more = true; more;) {
      if (fits(network, usage_of(network, choice)) && !is_blocked(cost_of(network, choice))) {
        std::vector<int> whole = reduction.expand(choice);
        whole.resize(problem.nodes.size());
        const Evaluation evaluation = evaluate(problem, whole);
        CHECK(evaluation.feasible);
        if (!found || evaluation.cost < *found) found = evaluation.cost;
      }
      more = false;
      for (size_t i = 0; i < choice.size() && !more; ++i) {
        more = ++choice[i] < network.size(static_cast<int>(i));
        if (!more) choice[i] = 0;
      }
    }
    REQUIRE(found.has_value());
    CHECK(to_text(*found) == to_text(*best));
  }
}

TEST_CASE("reparametrisation raises the sum of least costs and changes no choice's cost") {
  const AssignmentProblem problem = chain(60, 5);
  Network network = build_network(problem, Forbidden::block);
  std::mt19937 random(3);
  std::vector<std::vector<int>> choices(20);
  std::vector<double> before;
  for (std::vector<int>& choice : choices) {
    for (size_t v = 0; v < network.variables.size(); ++v)
      choice.push_back(static_cast<int>(random() % network.variables[v].cost.size()));
    before.push_back(cost_of(network, choice));
  }
  size_t strategies = 0;
  for (const NetworkVariable& variable : network.variables) strategies += variable.cost.size();
  const Clock clock(3600, {});
  const double start = reparametrise(network, std::vector<double>(strategies, 0.0), 0, clock);
  const double after = reparametrise(network, std::vector<double>(strategies, 0.0), 30, clock);
  CHECK(after > start);
  for (size_t i = 0; i < choices.size(); ++i) {
    CHECK(cost_of(network, choices[i]) == Approx(before[i]).epsilon(1e-9));
    CHECK(after <= before[i]);
  }
}

TEST_CASE(
    "elimination with small tables bounds, with held variables improves, and with large tables is exact") {
  const AssignmentProblem problem = chain(40, 9);
  const Network network = build_network(problem, Forbidden::block);
  PairModel model;
  std::vector<double> unary;
  for (const NetworkVariable& variable : network.variables) {
    model.sizes.push_back(static_cast<int>(variable.cost.size()));
    unary.insert(unary.end(), variable.cost.begin(), variable.cost.end());
  }
  for (const PairCost& pair : network.pairs) model.pairs.push_back({pair.a, pair.b, pair.cost.data()});
  const Clock clock(3600, {});
  Random random(1);
  std::vector<int> choice(network.variables.size(), 0);
  double least = 0;
  Elimination whole(model, 1e9, TooLarge::split, random, &clock, 1e9);
  REQUIRE(whole.exact());
  REQUIRE(whole.run(unary, choice, clock, least));
  CHECK(cost_of(network, choice) == Approx(least));
  for (const double entries : {30.0, 300.0, 3000.0}) {
    INFO("tables of " << entries);
    std::vector<int> other(choice.size(), 0);
    double bound = 0, held = 0;
    Elimination split(model, entries, TooLarge::split, random);
    REQUIRE(split.run(unary, other, clock, bound));
    CHECK(bound <= least + 1e-6);
    CHECK(cost_of(network, other) >= least - 1e-6);
    other.assign(choice.size(), 0);
    const double start = cost_of(network, other);
    Elimination holding(model, entries, TooLarge::hold, random);
    CHECK_FALSE(holding.held().empty());
    REQUIRE(holding.run(unary, other, clock, held));
    CHECK(cost_of(network, other) == Approx(held));
    CHECK(held <= start);
    CHECK(held >= least - 1e-6);
    for (const int v : holding.held()) CHECK(other[static_cast<size_t>(v)] == 0);
  }
}

TEST_CASE(
    "a solver that is stopped at any moment returns a choice that fits, and a bound below the optimum") {
  const AssignmentProblem problem = chain(40, 11);
  const int64_t optimum = chain_optimum(problem);
  for (const int most : {1, 10, 100, 1000}) {
    int asked = 0;
    SolveOptions options;
    options.stop = [&] { return ++asked > most; };
    const AssignmentResult result = solve(problem, options);
    INFO("optimum " << optimum << ", cost " << to_text(result.cost) << ", bound " << to_text(result.bound));
    if (result.has_bound) CHECK(result.bound <= optimum);
    if (result.feasible) {
      CHECK(evaluate(problem, result.choice).feasible);
      CHECK(evaluate(problem, result.choice).cost == result.cost);
      CHECK(result.cost >= optimum);
    } else {
      CHECK_FALSE(result.why_not.empty());
    }
    if (most == 1000) CHECK(result.feasible);
  }
}

TEST_CASE("local search leaves choices that do not fit, and comes near the optimum of dynamic programming") {
  for (const uint32_t seed : {13u, 14u}) {
    const AssignmentProblem problem = chain(60, seed);
    const auto optimum = static_cast<double>(chain_optimum(problem));
    const Network network = build_network(problem, Forbidden::block);
    Search search(network, seed);
    // The cheapest strategies alone exceed the limit.
    const std::vector<int> cheapest(network.variables.size(), 0);
    CHECK_FALSE(search.offer(cheapest));
    CHECK_FALSE(search.found());
    search.start(cheapest);
    const Clock clock(3600, {});
    REQUIRE(search.repair(clock));
    REQUIRE(search.found());
    CHECK(fits(network, usage_of(network, search.best())));
    int asked = 0;
    const Clock some(3600, [&] { return ++asked > 20'000; });
    search.run(some, optimum, 1e9);
    INFO("seed " << seed << ", optimum " << optimum << ", found " << search.best_cost());
    CHECK(fits(network, usage_of(network, search.best())));
    CHECK(search.best_cost() == Approx(cost_of(network, search.best())));
    CHECK(search.best_cost() >= optimum);
    CHECK(search.best_cost() <= 1.03 * optimum);
  }
}

TEST_CASE("crossing two choices takes the better side of each piece in which they differ, where it fits") {
  std::mt19937 random(3);
  int better_than_both = 0, did_not_fit = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const AssignmentProblem problem = chain(60, static_cast<uint32_t>(trial + 1));
    const Network network = build_network(problem, Forbidden::block);
    // Two choices that fit: each strategy uses less than the one before.
    const auto draw = [&] {
      std::vector<int> choice;
      for (const NetworkVariable& variable : network.variables)
        choice.push_back(static_cast<int>(variable.cost.size() - 1));
      for (int change = 0; change < 12; ++change) {
        const size_t v = random() % choice.size();
        const int before = choice[v];
        choice[v] = static_cast<int>(random() % network.variables[v].cost.size());
        if (!fits(network, usage_of(network, choice))) choice[v] = before;
      }
      return choice;
    };
    const std::vector<int> mine = draw(), other = draw();
    Search search(network, 1);
    search.start(mine);
    search.cross(other);
    REQUIRE(search.found());
    const std::vector<int>& crossed = search.state();
    CHECK(fits(network, usage_of(network, crossed)));
    CHECK(search.cost() == Approx(cost_of(network, crossed)));
    CHECK(search.best_cost() == Approx(std::min(cost_of(network, mine), cost_of(network, crossed))));
    // What each piece gains, found by changing it alone.
    std::vector<char> seen(mine.size(), 0);
    double gains = 0;
    bool all_fit = true;
    for (size_t first = 0; first < mine.size(); ++first) {
      if (seen[first] || mine[first] == other[first]) continue;
      std::vector<size_t> piece{first};
      seen[first] = 1;
      for (size_t i = 0; i < piece.size(); ++i)
        for (const PairCost& pair : network.pairs)
          for (const auto& [a, b] : {std::pair(pair.a, pair.b), std::pair(pair.b, pair.a)}) {
            const auto from = static_cast<size_t>(a), to = static_cast<size_t>(b);
            if (from != piece[i] || seen[to] || mine[to] == other[to]) continue;
            seen[to] = 1;
            piece.push_back(to);
          }
      std::vector<int> changed = other;
      for (const size_t v : piece) changed[v] = mine[v];
      const double gain = cost_of(network, other) - cost_of(network, changed);
      const bool taken =
          std::all_of(piece.begin(), piece.end(), [&](size_t v) { return crossed[v] == mine[v]; });
      const bool left =
          std::all_of(piece.begin(), piece.end(), [&](size_t v) { return crossed[v] == other[v]; });
      CHECK((taken || left));
      if (gain <= 0) CHECK(left);
      if (gain > 0 && left) all_fit = false;
      if (taken) gains += gain;
    }
    CHECK(search.cost() == Approx(cost_of(network, other) - gains));
    did_not_fit += all_fit ? 0 : 1;
    better_than_both += search.cost() < std::min(cost_of(network, mine), cost_of(network, other)) - 1 ? 1 : 0;
  }
  CHECK(better_than_both > 50);
  CHECK(did_not_fit > 0);
}

TEST_CASE("a search on several threads keeps to the limit, and its bound to the optimum") {
  for (const uint32_t seed : {21u, 22u}) {
    const AssignmentProblem problem = chain(60, seed);
    SolveOptions options;
    options.seconds = 2;
    options.threads = 3;
    const AssignmentResult found = solve(problem, options);
    REQUIRE(found.feasible);
    const Evaluation evaluated = evaluate(problem, found.choice);
    CHECK(evaluated.feasible);
    CHECK(evaluated.cost == found.cost);
    const int64_t optimum = chain_optimum(problem);
    CHECK(found.cost >= optimum);
    CHECK(found.bound <= optimum);
  }
}

TEST_CASE("a solver that is limited by steps finds the same on slow machines") {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const AssignmentProblem problem = chain(150, seed);
    SolveOptions options;
    options.steps = 150;
    const AssignmentResult found = solve(problem, options);
    int64_t asked = 0;
    options.stop = [&] {
      if (++asked % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      return false;
    };
    const AssignmentResult slow = solve(problem, options);
    INFO("seed " << seed);
    CHECK(asked > 20);
    CHECK(slow.choice == found.choice);
    CHECK(slow.bound == found.bound);
    CHECK(slow.moves == found.moves);
    CHECK(slow.optimal == found.optimal);
  }
}

TEST_CASE("a search that is asked to end at once keeps the choice that was decided variable by variable") {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    const AssignmentProblem problem = chain(150, seed);
    SolveOptions options;
    options.stop = [] { return true; };
    const AssignmentResult found = solve(problem, options);
    REQUIRE(found.feasible);
    CHECK(evaluate(problem, found.choice).feasible);
    CHECK(evaluate(problem, found.choice).cost == found.cost);
  }
}

TEST_CASE("a choice as near the optimum as was asked for ends the search") {
  const auto asked = [](double gap) {
    int64_t count = 0;
    SolveOptions options;
    options.steps = 400;
    options.gap = gap;
    options.stop = [&] { return ++count < 0; };
    const AssignmentResult near = solve(chain(150, 2), options);
    CHECK(near.gap() <= std::max(gap, 0.3));
    return count;
  };
  CHECK(asked(0.3) < asked(0) / 2);
  int found = 0;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const AssignmentProblem problem = random_problem(random, 8, false);
    const std::optional<WideCost> best = brute_force(problem);
    SolveOptions options;
    options.gap = 0.2;
    const AssignmentResult near = solve(problem, options);
    INFO("seed " << seed);
    REQUIRE(near.feasible == best.has_value());
    if (!best || *best >= kForbiddenCost) continue;
    CHECK(near.bound <= *best);
    CHECK(near.cost >= *best);
    CHECK(near.gap() <= 0.2);
    ++found;
  }
  CHECK(found > 50);
}

TEST_CASE("costs of 10^18 are avoided where they can be, and counted where they cannot") {
  AssignmentProblem problem;
  problem.nodes = {{0, 1, {0, 5}, {1, 0}}, {0, 1, {0, 0}, {0, 0}}};
  problem.edges = {{{0, 1}, {kForbiddenCost, kForbiddenCost, 7, kForbiddenCost}}};
  CHECK(to_text(solve(problem).cost) == "12");
  problem.edges[0].costs = {kForbiddenCost + 3, kForbiddenCost + 2, 3 * kForbiddenCost, 2 * kForbiddenCost};
  CHECK(to_text(solve(problem).cost) == "1000000000000000002");
  problem.usage_limit = 0;
  CHECK(to_text(solve(problem).cost) == "2000000000000000005");
}

TEST_CASE("a limit below what everyone uses at least is refused with the time") {
  AssignmentProblem problem = parse_instance(kExample, "example.json");
  problem.usage_limit = 49;
  const AssignmentResult result = solve(problem);
  CHECK_FALSE(result.feasible);
  CHECK(result.optimal);
  CHECK(result.why_not == "at time 50 the nodes use 50 at least, which is 1 above the limit 49");
}

TEST_CASE("a malformed instance is refused, and the message names the place") {
  for (const auto& [text, words] : {
           std::pair(with("[55, 65]", "[55]"), "node 1 has 1 costs but 2 usages"),
           {with("[55, 65]", "[]"), "node 1 has no strategies"},
           {with("[25, 25]", "[25, -1]"), "node 1, strategy 1 has the usage -1"},
           {with("[30, 70]", "[70, 30]"), "node 0 has the interval [70, 30]"},
           {with("[30, 70]", "[30]"), "problem.nodes.intervals[0] has 1 numbers"},
           {with("[30, 40]", "[30, 40, 50]"),
            "edge 0 has 3 costs; the strategies of its nodes combine in 2 ways"},
           {with("[0, 1]", "[0, 5]"), "problem.edges.nodes[0] names node 5; nodes are 0 to 4"},
           {with("[30, 40]", "[30, 4x]"), "problem.edges.costs[0]"},
           {with("[30, 40]", "[30, 1.5]"), "problem.edges.costs[0][1]: 1.5 is not a whole number"},
           {with("[30, 40]", "[30, 99999999999999999999]"), "does not fit into 64 bits"},
           {with("[30, 40]", "[30, \"40\"]"), "problem.edges.costs[0][1]: a whole number is expected"},
           {with("\"usages\"", "\"use\""), "the field problem.nodes.usages is missing"},
           {with("\"problem\"", "\"question\""), "the field problem is missing"},
           {with("\"usage_limit\": 50", "\"usage_limit\": -50"), "the usage limit is -50"},
           {with("\"usage_limit\": 50", "\"name\": \"b\""), "the field problem.name appears twice"},
           {with(", [95]]", "]"), "5 intervals, 4 lists of costs"},
           {std::string(kExample).substr(0, 200), "the file ends"},
           {std::string(kExample) + "]", "the file goes on after its value"},
           {std::string("[1]"), "byte 0"},
           {std::string(), "byte 0"},
           {std::string(100'000, '['), "'{' is expected"},
           {"{\"a\": " + std::string(100'000, '[') + "}", "nested too deeply"},
       }) {
    INFO(text.substr(0, 100));
    CHECK_THAT(refusal(text), Catch::Contains(words));
  }
  CHECK_THAT(refusal("{"), Catch::Contains("instance.json"));
  AssignmentProblem problem;
  CHECK_THROWS_AS(solve(problem), Error);
}

TEST_CASE("numbers that are whole are read in every form, and other fields are passed over") {
  const AssignmentProblem plain = parse_instance(kExample, "plain");
  CHECK(parse_instance(with("[55, 65]", "[5.5e1, 65.0]"), "decimal") == plain);
  CHECK(parse_instance(with("\"solution\"", "\"other\": {\"a\": [null, true, {}]}, \"solution\""), "other") ==
        plain);
  CHECK(parse_instance(with("[90, 10, 20, 80]", "[1e18, 10, 20, 80]"), "large").edges[2].costs[0] ==
        kForbiddenCost);
  CHECK(parse_instance("\xef\xbb\xbf" + std::string(kExample), "with a byte order mark") == plain);
  CHECK_FALSE(parse_instance(with("\"usage_limit\": 50", "\"usage_limit\": null"), "none").usage_limit);
}

TEST_CASE("changed instances are read or refused, never misread") {
  std::mt19937 random(17);
  const int count = fuzz::accepted(20'000, kExample, random, "[]{},:\"0123456789-e. ",
                                   [](const std::string& text) { return fuzz::instance(text); });
  CHECK(count > 0);
  CHECK(count < 20'000);
}

TEST_CASE("an optimum of few choices is proven where doubles cannot hold their costs") {
  AssignmentProblem problem;
  constexpr int64_t kLarge = 68'089'538'809'365'842;
  problem.nodes = {{0, 2, {kLarge, 3 * kLarge}, {2, 0}}, {0, 2, {kLarge + 1, kLarge}, {0, 0}}};
  problem.usage_limit = 1;
  const AssignmentResult result = solve(problem);
  CHECK(result.optimal);
  CHECK(result.choice == std::vector<int>{1, 1});
  CHECK(to_text(result.bound) == to_text(WideCost{4} * kLarge));
}

TEST_CASE("sums beyond 64 bits are exact") {
  AssignmentProblem problem;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 3; ++i) problem.nodes.push_back({0, 1, {kMost, kMost - 1}, {0, 0}});
  CHECK(to_text(evaluate(problem, {0, 0, 0}).cost) == "27670116110564327421");
  CHECK(to_text(-evaluate(problem, {0, 0, 1}).cost) == "-27670116110564327420");
  CHECK(to_text(0) == "0");
}
