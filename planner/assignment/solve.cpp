#include "planner/assignment/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/ranges.h>

#include "core/base/error.h"
#include "planner/assignment/branch.h"
#include "planner/assignment/dual.h"
#include "planner/assignment/presolve.h"
#include "planner/assignment/team.h"

namespace het::planner::assignment {
namespace {

// What one view of the problem, with forbidden costs blocked or counted, gives.
struct Outcome {
  std::vector<int> choice;                                  // of the nodes; empty: none was found
  double bound = -std::numeric_limits<double>::infinity();  // infinity: nothing is feasible
  bool proven = false;
};

class Solving {
 public:
  Solving(const AssignmentProblem& problem, const SolveOptions& options, const Clock& clock,
          AssignmentResult& result)
      : problem_(problem), options_(options), clock_(clock), result_(result) {}

  // `may_give_up`: while nothing is found, only this share of the time is used.
  Outcome run(Forbidden forbidden, bool may_give_up, double share) {
    const Clock& clock = clock_;
    Outcome outcome;
    constexpr double kPresolveShare = 0.2;
    Reduction reduction(build_network(problem_, forbidden),
                        clock.within(kPresolveShare * clock.seconds_left()));
    if (reduction.infeasible()) {
      outcome.bound = std::numeric_limits<double>::infinity();
      outcome.proven = true;
      return outcome;
    }
    Network network = reduction.take_network();
    result_.variables = static_cast<int>(network.variables.size());
    result_.pairs = static_cast<int>(network.pairs.size());
    result_.rows = static_cast<int>(network.capacity.size());
    if (network.variables.empty()) {
      outcome.choice = reduction.expand({});
      outcome.bound = network.constant;
      outcome.proven = true;
    } else {
      search(network, may_give_up ? clock.seconds_left() * (1 - share) : 0, outcome);
      if (!outcome.choice.empty()) outcome.choice = reduction.expand(outcome.choice);
    }
    if (!outcome.choice.empty()) outcome.choice.resize(problem_.nodes.size());
    return outcome;
  }

 private:
  // Prices are found with small tables, unless larger ones make the elimination exact; the bound is raised
  // with larger ones.
  void search(Network& network, double kept_seconds, Outcome& outcome) {
    const Clock& whole = clock_;
    Random random(options_.seed);
    std::optional<Dual> fine, quick;
    constexpr double kPatienceShare = 0.03;
    const int threads = options_.steps > 0 ? 1 : std::max(1, options_.threads);
    Team team(network, options_.seed, threads, kPatienceShare * whole.seconds_left(),
              [&](const Clock& now, std::vector<int>& start) {
                return (quick ? *quick : *fine).solve_nearby(random, now, start);
              });
    // Nothing is found: the time ends earlier.
    const Clock clock(whole, [&] { return whole.seconds_left() < kept_seconds && !team.found(); });
    auto no_starts = team.no_starts();
    Search& search = team.leader();
    search.construct();
    team.share();
    constexpr double kLargeTables = 1 << 20, kSmallTables = 1 << 12, kQuickWork = 1e8, kFewest = 200;
    // Of so few variables the order of elimination takes no time; of more than so many large tables take too
    // much.
    constexpr size_t kFew = 3000, kNotMany = 40'000;
    if (network.variables.size() <= kFew) fine.emplace(network, random, kLargeTables, clock);
    if (!fine || !fine->exact() || fine->elimination().work() > kQuickWork) {
      double entries = kSmallTables;
      do quick.emplace(network, random, entries, clock);
      while (quick->elimination().work() > kQuickWork && (entries /= 4) > kFewest);
    }
    Dual& coarse = quick ? *quick : *fine;
    const double all = clock.seconds_left();
    constexpr int kSweeps = 60;
    if (!coarse.exact()) coarse.tighten(kSweeps, clock.within(0.05 * all));
    int offers = 0;
    const Dual::Offer offer = [&](const std::vector<int>& choice, bool fitting) {
      constexpr int kEvery = 25, kEveryUntilFound = 8;
      if (fitting) {
        team.offer(choice);
      } else if (++offers % (team.found() ? kEvery : kEveryUntilFound) == 0) {
        constexpr double kRepairShare = 0.01;
        team.set_prices(coarse.prices());
        search.start(choice);
        search.repair(clock.within(kRepairShare * all));
        team.share();
      }
      return team.best_cost();
    };
    constexpr double kWhole = 0.999;  // costs are whole numbers
    const auto near = [&] { return wanted_gain(team.best_cost(), kWhole, options_.gap); };
    const auto bound = [&] { return fine ? std::max(fine->bound(), coarse.bound()) : coarse.bound(); };
    const auto proven = [&] {
      return is_blocked(bound()) || (team.found() && bound() >= team.best_cost() - near());
    };
    std::vector<int> choice;
    bool exhausted = false;
    const auto walk = [&](Dual& dual, int64_t most_nodes, const Clock& walking) {
      double lower = 0;
      if (!dual.solve_at_best(walking, choice, lower)) return false;
      Branching branching{&dual.elimination(), {},     network.capacity, choice,    lower,
                          team.best_cost(),    kWhole, options_.gap,     most_nodes};
      for (const NetworkVariable& variable : network.variables) branching.items.push_back(&variable.items);
      return branch_and_bound(std::move(branching), walking, [&](const std::vector<int>& better) {
        team.offer(better);
        return team.best_cost();
      });
    };
    constexpr int64_t kFewNodes = 20'000;
    if (!quick) exhausted = walk(*fine, kFewNodes, clock.within(0.05 * all));
    constexpr double kShares[] = {0.2, 0.3, 0.06, 1.0};  // dual, search, dual, search
    for (int phase = 0; phase < 4 && !clock.passed() && !exhausted && !proven(); ++phase) {
      const Clock part = clock.within(phase == 3 ? clock.seconds_left() : kShares[phase] * all);
      if (phase % 2 == 0) {
        coarse.run(part, offer, options_.gap);
        team.set_prices(coarse.prices());
        if (proven() || clock.passed()) break;
        constexpr double kFineShare = 0.04, kWalkShare = 0.02;
        if (quick && !coarse.exact() && network.variables.size() <= kNotMany) {
          const Clock refining = clock.within(kFineShare * all);
          if (!fine) fine.emplace(network, random, kLargeTables, clock);
          fine->set_prices(coarse.prices());
          fine->tighten(5, refining);
          fine->run(refining, offer, options_.gap);
        }
        constexpr int64_t kMostNodes = 3'000'000;
        if (!proven()) exhausted = walk(fine ? *fine : coarse, kMostNodes, clock.within(kWalkShare * all));
        continue;
      }
      // Some starts are better than others by more than the search makes up for: the cheapest of a few, those
      // among them that do not fit yet.
      constexpr int kStarts = 3;
      const Clock starting = part.within(0.1 * all);
      std::vector<int> start, nearby;
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kStarts && (phase == 1 || !team.found()) && !network.capacity.empty() &&
                      coarse.solve_nearby(random, starting, nearby);
           ++i) {
        team.offer(nearby);
        const double cost = cost_of(network, nearby);
        if (cost >= least) continue;
        least = cost;
        start = nearby;
      }
      const bool elsewhere = least < team.best_cost();
      if (elsewhere || !team.found()) {
        search.start(start.empty() ? std::vector<int>(network.variables.size(), 0) : start);
        constexpr double kRepairShare = 0.1;
        search.repair(part.within(kRepairShare * all));
      } else {
        search.start(team.best());
      }
      no_starts.unlock();
      if (phase == 1) team.begin(clock);
      team.run(part, bound() + near(), elsewhere);
      no_starts.lock();
    }
    outcome.bound = is_blocked(bound()) ? std::numeric_limits<double>::infinity() : bound();
    outcome.proven = exhausted || proven();
    if (team.found()) {
      outcome.choice = team.best();
      // No choice costs less by near(): none does at all where that is below the least difference.
      if (outcome.proven)
        outcome.bound = near() < 1 ? team.best_cost() : std::max(outcome.bound, team.best_cost() - near());
    } else if (exhausted) {
      outcome.bound = std::numeric_limits<double>::infinity();
    }
    result_.moves += team.moves();
  }

  const AssignmentProblem& problem_;
  const SolveOptions& options_;
  const Clock& clock_;
  AssignmentResult& result_;
};

bool has_forbidden(const AssignmentProblem& problem) {
  const auto any = [](const std::vector<int64_t>& costs) {
    return std::any_of(costs.begin(), costs.end(), [](int64_t cost) { return cost >= kForbiddenCost; });
  };
  return std::any_of(problem.nodes.begin(), problem.nodes.end(),
                     [&](const auto& node) { return any(node.costs); }) ||
         std::any_of(problem.edges.begin(), problem.edges.end(),
                     [&](const auto& edge) { return any(edge.costs); });
}

// What a choice with a forbidden cost costs at least.
double least_forbidden(const AssignmentProblem& problem) {
  double sum = static_cast<double>(kForbiddenCost);
  const auto add = [&](const std::vector<int64_t>& costs) {
    sum += static_cast<double>(std::min<int64_t>(0, *std::min_element(costs.begin(), costs.end())));
  };
  for (const AssignmentNode& node : problem.nodes) add(node.costs);
  for (const AssignmentEdge& edge : problem.edges) add(edge.costs);
  return sum;
}

WideCost rounded_up(double bound) { return static_cast<WideCost>(std::ceil(bound)); }

}  // namespace

double AssignmentResult::gap() const {
  if (!feasible || !has_bound || cost <= bound) return 0;
  const WideCost size = cost < 0 ? -cost : cost;
  return size == 0 ? 1 : static_cast<double>(cost - bound) / static_cast<double>(size);
}

namespace {

// The largest sum that costs can come to, forbidden ones left out.
double magnitude(const AssignmentProblem& problem) {
  double sum = 0;
  const auto add = [&](const auto& costs) {
    double most = 0;
    for (const auto cost : costs)
      if (std::abs(static_cast<double>(cost)) < static_cast<double>(kForbiddenCost))
        most = std::max(most, std::abs(static_cast<double>(cost)));
    sum += most;
  };
  for (const auto& node : problem.nodes) add(node.costs);
  for (const auto& edge : problem.edges) add(edge.costs);
  return sum;
}

// Of few choices the best one, exactly: the fewest costs that are not allowed, then the least cost. Empty:
// there are many, or none is feasible.
std::vector<int> best_of_few(const AssignmentProblem& problem) {
  constexpr double kMostWork = 1e6;  // choices, times what they are evaluated from
  double work = static_cast<double>(problem.nodes.size() + problem.edges.size());
  for (const AssignmentNode& node : problem.nodes) work *= static_cast<double>(node.costs.size());
  if (work > kMostWork) return {};
  std::vector<int> best, choice(problem.nodes.size(), 0);
  std::pair<int64_t, WideCost> least;
  for (bool more = true; more;) {
    const Evaluation found = evaluate(problem, choice);
    const std::pair own(found.not_allowed, found.cost);
    if (found.feasible && (best.empty() || own < least)) {
      best = choice;
      least = own;
    }
    more = false;
    for (size_t i = 0; i < choice.size() && !more; ++i) {
      more = ++choice[i] < std::ssize(problem.nodes[i].costs);
      if (!more) choice[i] = 0;
    }
  }
  return best;
}

}  // namespace

AssignmentResult solve(const AssignmentProblem& problem, const SolveOptions& options) {
  const std::vector<std::string> mistakes = problem.validate();
  if (!mistakes.empty()) fail_usage("{}", fmt::join(mistakes, "\n"));
  HET_REQUIRE(options.gap >= 0 && options.gap < 1, options.gap);
  AssignmentResult result;
  if (const std::optional<std::string> why = obviously_infeasible(problem)) {
    result.optimal = true;
    result.why_not = *why;
    return result;
  }
  const Clock clock =
      options.steps > 0 ? Clock::of_steps(options.steps, options.stop) : Clock(options.seconds, options.stop);
  Solving solving(problem, options, clock, result);
  const bool forbidden = has_forbidden(problem);
  // The search without forbidden costs gets most of the time, and goes on to its end once it has found
  // something.
  constexpr double kShareWithout = 0.6;
  Outcome outcome = solving.run(Forbidden::block, forbidden, kShareWithout);
  if (forbidden) {
    const double least = least_forbidden(problem);
    const bool enough =
        !outcome.choice.empty() && static_cast<double>(evaluate(problem, outcome.choice).cost) < least;
    if (!enough) {
      Outcome counted = solving.run(Forbidden::count, false, 1);
      counted.bound = std::max(counted.bound, std::min(outcome.bound, least));
      outcome = std::move(counted);
    }
  }
  // The search and its bound are in doubles: where they cannot hold every sum of costs, the bound is lowered
  // by what they may be wrong by, and proves no optimum; few choices are compared exactly.
  const double sum = magnitude(problem), error = sum > 0x1p53 ? 1e-11 * sum : 0;
  const std::vector<int> best = error > 0 ? best_of_few(problem) : std::vector<int>();
  if (!best.empty()) outcome.choice = best;
  if (!outcome.choice.empty()) {
    const Evaluation found = evaluate(problem, outcome.choice);
    result.feasible = found.feasible;
    result.cost = found.cost;
    result.not_allowed = found.not_allowed;
    result.peak_usage = found.peak_usage;
    result.peak_time = found.peak_time;
    result.choice = std::move(outcome.choice);
  }
  if (error > 0 && result.feasible) outcome.proven = false;
  if (std::isfinite(outcome.bound)) {
    result.has_bound = true;
    result.bound = rounded_up(outcome.bound - error);
    if (result.feasible) result.bound = std::min(result.bound, result.cost);
  }
  if (result.feasible) {
    result.optimal = outcome.proven && result.has_bound && (options.gap == 0 || result.bound == result.cost);
    if (!best.empty()) result.optimal = result.has_bound = true;
    if (result.optimal) result.bound = result.cost;
  } else {
    result.optimal = outcome.proven;
    result.why_not = outcome.proven
                         ? "no choice keeps to the usage limit: proven"
                         : fmt::format("none was found within {}; whether there is one is not known",
                                       options.steps > 0 ? fmt::format("{} steps", options.steps)
                                                         : fmt::format("{} s", options.seconds));
  }
  return result;
}

}  // namespace het::planner::assignment
