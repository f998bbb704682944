// Whether the order of plans depends on link speeds: how many pairs of plans of one model and batch change
// their order when the links have other values that they may plausibly have. Pure.
#pragma once

#include <string>
#include <vector>

#include "planner/simulate/sensitivity.h"

namespace het::planner {

struct RankedPlan {
  std::string name;
  LinkSpread links;  // with its seconds; the same cases for all
};

// Predictions nearer than this, as a share, have no order.
inline constexpr double kTie = 0.01;

struct RankingCase {
  double bandwidth = 1, latency = 1;  // of all links, as multiples
  int changed = 0;                    // pairs of plans whose order is another
  std::string fastest;                // plan
};
struct Ranking {
  std::string model;
  int batch = 0;
  int plans = 0, pairs = 0;  // pairs: that have an order
  std::string fastest;
  std::vector<RankingCase> cases;
  bool depends_on_links() const;
};

// Of plans of one model and batch, one at least.
Ranking rank(const std::vector<RankedPlan>& plans, std::string model, int batch);

// A sentence of a ranking that depends on link speeds.
std::string to_text(const Ranking& ranking);

}  // namespace het::planner
