#include "planner/migrate/flow.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "planner/milp.h"

namespace het::planner {
namespace {

constexpr double kSlack = 1e-9;  // of a time, for rounding

size_t limits_of(const std::vector<FlowDemand>& demands) {
  int most = -1;
  for (const FlowDemand& demand : demands)
    for (const FlowChoice& choice : demand)
      for (const FlowUse& use : choice.uses) most = std::max(most, use.limit);
  return static_cast<size_t>(most + 1);
}

double longest(const std::vector<double>& seconds) {
  return seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end());
}

// Variable 0 is the time in units of `unit` (the solver's tolerances are absolute), then a share for each
// choice.
LinearProgram program_of(const std::vector<FlowDemand>& demands, double unit) {
  LinearProgram program;
  const int time = program.add(Variable{0, kNoBound, 1});
  std::vector<Row> served;
  std::map<int, Row> busy;  // by limit
  for (const FlowDemand& demand : demands) {
    Row& row = served.emplace_back();
    row.lower = row.upper = 1;
    for (const FlowChoice& choice : demand) {
      const int share = program.add(Variable{0, 1, 0});
      row.terms.emplace_back(share, 1);
      for (const FlowUse& use : choice.uses) busy[use.limit].terms.emplace_back(share, use.seconds / unit);
    }
  }
  for (Row& row : served) program.add(std::move(row));
  for (auto& [limit, row] : busy) {
    row.terms.emplace_back(time, -1);
    row.upper = 0;
    program.add(std::move(row));
  }
  return program;
}

// The program again, with the time at most what it need be, for the least cost.
LinearSolution cheapest(LinearProgram program, const std::vector<FlowDemand>& demands, double time) {
  double unit = 0;
  for (const FlowDemand& demand : demands)
    for (const FlowChoice& choice : demand) unit = std::max(unit, choice.cost);
  if (unit == 0) return {};
  program.variables[0].cost = 0;
  program.variables[0].upper = time * (1 + kSlack);
  size_t variable = 1;
  for (const FlowDemand& demand : demands)
    for (const FlowChoice& choice : demand) program.variables[variable++].cost = choice.cost / unit;
  return solve(program);
}

Flow exact(const std::vector<FlowDemand>& demands) {
  double unit = 0;
  for (const FlowDemand& demand : demands)
    for (const FlowChoice& choice : demand)
      for (const FlowUse& use : choice.uses) unit = std::max(unit, use.seconds);
  if (unit == 0) unit = 1;  // nothing takes time
  const LinearProgram program = program_of(demands, unit);
  LinearSolution solution = solve(program);
  HET_REQUIRE(solution.feasible);
  Flow flow;
  const double time = std::max(0.0, solution.objective);
  flow.seconds = flow.bound_seconds = time * unit;
  if (LinearSolution less = cheapest(program, demands, time); less.feasible) solution = std::move(less);
  size_t variable = 1;
  for (const FlowDemand& demand : demands) {
    std::vector<double>& shares = flow.shares.emplace_back(demand.size());
    for (double& share : shares) share = std::clamp(solution.values[variable++], 0.0, 1.0);
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= sum;
  }
  return flow;
}

// Serves demands round by round; later rounds, which know the limits better, give larger parts.
class Rounds {
 public:
  explicit Rounds(const std::vector<FlowDemand>& demands)
      : demands_(demands), seconds_(limits_of(demands)), weights_(seconds_.size()) {
    for (const FlowDemand& demand : demands) shares_.emplace_back(demand.size());
  }

  Flow run() {
    double served = 0;  // of each demand
    weights_.assign(weights_.size(), 1);
    bound_ = bound();
    for (int round = 1; round <= kRounds; ++round) {
      const double part = round;
      weigh(std::min(0.5 * round, kSharpest), served + part);
      bound_ = std::max(bound_, bound());
      average(part);
      for (size_t d = 0; d < demands_.size(); ++d) serve(d, part);
      served += part;
    }
    weights_ = averages_;
    bound_ = std::max(bound_, bound());
    for (double& seconds : seconds_) seconds /= served;
    for (std::vector<double>& shares : shares_)
      for (double& share : shares) share /= served;
    const double seconds = longest(seconds_);
    for (size_t d = 0; d < demands_.size(); ++d) lower_cost(d, seconds);
    return {std::move(shares_), seconds, std::min(bound_, seconds)};
  }

 private:
  static constexpr int kRounds = 240;
  static constexpr double kSharpest = 100;  // the weight of the busiest limit is e^this that of an idle one

  // How much a second of each limit counts, from how busy it is: the busiest's counts as 1. `served`: of each
  // demand, at the end of the round.
  void weigh(double sharpness, double served) {
    const double most = longest(seconds_), time = std::max(most, bound_ * served);
    scale_ = time > 0 ? sharpness / time : 0;
    for (size_t l = 0; l < weights_.size(); ++l) weights_[l] = std::exp(scale_ * (seconds_[l] - most));
  }

  // Weights of one round jump; their average over the rounds proves more.
  void average(double part) {
    double sum = 0;
    for (const double weight : weights_) sum += weight;
    averages_.resize(weights_.size());
    for (size_t l = 0; l < weights_.size(); ++l) averages_[l] += part * weights_[l] / sum;
  }

  double weight_of(const FlowChoice& choice) const {
    double sum = 0;
    for (const FlowUse& use : choice.uses) sum += use.seconds * weights_[static_cast<size_t>(use.limit)];
    return sum;
  }

  size_t lightest(const FlowDemand& demand) const {
    size_t best = 0;
    double least = weight_of(demand[0]);
    for (size_t c = 1; c < demand.size() && least > 0; ++c) {
      const double weight = weight_of(demand[c]);
      if (weight < least || (weight == least && demand[c].cost < demand[best].cost)) {
        best = c;
        least = weight;
      }
    }
    return best;
  }

  // In steps that change no weight by much.
  void serve(size_t d, double part) {
    for (double left = part; left > 0;) {
      const size_t best = lightest(demands_[d]);
      double step = left;
      for (const FlowUse& use : demands_[d][best].uses)
        if (scale_ * use.seconds > 0) step = std::min(step, 0.5 / (scale_ * use.seconds));
      step = std::min(left, std::max(step, part / 64));
      shares_[d][best] += step;
      for (const FlowUse& use : demands_[d][best].uses) {
        const auto l = static_cast<size_t>(use.limit);
        seconds_[l] += step * use.seconds;
        weights_[l] *= std::exp(std::min(1.0, scale_ * step * use.seconds));
      }
      left -= step;
    }
  }

  // The busiest limit is at least as busy as the average by weight, and that is least when each demand goes
  // its lightest way.
  double bound() const {
    double least = 0, sum = 0;
    for (const FlowDemand& demand : demands_) least += weight_of(demand[lightest(demand)]);
    for (const double weight : weights_) sum += weight;
    return sum > 0 ? least / sum : 0;
  }

  // From dearer ways to cheaper ones, as far as no limit gets busier than the busiest.
  void lower_cost(size_t d, double most) {
    const FlowDemand& demand = demands_[d];
    std::vector<double>& shares = shares_[d];
    std::vector<size_t> order(demand.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return demand[a].cost < demand[b].cost; });
    for (size_t to = 0; to < order.size(); ++to)
      for (size_t from = order.size();
           from-- > to + 1 && demand[order[from]].cost > demand[order[to]].cost;) {
        const FlowChoice &dear = demand[order[from]], &cheap = demand[order[to]];
        double moved = shares[order[from]];
        for (const FlowUse& use : cheap.uses)
          if (const double more = use.seconds - seconds_of(dear, use.limit); more > 0)
            moved = std::min(moved, (most - seconds_[static_cast<size_t>(use.limit)]) / more);
        if (moved <= 0) continue;
        shares[order[from]] -= moved;
        shares[order[to]] += moved;
        add(dear, -moved);
        add(cheap, moved);
      }
  }

  static double seconds_of(const FlowChoice& choice, int limit) {
    for (const FlowUse& use : choice.uses)
      if (use.limit == limit) return use.seconds;
    return 0;
  }

  void add(const FlowChoice& choice, double share) {
    for (const FlowUse& use : choice.uses) seconds_[static_cast<size_t>(use.limit)] += share * use.seconds;
  }

  const std::vector<FlowDemand>& demands_;
  std::vector<std::vector<double>> shares_;
  std::vector<double> seconds_, weights_, averages_;  // by limit
  double scale_ = 0, bound_ = 0;
};

}  // namespace

Flow least_time_flow(const std::vector<FlowDemand>& demands, size_t exact_choices) {
  size_t choices = 0;
  for (const FlowDemand& demand : demands) {
    HET_REQUIRE(!demand.empty());
    choices += demand.size();
  }
  if (demands.empty()) return {};
  return choices <= exact_choices ? exact(demands) : Rounds(demands).run();
}

}  // namespace het::planner
