// Lower bounds of a network, and prices of its rows: the Lagrangian dual. Rows are relaxed at a price for
// each unit of usage; what is left is minimised by elimination, exactly where its tables are small, else as a
// bound that reparametrisation tightens. The prices rise by subgradient steps (Polyak's length).
#pragma once

#include <functional>
#include <vector>

#include "planner/assignment/clock.h"
#include "planner/assignment/elimination.h"
#include "planner/assignment/network.h"

namespace het::planner::assignment {

// Move costs between variables and pairs so that the sum of all least costs rises; no choice's cost changes.
// `extra` (flat, by variable) is added to the variables' costs meanwhile. Kolmogorov, "A new look at
// reweighted message passing", 2015. Returns the sum of the least costs.
double reparametrise(Network& network, const std::vector<double>& extra, int sweeps, const Clock& clock);

class Dual {
 public:
  // `network` outlives it; its costs are reparametrised.
  Dual(Network& network, Random& random, double most_entries, const Clock& clock);

  // Begin at these prices.
  void set_prices(const std::vector<double>& prices);
  // Reparametrise the network at the best prices.
  void tighten(int sweeps, const Clock& clock);

  // What a minimiser at the current prices is given to; it returns the best cost known (kBlocked: none).
  using Offer = std::function<double(const std::vector<int>& choice, bool fits)>;
  // Raise the bound until the clock has run out or nothing is gained.
  void run(const Clock& clock, const Offer& offer, double gap = 0);

  double bound() const { return bound_; }  // proven; includes the network's constant
  const std::vector<double>& prices() const { return best_prices_; }
  bool exact() const { return elimination_.exact(); }
  // Minimise at the best prices; then elimination() may be walked. `bound`: of this minimum. False: out of
  // time.
  bool solve_at_best(const Clock& clock, std::vector<int>& choice, double& bound);
  // Minimise at prices that differ from the best ones by chance, and are as high as it takes for the choice
  // to fit (within limits): a start for a search. False: out of time.
  bool solve_nearby(Random& random, const Clock& clock, std::vector<int>& choice);
  const Elimination& elimination() const { return elimination_; }

 private:
  bool evaluate(const std::vector<double>& prices, std::vector<int>& choice, double& value,
                const Clock& clock);

  Network& network_;
  Elimination elimination_;
  std::vector<double> prices_, best_prices_, unary_;
  double bound_;
  double reach_ = 0;
};

}  // namespace het::planner::assignment
