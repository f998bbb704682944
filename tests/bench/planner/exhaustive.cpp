// auto against brute force on random small clusters: usage exhaustive [trials] [first seed] [wide]
// `wide`: with tensor-parallel degrees 1 and 2, and two hosts for a type of 4, 6 or 8 devices.
// Seeds whose brute force needs more than kMost simulations are left out and counted.
#include <chrono>
#include <cstdlib>
#include <string_view>

#include <fmt/core.h>

#include "planner/baseline/baseline.h"
#include "planner/policy.h"
#include "tests/unit/planner/random_case.h"

using namespace het;
using namespace het::planner;

constexpr int64_t kMost = 300'000;

int main(int argc, char** argv) {
  const int trials = argc > 1 ? std::atoi(argv[1]) : 300;
  const int first = argc > 2 ? std::atoi(argv[2]) : 1;
  const bool wide = argc > 3 && std::string_view(argv[3]) == "wide";
  double sum = 0, worst = 0, seconds_auto = 0, seconds_exhaustive = 0;
  int solved = 0, neither = 0, missed = 0, better = 0, given_up = 0;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](auto start) { return std::chrono::duration<double>(now() - start).count(); };
  for (int seed = first, done = 0; done < trials; ++seed) {
    const auto number = static_cast<uint64_t>(seed);
    const Request request =
        wide ? het::testing::wide_random_request(number) : het::testing::random_request(number);
    auto start = now();
    Evaluator truth(request);
    const bool finished = plan_exhaustive(truth, kMost);
    const double took = since(start);
    seconds_exhaustive += took;
    if (!finished) {
      ++given_up;
      continue;
    }
    ++done;
    start = now();
    const Planned found = plan_with(request, "auto");
    seconds_auto += since(start);
    if (!truth.best().feasible()) {
      ++neither;
      better += found.feasible;
      continue;
    }
    if (!found.feasible) {
      ++missed;
      fmt::print("seed {}: auto finds no plan, exhaustive does\n{}\n", seed,
                 to_lua(to_plan(truth.best().layout, request.cluster)));
      continue;
    }
    const double gap = found.best.simulation.seconds / truth.best().simulation.seconds - 1;
    ++solved;
    sum += gap;
    if (gap > worst) worst = gap;
    if (gap > 0.005)
      fmt::print("seed {}: gap {:.2f} % ({} layers, batch {})\nauto {}\nexhaustive {}\n", seed, 100 * gap,
                 request.model.count(), request.batch, to_lua(found.plan),
                 to_lua(to_plan(truth.best().layout, request.cluster)));
    std::fflush(stdout);
  }
  fmt::print(
      "{{\"exhaustive_trials\": {}, \"left_out\": {}, \"solved\": {}, \"infeasible_for_both\": {}, "
      "\"missed\": {}, "
      "\"feasible_only_for_auto\": {}, \"exhaustive_mean_gap\": {:.5f}, \"exhaustive_worst_gap\": {:.5f}, "
      "\"seconds_auto\": {:.2f}, \"seconds_exhaustive\": {:.2f}}}\n",
      trials, given_up, solved, neither, missed, better, solved > 0 ? sum / solved : 0, worst, seconds_auto,
      seconds_exhaustive);
  return missed == 0 ? 0 : 1;
}
