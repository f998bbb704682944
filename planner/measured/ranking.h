// Whether the order of measured plans hangs on the links: how many pairs of plans of one model and batch
// change their order when the links have other values that they may plausibly have. Pure.
#pragma once

#include <string>
#include <vector>

namespace het::planner {

struct MeasuredPlan;

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
  bool hangs_on_links() const;
};

// Of each model and batch with two predicted plans or more.
std::vector<Ranking> rank(const std::vector<MeasuredPlan>& plans);

// A sentence of a ranking that hangs on the links.
std::string to_text(const Ranking& ranking);

}  // namespace het::planner
