// Branch and bound along an elimination: variables are decided in its reverse order, each by what its
// strategies add to the lower bound, and no row may be exceeded.
#pragma once

#include <functional>
#include <vector>

#include "planner/assignment/clock.h"
#include "planner/assignment/elimination.h"
#include "planner/assignment/network.h"

namespace het::planner::assignment {

struct Branching {
  const Elimination* elimination = nullptr;          // after its run()
  std::vector<const std::vector<UsageItem>*> items;  // by variable of the elimination
  std::vector<int64_t> room;                         // of each row; what held variables use is taken off
  std::vector<int> choice;                           // has the strategies of held variables
  double bound = 0;                                  // of the elimination's run, in units of the best cost
  double best = 0;                                   // only choices that cost less by `least_gain` are wanted
  double least_gain = 0;
  double gap = 0;  // relative to the best cost: smaller gains are ignored
  int64_t most_nodes = 0;
};

// Calls offer(choice) with choices that fit and may cost less; it returns the best cost now. True: no choice
// costs less than the best by the wanted gain, proven; false: most_nodes or the clock ended it.
bool branch_and_bound(Branching branching, const Clock& clock,
                      const std::function<double(const std::vector<int>& choice)>& offer);

}  // namespace het::planner::assignment
