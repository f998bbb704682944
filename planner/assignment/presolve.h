// Makes a network smaller without losing its optimum: strategies that cannot be chosen or that another one
// dominates, variables that another one determines, variables without usage and with at most two neighbours,
// rows that cannot be exceeded. What is left is solved; expand() gives the choice of the whole network back.
#pragma once

#include <vector>

#include "planner/assignment/clock.h"
#include "planner/assignment/network.h"

namespace het::planner::assignment {

class Reduction {
 public:
  // Reduces `network`. Stops early, with what is done, when the clock has run out.
  Reduction(Network network, const Clock& clock);

  bool infeasible() const { return infeasible_; }  // proven: no choice is allowed
  const Network& network() const { return reduced_; }
  Network take_network() { return std::move(reduced_); }  // network() is empty afterwards
  // The choice of every variable of the whole network, from one of the reduced network.
  std::vector<int> expand(const std::vector<int>& choice) const;

 private:
  friend class Presolve;
  struct Step {
    enum class Kind { restrict, merge, eliminate } kind;
    int variable = 0;
    // restrict: kept strategies by new number. merge: the strategy by that of `first`.
    // eliminate: the strategy by those of `first` and `second` (-1: none).
    std::vector<int> table;
    int first = -1, second = -1, second_size = 1;
  };

  bool infeasible_ = false;
  Network reduced_;
  size_t variables_ = 0;   // of the whole network
  std::vector<int> kept_;  // by variable of the reduced network: that of the whole
  std::vector<Step> steps_;
};

}  // namespace het::planner::assignment
