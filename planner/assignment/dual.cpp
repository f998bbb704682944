#include "planner/assignment/dual.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace het::planner::assignment {
namespace {

PairModel model_of(const Network& network) {
  PairModel model;
  for (const NetworkVariable& variable : network.variables)
    model.sizes.push_back(static_cast<int>(variable.cost.size()));
  for (const PairCost& pair : network.pairs) model.pairs.push_back({pair.a, pair.b, pair.cost.data()});
  return model;
}

// What sums of so many doubles of this size can be wrong by, generously.
double rounding(double magnitude) { return 1e-11 * magnitude + 1e-7; }

// One pass of reweighted message passing over the variables in order, or in the reverse order.
class Sweep {
 public:
  Sweep(Network& network, const std::vector<double>& extra)
      : network_(network), extra_(extra), incident_(network.variables.size()) {
    for (size_t e = 0; e < network.pairs.size(); ++e) {
      incident_[static_cast<size_t>(network.pairs[e].a)].push_back(static_cast<int>(e));
      incident_[static_cast<size_t>(network.pairs[e].b)].push_back(static_cast<int>(e));
    }
    offsets_.push_back(0);
    for (const NetworkVariable& variable : network.variables)
      offsets_.push_back(offsets_.back() + variable.cost.size());
  }

  // A pass that the clock ends early is half of one: costs are right at every moment.
  void pass(bool forward, const Clock& clock) {
    const size_t count = network_.variables.size();
    for (size_t i = 0; i < count; ++i) {
      visit(forward ? i : count - 1 - i, forward);
      if ((i & 1023) == 1023 && clock.passed()) return;
    }
  }

  double value() const {
    double sum = network_.constant;
    for (size_t v = 0; v < network_.variables.size(); ++v) {
      double least = std::numeric_limits<double>::infinity();
      for (size_t s = 0; s < network_.variables[v].cost.size(); ++s)
        least = std::min(least, network_.variables[v].cost[s] + extra_[offsets_[v] + s]);
      sum += least;
    }
    for (const PairCost& pair : network_.pairs) sum += *std::min_element(pair.cost.begin(), pair.cost.end());
    return sum;
  }

 private:
  void visit(size_t v, bool forward) {
    std::vector<double>& cost = network_.variables[v].cost;
    const std::vector<int>& pairs = incident_[v];
    if (pairs.empty() || cost.size() < 2) return;
    int ahead = 0;
    for (const int e : pairs) {
      pull(network_.pairs[static_cast<size_t>(e)], v, cost);
      ahead += is_ahead(e, v, forward) ? 1 : 0;
    }
    if (ahead == 0) return;
    const double share = 1.0 / std::max(ahead, static_cast<int>(pairs.size()) - ahead);
    given_.resize(cost.size());
    double least = std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < cost.size(); ++s) {
      given_[s] = cost[s] + extra_[offsets_[v] + s];
      least = std::min(least, given_[s]);
    }
    // The least stays with the variable: only differences matter to the neighbours.
    for (size_t s = 0; s < cost.size(); ++s) {
      given_[s] = is_blocked(cost[s]) ? 0 : share * (given_[s] - least);
      cost[s] -= ahead * given_[s];
    }
    for (const int e : pairs)
      if (is_ahead(e, v, forward)) push(network_.pairs[static_cast<size_t>(e)], v);
  }
  bool is_ahead(int e, size_t v, bool forward) const {
    const PairCost& pair = network_.pairs[static_cast<size_t>(e)];
    const auto u = static_cast<size_t>(static_cast<size_t>(pair.a) == v ? pair.b : pair.a);
    return forward ? u > v : u < v;
  }

  // The least of the pair's costs by strategy of v goes to v.
  void pull(PairCost& pair, size_t v, std::vector<double>& cost) {
    const size_t own = cost.size(), other = pair.cost.size() / own;
    least_.assign(own, std::numeric_limits<double>::infinity());
    if (static_cast<size_t>(pair.a) == v) {
      for (size_t s = 0; s < own; ++s) {
        double* row = pair.cost.data() + s * other;
        double least = row[0];
        for (size_t t = 1; t < other; ++t) least = std::min(least, row[t]);
        if (is_blocked(least)) continue;
        cost[s] += least;
        for (size_t t = 0; t < other; ++t) row[t] -= least;
      }
    } else {
      for (size_t t = 0; t < other; ++t)
        for (size_t s = 0; s < own; ++s) least_[s] = std::min(least_[s], pair.cost[t * own + s]);
      for (size_t s = 0; s < own; ++s) {
        if (is_blocked(least_[s])) least_[s] = 0;
        cost[s] += least_[s];
      }
      for (size_t t = 0; t < other; ++t)
        for (size_t s = 0; s < own; ++s) pair.cost[t * own + s] -= least_[s];
    }
  }
  void push(PairCost& pair, size_t v) {
    const size_t own = given_.size(), other = pair.cost.size() / own;
    if (static_cast<size_t>(pair.a) == v) {
      for (size_t s = 0; s < own; ++s)
        for (size_t t = 0; t < other; ++t) pair.cost[s * other + t] += given_[s];
    } else {
      for (size_t t = 0; t < other; ++t)
        for (size_t s = 0; s < own; ++s) pair.cost[t * own + s] += given_[s];
    }
  }

  Network& network_;
  const std::vector<double>& extra_;
  std::vector<std::vector<int>> incident_;
  std::vector<size_t> offsets_;
  std::vector<double> least_, given_;
};

// What usage costs at these prices, flat by variable and strategy.
std::vector<double> priced(const Network& network, const std::vector<double>& prices) {
  std::vector<double> before(prices.size() + 1, 0.0), result;
  std::partial_sum(prices.begin(), prices.end(), before.begin() + 1);
  for (const NetworkVariable& variable : network.variables) {
    const size_t at = result.size();
    result.resize(at + variable.cost.size(), 0.0);
    for (const UsageItem& item : variable.items) {
      const double all = before[static_cast<size_t>(item.last)] - before[static_cast<size_t>(item.first)];
      for (size_t s = 0; s < item.use.size(); ++s) result[at + s] += all * static_cast<double>(item.use[s]);
    }
  }
  return result;
}

}  // namespace

double reparametrise(Network& network, const std::vector<double>& extra, int sweeps, const Clock& clock) {
  Sweep sweep(network, extra);
  double value = sweep.value();
  for (int i = 0; i < sweeps && !clock.passed(); ++i) {
    sweep.pass(true, clock);
    sweep.pass(false, clock);
    const double now = sweep.value();
    constexpr double kLeastGain = 1e-6;
    if (now - value <= kLeastGain * std::abs(now)) return std::max(now, value);
    value = now;
  }
  return value;
}

Dual::Dual(Network& network, Random& random, double most_entries, const Clock& clock)
    : network_(network),
      elimination_(model_of(network), most_entries, TooLarge::split, random, &clock, 6e7),
      prices_(network.capacity.size(), 0.0),
      best_prices_(prices_),
      bound_(-std::numeric_limits<double>::infinity()) {}

void Dual::set_prices(const std::vector<double>& prices) { prices_ = best_prices_ = prices; }

void Dual::tighten(int sweeps, const Clock& clock) {
  reparametrise(network_, priced(network_, best_prices_), sweeps, clock);
}

bool Dual::evaluate(const std::vector<double>& prices, std::vector<int>& choice, double& value,
                    const Clock& clock) {
  unary_ = priced(network_, prices);
  double magnitude = std::abs(network_.constant);
  size_t at = 0;
  for (const NetworkVariable& variable : network_.variables)
    for (const double cost : variable.cost) unary_[at++] += cost;
  choice.assign(network_.variables.size(), 0);
  double least = 0;
  if (!elimination_.run(unary_, choice, clock, least)) return false;
  magnitude += std::abs(least);
  value = least + network_.constant;
  for (size_t row = 0; row < prices.size(); ++row) {
    const double relaxed = prices[row] * static_cast<double>(network_.capacity[row]);
    value -= relaxed;
    magnitude += relaxed;
  }
  value -= rounding(magnitude);
  return true;
}

bool Dual::solve_at_best(const Clock& clock, std::vector<int>& choice, double& bound) {
  return evaluate(best_prices_, choice, bound, clock);
}

bool Dual::solve_nearby(Random& random, const Clock& clock, std::vector<int>& choice) {
  // Equal layers would all switch at the same price, and only all or none of them fit: so each variable has a
  // factor, and so has each part of the rows.
  constexpr double kSpreads[] = {0.003, 0.02, 0.1, 0.3}, kPartSpread = 0.15;
  constexpr size_t kParts = 8;
  const double spread = kSpreads[random.below(std::size(kSpreads))];
  double factors[kParts];
  for (double& factor : factors) factor = 1 + kPartSpread * (random.uniform() - 0.5);
  std::vector<double> prices = best_prices_;
  for (size_t row = 0; row < prices.size(); ++row) prices[row] *= factors[row * kParts / prices.size()];
  std::vector<double> usage = priced(network_, prices);
  size_t at = 0;
  for (const NetworkVariable& variable : network_.variables) {
    const double factor = 1 + spread * (random.uniform() - 0.5);
    for (size_t s = 0; s < variable.cost.size(); ++s) usage[at++] *= factor;
  }
  // The lowest level of prices at which the choice fits, by bisection; or the highest that was tried.
  constexpr int kTries = 6;
  double low = 0.9, high = 1.3, unused = 0;
  bool fitting = false;
  std::vector<int> tried;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const double level = fitting ? (low + high) / 2 : attempt == 0 ? 1.05 : high;
    unary_ = usage;
    at = 0;
    for (const NetworkVariable& variable : network_.variables)
      for (const double cost : variable.cost) {
        unary_[at] = level * unary_[at] + cost;
        ++at;
      }
    tried.assign(network_.variables.size(), 0);
    if (!elimination_.run(unary_, tried, clock, unused)) return false;
    const bool fits_now = fits(network_, usage_of(network_, tried));
    if (fits_now || !fitting) choice = tried;
    if (fits_now) {
      fitting = true;
      high = level;
    } else {
      low = level;
      if (!fitting) high = std::max(high, level) * 1.5;
    }
  }
  return true;
}

void Dual::run(const Clock& clock, const Offer& offer, double gap) {
  const size_t rows = prices_.size();
  std::vector<double> direction(rows, 0.0), gradient(rows);
  std::vector<int> choice;
  double best_known = kBlocked;
  // The bound's next aim is so far above it: farther when it gets there, nearer when it does not.
  double reach = reach_;
  int stale = 0;
  double boost = 2;
  prices_ = best_prices_;
  for (int iteration = 0; !clock.passed(); ++iteration) {
    double value = 0;
    if (!evaluate(prices_, choice, value, clock)) return;
    const std::vector<int64_t> usage = usage_of(network_, choice);
    best_known = std::min(best_known, offer(choice, fits(network_, usage)));
    // While the best choice is far from the bound: prices that are too high may give a better one that fits.
    constexpr int kTry = 4;
    constexpr double kFar = 0.03;
    if (rows > 0 && iteration % kTry == kTry - 1 && best_known > bound_ + kFar * std::abs(bound_)) {
      std::vector<double> boosted = prices_;
      for (double& price : boosted) price *= boost;
      std::vector<int> careful;
      double unused = 0;
      if (!evaluate(boosted, careful, unused, clock)) return;
      const bool careful_fits = fits(network_, usage_of(network_, careful));
      best_known = std::min(best_known, offer(careful, careful_fits));
      constexpr double kLower = 0.6, kHigher = 2;
      boost = 1 + (boost - 1) * (careful_fits ? kLower : kHigher);
    }
    const bool known = !is_blocked(best_known);
    const double gained = iteration == 0 ? 0 : value - bound_;
    if (value > bound_) {
      bound_ = value;
      best_prices_ = prices_;
    }
    constexpr double kProven = 0.999;  // costs are whole numbers
    if (known && bound_ >= best_known - wanted_gain(best_known, kProven, gap)) return;
    if (rows == 0) {
      if (elimination_.exact()) return;
      const double before = bound_;
      constexpr int kSweeps = 20, kFewest = 3;
      reparametrise(network_, priced(network_, prices_), kSweeps, clock);
      if (iteration >= kFewest && gained <= 1e-6 * std::abs(before)) return;
      continue;
    }
    constexpr double kFirstReach = 0.02, kFirstShare = 0.25;
    if (reach <= 0) reach = known ? kFirstShare * (best_known - value) : kFirstReach * std::abs(value) + 1;
    constexpr double kFarther = 1.5, kNearer = 0.5, kPart = 0.2;
    constexpr int kPatience = 5;
    if (iteration > 0) {
      if (gained >= kPart * reach) {
        reach *= kFarther;
        stale = 0;
      } else if (++stale >= kPatience || -gained > 3 * reach) {
        reach *= kNearer;
        stale = 0;
        prices_ = best_prices_;
        std::fill(direction.begin(), direction.end(), 0.0);
        reach_ = reach;
        constexpr double kShortest = 1e-6;
        if (reach < kShortest * std::abs(bound_) && known) return;
        // Costs move towards what the new prices need.
        constexpr int kSweeps = 5;
        if (!elimination_.exact()) reparametrise(network_, priced(network_, prices_), kSweeps, clock);
        if (!evaluate(prices_, choice, value, clock)) return;
        if (value > bound_) bound_ = value;
      }
    }
    if (known) reach = std::min(reach, best_known - bound_);
    reach_ = reach;
    const std::vector<int64_t> now = usage_of(network_, choice);
    double norm = 0;
    constexpr double kKeep = 0.5;  // of the last direction
    for (size_t row = 0; row < rows; ++row) {
      gradient[row] = static_cast<double>(now[row]) - static_cast<double>(network_.capacity[row]);
      direction[row] = gradient[row] + kKeep * direction[row];
      if (direction[row] < 0 && prices_[row] <= 0) direction[row] = 0;
      norm += direction[row] * direction[row];
    }
    if (norm <= 0) {
      // Nothing exceeds, and no price can sink: these prices are the best; the bound of split tables may
      // still rise.
      constexpr int kSweeps = 20;
      constexpr double kLeastGain = 1e-6;
      if (elimination_.exact() || (iteration > 2 && gained <= kLeastGain * std::abs(bound_))) return;
      reparametrise(network_, priced(network_, prices_), kSweeps, clock);
      continue;
    }
    const double step = std::max(bound_ + reach - value, 0.0) / norm;
    for (size_t row = 0; row < rows; ++row)
      prices_[row] = std::max(0.0, prices_[row] + step * direction[row]);
  }
}

}  // namespace het::planner::assignment
